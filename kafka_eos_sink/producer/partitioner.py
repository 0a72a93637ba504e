"""Choose each row's partition, like Java's producer.

The partitioners work on whole columns, without Python per row.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.plugins import load_callable
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.interceptors import to_record_batch
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.murmur2 import murmur2


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """A topic's number of partitions, and the partitions (sorted) with a leader."""

    topic: str
    count: int
    available: npt.NDArray[np.int32]


Partitioner = Callable[[Rows, npt.NDArray[np.int64], TopicPartitions], npt.NDArray[np.int32]]
"""Returns each row's partition, given the rows, their encoded bytes and the topic. Rows with a given partition never reach it."""


def load_partitioner(config: ProducerConfig) -> Partitioner:
    """Make the partitioner of ``config``."""
    if config.partitioner == "default":
        return DefaultPartitioner(run_bytes=config.batch_size, ignore_keys=config.partitioner_ignore_keys)
    if config.partitioner == "round-robin":
        return RoundRobinPartitioner()
    return CustomPartitioner(config.partitioner)


class DefaultPartitioner:
    """Java's built-in partitioner (KIP-480, KIP-794).

    Rows with a key go to the partition murmur2(key) modulo the number of partitions, whether it has a leader or not.
    Rows without a key go to one partition for ``run_bytes``, so that they fill a batch, and then to the next partition.
    The order is random: each partition with a leader gets one run before any gets a second.
    """

    def __init__(self, *, run_bytes: int, ignore_keys: bool = False, seed: int | None = None) -> None:
        self._run_bytes = run_bytes
        self._ignore_keys = ignore_keys
        self._random = random.Random(seed)
        self._runs: dict[str, _Run] = {}

    def __call__(self, rows: Rows, sizes: npt.NDArray[np.int64], topic: TopicPartitions) -> npt.NDArray[np.int32]:
        key = rows.columns.key
        if key is None or self._ignore_keys or key.null_count == len(key):
            return self._sticky(sizes, topic)
        partitions = key_partitions(key, topic.count)
        if key.null_count:
            keyless = key.is_null().to_numpy(zero_copy_only=False)
            partitions[keyless] = self._sticky(sizes[keyless], topic)
        return partitions

    def _sticky(self, sizes: npt.NDArray[np.int64], topic: TopicPartitions) -> npt.NDArray[np.int32]:
        run = self._runs.setdefault(topic.topic, _Run())
        ends = run.used + np.cumsum(sizes)
        # A row belongs to the run of its first byte.
        index = (ends - sizes) // self._run_bytes
        last = int(index[-1]) if len(index) else 0
        chosen = np.empty(last + 1, np.int32)
        # If no partition has a leader, all are available: the rows wait in their batches, as in Java.
        available = {int(partition) for partition in topic.available} or set(range(topic.count))
        for at in range(last + 1):
            if at or run.partition not in available:
                run.move_on(available, self._random)
            chosen[at] = run.partition
        if len(ends):
            run.used = int(ends[-1]) - last * self._run_bytes
        partitions: npt.NDArray[np.int32] = chosen[index]
        return partitions


@dataclass(slots=True)
class _Run:
    """A topic's run of rows without a key: partition, bytes, next partitions."""

    partition: int = -1
    used: int = 0
    waiting: list[int] = field(default_factory=list)

    def move_on(self, available: set[int], rng: random.Random) -> None:
        self.waiting = [partition for partition in self.waiting if partition in available]
        if not self.waiting:
            self.waiting = sorted(available)
            rng.shuffle(self.waiting)
            # The new order must not start with the partition that ended the last order.
            if len(self.waiting) > 1 and self.waiting[-1] == self.partition:
                self.waiting.reverse()
        self.partition = self.waiting.pop()


