"""What became of a decided version: the one answer. Pure."""

from __future__ import annotations

from enum import Enum

from kafka_eos_sink.commit.values import Decision


class VersionState(Enum):
    """The state of a query id's newest decision, by its record and its done record."""

    DECIDED = "decided and not finished"
    """Its transactions must still be committed, and its ranges judged."""
    FINISHED = "finished"
    VOID = "void"
    """All its ranges were aborted, and none could be copied."""
    KEPT = "resolved as committed"
    REWRITE = "resolved as rewrite"

    @property
    def is_settled(self) -> bool:
        """Whether the version counts as written, and recovery has nothing left to do."""
        return self in (VersionState.FINISHED, VersionState.KEPT)

    @property
    def needs_run(self) -> bool:
        """Whether the next run of the version writes it."""
        return self in (VersionState.VOID, VersionState.REWRITE)

    @property
    def is_open(self) -> bool:
        """Whether recovery has work with it."""
        return self is VersionState.DECIDED


def state_of(decision: Decision, *, has_done_record: bool) -> VersionState:
    """Return the state of a decision.

    An operator's resolution and a void decision are final by themselves. Any other decision needs the done record of its nonce.
    """
    if decision.resolution is not None:
        return VersionState.KEPT if decision.resolution == "committed" else VersionState.REWRITE
    if decision.is_void:
        return VersionState.VOID
    return VersionState.FINISHED if has_done_record else VersionState.DECIDED
