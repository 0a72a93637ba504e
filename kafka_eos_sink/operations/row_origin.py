"""Finds the write of one row, by the producer of its record batch.

A task's producer id and epoch belong to one transaction only. The history holds both for each batch, with its offsets, which may
overlap with other writes. For a batch that the history lacks, the coordinator may know whose producer id it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.committed_records import committed_batches
from kafka_eos_sink.client.topics_admin import EARLIEST, Isolation
from kafka_eos_sink.commit.transactional_id import write_id_of
from kafka_eos_sink.commit.values import iso_utc
from kafka_eos_sink.errors import BrokerRefusedError, BrokerUnavailableError
from kafka_eos_sink.producer import dead_letters
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.record_batch import RecordBatch, read_record_batches
from kafka_eos_sink.runtime.history_reading import find_batch

_ERROR_HEADER, _REASON_HEADER = ((dead_letters.PREFIX + name).decode() for name in (b"error", b"reason"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrigin:
    """A row, and the version that wrote it as far as it is known.

    state   finished if the history has the batch
    notes   what else the reader of the row must know
    reason  why no write is known; None if one is
    """

    topic: str
    partition: int
    offset: int
    producer_id: int | None = None
    producer_epoch: int | None = None
    write_id: str | None = None
    query_id: str | None = None
    version: int | None = None
    state: str | None = None
    finished_at: str | None = None
    recovered_by: str | None = None
    application_id: str | None = None
    user_metadata: str | None = None
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
    row = RowOrigin(topic=where[0], partition=where[1], offset=offset)
    batch, row = _look_at(admin, row, timeout_ms)
    if batch is None or row.reason is not None:
        return row
    producer = batch.producer_id, batch.producer_epoch
    row = replace(row, producer_id=producer[0], producer_epoch=producer[1])
    record, begins_ms = find_batch(admin, history_topic, where, offset, producer, timeout_ms=timeout_ms)
    if record is not None:
        return replace(
            row,
            write_id=record.write_id,
            query_id=record.query_id,
            version=record.version,
            state="finished",
            finished_at=record.finished_at,
            recovered_by=record.recovered_by,
            application_id=record.application_id,
            user_metadata=record.user_metadata,
        )
    begins = "is empty" if begins_ms is None else f"begins at {iso_utc(begins_ms, 'seconds')}"
    is_missing = admin.topic(history_topic, admin.client.clock() + timeout_ms) is None
    about = _about_producer(_transactional_id(admin, producer[0], timeout_ms))
    reason = (
        f"the history {history_topic!r}, which {'does not exist' if is_missing else begins}, has no batch of producer id {producer[0]} "
        f"with epoch {producer[1]}, which wrote the row. {about}"
    )
    if is_missing:
        topics = f"kafka-eos topics {admin.client.config.command_options}".rstrip()
        reason += f". Name the history of the write with --history-topic. To list the topics: {topics}"
    return replace(row, reason=reason)


def _look_at(admin: Admin, row: RowOrigin, timeout_ms: int) -> tuple[RecordBatch | None, RowOrigin]:
    """Read the record batch at the offset; add a reason if it can name no write."""
    where, offset = (row.topic, row.partition), row.offset
    deadline = admin.client.clock() + timeout_ms
    topic = admin.topic(row.topic, deadline)
    if topic is None or row.partition not in {each.partition_index for each in topic.partitions}:
        what = f"no topic {row.topic!r}" if topic is None else f"no partition {row.partition} of topic {row.topic!r}"
        raise BrokerRefusedError(
            "UNKNOWN_TOPIC",
            f"there is {what}, or the Describe permission is missing; kafka-eos topics lists the topics",
        )
    start = admin.list_offsets([where], deadline, isolation="read_uncommitted", timestamp=EARLIEST)[where]
    end = admin.list_offsets([where], deadline, isolation="read_uncommitted")[where]
    stable = admin.list_offsets([where], deadline)[where]
    if offset >= end:
        return None, replace(row, reason=f"the partition ends before offset {end}: no row has this offset yet")
    if offset < start:
        return None, replace(row, reason=_removed(start))
    is_stable = offset < stable
    while True:
        # Below the last stable offset, both isolation levels return the same batches, and this one also lists the aborted transactions.
        isolation: Isolation = "read_committed" if is_stable else "read_uncommitted"
        fetched = admin.fetch(where, offset, deadline, isolation=isolation, max_bytes=1)
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None, replace(row, reason=_removed(offset + 1))
        batch = next(read_record_batches(fetched.records or b""), None)
        if batch is not None:
            break
        if admin.client.clock() > deadline:
            raise BrokerUnavailableError(
                "REQUEST_DEADLINE",
                f"the leader of {where[0]}-{where[1]} returned no record at offset {offset} in {timeout_ms} ms; check the leader",
            )
    is_aborted = not any(committed_batches([batch], fetched.aborted_transactions or ()))
    record = next((each for each in batch.records if each.offset == offset), None)
    headers = (
        {} if record is None else {name: (value or b"").decode(errors="replace") for name, value in record.headers}
    )
    notes = []
    reason = _why_unnamed(batch, offset, is_aborted=is_aborted)
    if batch.control or batch.base_offset > offset:
        # The offset holds no row, so nothing is known of one.
        return batch, replace(row, reason=reason)
    if record is None:
        notes.append("compaction has removed the row; other rows of its batch are left")
    if not is_stable:
        notes.append(
            f"read_committed consumers do not see the row yet: an open transaction blocks them at offset {stable}"
        )
    if _ERROR_HEADER in headers:
        notes.append(f"the row is a dead letter: {headers[_ERROR_HEADER]}, {headers.get(_REASON_HEADER, '')}")
    return batch, replace(row, notes=tuple(notes), reason=reason)


def _removed(start: int) -> str:
    return (
        f"retention or DeleteRecords has removed the row: the partition begins at offset {start}, and only the row's own batch shows its "
        "producer"
    )


def _why_unnamed(batch: RecordBatch, offset: int, *, is_aborted: bool) -> str | None:
    """Describe why a batch can name no write; None if it can."""
    if batch.base_offset > offset:
        return "no row has this offset: compaction has removed it"
    if batch.control:
        return "the offset holds the end marker of a transaction, not a row"
    if batch.producer_id < 0:
        return "a producer without idempotence wrote the row: another program, not the sink"
    if not batch.transactional:
        return (
            "the row was written outside a transaction: by a write with delivery.guarantee=at-least-once, which has no history, or by "
            "another program"
        )
    if is_aborted:
        return (
            "its transaction was aborted, so that read_committed consumers do not see the row. If its version was decided, recovery has "
            "appended the row again at a later offset"
        )
    return None


def _transactional_id(admin: Admin, producer_id: int, timeout_ms: int) -> str | None:
    """Return the transactional id by which a coordinator knows a producer id."""
    deadline = admin.client.clock() + timeout_ms
    found = admin.list_transactions(states=(), producer_ids=(producer_id,), deadline_ms=deadline, partial=True)
    return next((each.transactional_id for each in found), None)


def _about_producer(transactional_id: str | None) -> str:
    if transactional_id is None:
        return (
            "No coordinator knows its transactional id, or Describe on it is missing: the row is older than the history, or another "
            "program wrote it"
        )
    if (write_id := write_id_of(transactional_id)) is not None:
        return (
            f"Its transactional id {transactional_id!r} is of write id {write_id!r}: the batch has not finished, its record has expired, "
            "or it is in another history"
        )
    return f"Its transactional id {transactional_id!r} is another program's"
