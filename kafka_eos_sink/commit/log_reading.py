"""Reading the commit log as far as it is known to go."""

from __future__ import annotations

from kafka_eos_sink.commit.commit_log import LogView
from kafka_eos_sink.commit.steps import LogChunk, Now, Procedure, ReadLog
from kafka_eos_sink.errors import BrokerUnavailableError, WriteRefusedError

STUCK_LOG_MS = 120_000


def read_to(view: LogView, end_offset: int) -> Procedure[None]:
    """Feed the view up to and including an offset that is known to be in the log.

    Raises `BrokerUnavailableError` ``COMMIT_LOG_UNAVAILABLE`` where nothing comes for two minutes: a new leader below
    min.insync.replicas never shows what the old one acknowledged. Raises what `require_whole` raises.
    """
    stuck_since: int | None = None
    while view.next_offset <= end_offset:
        before = view.next_offset
        chunk: LogChunk = yield ReadLog(before)
        view.feed(chunk.entries, chunk.next_offset, chunk.log_start_offset)
        if view.next_offset > before:
            stuck_since = None
            continue
        now: int = yield Now()
        stuck_since = now if stuck_since is None else stuck_since
        if now - stuck_since > STUCK_LOG_MS:
            raise BrokerUnavailableError(
                "COMMIT_LOG_UNAVAILABLE",
                f"the commit log of write id {view.write_id!r} does not show offset {end_offset}, which was acknowledged, for "
                f"{STUCK_LOG_MS // 1000} s (it ends at {view.next_offset}): its partition has fewer replicas in sync than "
                "min.insync.replicas; bring a broker back",
            )
    require_whole(view)


def read_to_end(view: LogView) -> Procedure[None]:
    """Feed the view up to where the log ends at the first look; others go on writing to the partition, so there is no end to wait for."""
    end: int | None = None
    while True:
        chunk: LogChunk = yield ReadLog(view.next_offset, wait=False)
        end = chunk.end_offset if end is None else end
        before = view.next_offset
        view.feed(chunk.entries, chunk.next_offset, chunk.log_start_offset)
        if view.next_offset >= end or view.next_offset == before:
            return


def require_whole(view: LogView) -> None:
    """Refuse a log whose beginning is gone: compaction alone never moves its start, so decisions may be gone with it.

    Raises `WriteRefusedError` ``COMMIT_LOG_TRUNCATED``.
    """
    if view.log_start_offset > 0:
        raise WriteRefusedError(
            "COMMIT_LOG_TRUNCATED",
            f"the partition of the commit log that holds write id {view.write_id!r} begins at offset {view.log_start_offset}, not at 0: "
            "records were deleted from it (by retention under another cleanup.policy, or by hand), and with them perhaps the decisions "
            "that tell what is written. Take another commit.log.topic, and say with kafka-eos resolve what is in the topics already",
        )
