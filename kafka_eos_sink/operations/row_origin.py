"""Finds the write of one row, by the producer of its record batch.

A task's producer id and epoch belong to one transaction only. The history holds both for each batch, with its offsets, which may
overlap with other writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.committed_records import committed_batches
from kafka_eos_sink.client.topics_admin import EARLIEST, Isolation
from kafka_eos_sink.commit.refusals import refused, text
from kafka_eos_sink.commit.values import iso_utc
from kafka_eos_sink.operations.transactions import partitions_of
from kafka_eos_sink.producer import dead_letters
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, TopicPartition
from kafka_eos_sink.protocol.record_batch import RecordBatch, read_record_batches
from kafka_eos_sink.runtime.batch_record import BatchRecord
from kafka_eos_sink.runtime.history_reading import find_batch

_ERROR_HEADER, _REASON_HEADER = ((dead_letters.PREFIX + name).decode() for name in (b"error", b"reason"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrigin:
    """A row, and the batch that wrote it.

    record  of the batch in the history
    notes   what else the reader of the row must know
    reason  why no write is known; None if one is
    """

    topic: str
    partition: int
    offset: int
    producer: ProducerIdAndEpoch | None = None
    record: BatchRecord | None = None
    notes: tuple[str, ...] = ()
    reason: str | None = None


def find_origin(admin: Admin, where: TopicPartition, offset: int, *, history_topic: str, timeout_ms: int) -> RowOrigin:
    """Return the write of the row at an offset, or why it is not known.

    One batch of the topic is read, and the history from its end.

    Args:
        timeout_ms: Bounds the reading of the topic, and then of the history.

    Raises:
        BrokerRefusedError: UNKNOWN_TOPIC.
        BrokerUnavailableError: REQUEST_DEADLINE.
        AuthorizationError, ProtocolError.
    """
    row = _look_at(admin, RowOrigin(topic=where[0], partition=where[1], offset=offset), timeout_ms)
    if row.producer is None or row.reason is not None:
        return row
    record, begins_ms = find_batch(admin, history_topic, where, offset, row.producer, timeout_ms=timeout_ms)
    if record is not None:
        return replace(row, record=record)
    begins = "is empty or does not exist" if begins_ms is None else f"begins at {iso_utc(begins_ms, 'seconds')}"
    return replace(row, reason=text("no_batch_of_row", topic=history_topic, begins=begins, producer=row.producer))


def _look_at(admin: Admin, row: RowOrigin, timeout_ms: int) -> RowOrigin:
    """Read the record batch at the offset; add its producer, or a reason."""
    where, offset = (row.topic, row.partition), row.offset
    deadline = admin.client.clock() + timeout_ms
    partitions_of(admin, row.topic, row.partition, deadline)
    start = admin.list_offsets([where], deadline, isolation="read_uncommitted", timestamp=EARLIEST)[where]
    end = admin.list_offsets([where], deadline, isolation="read_uncommitted")[where]
    stable = admin.list_offsets([where], deadline)[where]
    if offset >= end:
        return replace(row, reason=f"the partition ends before offset {end}: no row has this offset yet")
    batch: RecordBatch | None = None
    while offset >= start and batch is None:
        # Below the last stable offset, both isolation levels return the same batches, and this one also lists the aborted transactions.
        isolation: Isolation = "read_committed" if offset < stable else "read_uncommitted"
        fetched = admin.fetch(where, offset, deadline, isolation=isolation, max_bytes=1)
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            break
        batch = next(read_record_batches(fetched.records or b""), None)
        if batch is None and admin.client.clock() > deadline:
            raise refused("REQUEST_DEADLINE.row", where="{}-{}".format(*where), offset=offset, timeout_ms=timeout_ms)
    if batch is None or batch.base_offset > offset:
        return replace(row, reason=text("row_removed"))
    row = replace(row, producer=(batch.producer_id, batch.producer_epoch))
    if batch.control:
        return replace(row, reason="the offset holds the end marker of a transaction, not a row")
    reason = None
    if not batch.transactional:
        reason = text("row_without_transaction")
    elif not any(committed_batches([batch], fetched.aborted_transactions or ())):
        reason = text("row_aborted")
    return replace(row, reason=reason, notes=tuple(_notes(batch, offset, stable)))


def _notes(batch: RecordBatch, offset: int, stable: int) -> Iterator[str]:
    record = next((each for each in batch.records if each.offset == offset), None)
    if record is None:
        yield "compaction has removed the row; other rows of its batch are left"
    if offset >= stable:
        yield f"read_committed consumers do not see the row yet: an open transaction blocks them at offset {stable}"
    headers = {name: (value or b"").decode(errors="replace") for name, value in (record.headers if record else ())}
    if _ERROR_HEADER in headers:
        yield f"the row is a dead letter: {headers[_ERROR_HEADER]}, {headers.get(_REASON_HEADER, '')}"
