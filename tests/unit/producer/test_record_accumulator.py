from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos_sink.producer.partitioner import sorted_by
from kafka_eos_sink.producer.record_accumulator import PartitionQueue, RecordAccumulator
from kafka_eos_sink.producer.rows import OpenRows
from kafka_eos_sink.protocol.compression import Codec
from kafka_eos_sink.protocol.record_columns import RecordColumns, record_sizes

NOW_MS = 1_700_000_000_000


def accumulator(batch_size: int = 1_000, linger_ms: int = 100) -> RecordAccumulator:
    return RecordAccumulator(batch_size=batch_size, linger_ms=linger_ms, codec=Codec.NONE)


def sized_rows(number: int, size: int) -> OpenRows:
    columns = RecordColumns(value=pa.array([b"x" * size], pa.binary()), key=None, headers=None, timestamp=None)
    return OpenRows(columns=columns, sizes=record_sizes(columns), row_numbers=np.array([number]))


def cut(a: RecordAccumulator, queue: PartitionQueue, *, everything: bool) -> list[Any]:
    return list(a.cut(queue, everything=everything))


@settings(deadline=None)
@given(st.lists(st.integers(0, 70_000), max_size=200))
def test_sorting_groups_partitions_and_keeps_row_order(partitions: list[int]) -> None:
    given_partitions = np.array(partitions, dtype=np.int32)
    order, runs = sorted_by(given_partitions)
    at = np.arange(len(partitions)) if order is None else order
    assert sorted(at.tolist()) == list(range(len(partitions)))
    assert [partition for partition, _, _ in runs] == sorted(set(partitions))
    for partition, start, end in runs:
        assert at[start:end].tolist() == [i for i, p in enumerate(partitions) if p == partition]


def test_full_batches_are_cut_and_the_rest_remains_open(rows_of: Any) -> None:
    a = accumulator()
    rows = rows_of(100, size=90)
    per_batch = 1_000 // int(rows.sizes[0])
    queue = a.append("t", 0, rows, now=0)
    pieces = cut(a, queue, everything=False)
    assert [len(piece.sizes) for piece in pieces] == [per_batch] * (100 // per_batch)
    left = 100 - per_batch * len(pieces)
    assert a.open_bytes == queue.open_bytes == left * int(rows.sizes[0])
    queue = a.append("t", 0, rows_of(1, size=90, first=100), now=0)
    (last,) = cut(a, queue, everything=True)
    assert last.row_numbers.tolist() == list(range(100 - left, 101))
    assert a.open_bytes == 0


def test_a_row_larger_than_a_batch_gets_one_of_its_own(rows_of: Any) -> None:
    a = accumulator(batch_size=200)
    queue = a.append("t", 0, rows_of(2, size=50), now=0)
    queue = a.append("t", 0, rows_of(1, size=5_000, first=2), now=0)
    queue = a.append("t", 0, rows_of(2, size=50, first=3), now=0)
    pieces = cut(a, queue, everything=True)
    assert [piece.row_numbers.tolist() for piece in pieces] == [[0, 1], [2], [3, 4]]


def test_rows_linger_from_the_first_of_them(rows_of: Any) -> None:
    a = accumulator(linger_ms=100)
    queue = a.append("t", 0, rows_of(1), now=50)
    a.append("t", 0, rows_of(1), now=140)
    assert a.lingered(149) == []
    assert a.lingered(150) == [queue]


def test_the_fullest_partitions_make_room_first(rows_of: Any) -> None:
    a = accumulator()
    for partition, count in enumerate((3, 9, 5)):
        a.append("t", partition, rows_of(count), now=0)
    assert [queue.partition for queue in a.fullest(1)] == [1]
    assert [queue.partition for queue in a.fullest(10**9)] == [1, 2, 0]


def test_memory_is_freed_when_batches_are_acked_split_or_dropped(rows_of: Any) -> None:
    a = accumulator()
    queue = a.queue("t", 0)
    batches = [a.close(queue, rows_of(10), 0, NOW_MS) for _ in range(3)]
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


def test_drop_unsent_returns_batches_with_a_sequence(rows_of: Any) -> None:
    a = accumulator()
    queue = a.queue("t", 0)
    batch = a.close(queue, rows_of(1), 0, NOW_MS)
    queue.next_to_send(0, 5, (1, 0))
    queue.sent(batch, transactional=True)
    a.close(queue, rows_of(1), 0, NOW_MS)
    assert a.drop_unsent() == []
    batch.in_flight = False
    assert a.drop_unsent() == [batch]


def test_the_partition_served_last_comes_last(rows_of: Any) -> None:
    a = accumulator()
    for partition in range(3):
        a.close(a.queue("t", partition), rows_of(1), 0, NOW_MS)
    a.served(a.queue("t", 0))
    assert [partition for _, partition in a.active] == [1, 2, 0]


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(20, 300))
def test_no_row_is_lost_or_reordered_for_any_sizes(sizes: list[int], batch_size: int) -> None:
    a = accumulator(batch_size=batch_size)
    seen: list[int] = []
    for number, size in enumerate(sizes):
        queue = a.append("t", 0, sized_rows(number, size), now=0)
        for piece in a.cut(queue, everything=False):
            assert int(piece.sizes.sum()) <= batch_size or len(piece.sizes) == 1
            seen += piece.row_numbers.tolist()
    for piece in a.cut(a.queue("t", 0), everything=True):
        seen += piece.row_numbers.tolist()
    assert seen == list(range(len(sizes)))
    assert a.open_bytes == 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_split_batches_keep_all_rows_in_order(rows_of: Any, count: int) -> None:
    a = accumulator()
    queue = a.queue("t", 0)
    batch = a.close(queue, rows_of(count), 0, NOW_MS)
    queue.next_to_send(0, 5, (1, 0))
    queue.sent(batch, transactional=True)
    assert a.split(batch) == (count > 1)
    numbers = [n for part in queue.unacknowledged for n in part.rows.row_numbers.tolist()]
    assert numbers == list(range(count))
    assert all(part.block.base_timestamp == NOW_MS for part in queue.unacknowledged)
