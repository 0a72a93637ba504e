"""Whose commit log is this: the one answer (NEW LOG). Pure."""

from __future__ import annotations

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
