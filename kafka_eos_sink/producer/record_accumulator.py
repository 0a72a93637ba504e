"""All partitions' queues and their memory: cut rows into batches, close batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.partition_queue import OpenBatch, PartitionQueue, ProducerBatch
from kafka_eos_sink.producer.rows import BadRows, NumberedRows
from kafka_eos_sink.protocol.compression import Compression, compress_pieces
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.record_batch import RecordsBlock
from kafka_eos_sink.protocol.record_columns import EncodedSection, Section, encode_block, record_sizes


class Cut(NamedTuple):
    """Rows for a queue's open batch or, if ``begins``, for a new batch after it."""

    queue: PartitionQueue
    section: Section
    begins: bool


class RecordAccumulator:
    """The queues of all partitions, and their memory; ``now`` is clock ms."""

    def __init__(self, config: ProducerConfig) -> None:
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.active: dict[TopicPartition, PartitionQueue] = {}
        """The queues with batches, the least recently served first."""
        self.used_bytes = 0
        """Memory of the unacknowledged batches."""
        self.open_bytes = 0
        self.acknowledged_bytes = 0
        self._batch_size = config.batch_size
        self._topic_batch_size: dict[str, int] = {}
        self._linger_ms = config.linger_ms
        self._codec = Compression.of(config.compression)
        self._level = config.compression_level

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        found = self.queues.get((topic, partition))
        if found is None:
            found = self.queues[topic, partition] = PartitionQueue(topic=topic, partition=partition)
        return found

    def batch_size(self, topic: str) -> int:
        """Return uncompressed bytes per batch, below batch.size after a split."""
        return self._topic_batch_size.get(topic, self._batch_size)

    def cut(
        self,
        queue: PartitionQueue,
        ends: npt.NDArray[np.int64],
        start: int,
        stop: int,
        now: int,
        *,
        has_timestamps: bool,
    ) -> Iterator[Cut]:
        """Cut rows in order: what fits into the open batch, then new batches.

        A row above the batch size gets its own batch. Rows without timestamps get the batch's timestamp. So they begin a new batch if
        the open one is older than linger.ms or has timestamps.

        Args:
            ends: The cumulative sum of the sizes of all rows.
            start, stop: The range of the queue's rows.
        """
        limit = self.batch_size(queue.topic)
        opened = queue.open
        if opened is not None and (opened.has_timestamps != has_timestamps or self._has_lingered(opened, now)):
            opened = None
        first_place, base = (0, None) if opened is None else (opened.record_count, opened.base_timestamp)
        room, begins = (limit, True) if opened is None else (limit - opened.size, False)
        while start < stop:
            before = int(ends[start - 1]) if start else 0
            end = min(stop, int(np.searchsorted(ends, before + room, side="right")))
            if begins:
                end = max(start + 1, end)
            if end > start:
                yield Cut(queue, Section(start, end, first_place, base), begins)
            start, room, begins, first_place, base = end, limit, True, 0, None

    def append(
        self,
        queue: PartitionQueue,
        section: EncodedSection,
        row_numbers: npt.NDArray[np.int64],
        now: int,
        *,
        own_timestamps: npt.NDArray[np.bool_] | None,
    ) -> None:
        """Append encoded rows to the open batch of their partition, or open one.

        Args:
            own_timestamps: Which of the rows have a timestamp; None without the column.
        """
        opened = queue.open
        if opened is None:
            opened = queue.open = OpenBatch(
                base_timestamp=section.base_timestamp,
                max_timestamp=section.max_timestamp,
                has_timestamps=own_timestamps is not None,
                since=now,
            )
        opened.max_timestamp = max(opened.max_timestamp, section.max_timestamp)
        opened.sections.append(section.records)
        opened.row_numbers.append(row_numbers)
        if own_timestamps is not None:
            opened.own_timestamps.append(own_timestamps)
        opened.record_count += len(row_numbers)
        opened.size += len(section.records)
        self.open_bytes += len(section.records)

    def lingered(self, now: int) -> list[PartitionQueue]:
        """Return the queues whose open rows have waited for linger.ms."""
        return [
            queue for queue in self.queues.values() if queue.open is not None and self._has_lingered(queue.open, now)
        ]

    def _has_lingered(self, opened: OpenBatch, now: int) -> bool:
        return now - opened.since >= self._linger_ms

    def fullest(self, bytes_to_free: int) -> list[PartitionQueue]:
        """Return the queues with the most open bytes, ``bytes_to_free`` in total."""
        found, freed = [], 0
        for queue in sorted(self.queues.values(), key=lambda queue: -queue.open_bytes):
            if freed >= bytes_to_free or queue.open is None:
                break
            freed += queue.open_bytes
            found.append(queue)
        return found

    def close(self, queue: PartitionQueue, now: int) -> ProducerBatch:
        """Compress the open batch and queue it for sending."""
        opened = queue.open
        assert opened is not None
        queue.open = None
        self.open_bytes -= opened.size
        block = RecordsBlock(
            pieces=compress_pieces(self._codec, self._level, opened.sections),
            record_count=opened.record_count,
            compression=self._codec,
            base_timestamp=opened.base_timestamp,
            max_timestamp=opened.max_timestamp,
            uncompressed_bytes=opened.size,
        )
        batch = ProducerBatch(
            topic=queue.topic,
            partition=queue.partition,
            block=block,
            created_ms=now,
            row_numbers=np.concatenate(opened.row_numbers),
            own_timestamps=np.concatenate(opened.own_timestamps) if opened.has_timestamps else None,
        )
        self.add(batch)
        return batch

    def add(self, batch: ProducerBatch) -> None:
        """Append a closed batch to the queue of its partition."""
        queue = self.queue(batch.topic, batch.partition)
        queue.fresh.append(batch)
        self.used_bytes += batch.memory_bytes
        self.active.setdefault((batch.topic, batch.partition), queue)

    def served(self, queue: PartitionQueue) -> None:
        """Move the queue after the others, so that no partition starves."""
        key = (queue.topic, queue.partition)
        self.active.pop(key, None)
        if not queue.idle:
            self.active[key] = queue

    def acknowledged(self, batch: ProducerBatch) -> None:
        self.acknowledged_bytes += batch.size_bytes
        queue = self.queue(batch.topic, batch.partition)
        queue.done(batch)
        self._released(queue, batch)

    def expired(self, closed_by: int) -> ProducerBatch | None:
        """Return a batch closed at or before ``closed_by``, unacknowledged, not in flight."""
        # Only a partition's oldest batch expires. The response to a batch in flight may still arrive.
        found = (queue.oldest for queue in self.active.values())
        return next((each for each in found if each and not each.in_flight and each.created_ms <= closed_by), None)

    def discount_pause(self, pause_ms: int, now: int) -> None:
        """Subtract a sender's pause from batch ages and from how long topics were unknown."""
        for queue in self.active.values():
            for batch in itertools.chain(queue.unacknowledged, queue.fresh):
                batch.created_ms = min(now, batch.created_ms + pause_ms)
                if batch.unknown_topic_since is not None:
                    batch.unknown_topic_since = min(now, batch.unknown_topic_since + pause_ms)

    def split(self, batch: ProducerBatch) -> bool:
        """Split a batch that is too large for its topic; return False for a single record.

        Later batches of the topic are at most half as large as this one.
        """
        if batch.row_numbers is None or batch.record_count < 2:
            return False
        rows = batch.rows()
        ends = np.cumsum(record_sizes(rows.columns))
        half = int(np.searchsorted(ends, ends[-1] // 2, side="right"))
        half = min(max(half, 1), batch.record_count - 1)
        self._topic_batch_size[batch.topic] = max(1, min(self.batch_size(batch.topic), int(ends[-1]) // 2))
        self._replace(batch, rows, np.split(np.arange(batch.record_count), [half]))
        return True

    def remove(self, batch: ProducerBatch, records: Sequence[int], error: KafkaEosError) -> BadRows:
        """Remove rejected ``records``, and the batch if it is empty; return their rows."""
        rows = batch.rows()
        rejected = np.isin(np.arange(batch.record_count), records)
        kept = np.flatnonzero(~rejected)
        self._replace(batch, rows, [kept] if len(kept) else [])
        if batch.own_timestamps is not None:
            own = pc.if_else(pa.array(batch.own_timestamps), rows.columns.timestamp, None)
            rows = replace(rows, columns=replace(rows.columns, timestamp=own))
        return BadRows(error.code, error.message, rows.take(np.flatnonzero(rejected)))

    def _replace(self, batch: ProducerBatch, rows: NumberedRows, pieces: Sequence[npt.NDArray[np.intp]]) -> None:
        # The parts keep the time of closing, because they must not extend delivery.timeout.ms.
        parts = [
            ProducerBatch(
                topic=batch.topic,
                partition=batch.partition,
                # Rows without timestamps keep the timestamp of their batch.
                block=encode_block(
                    rows.columns.take(pa.array(piece)), batch.block.base_timestamp, self._codec, self._level
                ),
                created_ms=batch.created_ms,
                row_numbers=rows.row_numbers[piece],
                own_timestamps=None if batch.own_timestamps is None else batch.own_timestamps[piece],
                in_doubt=batch.in_doubt,  # the lost request held the rows of every part
            )
            for piece in pieces
        ]
        queue = self.queue(batch.topic, batch.partition)
        batch.in_flight = False
        queue.replace(batch, parts)
        self.used_bytes += sum(part.memory_bytes for part in parts)
        self._released(queue, batch)

    def drop_unsent(self) -> list[ProducerBatch]:
        """Drop all rows and batches not in flight; return dropped batches with a sequence."""
        # A batch in flight stays, because an abort waits for its response (KIP-890).
        numbered: list[ProducerBatch] = []
        for queue in self.queues.values():
            queue.open = None
            dropped = [batch for batch in queue.unacknowledged if not batch.in_flight]
            numbered += dropped
            queue.unacknowledged = [batch for batch in queue.unacknowledged if batch.in_flight]
            for batch in itertools.chain(dropped, queue.fresh):
                self.used_bytes -= batch.memory_bytes
            queue.fresh.clear()
            if queue.idle:
                self.active.pop((queue.topic, queue.partition), None)
        self.open_bytes = 0
        return numbered

    @property
    def idle(self) -> bool:
        """True if every closed batch is acknowledged."""
        return not self.active

    def _released(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        self.used_bytes -= batch.memory_bytes
        if queue.idle:
            self.active.pop((queue.topic, queue.partition), None)
