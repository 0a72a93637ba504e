"""The judge: what the cluster shows of a transaction, and what that proves. Pure.

All that turns markers, epochs, coordinator states and what readers see into an outcome is in this module; `evidence.py` gathers
the facts. Hazards in capitals are in the package's docstring.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kafka_eos_sink.commit.steps import Marker, MarkerType, TransactionDescription
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, ProducerIdentity, bumps_epoch


class Outcome(Enum):
    """How a transaction ended, as far as it is proven."""

    OPEN = "open"
    """Nothing shows an end."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNRESOLVED = "unresolved"
    """What is shown proves nothing about this transaction, or contradicts itself."""
    NOT_SHOWN = "not shown yet"
    """A leader shows neither an end nor an open transaction, so it does not show everything yet. Read again."""


class Coordinator(Enum):
    """What the coordinator proves of one transaction."""

    NOT_ENDED = "open, or the coordinator is about to write its markers"
    COMMITTED = "complete, in a state that only its commit leaves"
    ABORTED = "complete, in a state that only its abort leaves"
    UNCLEAR = "its identity, in a state that does not prove how it ended"
    UNKNOWN = "the coordinator does not know the id, has begun another transaction of it, or was not asked"


ENDED = {"CompleteCommit": Coordinator.COMMITTED, "CompleteAbort": Coordinator.ABORTED}
"""The states of a coordinator that has written all markers."""


class Part(Enum):
    """The part record in the commit log, at the offset that the decision names."""

    OWN = "stands"
    OTHERS = "another record stands there"
    """The log was created again (NEW LOG)."""
    CLEANED = "cleaned"
    """It is gone, or an emptied control batch follows it, and only compaction can have done that."""
    MISSING = "not there"
    """As CLEANED, but something else than compaction can have done it."""


