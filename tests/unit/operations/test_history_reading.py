"""Records that other programs write into the history, and what reading them takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.commit.values import OffsetRange
from kafka_eos_sink.protocol.record_batch import encode_rows, seal
from kafka_eos_sink.runtime.batch_record import BatchRecord
from kafka_eos_sink.runtime.history_reading import WINDOW, HistoryTail, read_history

COUNT, RANGES = 20, 1_000
MOST_BYTES = 1_200_000
"""Half of what all records take at once, and twice what a reading may take."""
LARGE = BatchRecord(
    write_id="w",
    query_id="batch",
    version=0,
    finished_ms=0,
    rows=1,
    transactions=1,
    offsets=tuple(OffsetRange(topic="t", partition=at, first_offset=0, last_offset=1) for at in range(RANGES)),
)


class Topic:
    """An admin for a history of one partition, with one large record per batch."""

    client = SimpleNamespace(clock=lambda: 0)

    def __init__(self) -> None:
        self.batches = []
        for version in range(COUNT):
            value = replace(LARGE, version=version, finished_ms=version).encoded()
            block = encode_rows([(b"w", value, ())], 1_000)
            header, records = seal(block, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False)
            self.batches.append(version.to_bytes(8, "big") + bytes(header[8:]) + bytes(records))

    def topic(self, name: str, _deadline: int) -> Any:
        return SimpleNamespace(name=name, topic_id=UUID(int=1), partitions=(SimpleNamespace(partition_index=0),))

    def list_offsets(self, where: Any, _deadline: int, *, isolation: str, timestamp: int = -1) -> Any:
        return dict.fromkeys(where, 0 if timestamp == EARLIEST else COUNT)

    def fetch(self, _where: Any, first: int, _deadline: int, *, isolation: str) -> Any:
        return SimpleNamespace(error_code=0, records=self.batches[first])


def peak_of(read: Callable[[], Sequence[BatchRecord]]) -> tuple[Sequence[BatchRecord], int]:
    """Return what a reading returns, and the most bytes that it had at once."""
    tracemalloc.start()
    try:
        return read(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_reader_keeps_no_more_records_than_its_limit() -> None:
    admin = Topic()
    (newest,), peak = peak_of(lambda: read_history(cast(Any, admin), "history", "w", limit=1, timeout_ms=1))
    assert newest.version == COUNT - 1
    assert peak < MOST_BYTES
    versions = [record.version for record in read_history(cast(Any, admin), "history", "w", limit=3, timeout_ms=1)]
    assert versions == [COUNT - 1, COUNT - 2, COUNT - 3]


def test_live_view_keeps_no_offsets_of_records() -> None:
    admin = Topic()
    found, peak = peak_of(HistoryTail(cast(Any, admin), "history", timeout_ms=1).read)
    assert peak < MOST_BYTES
    assert [record.version for record in found] == list(reversed(range(COUNT)))
    assert {record.offsets for record in found} == {()}


class Burst(Topic):
    """A history topic whose end jumps, with ids that no transaction can have."""

    def __init__(self, ids: int, letter: str = "q") -> None:
        self.end, self.fetched = COUNT, 0
        value = replace(LARGE, offsets=(), query_id=letter * ids, application_id="a" * ids, finished_ms=1).encoded()
        self.block = encode_rows([(b"w", value, ())], 1_000)

    def list_offsets(self, where: Any, _deadline: int, *, isolation: str, timestamp: int = -1) -> Any:
        return dict.fromkeys(where, 0 if timestamp == EARLIEST else self.end)

    def fetch(self, _where: Any, first: int, _deadline: int, *, isolation: str) -> Any:
        self.fetched += 1
        header, records = seal(self.block, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False)
        return SimpleNamespace(error_code=0, records=first.to_bytes(8, "big") + bytes(header[8:]) + bytes(records))


def test_live_view_reads_at_most_a_window_of_a_burst() -> None:
    admin = Burst(1)
    tail = HistoryTail(cast(Any, admin), "history", timeout_ms=1)
    tail.read()
    assert len(tail.take_appended()) == admin.fetched == COUNT
    admin.end, admin.fetched = COUNT + 10 * WINDOW, 0
    tail.read()
    assert len(tail.take_appended()) == admin.fetched == WINDOW
