"""The judge: what a partition shows of decided rows, and what follows. Pure.

A decision says which rows must be visible. A row is visible or not by the first marker of its producer that follows it in its own
partition, and that marker never changes. So each range (the rows of one transaction in one partition) is judged alone, by `TABLE`. An
ABORT marker is no loss while the records exist: no reader will ever see them, so copying them doubles none, whatever happened elsewhere.
How the transaction ended elsewhere counts only for a range that is gone. For a held one, only whether it has ended counts.

A DISCARD writes an ABORT after what a leader holds, by the next transaction of the same id. No reader has seen these rows, and once the
ABORT is read, none ever will: they are DISCARDED, and copied. If a COMMIT comes first, they are VISIBLE, and stay. The discard makes the
coordinator SILENT. So what is known of each range is written into the decision before (`PreparedTransaction.ended`), and counts from then
on instead of the coordinator's report.

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
    HELD = "no marker follows, and the leader holds the transaction open; no reader has seen the rows, even if retention removed them"
    LATE = (
        "records exist, no marker was seen after them, and the leader holds nothing open: a marker came between two requests, or the "
        "leader is behind"
    )
    GONE = "no record is left, and the leader holds nothing open"
    """Retention, compaction or the deletion of the topic removed it (BLIND). If some records are left, their marker counts."""


class End(Enum):
    """What the coordinator proves of exactly this transaction.

    The driver asks coordinators before leaders, and waits until none is writing markers. So if it finds UNFINISHED afterwards, the
    transaction is open: its EndTxn was rejected, a late request has opened it again (LATE ADD), or the report is outdated.

    A coordinator neither begins another transaction of an id nor forgets the id before its last one has ended. So SILENT shows that it is
    not open. If the coordinator's answer is outdated, it may still be open: then a DISCARD aborts it, and its rows are copied.
    """

    UNFINISHED = "open, or its markers are being written"
    COMMITTED = "complete, in a state that only its commit leaves; or this run's EndTxn(commit) was accepted"
    ABORTED = "complete, in a state that only its abort leaves"
    SILENT = "anything else: a later transaction of the id, an unknown id, a state that proves nothing"


class Do(Enum):
    """What follows for the rows of a range."""

    NOTHING = "nothing: they are visible"
    SEEN = "nothing: they are gone after a proven commit; TOPIC_GONE if the topic was deleted before this driver saw readers pass them"
    WAIT = (
        "read coordinator and leader again, and fail with DECIDED_NOT_FINISHED at the deadline; fail at once if the coordinator shows the "
        "transaction open, because only the next run's EndTxn ends it"
    )
    DISCARD = (
        "abort what hangs, then read again; fail if the coordinator has forgotten the id, because a new producer id cannot abort what the "
        "old one left: recover --discard does"
    )
    COPY = "append them again"
    MISS = (
        "they are gone, and no reader saw them: if readers saw no row of the decision, it is void, and its batch is written again; "
        "otherwise LOST_PARTS"
    )
    ASK = "UNRESOLVED: they are gone, and nothing proves whether readers saw them; a person chooses"


TABLE: dict[Shown, tuple[Do, Do, Do, Do]] = {
    # End:           UNFINISHED  COMMITTED   ABORTED     SILENT
    Shown.VISIBLE: (Do.NOTHING, Do.NOTHING, Do.NOTHING, Do.NOTHING),
    Shown.DISCARDED: (Do.COPY, Do.COPY, Do.COPY, Do.COPY),
    Shown.HELD: (Do.WAIT, Do.DISCARD, Do.DISCARD, Do.DISCARD),
    Shown.LATE: (Do.WAIT, Do.WAIT, Do.WAIT, Do.WAIT),
    Shown.GONE: (Do.WAIT, Do.SEEN, Do.MISS, Do.ASK),
}
"""By what the partition shows and, in this order, by `End`.

The driver takes one step for all ranges of all transactions of the decision: WAIT if any range says so, else DISCARD, which lets readers
pass before anybody decides, else ASK, else COPY. A MISS anywhere prevents every COPY. Below version 2, the driver takes a coordinator's
CompleteAbort as SILENT (LATE ADD), so the column ABORTED is empty there. For GONE, `judge` may take another column than the coordinator's.
VISIBLE and ABORTED contradict each other, as an outdated report does or a COMMIT written by hand; so do DISCARDED and COMMITTED, after an
ABORT by hand, or if a late request has opened the transaction again before its commit (LATE ADD).
"""


def judge(shown: Sequence[Shown], end: End) -> tuple[Do, ...]:
    """Return what follows for each range of one decided transaction."""
    contrary = {End.COMMITTED: Shown.DISCARDED, End.ABORTED: Shown.VISIBLE}.get(end)
    if contrary in shown:
        end = End.SILENT  # they contradict each other, so neither proves anything of a range that is gone
    elif Shown.VISIBLE in shown and end is End.SILENT and not {Shown.DISCARDED, Shown.HELD} & set(shown):
        # It proves the commit, also of a range that is gone. But what is discarded or held shows that partitions differ.
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
        return End.UNFINISHED
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
