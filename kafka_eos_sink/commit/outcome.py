"""The judge: what a partition shows of decided rows, and what follows. Pure.

A decision says which rows must be visible. A row is visible or not by the first marker of its producer that follows it in its own
partition, and that marker never changes. So each range (the rows of one transaction in one partition) is judged alone, by `TABLE`. An
ABORT marker is no loss while the records exist: no reader will ever see them, so copying them doubles none, whatever happened elsewhere.
How the transaction ended elsewhere counts only for a range that is gone; whether it has ended, for one that is held as well.

`evidence.py` gathers the facts. Hazards in capitals are in the package's docstring.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from kafka_eos_sink.commit.steps import Marker, MarkerType, TransactionDescription
from kafka_eos_sink.protocol.identity import ProducerIdentity, bumps_epoch


class Shown(Enum):
    """What the leader of a partition shows of a range."""

    VISIBLE = "a COMMIT marker follows"
    DISCARDED = "an ABORT marker follows"
    HELD = "no marker follows, and the leader holds the transaction open; no reader has seen the rows, even if they are gone"
    LATE = (
        "no marker was seen, and the leader holds nothing open: one came between two requests, or the leader is behind"
    )
    GONE = "no record is left, and the leader holds nothing open"
    """Retention, compaction or the deletion of the topic removed it (BLIND)."""


class End(Enum):
    """What the coordinator proves of exactly this transaction.

    The driver asks coordinators before leaders, and waits until none is writing markers. So to it ENDING means open: its EndTxn was
    rejected, a late request has opened it again (LATE ADD), or the report is outdated. An accepted EndTxn(commit) turns SILENT into
    COMMITTED.
    """

    ENDING = "open, or its markers are being written"
    COMMITTED = "complete, in a state that only its commit leaves"
    ABORTED = "complete, in a state that only its abort leaves"
    SILENT = "anything else: another transaction of the id, an unknown id, or a state that proves nothing"


class Do(Enum):
    """What follows for the rows of a range."""

    NOTHING = "nothing: they are visible"
    SEEN = "nothing: they are gone after a proven commit; a deleted topic is a warning, or TOPIC_GONE"
    WAIT = (
        "read again until the deadline; if the coordinator shows it open, fail at once: the next run sends EndTxn again"
    )
    DISCARD = (
        "abort what hangs, then read again; if its coordinator has forgotten the id, fail: recover --discard aborts it"
    )
    COPY = "append them again"
    MISS = "they are gone, and no reader saw them: the batch is void, or LOST_PARTS"
    ASK = "UNRESOLVED: they are gone, and nothing proves whether readers saw them"


TABLE: dict[Shown, tuple[Do, Do, Do, Do]] = {
    # End:           ENDING      COMMITTED   ABORTED     SILENT
    Shown.VISIBLE: (Do.NOTHING, Do.NOTHING, Do.NOTHING, Do.NOTHING),
    Shown.DISCARDED: (Do.COPY, Do.COPY, Do.COPY, Do.COPY),
    Shown.HELD: (Do.WAIT, Do.DISCARD, Do.DISCARD, Do.DISCARD),
    Shown.LATE: (Do.WAIT, Do.WAIT, Do.WAIT, Do.WAIT),
    Shown.GONE: (Do.WAIT, Do.SEEN, Do.MISS, Do.ASK),
}
"""By what the partition shows and, in this order, by `End`.

One range decides for the whole decision: first WAIT, then DISCARD, then ASK, then COPY and MISS together. Below version 2 no transaction
is ABORTED: it is SILENT (LATE ADD). VISIBLE and ABORTED contradict each other: an outdated report, or a COMMIT written by hand.
"""


def judge(shown: Sequence[Shown], end: End) -> tuple[Do, ...]:
    """Return what follows for each range of one decided transaction."""
    # A visible range proves the commit, also of a range that is gone. But a discarded range shows that partitions differ.
    if end is End.SILENT and Shown.VISIBLE in shown and Shown.DISCARDED not in shown:
        end = End.COMMITTED
    column = list(End).index(end)
    return tuple(TABLE[each][column] for each in shown)


class Outcome(Enum):
    """How the transaction of a record in the commit log ended."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNRESOLVED = "unresolved"
    """Its marker is missing, and another transaction's follows."""


def outcome_of(producer_epoch: int, transaction_version: int | None, marker: Marker | None) -> Outcome:
    """Return what a marker proves of a record's transaction, by the epoch rule.

    From version 2 on every end bumps the epoch, so both markers carry epoch + 1 (KIP-890). Below, COMMIT and the driver's ABORT carry
    the epoch; the ABORT of a fence or a timeout carries epoch + 1. Version None allows either, because only a decision's value holds it.

    ``kafka-transactions.sh abort`` writes an ABORT with the transaction's own epoch, also from version 2 on, where no coordinator does. It
    voids a decision, because a driver acts only on a decision whose first marker is a COMMIT.
    """
    if marker is None:
        return Outcome.OPEN
    own, bumped = marker.producer_epoch == producer_epoch, marker.producer_epoch == producer_epoch + 1
    if transaction_version is None or marker.type is MarkerType.ABORT:
        fits = own or bumped
    else:
        fits = bumped if bumps_epoch(transaction_version) else own
    if not fits or marker.type is MarkerType.EMPTY:
        return Outcome.UNRESOLVED
    return Outcome.COMMITTED if marker.type is MarkerType.COMMIT else Outcome.ABORTED


def end_of(described: TransactionDescription | None, identity: ProducerIdentity) -> End:
    """Return what the coordinator proves of exactly this transaction."""
    if described is None:
        return End.SILENT
    # From version 2 on the coordinator bumps the epoch before it writes the markers.
    if (described.is_of(identity) and (described.is_open or described.is_ending)) or (
        described.is_of(identity, later=1) and described.is_ending
    ):
        return End.ENDING
    if not described.is_of(identity, later=int(identity.bumps_epoch)):
        return End.SILENT
    # LATE ADD: below version 2, the coordinator may report the abort of a transaction that was opened again.
    ends = {"CompleteCommit": End.COMMITTED} | ({"CompleteAbort": End.ABORTED} if identity.bumps_epoch else {})
    return ends.get(described.state, End.SILENT)


def is_held_by(driver: ProducerIdentity, described: TransactionDescription | None) -> bool:
    """Whether W.driver is as this driver's InitProducerId or EndTxn left it."""
    if described is None:
        return False
    if described.is_of(driver):
        return True
    # From version 2 on EndTxn bumps the epoch (KIP-890). A newer driver's InitProducerId bumps it too, but leaves the state Empty.
    ended = ("PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
    return driver.bumps_epoch and described.is_of(driver, later=1) and described.state in ended


def waits(driver: ProducerIdentity, described: TransactionDescription) -> bool:
    """Whether the driver is as its fence left it: it has neither decided nor aborted."""
    # A coordinator that lost its partition and does not know it yet returns the state before the fence.
    is_outdated = described.producer_id == driver.producer_id and described.producer_epoch < driver.producer_epoch
    return is_outdated or (described.is_of(driver) and described.state == "Empty")
