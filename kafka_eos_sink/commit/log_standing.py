"""Whose commit log is this: the one answer, and when it was lost (NEW LOG).

The first plan of a write id appends its barrier before its first InitProducerId. From then on the coordinator knows W.driver only if the
log has a record of the write, unless that log was deleted or is another one. The history of finished batches is the second witness, for
ids that the coordinator has forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kafka_eos_sink.commit.refusals import job_of, refused, resolve_command, some, text
from kafka_eos_sink.commit.steps import Step, TransactionDescription
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID
from kafka_eos_sink.commit.values import BatchIdentity, Write, iso_utc
from kafka_eos_sink.errors import Job, KafkaEosError

MOST_SHOWN = 8
"""Records of the history that are read and named."""


class UnknownId(Enum):
    """What to do if the commit log has no record of the write id."""

    BEGIN = "begin"
    """Write under it. If it has open transactions, raise NOT_THIS_COMMIT_LOG: another log may hold their decision. If it was used before,
    raise COMMIT_LOG_LOST."""
    RESOLVE = "resolve"
    """As BEGIN, for an operator who knows that the log was lost."""
    REFUSE = "refuse"
    """Refuse an operator's typo or wrong log. A barrier would make the log appear as the write's own."""
    ABORT = "abort"
    """Abort what is open, because the write's log is lost. If nothing is, begin from nothing: the log is then the write's own."""


class Standing(Enum):
    """What a commit log is to a write id."""

    OWN = "it holds a decision of the write id, or a barrier for this log; or this process has read it before"
    NEW = "nothing shows that the write id was used before: its first barrier makes the log its own"
    OTHER = "transactions are open that another log may have decided"
    LOST = "the coordinator or the history knows the write id"
    UNKNOWN = "an operator named an id of which nothing is known"
    UNCLAIMED = "the operator's command goes on, but the next run must still see that the log was lost"


def standing_of(
    unknown_id: UnknownId, *, lacks_write: bool, is_first_look: bool, has_open: bool, was_used: bool
) -> Standing:
    """Return what the log is to the write id, by what a driver sees before its fence.

    Args:
        lacks_write: The log has no record that makes it the write's own (`LogView.lacks_write`).
        is_first_look: This process has not read the log before.
        has_open: A transaction of the write id is open.
        was_used: Its coordinator or the history knows the write id.
    """
    if not lacks_write:
        return Standing.OWN
    if unknown_id is UnknownId.ABORT:
        return Standing.UNCLAIMED if has_open else Standing.NEW
    if is_first_look and has_open:
        return Standing.OTHER
    if unknown_id is UnknownId.REFUSE:
        return Standing.UNKNOWN
    if unknown_id is UnknownId.RESOLVE:
        return Standing.UNCLAIMED
    # A view that a process keeps drops the barriers that it has read.
    if not is_first_look:
        return Standing.OWN
    return Standing.LOST if was_used else Standing.NEW


@dataclass(frozen=True, slots=True)
class ReadHistory(Step[tuple["InHistory", ...]]):
    """Read the newest records of a write id in the history topic.

    Result: the newest first. It is empty without a history, and if the history cannot be read in a few seconds.
    """

    write_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InHistory:
    """A version that was finished once, by the history."""

    version: int
    finished_ms: int
    application_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What its coordinator and the history know of a write id; false if nothing."""

    known: TransactionDescription | None = None
    history: Sequence[InHistory] = ()

    def __bool__(self) -> bool:
        return self.known is not None or bool(self.history)


def commit_log_lost(write: Write, batch: BatchIdentity | None, by: Used) -> KafkaEosError:
    """The coordinator or the history knows the id that the log lacks."""
    used: list[str] = []
    if by.known is not None:
        start = by.known.start_time_ms
        began = f", whose last transaction began at {iso_utc(start)}" if start > 0 else ""
        used.append(text("used_by_driver", began=began))
    if by.history:
        shown = [f"{each.version} (finished {iso_utc(each.finished_ms)}, {each.application_id})" for each in by.history]
        used.append(f"the history shows version {some(shown)}")
    found = text("used_before", write=write, used=", and ".join(used))
    counted = text("counted_first", write=write) + " " if by.history else ""
    if batch is not None and batch.streaming and batch.version > 0:
        return refused("COMMIT_LOG_LOST.used_stream", write=write, batch=batch, found=found, counted=counted)
    if batch.streaming if batch is not None else job_of(write.id) is Job.STREAM:
        if batch is None or not batch.query_id:
            return refused("COMMIT_LOG_LOST.stream", write=write, found=found)
        return refused("COMMIT_LOG_LOST.first_batch", write=write, batch=batch, found=found)
    # The history may hold more records than were read, and versions above the recorded one would be written again.
    is_known = 0 < len(by.history) < MOST_SHOWN
    highest = max(each.version for each in by.history) if is_known else "N"
    return refused(
        "COMMIT_LOG_LOST",
        write=write,
        found=found,
        counted=counted,
        as_n="" if is_known else ", with its number as N",
        count=resolve_command(write, BATCH_QUERY_ID, highest, "committed") + f" --query-id {BATCH_QUERY_ID}",
    )
