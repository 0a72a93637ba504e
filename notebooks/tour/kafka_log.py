"""What Kafka itself knows of a batch: its offsets while it is written, and its transactions in the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.commit.transactional_id import driver_transactional_id, parse
from kafka_eos_sink.commit.values import DEFAULT_TOPIC, log_partition_of
from kafka_eos_sink.protocol.record_batch import CONTROL_COMMIT, RecordBatch, read_record_batches
from tour.orders import version_of

_DEADLINE_MS = 60_000
_PAUSE_S = 0.004


@dataclass(frozen=True, slots=True)
class Sample:
    """Offsets of a topic, summed over its partitions and counted from the first sample; ``at_ms`` since 1970."""

    at_ms: float
    last_stable: int
    high_watermark: int


class OffsetSampler:
    """Lists the offsets of a topic again and again while its block runs, by confluent-kafka."""

    def __init__(self, servers: str, topic: str) -> None:
        self.samples: list[Sample] = []
        self._admin = AdminClient({"bootstrap.servers": servers})
        partitions = self._admin.list_topics(topic, timeout=10).topics[topic].partitions
        self._latest = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}  # type: ignore[no-untyped-call]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="offsets", daemon=True)

    def __enter__(self) -> OffsetSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        first = self._offsets(IsolationLevel.READ_COMMITTED)
        while True:
            # In this order, so that the last stable offset is never above the high watermark.
            last_stable = self._offsets(IsolationLevel.READ_COMMITTED)
            at_ms = time.time() * 1000
            high_watermark = self._offsets(IsolationLevel.READ_UNCOMMITTED)
            self.samples.append(Sample(at_ms, last_stable - first, high_watermark - first))
            if self._ended.wait(_PAUSE_S):
                return

    def _offsets(self, isolation: IsolationLevel) -> int:
        listed = self._admin.list_offsets(self._latest, isolation_level=isolation)
        return sum(int(each.result().offset) for each in listed.values())


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One transaction of a task in the log. Times are ms since 1970; 0 for what never happened.

    prepared_ms   the task's part record in the commit log: all its rows are acknowledged
    ended_ms      the last marker, by which Kafka committed or aborted the transaction
    """

    task: int
    first_row_ms: int
    last_row_ms: int = 0
    rows: int = 0
    prepared_ms: int = 0
    ended_ms: int = 0
    is_committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedBatch:
    """The transactions of a batch, the first begun first, and when the driver's decision was committed."""

    attempts: tuple[Attempt, ...]
    decided_ms: int

    @property
    def began_ms(self) -> int:
        return self.attempts[0].first_row_ms

    @property
    def prepared_ms(self) -> int:
        """When the last of the committed transactions was prepared."""
        return max(each.prepared_ms for each in self.attempts if each.is_committed)

    @property
    def ended_ms(self) -> int:
        """When the last of the committed transactions was committed."""
        return max(each.ended_ms for each in self.attempts if each.is_committed)

    @property
    def aborted(self) -> tuple[Attempt, ...]:
        return tuple(each for each in self.attempts if not each.is_committed)


_Attempts = dict[tuple[int, int], Attempt]
"""By producer id and epoch."""


def read_batch(servers: str, topic: str, write_id: str, version: int) -> LoggedBatch:
    """Read the transactions of one batch of orders from the topic's log and from the commit log."""
    with connected(servers) as admin:
        listed = admin.list_transactions(states=(), deadline_ms=admin.client.clock() + _DEADLINE_MS)
        ids = {each.producer_id: each.transactional_id for each in listed}
        tasks = {number: found.partition for number, name in ids.items() if (found := parse(name, write_id))}
        drivers = {number for number, name in ids.items() if name == driver_transactional_id(write_id)}
        attempts: _Attempts = {}
        described = admin.topic(topic, admin.client.clock() + _DEADLINE_MS)
        assert described is not None
        for partition in range(len(described.partitions)):
            _add_rows(attempts, _log(admin, topic, partition), tasks, version)
        decided_ms = _add_outcome(attempts, _log(admin, DEFAULT_TOPIC, log_partition_of(write_id)), drivers)
    return LoggedBatch(
        attempts=tuple(sorted(attempts.values(), key=lambda each: each.first_row_ms)), decided_ms=decided_ms
    )


def _add_rows(attempts: _Attempts, log: Iterator[RecordBatch], tasks: dict[int, int], version: int) -> None:
    """Add what one partition holds of the batch's transactions."""
    running: dict[int, Attempt] = {}
    for batch in log:
        if batch.producer_id not in tasks:
            continue
        if batch.control:
            if ended := running.pop(batch.producer_id, None):
                ended.ended_ms = max(ended.ended_ms, batch.max_timestamp)
                ended.is_committed = batch.control_records[0].type == CONTROL_COMMIT
        elif version_of(batch.records[0].value) == version:
            new = Attempt(task=tasks[batch.producer_id], first_row_ms=batch.base_timestamp)
            attempt = attempts.setdefault((batch.producer_id, batch.producer_epoch), new)
            attempt.rows += len(batch.records)
            attempt.first_row_ms = min(attempt.first_row_ms, batch.base_timestamp)
            attempt.last_row_ms = max(attempt.last_row_ms, batch.max_timestamp)
            running[batch.producer_id] = attempt


def _add_outcome(attempts: _Attempts, log: Iterator[RecordBatch], drivers: set[int]) -> int:
    """Add when the attempts were prepared; return when the driver's decision about them was committed."""
    decided_ms = 0
    for batch in log:
        attempt = attempts.get((batch.producer_id, batch.producer_epoch))
        if attempt is not None and not batch.control:
            attempt.prepared_ms, decided_ms = batch.max_timestamp, 0
        elif batch.producer_id in drivers and batch.control and not decided_ms:
            # The first marker of the driver behind the last part record.
            decided_ms = batch.max_timestamp if any(each.prepared_ms for each in attempts.values()) else 0
    return decided_ms


def _log(admin: Admin, topic: str, partition: int) -> Iterator[RecordBatch]:
    """Yield all batches of a partition, aborted ones and markers included."""
    deadline = admin.client.clock() + _DEADLINE_MS
    where = topic, partition
    end = admin.list_offsets([where], deadline, isolation="read_uncommitted")[where]
    offset = 0
    while offset < end:
        fetched = admin.fetch(where, offset, deadline, isolation="read_uncommitted")
        for batch in read_record_batches(fetched.records or b""):
            yield batch
            offset = batch.last_offset + 1
