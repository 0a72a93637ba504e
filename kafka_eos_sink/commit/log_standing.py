"""Whose commit log is this: the one answer (NEW LOG). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """What a driver has seen before it fences.

    lacks_write    the log has no record that makes it the write's own (`LogView.lacks_write`)
    is_first_look  this process has not read the log before
    has_open       a transaction of the write id is open
    was_used       its coordinator or the history knows the write id
    """

    lacks_write: bool
    is_first_look: bool
    has_open: bool
    was_used: bool


def standing_of(facts: LogFacts, unknown_id: UnknownId) -> Standing:
    """Return what the log is to the write id."""
    if not facts.lacks_write:
        return Standing.OWN
    if unknown_id is UnknownId.ABORT:
        return Standing.UNCLAIMED if facts.has_open else Standing.NEW
    if facts.is_first_look and facts.has_open:
        return Standing.OTHER
    if unknown_id is UnknownId.REFUSE:
        return Standing.UNKNOWN
    if unknown_id is UnknownId.RESOLVE:
        return Standing.UNCLAIMED
    # A view that a process keeps drops the barriers that it has read.
    if not facts.is_first_look:
        return Standing.OWN
    return Standing.LOST if facts.was_used else Standing.NEW
