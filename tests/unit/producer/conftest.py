"""A clock that tests drive, and a client whose answers they write by hand."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hand_driven import HandDrivenClient
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ExponentialBackoff
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.interceptors import Interceptors
from kafka_eos_sink.producer.partition_queue import PartitionQueue, ProducerBatch
from kafka_eos_sink.producer.record_accumulator import RecordAccumulator
from kafka_eos_sink.producer.rows import NumberedRows
from kafka_eos_sink.producer.sender import Sender
from kafka_eos_sink.producer.transaction_manager import TransactionManager
from kafka_eos_sink.protocol.messages import LeaderIdAndEpoch, ProduceResponse
from kafka_eos_sink.protocol.record_columns import RecordColumns, encode_sections, record_sizes

NOW_MS = 1_700_000_000_000


def produced(
    codes: dict[int, int] | int = 0,
    *,
    topic: str = "t",
    base_offset: int = 0,
    leader: tuple[int, int] = (-1, -1),
    message: str | None = None,
    record_errors: tuple[Any, ...] = (),
) -> ProduceResponse:
    """A Produce answer: a code for partition 0, or partition to code."""
    answers = {0: codes} if isinstance(codes, int) else codes
    return ProduceResponse(
        responses=(
            ProduceResponse.Topic(
                name=topic,
                partition_responses=tuple(
                    ProduceResponse.Topic.Partition(
                        index=partition,
                        error_code=code,
                        base_offset=-1 if code else base_offset,
                        error_message=message,
                        record_errors=record_errors,
                        current_leader=LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
                    )
                    for partition, code in answers.items()
                ),
            ),
        )
    )


def numbered_rows(count: int, size: int = 10, first: int = 0) -> NumberedRows:
    columns = RecordColumns(
        value=pa.array([b"%0*d" % (size, row) for row in range(first, first + count)], pa.binary()),
        key=None,
        headers=None,
        timestamp=None,
    )
    return NumberedRows(topic="t", partition=None, columns=columns, row_numbers=np.arange(first, first + count))


def append(
    accumulator: RecordAccumulator, queue: PartitionQueue, rows: NumberedRows, now: int = 0
) -> list[ProducerBatch]:
    """Append rows as the batcher does; returns the batches that they closed."""
    closed = []
    ends = np.cumsum(record_sizes(rows.columns))
    timestamp = rows.columns.timestamp
    own = None if timestamp is None else timestamp.is_valid().to_numpy(zero_copy_only=False)
    cuts = list(accumulator.cut(queue, ends, 0, len(ends), now, has_timestamps=own is not None))
    encoded = encode_sections(rows.columns, None, [cut.section for cut in cuts], NOW_MS)
    for cut, records in zip(cuts, encoded, strict=True):
        if cut.begins and queue.open is not None:
            closed.append(accumulator.close(queue, now))
        where = slice(cut.section.start, cut.section.end)
        accumulator.append(
            queue, records, rows.row_numbers[where], now, own_timestamps=None if own is None else own[where]
        )
    return closed


class Bench:
    """A sender over a hand-driven client, with short ways to give it batches."""

    def __init__(self, transactional_id: str | None = "tx", transaction_version: int = 2, **settings: Any) -> None:
        self.client = HandDrivenClient()
        self.config = ProducerConfig(**settings)
        backoff = ExponentialBackoff(100, 1_000, jitter=0)
        self.accumulator = RecordAccumulator(ProducerConfig(batch_size=10_000, linger_ms=0))
        client: Any = self.client
        self.transactions = TransactionManager(Admin(client), transactional_id, transaction_version=transaction_version)
        self.transactions.initialized(7, 3)
        if transactional_id is not None:
            self.transactions.begin()
        self.sender = Sender(client, self.config, self.accumulator, self.transactions, Interceptors((), {}), backoff)

    def batch(
        self, partition: int = 0, count: int = 10, first: int = 0, own_timestamps: Container[int] = ()
    ) -> ProducerBatch:
        queue, rows = self.accumulator.queue("t", partition), numbered_rows(count, first=first)
        if own_timestamps:
            timestamp = pa.array([NOW_MS if at in own_timestamps else None for at in range(count)], pa.int64())
            rows = replace(rows, columns=replace(rows.columns, timestamp=timestamp))
        append(self.accumulator, queue, rows, self.client.now)
        return self.accumulator.close(queue, self.client.now)

    def turn(self, ms: int = 0) -> None:
        """One turn to read what came, and one to act on it, ``ms`` later."""
        self.sender.run_once(0)
        self.client.now += ms
        self.sender.run_once(0)


@pytest.fixture
def bench() -> Callable[..., Bench]:
    return Bench


@pytest.fixture
def answer() -> Callable[..., ProduceResponse]:
    return produced


@pytest.fixture
def rows_of() -> Callable[..., NumberedRows]:
    return numbered_rows


@pytest.fixture
def appended() -> Callable[..., list[ProducerBatch]]:
    return append
