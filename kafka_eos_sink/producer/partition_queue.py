"""The queue of one partition: its open rows, its batches and their sequences.

A partition's rows pass through three lists, in order:

    open              encoded rows of a batch that is not yet full (batch.size) or old enough (linger.ms)
    fresh             closed, compressed batches without a sequence
    unacknowledged    batches with a sequence: in flight, or waiting for a resend

While a batch waits for a resend, the sender sends only the partition's oldest unacknowledged batch. The leader would
reject any later batch as out of order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_eos_sink.producer.rows import NumberedRows
from kafka_eos_sink.protocol.compression import Buffer
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch
from kafka_eos_sink.protocol.record_batch import RecordsBlock, read_own_block, seal
from kafka_eos_sink.protocol.record_columns import RecordColumns, headers_array

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
    own_timestamps: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    """As `ProducerBatch.own_timestamps`, per section; empty without timestamps."""
    record_count: int = 0
    size: int = 0
    """Bytes of the sections."""


@dataclass(slots=True, kw_only=True, eq=False)
class ProducerBatch:
    """One record batch, from its encoding to its acknowledgement.

    ``row_numbers`` number the rows within the task, for errors; numbers of dead letters are complements (``~number``). They are None for
    records of the commit log and for copies, which the sender neither splits nor makes dead letters.
    """

    topic: str
    partition: int
    block: RecordsBlock
    created_ms: int
    row_numbers: npt.NDArray[np.int64] | None = None
    own_timestamps: npt.NDArray[np.bool_] | None = None
    """Which records have the timestamp of their row, and not one of this host's clock; None if none has."""

    identity: ProducerIdAndEpoch = (-1, -1)
    base_sequence: int = -1
    sealed: Sequence[Buffer] | None = None
    """The encoded bytes, kept because a resend must be identical."""
    attempts: int = 0
    in_flight: bool = False
    in_doubt: bool = False
    """True after a lost response or an ambiguous error: the leader may have the batch."""
    retry_at: int = 0
    unknown_topic_since: int | None = None
    last_problem: str = ""
    lost_request_bytes: int = 0
    """Size of the last request, if the connection broke while it was in flight."""

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
        arrays = self.row_numbers, self.own_timestamps
        return self.block.records_bytes + sum(array.nbytes for array in arrays if array is not None)

    def row_number(self, index: int) -> int | None:
        """Return the row number in the task of record ``index``; a letter has its row's."""
        if self.row_numbers is None or not 0 <= index < self.record_count:
            return None
        number = int(self.row_numbers[index])
        return number if number >= 0 else ~number

    def is_by_clock(self, index: int | None) -> bool:
        """Whether a record's timestamp is from this host's clock; of each for None."""
        if self.own_timestamps is None:
            return True
        if index is None:
            return not self.own_timestamps.any()
        return 0 <= index < self.record_count and not self.own_timestamps[index]

    def rows(self) -> NumberedRows:
        """Decode the rows; only a rejected batch needs them again."""
        assert self.row_numbers is not None
        records = read_own_block(self.block)
        headers = [
            [(key.encode(errors="surrogateescape"), value) for key, value in record.headers] for record in records
        ]
        columns = RecordColumns(
            value=pa.array([record.value for record in records], pa.binary()),
            key=pa.array([record.key for record in records], pa.binary()),
            headers=headers_array(headers) if any(headers) else None,
            timestamp=None if self.own_timestamps is None else pa.array([record.timestamp for record in records]),
        )
        partition = pa.repeat(pa.scalar(self.partition, pa.int32()), len(records))
        return NumberedRows(topic=self.topic, partition=partition, columns=columns, row_numbers=self.row_numbers)

    def clear_sequence(self) -> None:
        """Remove identity and sequence before the batch gets new ones."""
        self.identity, self.base_sequence, self.sealed = (-1, -1), -1, None
        self.attempts = 0
        self.retry_at = 0


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
    needs_new_sequences: bool = False
    """True after an unresolved sequence: all batches then need new sequences."""

    def next_to_send(self, now: int, max_in_flight: int, identity: ProducerIdAndEpoch) -> ProducerBatch | None:
        """Return the batch that the sender may send now, or None."""
        if self.needs_new_sequences or self.identity != identity:
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
            # If a later batch waits for its resend, no new batch may overtake that one.
            if any(not batch.in_flight for batch in self.unacknowledged):
                return None
            # A leader recognises duplicates only among a producer's last five batches (Kafka's
            # ProducerStateEntry.NUM_BATCHES_TO_RETAIN). With a sixth in flight, the leader would not recognise the first.
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
            batch.identity = self.identity
            batch.sealed = seal(
                batch.block,
                producer_id=batch.identity[0],
                producer_epoch=batch.identity[1],
                base_sequence=batch.base_sequence,
                transactional=transactional,
            )
        batch.attempts += 1
        batch.in_flight = True

    def done(self, batch: ProducerBatch) -> None:
        batch.in_flight = False
        self.unacknowledged.remove(batch)
        self.anything_acknowledged = True

    def replace(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Replace a rejected ``batch`` by ``parts``, and renumber the batches after it.

        ``parts`` begin at its sequence. If the record count changes, so do later sequences: no later batch may be in flight or in doubt.
        """
        at = self.unacknowledged.index(batch)
        self.unacknowledged[at : at + 1] = parts
        sequence = batch.base_sequence
        for later in self.unacknowledged[at:]:
            if later.base_sequence != sequence:
                later.clear_sequence()
                later.identity, later.base_sequence = self.identity, sequence
            sequence = (sequence + later.record_count) % SEQUENCES
        self.next_sequence = sequence

    def _start_over(self, identity: ProducerIdAndEpoch) -> None:
        # A new epoch starts at sequence 0 on every leader (KIP-360). The batches keep their order.
        for batch in reversed(self.unacknowledged):
            batch.clear_sequence()
            self.fresh.appendleft(batch)
        self.unacknowledged.clear()
        self.identity = identity
        self.next_sequence = 0
        self.anything_acknowledged = False
        self.needs_new_sequences = False

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