class Shown(Enum):
    """What readers see of the records in one data partition."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    """No marker follows, and the leader holds the transaction open."""
    UNSHOWN = "unshown"
    """No marker follows, and it is not known that the leader holds the transaction open."""
    GONE = "gone"
    """No record is left (BLIND)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one decided transaction.

    ``marker`` is the first control batch of its producer id after the part record. ``ranges`` are in the order of the decision's; empty
    if nobody has looked.
    """

    identity: ProducerIdentity
    coordinator: Coordinator = Coordinator.UNKNOWN
    part: Part = Part.OWN
    marker: Marker | None = None
    ranges: tuple[Shown, ...] = ()


def outcome_of(facts: Facts) -> Outcome:
    """Return what all facts together prove."""
    log, shown = in_log(facts), set(facts.ranges)
    # LATE ADD: below version 2, a CompleteAbort may belong to the transaction that was opened again.
    is_aborted = Shown.ABORTED in shown or (facts.coordinator is Coordinator.ABORTED and facts.identity.bumps_epoch)
    if log is Outcome.COMMITTED or Shown.COMMITTED in shown:
        # A marker counts in one partition, and one COMMIT proves the commit as a whole. An ABORT next to it hides rows: it was
        # written by hand, or belongs to a later transaction (JOIN, LATE ADD).
        return Outcome.UNRESOLVED if is_aborted else Outcome.COMMITTED
    if Shown.UNSHOWN in shown:
        return Outcome.NOT_SHOWN
    # BLIND: readers may have seen the rows of a range that is gone.
    if Shown.ABORTED in shown and Shown.GONE not in shown:
        return Outcome.ABORTED
    # Nothing but the coordinator contradicts the log.
    return Outcome.UNRESOLVED if log is Outcome.ABORTED and facts.coordinator is Coordinator.COMMITTED else log


def in_log(facts: Facts) -> Outcome:
    """Return what the log proves, and where its marker is missing, the coordinator."""
    identity, marker = facts.identity, facts.marker
    match facts.part:
        case Part.OTHERS | Part.MISSING:
            # The marker may belong to a later transaction.
            return Outcome.UNRESOLVED
        case Part.CLEANED:
            return _of_cleaned(identity, marker)
        case Part.OWN if marker is not None:
            return by_marker(identity.producer_epoch, identity.transaction_version, marker)
    # JOIN: the marker is missing. The coordinator speaks only as long as it reports exactly this transaction.
    if facts.coordinator is Coordinator.COMMITTED:
        return Outcome.COMMITTED
    # LATE ADD: the coordinator may report the abort of the transaction that was opened again.
    if facts.coordinator is Coordinator.ABORTED and identity.bumps_epoch:
        return Outcome.ABORTED
    return Outcome.OPEN


def _of_cleaned(identity: ProducerIdentity, marker: Marker | None) -> Outcome:
    """Judge a part that compaction removed.

    It removes aborted records. It removes a committed one only after a newer committed one of its key, which `Part.CLEANED` excludes.
    """
    if marker is None or marker.type is MarkerType.EMPTY:
        return Outcome.ABORTED
    # The cleaner keeps a marker for delete.retention.ms after its record, so the marker of this transaction must be an ABORT. A marker
    # whose epoch is too high for this transaction belongs to a later one of the id.
    last = identity.producer_epoch + (identity.bumps_epoch or marker.type is MarkerType.ABORT)
    if marker.producer_epoch > last:
        return Outcome.ABORTED
    own = by_marker(identity.producer_epoch, identity.transaction_version, marker)
    return own if own is Outcome.ABORTED else Outcome.UNRESOLVED


def by_marker(producer_epoch: int, transaction_version: int | None, marker: Marker | None) -> Outcome:
    """Return what a marker proves of a transaction, by the epoch rule.

    From version 2 on every end bumps the epoch, so both markers carry epoch + 1 (KIP-890). Below, COMMIT and the driver's ABORT carry
    the epoch; the ABORT of a fence or a timeout carries epoch + 1. Version None (a tombstone does not hold it) allows either.
    """
    if marker is None:
        return Outcome.OPEN
    own, bumped = marker.producer_epoch == producer_epoch, marker.producer_epoch == producer_epoch + 1
    if transaction_version is None:
        fits = own or bumped
    elif bumps_epoch(transaction_version):
        fits = bumped
    else:
        fits = own or (bumped and marker.type is MarkerType.ABORT)
    if not fits or marker.type is MarkerType.EMPTY:
        return Outcome.UNRESOLVED
    return Outcome.COMMITTED if marker.type is MarkerType.COMMIT else Outcome.ABORTED


def of_decision(producer_epoch: int, transaction_version: int | None, marker: Marker | None) -> Outcome:
    """Return what a marker proves of a decision's own transaction.

    ``kafka-transactions.sh abort`` writes an ABORT with the transaction's own epoch; from version 2 on, no coordinator does. Such an ABORT
    voids a decision, because a driver acts only on a decision whose first marker is a COMMIT. From version 2 on it proves nothing about a
    part, whose rows lie in other partitions.
    """
    if marker is not None and marker.type is MarkerType.ABORT and marker.producer_epoch == producer_epoch:
        return Outcome.ABORTED
    return by_marker(producer_epoch, transaction_version, marker)


def of_coordinator(described: TransactionDescription | None, identity: ProducerIdentity) -> Coordinator:
    """Return the coordinator's proof about exactly this transaction."""
    if described is None:
        return Coordinator.UNKNOWN
    if described.is_of(identity) and (described.is_open or described.is_ending):
        return Coordinator.NOT_ENDED
    # From version 2 on the coordinator bumps the epoch before it writes the markers.
    if described.is_of(identity, later=1) and described.is_ending:
        return Coordinator.NOT_ENDED
    # Below version 2, only an abort by the coordinator itself, as after a timeout, raises the epoch. It proves nothing (LATE ADD).
    if described.is_of(identity, later=int(identity.bumps_epoch)):
        return ENDED.get(described.state, Coordinator.UNCLEAR)
    return Coordinator.UNCLEAR if described.is_of(identity) else Coordinator.UNKNOWN


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


def has_ended(described: TransactionDescription, carrier: ProducerIdAndEpoch) -> bool:
    """Whether the coordinator has ended what a leader holds open under this identity."""
    producer_id, epoch = carrier
    if described.producer_id != producer_id or described.is_ending:
        return False
    # With the same epoch in another state it is open, or has begun after the description.
    return described.producer_epoch > epoch or (described.producer_epoch == epoch and described.state in ENDED)


def lacks_commit_marker(facts: Facts) -> bool:
    """Whether a partition that holds the transaction open lacks its COMMIT marker.

    A wrong COMMIT shows aborted records to readers, so the coordinator must not contradict it. Below version 2 no range may be
    UNSHOWN: because of LATE ADD, a COMMIT marker in one partition does not speak for the others. The caller knows that the partition holds
    exactly this transaction open.
    """
    return (
        outcome_of(facts) is Outcome.COMMITTED
        and facts.coordinator in (Coordinator.COMMITTED, Coordinator.UNKNOWN)
        and (facts.identity.bumps_epoch or Shown.UNSHOWN not in facts.ranges)
    )
