"""The queue of each partition: its open rows, its batches and their sequences.

A partition's rows pass through three lists, in order:

    open              rows that wait until a batch is full (batch.size) or old enough (linger.ms)
    fresh             closed, encoded batches without a sequence
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

from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.producer.rows import OpenRows, concat_open_rows
from kafka_eos_sink.protocol.compression import Codec
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, TopicPartition
from kafka_eos_sink.protocol.record_batch import RecordsBlock, seal
from kafka_eos_sink.protocol.record_columns import encode_block

SEQUENCES: Final = 2**31
"""Sequences wrap from 2147483647 to 0."""


@dataclass(slots=True, kw_only=True, eq=False)
class ProducerBatch:
    """One record batch, from its encoding to its acknowledgement.

    The batch keeps its ``rows`` in order to split them if the topic's limit is smaller, and to name rejected rows.
    ``rows`` is None for a record of the commit log.
    """

    topic: str
    partition: int
    block: RecordsBlock
    created_ms: int
    timestamp_ms: int
    """Time of writing in ms since the epoch, for records without a timestamp."""
    rows: OpenRows | None = None

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
        """Memory of the batch: its rows and their encoded bytes."""
        return (0 if self.rows is None else self.block.uncompressed_bytes) + len(self.block.records)

    def row_number(self, index: int) -> int | None:
        """Return the number, within the task, of the row of record ``index``."""
        if self.rows is None or index >= self.record_count:
            return None
        return int(self.rows.row_numbers[index])

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
    rows: OpenRows
    error: KafkaEosError


@dataclass(slots=True, kw_only=True, eq=False)
class PartitionQueue:
    """The unacknowledged rows and batches of one partition."""

    topic: str
    partition: int
    open: list[OpenRows] = field(default_factory=list)
    open_bytes: int = 0
    open_since: int = 0
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

    def append(self, topic: str, partition: int, rows: OpenRows, now: int) -> PartitionQueue:
        """Append rows, in order, to the open rows of their partition."""
        queue = self.queue(topic, partition)
        if not queue.open:
            queue.open_since = now
        size = int(rows.sizes.sum())
        queue.open.append(rows)
        queue.open_bytes += size
        self.open_bytes += size
        return queue

    def cut(self, queue: PartitionQueue, *, everything: bool) -> Iterator[OpenRows]:
        """Yield full batches of rows, or all rows; a row above ``batch_size`` is alone."""
        limit = self.batch_size(queue.topic)
        if not queue.open or (queue.open_bytes < limit and not everything):
            return
        rows = queue.open[0] if len(queue.open) == 1 else concat_open_rows(queue.open)
        ends = np.cumsum(rows.sizes)
        start, before, total = 0, 0, len(ends)
        pieces = []
        while start < total and (everything or int(ends[-1]) - before >= limit):
            end = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
            pieces.append(rows.slice(start, end))
            start, before = end, int(ends[end - 1])
        remaining = int(ends[-1]) - before
        self.open_bytes -= queue.open_bytes - remaining
        queue.open_bytes = remaining
        queue.open.clear()
        if start < total:
            # A copy, because a slice of a few rows would keep the memory of the whole slab.
            queue.open.append(rows.take(np.arange(start, total)))
        yield from pieces

    def lingered(self, now: int) -> list[PartitionQueue]:
        """Return the queues whose open rows have waited for linger.ms."""
        return [queue for queue in self.queues.values() if queue.open and now - queue.open_since >= self._linger_ms]

    def fullest(self, bytes_to_free: int) -> list[PartitionQueue]:
        """Return the queues with the most open bytes, ``bytes_to_free`` in total."""
        found, freed = [], 0
        for queue in sorted(self.queues.values(), key=lambda queue: -queue.open_bytes):
            if freed >= bytes_to_free or not queue.open:
                break
            freed += queue.open_bytes
            found.append(queue)
        return found

    def close(self, queue: PartitionQueue, rows: OpenRows, now: int, timestamp_ms: int) -> ProducerBatch:
        """Encode ``rows`` as a batch; ``timestamp_ms`` is for rows without one."""
        batch = ProducerBatch(
            topic=queue.topic,
            partition=queue.partition,
            block=encode_block(rows.columns, timestamp_ms, self._codec, self._level),
            created_ms=now,
            timestamp_ms=timestamp_ms,
            rows=rows,
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
        rows = batch.rows
        if rows is None or batch.record_count < 2:
            return False
        ends = np.cumsum(rows.sizes)
        half = int(np.searchsorted(ends, ends[-1] // 2, side="right"))
        half = min(max(half, 1), batch.record_count - 1)
        self._topic_batch_size[batch.topic] = max(1, min(self.batch_size(batch.topic), int(ends[-1]) // 2))
        self._replace(batch, (rows.slice(0, half), rows.slice(half, batch.record_count)))
        return True

    def remove(self, batch: ProducerBatch, records: Sequence[int], error: KafkaEosError) -> RejectedRows:
        """Replace a rejected batch by one without ``records``, or by nothing; return their rows."""
        rows = batch.rows
        assert rows is not None
        rejected = np.isin(np.arange(batch.record_count), records)
        kept = np.flatnonzero(~rejected)
        self._replace(batch, [rows.take(kept)] if len(kept) else [])
        return RejectedRows(batch.topic, batch.partition, rows.take(np.flatnonzero(rejected)), error)

    def _replace(self, batch: ProducerBatch, pieces: Sequence[OpenRows]) -> None:
        # The parts keep the time of closing, because they must not extend delivery.timeout.ms.
        parts = [
            ProducerBatch(
                topic=batch.topic,
                partition=batch.partition,
                block=encode_block(rows.columns, batch.timestamp_ms, self._codec, self._level),
                created_ms=batch.created_ms,
                timestamp_ms=batch.timestamp_ms,
                rows=rows,
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
            queue.open.clear()
            queue.open_bytes = 0
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
