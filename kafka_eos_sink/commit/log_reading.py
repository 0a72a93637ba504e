"""Procedures that read the commit log and reject an incomplete one."""

from __future__ import annotations

from uuid import UUID

from kafka_eos_sink.commit.log_records import barrier_record
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.steps import Append, LogChunk, Now, ReadLog
from kafka_eos_sink.protocol.wire_types import ZERO_UUID

STUCK_LOG_MS = 120_000
NO_LOG = UUID(int=1)
"""The topic id in a barrier that makes no log the write's own."""


def read_to(view: LogView, end_offset: int, log_id: UUID = ZERO_UUID) -> Procedure[None]:
    """Feed the view up to and including an offset acknowledged after its last read.

    Args:
        log_id: Topic id of the log that the caller knows, from the view or another one; zero if it knows none.

    Raises:
        BrokerUnavailableError: COMMIT_LOG_UNAVAILABLE after two minutes without a record. A new leader below min.insync.replicas does
            not advance its high watermark to the records that the old one acknowledged.
        WriteRefusedError: As `require_whole`. NOT_THIS_COMMIT_LOG if the log is no longer the known one (NEW LOG).
    """
    if view.topic_id.int and end_offset < view.next_offset:
        raise refused("NOT_THIS_COMMIT_LOG.created_again", write_id=view.write_id or "")
    stuck_since: int | None = None
    while view.next_offset <= end_offset:
        before = view.next_offset
        yield from read_on(view)
        if view.topic_id != log_id and ZERO_UUID not in (view.topic_id, log_id):
            raise refused("NOT_THIS_COMMIT_LOG.created_again", write_id=view.write_id or "")
        if view.next_offset > before:
            stuck_since = None
            continue
        now = yield from Now()
        stuck_since = now if stuck_since is None else stuck_since
        if now - stuck_since > STUCK_LOG_MS:
            raise refused(
                "COMMIT_LOG_UNAVAILABLE",
                write_id=view.write_id,
                end_offset=end_offset,
                seconds=STUCK_LOG_MS // 1000,
                ends_at=view.next_offset,
            )
    require_whole(view)


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

    Every record that was acknowledged before this call is then in the view. Raises as `read_to`.

    Args:
        claims: Whether the barrier makes the log the write's own (NEW LOG).
    """
    assert view.write_id is not None
    log_id = view.topic_id if view.topic_id.int else log_id
    barrier = yield from Append((barrier_record(view.write_id, nonce, log_id if claims else NO_LOG),))
    yield from read_to(view, barrier, log_id)
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
