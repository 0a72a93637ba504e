"""Procedures that read the commit log and append to it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from uuid import UUID

from kafka_eos_sink.commit.log_records import barrier_record, done_record, tombstones
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.refusals import refused, text
from kafka_eos_sink.commit.steps import (
    AddPartitions,
    Append,
    Appended,
    AppendInTransaction,
    End,
    EndTransactions,
    LogChunk,
    LogRecord,
    Now,
    Procedure,
    ReadLog,
    WallClock,
    Warn,
)
from kafka_eos_sink.commit.values import Decision
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.wire_types import ZERO_UUID

STUCK_LOG_MS = 120_000
NO_LOG = UUID(int=1)
"""The topic id in a barrier that makes no log the write's own."""


def read_to_end(view: LogView) -> Procedure[None]:
    """Feed the view up to the current end of the log."""
    # Other writes extend the partition all the time, so its end is fixed at the first chunk.
    end: int | None = None
    while True:
        before = view.next_offset
        chunk = yield from read_on(view, wait=False)
        end = chunk.end_offset if end is None else end
        if view.next_offset >= end or view.next_offset == before:
            return


def require_whole(view: LogView) -> None:
    """Raise ``COMMIT_LOG_TRUNCATED`` if the beginning of the log is gone."""
    # Compaction alone never moves the log start, so decisions may be gone with the beginning.
    if view.log_start_offset > 0:
        raise refused("COMMIT_LOG_TRUNCATED", write_id=view.write_id, offset=view.log_start_offset)


def read_to_barrier(view: LogView, nonce: str, log_id: UUID = ZERO_UUID, *, claims: bool = True) -> Procedure[int]:
    """Append a barrier and feed the view up to it; return the barrier's offset.

    Every record that was acknowledged before this call is then in the view.

    Args:
        log_id: Topic id of the log that the caller knows, from the view or another one; zero if it knows none.
        claims: Whether the barrier makes the log the write's own (NEW LOG).

    Raises:
        BrokerUnavailableError: COMMIT_LOG_UNAVAILABLE after two minutes without a record. A new leader below min.insync.replicas does
            not advance its high watermark to the records that the old one acknowledged.
        WriteRefusedError: As `require_whole`. NOT_THIS_COMMIT_LOG if the log is no longer the known one (NEW LOG).
    """
    assert view.write_id is not None
    log_id = view.topic_id if view.topic_id.int else log_id
    barrier = yield from Append((barrier_record(view.write_id, nonce, log_id if claims else NO_LOG),))
    if view.topic_id.int and barrier < view.next_offset:
        raise refused("NOT_THIS_COMMIT_LOG.created_again", write_id=view.write_id)
    stuck_since: int | None = None
    while view.next_offset <= barrier:
        before = view.next_offset
        yield from read_on(view)
        if view.topic_id != log_id and ZERO_UUID not in (view.topic_id, log_id):
            raise refused("NOT_THIS_COMMIT_LOG.created_again", write_id=view.write_id)
        if view.next_offset > before:
            stuck_since = None
            continue
        now = yield from Now()
        stuck_since = now if stuck_since is None else stuck_since
        if now - stuck_since > STUCK_LOG_MS:
            raise refused(
                "COMMIT_LOG_UNAVAILABLE",
                write_id=view.write_id,
                end_offset=barrier,
                seconds=STUCK_LOG_MS // 1000,
                ends_at=view.next_offset,
            )
    require_whole(view)
    return barrier


def read_on(view: LogView, *, wait: bool = True) -> Procedure[LogChunk]:
    """Feed the view the next chunk."""
    chunk = yield from ReadLog(view.next_offset, wait=wait)
    while view.topic_id != chunk.topic_id and ZERO_UUID not in (view.topic_id, chunk.topic_id):
        # NEW LOG: no record of the old one counts, even if the new one has outgrown it.
        view.restart()
        chunk = yield from ReadLog(view.next_offset, wait=wait)
    view.topic_id = chunk.topic_id if chunk.topic_id.int else view.topic_id
    view.feed(chunk.entries, chunk.next_offset, chunk.log_start_offset)
    return chunk


def write_done(decision: Decision) -> Procedure[None]:
    """Append the done record of a finished decision; warn if that fails."""
    # Recovery is right without the record, so its failure must not fail the batch.
    now = yield from WallClock()
    try:
        yield from Append((done_record(decision, now),))
    except KafkaEosError as failure:
        yield from Warn(text("not_marked_done", decision=decision, failure=failure.code))


def append_in_transaction(
    driver: ProducerIdentity, records: tuple[LogRecord, ...], base_sequence: int
) -> Procedure[Appended]:
    """Append in the driver's transaction, as first records if ``base_sequence`` is 0."""
    # From version 2 on Produce itself adds the partition to the transaction (KIP-890).
    if not driver.bumps_epoch:
        added = yield from AddPartitions(driver)
        if added.error != ErrorCode.NONE:
            return Appended(error=added.error, earlier_error=added.earlier_error)
    return (yield from AppendInTransaction(driver, base_sequence, records))


def forget(decision: Decision, driver: ProducerIdentity, base_sequence: int) -> Procedure[None]:
    """Remove a finished write with a random id by tombstones; warn if that fails."""
    with suppress(KafkaEosError):  # the batch is finished
        if (yield from commit_in_transaction(driver, tombstones(decision), base_sequence)).error == ErrorCode.NONE:
            return
    yield from Warn(text("not_removed", decision=decision))


def commit_in_transaction(
    driver: ProducerIdentity, records: tuple[LogRecord, ...], base_sequence: int
) -> Procedure[Appended]:
    """Commit records in the driver's transaction, up to the first failed request.

    PAUSE: a newer driver fences this transaction, so a late tombstone never removes its records.

    Returns:
        The result of that request, else of EndTxn; without an offset if the records were not appended.
    """
    appended = yield from append_in_transaction(driver, records, base_sequence)
    if appended.error != ErrorCode.NONE:
        return replace(appended, offset=-1)
    ends = yield from EndTransactions((End(identity=driver, commit=True),))
    return Appended(error=ends[0].error, offset=appended.offset)
