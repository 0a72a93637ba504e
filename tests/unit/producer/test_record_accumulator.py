from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.partition_queue import ProducerBatch
from kafka_eos_sink.producer.partitioner import grouped_by
from kafka_eos_sink.producer.record_accumulator import RecordAccumulator
from kafka_eos_sink.producer.rows import NumberedRows
from kafka_eos_sink.protocol.record_columns import (
    HEADERS_TYPE,
    RecordColumns,
    encode_records,
)

NOW_MS = 1_700_000_000_000


def accumulator(batch_size: int = 1_000, linger_ms: int = 100) -> RecordAccumulator:
    return RecordAccumulator(ProducerConfig(batch_size=batch_size, linger_ms=linger_ms))


def sized_rows(number: int, size: int) -> NumberedRows:
    columns = RecordColumns(value=pa.array([b"x" * size], pa.binary()))
    return NumberedRows(topic="t", partition=None, columns=columns, row_numbers=np.array([number]))


def numbers_of(batch: ProducerBatch) -> list[int]:
    assert batch.row_numbers is not None
    assert len(batch.row_numbers) == batch.record_count
    return batch.row_numbers.tolist()


@settings(deadline=None)
@given(st.lists(st.integers(0, 70_000), max_size=200))
def test_sorting_groups_partitions_and_keeps_row_order(partitions: list[int]) -> None:
    given_partitions = np.array(partitions, dtype=np.int32)
    order, runs = grouped_by(given_partitions)
    at = np.arange(len(partitions)) if order is None else order
    assert sorted(at.tolist()) == list(range(len(partitions)))
    assert [partition for partition, _, _ in runs] == sorted(set(partitions))
    for partition, start, end in runs:
        assert at[start:end].tolist() == [i for i, p in enumerate(partitions) if p == partition]


def test_batch_of_several_sections_equals_the_batch_of_all_rows(appended: Any) -> None:
    a = accumulator(batch_size=100_000)
    queue = a.queue("t", 0)
    columns = RecordColumns(
        value=pa.array([b"%d" % row for row in range(200)], pa.binary()),
        key=pa.array([None if row % 3 else b"k" * row for row in range(200)], pa.binary()),
        headers=pa.array([[{"key": "h", "value": b"v"}] * (row % 3) for row in range(200)], HEADERS_TYPE),
        timestamp=pa.array([NOW_MS + row * (-1) ** row for row in range(200)]),
    )
    for start, end in ((0, 70), (70, 71), (71, 200)):
        rows = NumberedRows(
            topic="t", partition=None, columns=columns.slice(start, end - start), row_numbers=np.arange(start, end)
        )
        assert appended(a, queue, rows) == []
    batch = a.close(queue, 0)
    whole = encode_records(columns, NOW_MS)
    assert (bytes(batch.block.records), batch.block.base_timestamp, batch.block.max_timestamp) == (
        bytes(whole.records),
        whole.base_timestamp,
        whole.max_timestamp,
    )
    # What a broker rejects is read back from the records.
    assert batch.rows().columns == columns


def test_rows_linger_from_the_first_of_them(appended: Any, rows_of: Any) -> None:
    a = accumulator(linger_ms=100)
    queue = a.queue("t", 0)
    appended(a, queue, rows_of(1), now=50)
    appended(a, queue, rows_of(1), now=140)
    assert a.lingered(149) == []
    assert a.lingered(150) == [queue]


def test_rows_without_timestamps_join_no_batch_of_another_time(appended: Any, rows_of: Any) -> None:
    """They have the timestamp of their batch, by which retention deletes them."""
    a = accumulator(linger_ms=100)
    queue = a.queue("t", 0)
    old = RecordColumns(value=pa.array([b"old"]), timestamp=pa.array([86_400_000]))
    assert appended(a, queue, NumberedRows(topic="t", partition=None, columns=old, row_numbers=np.array([0]))) == []
    (closed,) = appended(a, queue, rows_of(1, first=1), now=10)
    assert (numbers_of(closed), closed.block.max_timestamp) == ([0], 86_400_000)
    assert appended(a, queue, rows_of(1, first=2), now=109) == []
    (closed,) = appended(a, queue, rows_of(1, first=3), now=110)
    assert (numbers_of(closed), closed.block.base_timestamp) == ([1, 2], NOW_MS)


def test_the_fullest_partitions_make_room_first(appended: Any, rows_of: Any) -> None:
    a = accumulator()
    for partition, count in enumerate((3, 9, 5)):
        appended(a, a.queue("t", partition), rows_of(count))
    assert [queue.partition for queue in a.fullest(1)] == [1]
    assert [queue.partition for queue in a.fullest(10**9)] == [1, 2, 0]


@pytest.fixture
def closed(appended: Any, rows_of: Any) -> Any:
    """Closes a batch of so many rows."""

    def close(a: RecordAccumulator, count: int, partition: int = 0) -> ProducerBatch:
        queue = a.queue("t", partition)
        assert appended(a, queue, rows_of(count)) == []
        return a.close(queue, 0)

    return close


def test_memory_is_freed_when_batches_are_acked_split_or_dropped(closed: Any) -> None:
    a = accumulator()
    queue = a.queue("t", 0)
    batches = [closed(a, 10) for _ in range(3)]
    assert a.used_bytes == sum(batch.memory_bytes for batch in batches)
    for batch in batches:
        queue.next_to_send(0, 5, (1, 0))
        queue.sent(batch, transactional=True)
    a.acknowledged(batches[0])
    batches[1].in_flight = False
    assert a.split(batches[1])
    a.acknowledged(batches[2])
    assert a.used_bytes == sum(batch.memory_bytes for batch in queue.unacknowledged)
    halves = list(queue.unacknowledged)
    assert a.drop_unsent() == halves
    assert a.used_bytes == 0
    assert a.idle


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40), batch_size=st.integers(20, 300))
def test_no_row_is_lost_or_reordered_for_any_sizes(appended: Any, sizes: list[int], batch_size: int) -> None:
    a = accumulator(batch_size=batch_size)
    queue = a.queue("t", 0)
    batches = [batch for number, size in enumerate(sizes) for batch in appended(a, queue, sized_rows(number, size))]
    batches.append(a.close(queue, 0))
    assert all(batch.block.uncompressed_bytes <= batch_size or batch.record_count == 1 for batch in batches)
    assert [number for batch in batches for number in numbers_of(batch)] == list(range(len(sizes)))
    assert [len(value) for batch in batches for value in batch.rows().columns.value.to_pylist()] == sizes
    assert a.open_bytes == 0
