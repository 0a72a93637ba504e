"""The queue of each partition: its open rows, its batches and their sequences.

A partition's rows pass through three lists, in order:

    open              encoded rows of a batch that is not yet full (batch.size) or old enough (linger.ms)
    fresh             closed, compressed batches without a sequence
    unacknowledged    batches with a sequence: in flight, or waiting for a resend

While a batch waits for a resend, the sender sends only the partition's oldest unacknowledged batch. The leader would
reject any later batch as out of order.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.producer.rows import NumberedRows
from kafka_eos_sink.protocol.compression import Codec, compress
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, TopicPartition
from kafka_eos_sink.protocol.record_batch import RecordsBlock, read_own_block, seal
from kafka_eos_sink.protocol.record_columns import (
    EncodedSection,
    RecordColumns,
    Section,
    encode_block,
    headers_array,
    record_sizes,
)

SEQUENCES: Final = 2**31
"""Sequences wrap from 2147483647 to 0."""


@dataclass(slots=True, kw_only=True, eq=False)
class OpenBatch:
    """The encoded rows of a batch that is not closed yet."""

    base_timestamp: int
    max_timestamp: int
    has_timestamps: bool
    since: int
    """Clock ms of the first row."""
    sections: list[memoryview] = field(default_factory=list)
    row_numbers: list[npt.NDArray[np.int64]] = field(default_factory=list)
    record_count: int = 0
    size: int = 0
    """Bytes of the sections."""

    def keep_alone(self) -> None:
        """Copy the last section, which is a view of the records of many partitions and would keep them all."""
        self.sections[-1] = memoryview(bytes(self.sections[-1]))


class Cut(NamedTuple):
    """Rows for one batch of a queue; with ``begins`` for a new one, behind the open one."""

    queue: PartitionQueue
    section: Section
    begins: bool


@dataclass(slots=True, kw_only=True, eq=False)
class ProducerBatch:
    """One record batch, from its encoding to its acknowledgement.

    ``row_numbers`` are those of its rows within the task, which errors name; None for encoded records from elsewhere, such as those of
    the commit log, which are neither split nor made dead letters.
    """

    topic: str
    partition: int
    block: RecordsBlock
    created_ms: int
    timestamp_ms: int
    """Time of writing in ms since the epoch, for records without a timestamp."""
    row_numbers: npt.NDArray[np.int64] | None = None
    has_timestamps: bool = False
    """False if no row had a timestamp of its own."""

    identity: ProducerIdAndEpoch = (-1, -1)
    base_sequence: int = -1
    sealed: tuple[bytes, memoryview] | None = None
    """The encoded bytes, kept because a resend must be identical."""
    attempts: int = 0
    in_flight: bool = False
    in_doubt: bool = False
    """True after a lost response or an ambiguous error: the leader may have the batch."""
    retry_at: int = 0
    unknown_topic_since: int | None = None
    last_problem: str = ""
    base_offset: int | None = None
    """First offset after the acknowledgement; -1 if the response had no offset."""

    @property
    def record_count(self) -> int:
        return self.block.record_count

    @property
    def size_bytes(self) -> int:
        """Bytes on the wire."""
        return self.block.size_in_bytes

    @property
    def memory_bytes(self) -> int:
        """Memory of the batch: its records and the numbers of their rows."""
        return len(self.block.records) + (0 if self.row_numbers is None else self.row_numbers.nbytes)

    def row_number(self, index: int) -> int | None:
        """Return the number, within the task, of the row of record ``index``."""
        if self.row_numbers is None or index >= self.record_count:
            return None
        return int(self.row_numbers[index])

    def rows(self) -> NumberedRows:
        """Read the rows back from the records: only what a broker rejects is needed again."""
        assert self.row_numbers is not None
        records = read_own_block(self.block)
        headers = [
            [(key.encode(errors="surrogateescape"), value) for key, value in record.headers] for record in records
        ]
        columns = RecordColumns(
            value=pa.array([record.value for record in records], pa.binary()),
            key=pa.array([record.key for record in records], pa.binary()),
            headers=headers_array(headers) if any(headers) else None,
            timestamp=pa.array([record.timestamp for record in records]) if self.has_timestamps else None,
        )
        return NumberedRows(columns=columns, row_numbers=self.row_numbers)

    def sent_as(self, identity: ProducerIdAndEpoch, base_sequence: int, *, transactional: bool) -> None:
        """Set producer id, epoch and sequence, and encode the header."""
        self.identity, self.base_sequence = identity, base_sequence
        header, records = seal(
            self.block,
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=base_sequence,
            transactional=transactional,
        )
        self.sealed = bytes(header), memoryview(records)

    def unsent(self) -> None:
        """Remove identity and sequence before the batch gets new ones."""
        self.identity, self.base_sequence, self.sealed = (-1, -1), -1, None
        self.attempts = 0
        self.in_doubt = False
        self.retry_at = 0


class RejectedRows(NamedTuple):
    """Rows that a broker rejected, and the reason for their dead letters."""

    topic: str
    partition: int
    rows: NumberedRows
    error: KafkaEosError


@dataclass(slots=True, kw_only=True, eq=False)
class PartitionQueue:
    """The unacknowledged rows and batches of one partition."""

    topic: str
    partition: int
    open: OpenBatch | None = None
    fresh: deque[ProducerBatch] = field(default_factory=deque)
    unacknowledged: list[ProducerBatch] = field(default_factory=list)
    identity: ProducerIdAndEpoch = (-1, -1)
    next_sequence: int = 0
    anything_acknowledged: bool = False
    """Under the current identity."""
    rewrite: bool = False
    """True after an unresolved sequence: all batches then need new sequences."""

    def next_to_send(self, now: int, max_in_flight: int, identity: ProducerIdAndEpoch) -> ProducerBatch | None:
        """Return the batch that the sender may send now, or None."""
        if self.rewrite or self.identity != identity:
            # A batch must not be resent under an old producer id or epoch (KIP-360). Renumbering waits for the requests
            # in flight: the leader may still append them under their old sequences. The renumbered resend would then be
            # a second copy, which no leader recognises as a duplicate.
            if any(batch.in_flight for batch in self.unacknowledged):
                return None
            self._start_over(identity)
        if self.unacknowledged:
            oldest = self.unacknowledged[0]
            # After a retriable error or a lost response, resend the oldest batch first and alone: which later batches the
            # leader appended is unknown (Java: RecordAccumulator.shouldStopDrainBatchesForPartition).
            if not oldest.in_flight:
                return oldest if oldest.retry_at <= now else None
            # A later batch waits for its resend, and no new batch may overtake it.
            if any(not batch.in_flight for batch in self.unacknowledged):
                return None
            # A leader recognises duplicates only among a producer's last five batches, hence at most five in flight
            # (Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN). After a sixth, it would not recognise the first.
            # The first batch goes alone, because a leader without state of this producer accepts any first sequence
            # (KIP-360). It could reject the first batch and accept the second: the order would be lost.
            if not self.anything_acknowledged or len(self.unacknowledged) >= max_in_flight:
                return None
        return self.fresh[0] if self.fresh and self.fresh[0].retry_at <= now else None

    def sent(self, batch: ProducerBatch, *, transactional: bool) -> None:
        """Mark ``batch``, the result of ``next_to_send``, as in flight."""
        if batch.sealed is None:
            if self.fresh and self.fresh[0] is batch:
                self.fresh.popleft()
                self.unacknowledged.append(batch)
                # A batch gets its sequence only here, because a sequence that is never sent would be a gap.
                batch.base_sequence = self.next_sequence
                self.next_sequence = (self.next_sequence + batch.record_count) % SEQUENCES
            batch.sent_as(self.identity, batch.base_sequence, transactional=transactional)
        batch.attempts += 1
        batch.in_flight = True

    def done(self, batch: ProducerBatch) -> None:
        """Remove an acknowledged batch."""
        batch.in_flight = False
        self.unacknowledged.remove(batch)
        self.anything_acknowledged = True

    def replace(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Replace a rejected ``batch`` by ``parts``, and renumber the batches behind it.

        The first part gets the base sequence of ``batch``. Later batches keep theirs if the record count is unchanged.
        """
        at = self.unacknowledged.index(batch)
        self.unacknowledged[at : at + 1] = parts
        sequence = batch.base_sequence
        for later in self.unacknowledged[at:]:
            # Renumbering a batch in flight is safe: the leader rejects it, since the batch before it is missing.
            # The sender then finds ``sealed`` None, and resends the batch under its new sequence.
            if later.base_sequence != sequence:
                later.unsent()
                later.identity, later.base_sequence = self.identity, sequence
            sequence = (sequence + later.record_count) % SEQUENCES
        self.next_sequence = sequence

    def _start_over(self, identity: ProducerIdAndEpoch) -> None:
        # A new epoch starts at sequence 0 on every leader (KIP-360). The batches keep their order.
        for batch in reversed(self.unacknowledged):
            batch.unsent()
            self.fresh.appendleft(batch)
        self.unacknowledged.clear()
        self.identity = identity
        self.next_sequence = 0
        self.anything_acknowledged = False
        self.rewrite = False

    @property
    def open_bytes(self) -> int:
        return 0 if self.open is None else self.open.size

    @property
    def oldest(self) -> ProducerBatch | None:
        if self.unacknowledged:
            return self.unacknowledged[0]
        return self.fresh[0] if self.fresh else None

    @property
    def idle(self) -> bool:
        return not self.unacknowledged and not self.fresh


