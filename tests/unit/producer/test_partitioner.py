from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.partitioner import (
    DefaultPartitioner,
    RoundRobinPartitioner,
    TopicPartitions,
    key_partitions,
    load_partitioner,
)
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.murmur2 import murmur2, murmur2_bytes
from kafka_eos_sink.protocol.record_columns import RecordColumns

# From Kafka's own UtilsTest.testMurmur2, signed as Java has them.
JAVA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def column_hashes(values: list[bytes]) -> list[int]:
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int32)
    return [int(h) for h in murmur2(offsets, np.frombuffer(b"".join(values), np.uint8))]


def rows(keys: list[bytes | None] | None, count: int = 0) -> Rows:
    count = count if keys is None else len(keys)
    key = None if keys is None else pa.array(keys, pa.binary())
    columns = RecordColumns(value=pa.array([b"v"] * count, pa.binary()), key=key, headers=None, timestamp=None)
    return Rows(topic="t", partition=None, columns=columns)


def topic(count: int, available: list[int] | None = None) -> TopicPartitions:
    with_leader = np.array(range(count) if available is None else available, dtype=np.int32)
    return TopicPartitions(topic="t", count=count, available=with_leader)


def test_murmur2_is_javas() -> None:
    assert column_hashes(list(JAVA_VECTORS)) == [h & 0xFFFFFFFF for h in JAVA_VECTORS.values()]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=70), max_size=40))
def test_murmur2_of_a_column_is_that_of_each_value(values: list[bytes]) -> None:
    assert column_hashes(values) == [murmur2_bytes(value) for value in values]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=40), st.data())
def test_a_sliced_key_column_hashes_its_own_rows(values: list[bytes], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(values) - 1))
    sliced = pa.array(values, pa.binary()).slice(start)
    expected = [(murmur2_bytes(value) & 0x7FFFFFFF) % 7 for value in values[start:]]
    assert key_partitions(sliced, 7).tolist() == expected


def test_keyless_rows_fill_a_run_and_visit_all_partitions() -> None:
    partitioner = DefaultPartitioner(run_bytes=100, seed=1)
    sizes = np.full(80, 10, np.int64)
    chosen = np.concatenate([partitioner(rows(None, 40), sizes[:40], topic(4)) for _ in range(2)])
    runs = chosen.reshape(8, 10)
    assert (runs == runs[:, :1]).all()
    assert sorted(runs[:4, 0]) == [0, 1, 2, 3]
    assert sorted(runs[4:, 0]) == [0, 1, 2, 3]


def test_rows_without_a_key_avoid_partitions_without_a_leader() -> None:
    partitioner = DefaultPartitioner(run_bytes=10)
    sizes = np.full(100, 10, np.int64)
    assert set(partitioner(rows(None, 100), sizes, topic(5, [1, 3])).tolist()) == {1, 3}
    # One that loses its leader in the middle of a run is left at once.
    sticky = DefaultPartitioner(run_bytes=10_000)
    assert set(sticky(rows(None, 100), sizes, topic(2, [0])).tolist()) == {0}
    assert set(sticky(rows(None, 100), sizes, topic(2, [1])).tolist()) == {1}


def test_null_keys_are_sticky_and_an_empty_key_is_hashed() -> None:
    keys: list[bytes | None] = [b"a", None, b"b", None, b""]
    chosen = DefaultPartitioner(run_bytes=1_000)(rows(keys), np.full(5, 10, np.int64), topic(9))
    expected = [(murmur2_bytes(key) & 0x7FFFFFFF) % 9 for key in (b"a", b"b", b"")]
    assert chosen[[0, 2, 4]].tolist() == expected
    assert chosen[1] == chosen[3]


def test_round_robin_continues_over_calls() -> None:
    partitioner = RoundRobinPartitioner()
    sizes = np.full(5, 10, np.int64)
    assert partitioner(rows(None, 5), sizes, topic(3)).tolist() == [0, 1, 2, 0, 1]
    assert partitioner(rows(None, 5), sizes, topic(3, [0, 2])).tolist() == [2, 0, 2, 0, 2]


@pytest.fixture
def user_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("user_partitioners")
    monkeypatch.setitem(sys.modules, "user_partitioners", module)
    return module


def custom(function: Any, user_module: Any) -> Any:
    user_module.f = function
    return load_partitioner(ProducerConfig(partitioner="user_partitioners:f"))


def test_a_custom_partitioner_sees_arrow(user_module: Any) -> None:
    def by_length(batch: pa.RecordBatch, topic: str, partitions: int) -> pa.Array:
        assert (topic, partitions, batch.num_rows) == ("t", 4, 3)
        return pa.compute.binary_length(batch.column("key"))

    chosen = custom(by_length, user_module)(rows([b"", b"a", b"aaa"]), np.zeros(3, np.int64), topic(4))
    assert chosen.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([0, 4], "returned partition 4 for topic t, which has 4 partitions"),
        ([0, -1], "returned partition -1"),
        ([0], "returned 1 values"),
        ([0, None], "1 of them null"),
        (["a", "b"], "failed for topic t"),
    ],
)
def test_a_custom_partitioners_nonsense_is_named(user_module: Any, answer: Any, words: str) -> None:
    partitioner = custom(lambda batch, topic, partitions: pa.array(answer), user_module)
    with pytest.raises(KafkaEosError, match="PARTITIONER_FAILED") as raised:
        partitioner(rows([b"a", b"b"]), np.zeros(2, np.int64), topic(4))
    assert words in str(raised.value)


def test_keys_can_be_ignored() -> None:
    keys: list[bytes | None] = [b"%d" % i for i in range(100)]
    config = ProducerConfig(partitioner_ignore_keys=True)
    assert len(set(load_partitioner(config)(rows(keys), np.full(100, 10, np.int64), topic(9)))) == 1
