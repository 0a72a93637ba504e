"""Random faults on one partition, with rows that the leader rejects: no row is lost, repeated or out of order without an error."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import ProduceResponse
from kafka_eos_sink.protocol.record_batch import read_record_batches

RUNS = 100
"""Of each of six tests."""
REMEMBERED_BATCHES = 5
"""Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN."""


class Leader:
    """Appends batches, and checks them in the order of Kafka's ``UnifiedLog``: size, records, duplicate, epoch, sequence."""

    def __init__(self, rejected: set[int], most_records: int, *, names_records: bool) -> None:
        self.rows: list[int] = []
        self.rejected = rejected
        self._most_records = most_records
        self._names_records = names_records
        self._epoch, self._sequence = 3, 0
        self._newest: deque[tuple[tuple[int, int, int], int]] = deque(maxlen=REMEMBERED_BATCHES)

    def append(self, octets: bytes) -> dict[str, Any]:
        """Return the arguments of the response."""
        (batch,) = read_record_batches(octets)
        rows = [int(record.value or b"") for record in batch.records]
        named = [at for at, row in enumerate(rows) if row in self.rejected]
        if len(rows) > self._most_records or (named and not self._names_records):
            return {"codes": ErrorCode.MESSAGE_TOO_LARGE}
        if named:
            errors = tuple(ProduceResponse.Topic.Partition.RecordError(batch_index=at) for at in named)
            return {"codes": ErrorCode.INVALID_RECORD, "record_errors": errors}
        key = batch.producer_epoch, batch.base_sequence, len(rows)
        if key not in dict(self._newest):
            if batch.producer_epoch < self._epoch:
                return {"codes": ErrorCode.INVALID_PRODUCER_EPOCH}
            if batch.base_sequence != (self._sequence if batch.producer_epoch == self._epoch else 0):
                return {"codes": ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
            self._newest.append((key, len(self.rows)))
            self._epoch, self._sequence = batch.producer_epoch, batch.base_sequence + len(rows)
            self.rows += rows
        return {"codes": ErrorCode.NONE, "base_offset": dict(self._newest)[key]}


class Run:
    """Batches of one to three rows, and what happens to their requests."""

    def __init__(self, bench: Any, answer: Callable[..., Any], seed: int, transactional_id: str | None) -> None:
        self.random = random.Random(seed)
        self.bench = bench(
            transactional_id=transactional_id, dead_letter_topic="dlq", max_in_flight=self.random.choice([1, 5, 5])
        )
        self.answer = answer
        largest = self.random.choice([1, 1, 3])
        self.sizes = [self.random.randint(1, largest) for _ in range(self.random.randint(3, 14))]
        self.share = self.random.choice([0, 0.3])
        self.rows = sum(self.sizes)
        self.leader = Leader(
            self._some_rows(), self.random.choice([2, 100]), names_records=self.random.choice([True, False])
        )
        self.rejected = set(self.leader.rejected)
        """By any leader."""
        self.faults = self.random.choice([0.1, 0.3])
        self.late: list[bytes] = []
        """Requests of broken connections, which the leader may process at any later time."""

    def _some_rows(self) -> set[int]:
        return {row for row in range(self.rows) if self.random.random() < self.share}

    def to_end(self) -> bool:
        """Return False if the producer has raised an error."""
        added = 0
        for _ in range(1_000):
            if self.bench.sender.failure is not None:
                return False
            if added < len(self.sizes) and self.random.random() < 0.4:
                self.bench.batch(count=self.sizes[added], first=sum(self.sizes[:added]))
                added += 1
                self.bench.sender.run_once(0)
            elif self.late and self.random.random() < 0.2:
                self.leader.append(self.late.pop(self.random.randrange(len(self.late))))
            elif self.bench.client.sent:
                self._respond()
            elif added == len(self.sizes) and self.bench.accumulator.idle:
                return True
            else:
                self.bench.turn(ms=2_000)
        raise AssertionError("the producer is stuck")

    def _respond(self) -> None:
        chance, client = self.random.random(), self.bench.client
        if chance < self.faults:
            processed = self.random.randint(0, len(client.sent))
            for at in range(len(client.sent)):
                octets = client.bytes_of()["t", 0]
                if at < processed:
                    self.leader.append(octets)
                elif self.random.random() < 0.9:
                    self.late.append(octets)
                client.lose()
        elif chance < 1.5 * self.faults:
            client.answer(self.answer(ErrorCode.NOT_ENOUGH_REPLICAS))
        else:
            found = self.leader.append(client.bytes_of()["t", 0])
            if found["codes"] is ErrorCode.NONE and chance < 1.7 * self.faults:
                found = {"codes": ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
            elif found["codes"] is ErrorCode.NONE and chance < 2 * self.faults:
                # The leader loses its role after the append. Its successor has the batch, and rejects other rows.
                found = {"codes": ErrorCode.NOT_LEADER_OR_FOLLOWER}
                self.leader.rejected = self._some_rows()
                self.rejected |= self.leader.rejected
            client.answer(self.answer(**found))
        self.bench.turn(ms=self.random.choice([0, 50, 2_000]))


@pytest.mark.parametrize("transactional_id", ["tx", None])
@pytest.mark.parametrize("first_seed", range(0, 3 * RUNS, RUNS))
def test_rows_are_exact_or_the_attempt_fails(
    bench: Any, answer: Any, transactional_id: str | None, first_seed: int
) -> None:
    for seed in range(first_seed, first_seed + RUNS):
        run = Run(bench, answer, seed, transactional_id)
        if not run.to_end():
            continue
        dead = [row for found in run.bench.sender.rejected for row in found.rows.row_numbers.tolist()]
        assert set(dead) <= run.rejected, f"seed {seed}"
        rows = run.leader.rows
        # Without a transaction, a new epoch may repeat rows (at-least-once).
        if transactional_id is not None or run.bench.transactions.producer_epoch == 3:
            assert sorted(rows + dead) == list(range(run.rows)), f"seed {seed}"
            assert rows == sorted(rows), f"seed {seed}"
        else:
            assert set(rows) | set(dead) == set(range(run.rows)), f"seed {seed}"
        assert run.bench.accumulator.used_bytes == 0