class RecordAccumulator:
    """The queues of all partitions, and their memory; ``now`` is clock ms."""

    def __init__(self, *, batch_size: int, linger_ms: int, codec: Codec, compression_level: int | None = None) -> None:
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.active: dict[TopicPartition, PartitionQueue] = {}
        """The queues with batches, the least recently served first."""
        self.used_bytes = 0
        """Memory of the unacknowledged batches."""
        self.open_bytes = 0
        self._batch_size = batch_size
        self._topic_batch_size: dict[str, int] = {}
        self._linger_ms = linger_ms
        self._codec = codec
        self._level = compression_level

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
        """Cut rows, in order, into those that fit into the open batch and those of new ones.

        A row above the batch size gets a batch of its own. Rows without timestamps have that of their batch, so they begin a new one
        if the open one is older than linger.ms, or has timestamps.

        Args:
            ends: The sum of the sizes of all rows up to each one.
            start, stop: Which of the rows are the queue's.
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
        has_timestamps: bool,
    ) -> None:
        """Append encoded rows to the open batch of their partition, or open one."""
        opened = queue.open
        if opened is None:
            opened = queue.open = OpenBatch(
                base_timestamp=section.base_timestamp,
                max_timestamp=section.max_timestamp,
                has_timestamps=has_timestamps,
                since=now,
            )
        opened.max_timestamp = max(opened.max_timestamp, section.max_timestamp)
        opened.sections.append(section.records)
        opened.row_numbers.append(row_numbers)
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
        sections = opened.sections
        # Uncompressed, a view would keep the records of many partitions in memory until the batch is acknowledged.
        alone = len(sections) == 1 and self._codec is not Codec.NONE
        block = RecordsBlock(
            records=compress(self._codec, self._level, sections[0] if alone else b"".join(sections)),
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
            timestamp_ms=opened.base_timestamp,
            row_numbers=np.concatenate(opened.row_numbers),
            has_timestamps=opened.has_timestamps,
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
        """Move the queue behind the others, so that no partition starves."""
        key = (queue.topic, queue.partition)
        self.active.pop(key, None)
        if not queue.idle:
            self.active[key] = queue

    def acknowledged(self, batch: ProducerBatch) -> None:
        queue = self.queue(batch.topic, batch.partition)
        queue.done(batch)
        self._released(queue, batch)

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
        self._replace(batch, (rows.slice(0, half), rows.slice(half, batch.record_count)))
        return True

    def remove(self, batch: ProducerBatch, records: Sequence[int], error: KafkaEosError) -> RejectedRows:
        """Replace a rejected batch by one without ``records``, or by nothing; return their rows."""
        rows = batch.rows()
        rejected = np.isin(np.arange(batch.record_count), records)
        kept = np.flatnonzero(~rejected)
        self._replace(batch, [rows.take(kept)] if len(kept) else [])
        return RejectedRows(batch.topic, batch.partition, rows.take(np.flatnonzero(rejected)), error)

    def _replace(self, batch: ProducerBatch, pieces: Sequence[NumberedRows]) -> None:
        # The parts keep the time of closing, because they must not extend delivery.timeout.ms.
        parts = [
            ProducerBatch(
                topic=batch.topic,
                partition=batch.partition,
                block=encode_block(rows.columns, batch.timestamp_ms, self._codec, self._level),
                created_ms=batch.created_ms,
                timestamp_ms=batch.timestamp_ms,
                row_numbers=rows.row_numbers,
                has_timestamps=batch.has_timestamps,
            )
            for rows in pieces
        ]
        queue = self.queue(batch.topic, batch.partition)
        batch.in_flight = False
        queue.replace(batch, parts)
        self.used_bytes += sum(part.memory_bytes for part in parts)
        self._released(queue, batch)

    def drop_unsent(self) -> list[ProducerBatch]:
        """Drop what is not in flight; return the dropped batches with a sequence."""
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