class RoundRobinPartitioner:
    """Give each partition with a leader one row in turn (as in Java)."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(self, rows: Rows, sizes: npt.NDArray[np.int64], topic: TopicPartitions) -> npt.NDArray[np.int32]:
        among = topic.available if len(topic.available) else np.arange(topic.count, dtype=np.int32)
        start = self._next.get(topic.topic, 0)
        self._next[topic.topic] = start + rows.num_rows
        return among[(start + np.arange(rows.num_rows)) % len(among)]


class CustomPartitioner:
    """The user's ``f(RecordBatch, topic: str, partitions: int) -> pa.Int32Array``."""

    def __init__(self, spec: str) -> None:
        self._spec = spec
        self._function = load_callable(spec, "partitioner")

    def __call__(self, rows: Rows, sizes: npt.NDArray[np.int64], topic: TopicPartitions) -> npt.NDArray[np.int32]:
        try:
            result = self._function(to_record_batch(rows), topic.topic, topic.count)
            column = result if isinstance(result, (pa.Array, pa.ChunkedArray)) else pa.array(result)
            partitions: npt.NDArray[Any] = column.cast(pa.int32()).to_numpy(zero_copy_only=False)
        except Exception as error:
            raise KafkaEosError(
                "PARTITIONER_FAILED", f"partitioner {self._spec} failed for topic {topic.topic}: {error!r}"
            ) from error
        if column.null_count or len(partitions) != rows.num_rows:
            raise KafkaEosError(
                "PARTITIONER_FAILED",
                f"partitioner {self._spec} returned {len(partitions)} values, {column.null_count} of them null, for "
                f"{rows.num_rows} rows of topic {topic.topic}; it must return one partition per row",
            )
        if len(partitions) and not 0 <= partitions.min() <= partitions.max() < topic.count:
            wrong = partitions[(partitions < 0) | (partitions >= topic.count)][0]
            raise KafkaEosError(
                "PARTITIONER_FAILED",
                f"partitioner {self._spec} returned partition {wrong} for topic {topic.topic}, "
                f"which has {topic.count} partitions (0 to {topic.count - 1})",
            )
        return partitions.astype(np.int32, copy=False)


def key_partitions(key: pa.Array, count: int) -> npt.NDArray[np.int32]:
    """Compute ``toPositive(murmur2(key)) % count`` of every key; null hashes as empty."""
    _, offsets, data = key.buffers()
    at = np.frombuffer(offsets, np.int32)[key.offset : key.offset + len(key) + 1]
    octets = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    positive = murmur2(at, octets) & np.uint32(0x7FFFFFFF)
    return (positive % np.uint32(count)).astype(np.int32)


def partitions_of(
    rows: Rows, sizes: npt.NDArray[np.int64], topic: TopicPartitions, partitioner: Partitioner
) -> npt.NDArray[np.int32]:
    """Return each row's given partition, or else the partitioner's choice."""
    given = rows.partition
    if given is None or given.null_count == len(given):
        return partitioner(rows, sizes, topic)
    if not given.null_count:
        fixed: npt.NDArray[np.int32] = given.to_numpy(zero_copy_only=False)
        return fixed
    free = np.flatnonzero(given.is_null().to_numpy(zero_copy_only=False))
    partitions: npt.NDArray[np.int32] = given.fill_null(0).to_numpy(zero_copy_only=False).copy()
    partitions[free] = partitioner(rows.take(free), sizes[free], topic)
    return partitions


def grouped_by(
    partitions: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int64] | None, list[tuple[int, int, int]]]:
    """Compute the stable order that groups rows by partition.

    Returns:
        The order, or None if the rows are already grouped in ascending order; and each run as (partition, start, end).
    """
    count = len(partitions)
    if not count:
        return None, []
    changes = np.flatnonzero(partitions[1:] != partitions[:-1])
    order: npt.NDArray[np.int64] | None = None
    ordered: npt.NDArray[Any] = partitions
    if len(changes) and (partitions[1:] < partitions[:-1]).any():
        # numpy sorts 16-bit integers by radix, several times faster. Partition numbers nearly always fit.
        narrow = partitions.astype(np.uint16) if int(partitions.max()) < 2**16 else partitions
        order = np.argsort(narrow, kind="stable")
        ordered = partitions[order]
        changes = np.flatnonzero(ordered[1:] != ordered[:-1])
    starts = [0, *(changes + 1).tolist()]
    ends = [*starts[1:], count]
    return order, [(int(ordered[start]), start, end) for start, end in zip(starts, ends, strict=True)]
