"""Records that other programs write into the history, and what reading them takes."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.commit.values import OffsetRange
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.protocol.compression import Compression
from kafka_eos_sink.protocol.record_batch import encode_rows, seal
from kafka_eos_sink.runtime.batch_record import BatchRecord
from kafka_eos_sink.runtime.history_reading import TAIL_WITHIN_MS, WINDOW, HistoryTail, read_history

COUNT, RANGES = 60, 2_000
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


@pytest.fixture
def peak() -> Any:
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_reader_keeps_no_more_records_than_its_limit(peak: Any) -> None:
    admin = Topic()
    before = peak()
    (newest,) = read_history(cast(Any, admin), "history", "w", limit=1, timeout_ms=1)
    assert newest.version == COUNT - 1
    assert peak() - before < 5_000_000
    versions = [record.version for record in read_history(cast(Any, admin), "history", "w", limit=3, timeout_ms=1)]
    assert versions == [COUNT - 1, COUNT - 2, COUNT - 3]


def test_live_view_keeps_no_offsets_of_records(peak: Any) -> None:
    admin = Topic()
    before = peak()
    found = HistoryTail(cast(Any, admin), "history", timeout_ms=1).read()
    assert peak() - before < 5_000_000
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


def test_live_view_keeps_no_records_with_endless_ids() -> None:
    assert HistoryTail(cast(Any, Burst(40_000)), "history", timeout_ms=1).read() == ()
    (*_, record) = HistoryTail(cast(Any, Burst(1_000)), "history", timeout_ms=1).read()
    assert record.application_id is None


def test_live_view_keeps_no_ids_that_fill_the_memory(peak: Any) -> None:
    """Kafka allows these ids, and a window of them takes half a gigabyte."""
    admin = Burst(32_767 // 4, "\N{PARTY POPPER}")
    before = peak()
    tail = HistoryTail(cast(Any, admin), "history", timeout_ms=1)
    tail.read()
    assert admin.fetched == COUNT
    assert peak() - before < 1_000_000


class Clock(Topic):
    """A history whose time passes in steps of 400 ms, two for each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.end = 0, COUNT
        self.client = SimpleNamespace(clock=self.later)

    def later(self) -> int:
        self.now += 400
        return self.now

    def list_offsets(self, where: Any, _deadline: int, *, isolation: str, timestamp: int = -1) -> Any:
        return dict.fromkeys(where, 0 if timestamp == EARLIEST else self.end)


def test_live_view_skips_what_it_cannot_read_in_time() -> None:
    admin = Clock()
    admin.end = COUNT - 1
    tail = HistoryTail(cast(Any, admin), "history", timeout_ms=10**9)
    assert len(tail.read()) == TAIL_WITHIN_MS // 800
    # The next reading begins behind the burst.
    admin.end = COUNT
    tail.take_appended()
    tail.read()
    assert [record.version for record in tail.take_appended()] == [COUNT - 1]


def test_slow_batches_without_a_record_stop_no_live_view() -> None:
    """Empty frames of a codec take 400 ms per MB, and the sink's own records come behind them."""
    admin = Clock()
    block = replace(encode_rows([(b"w", b"{}", ())], 1_000), compression=Compression.GZIP)
    header, records = seal(block, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False)
    slow = [at.to_bytes(8, "big") + bytes(header[8:]) + bytes(records) for at in range(COUNT - 1)]
    admin.batches[:-1], admin.end = slow, COUNT - 1
    tail = HistoryTail(cast(Any, admin), "history", timeout_ms=30_000)
    assert tail.read() == ()
    admin.end = COUNT
    assert [record.version for record in tail.read()] == [COUNT - 1]


def test_history_of_many_batches_in_a_response_ends_in_time() -> None:
    admin = Clock()
    admin.batches = [b"".join(admin.batches)]
    with pytest.raises(BrokerUnavailableError, match="REQUEST_DEADLINE"):
        read_history(cast(Any, admin), "history", "w", limit=COUNT, timeout_ms=4_000)


def test_live_view_reads_at_most_a_window_of_a_burst() -> None:
    admin = Burst(1)
    tail = HistoryTail(cast(Any, admin), "history", timeout_ms=1)
    tail.read()
    assert len(tail.take_appended()) == admin.fetched == COUNT
    admin.end, admin.fetched = COUNT + 10 * WINDOW, 0
    tail.read()
    assert len(tail.take_appended()) == admin.fetched == WINDOW


def test_reading_ends_when_records_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(replace(LARGE, version=10, finished_ms=10).encoded())
    monkeypatch.setattr("kafka_eos_sink.runtime.history_reading.KEPT_BYTES", 5 * size)
    admin = cast(Any, Topic())
    assert len(read_history(admin, "history", "w", limit=5, timeout_ms=1)) == 5
    with pytest.raises(BrokerUnavailableError, match="without more memory; lower --limit"):
        read_history(admin, "history", "w", limit=6, timeout_ms=1)
