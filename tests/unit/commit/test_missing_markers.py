"""A COMMIT marker is written by hand only with two proofs, and exactly as the coordinator would have written it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_eos_sink.commit.missing_markers import DecidedPart, Evidence, Finding, Verdict, judge
from kafka_eos_sink.commit.outcome import Coordinator, Facts, Outcome, Shown, in_log, of_coordinator
from kafka_eos_sink.commit.steps import Marker, MarkerType, TransactionDescription
from kafka_eos_sink.commit.values import OffsetRange, PreparedTransaction
from kafka_eos_sink.protocol.identity import ProducerIdentity, TransactionMarker
from kafka_eos_sink.protocol.messages import ProducerState
from tests.unit.operations.test_markers import ended

TASK = ProducerIdentity(transactional_id="w.0.0", producer_id=10, producer_epoch=4, transaction_version=2)
WHERE = ("orders", 1)
PART = DecidedPart(version=3, identity=TASK, where=WHERE, first_offset=100, last_offset=199)
OPEN = ProducerState(
    producer_id=10,
    producer_epoch=4,
    last_sequence=99,
    last_timestamp=0,
    coordinator_epoch=6,
    current_txn_start_offset=100,
)
LOSER = replace(OPEN, producer_id=20, current_txn_start_offset=150)


def described(state: str = "CompleteCommit", epoch: int = 5, producer_id: int = 10) -> TransactionDescription:
    return ended(state, epoch, producer_id)


def named(each: TransactionDescription | None) -> str:
    return "unknown id" if each is None else f"{each.state} {each.producer_id}/{each.producer_epoch}"


IN_LOG = (Outcome.OPEN, Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNRESOLVED)


def decided(
    part: DecidedPart, coordinator: TransactionDescription | None, logged: Outcome
) -> tuple[PreparedTransaction, Facts]:
    """A transaction with one range, which shows no end; the commit log proves ``logged``."""
    identity = part.identity
    kind = MarkerType.ABORT if logged is Outcome.ABORTED else MarkerType.COMMIT
    epoch = identity.after_end.producer_epoch + (3 if logged is Outcome.UNRESOLVED else 0)
    marker = Marker(offset=9, producer_id=identity.producer_id, producer_epoch=epoch, type=kind)
    facts = Facts(
        identity=identity,
        coordinator=of_coordinator(coordinator, identity),
        marker=None if logged is Outcome.OPEN else marker,
        ranges=(Shown.UNSHOWN,),
    )
    assert in_log(replace(facts, coordinator=Coordinator.UNKNOWN)) is logged
    topic, partition = part.where
    where = OffsetRange(topic=topic, partition=partition, first_offset=part.first_offset, last_offset=part.last_offset)
    return PreparedTransaction(partition=0, identity=identity, part_offset=5, rows=100, offsets=(where,)), facts


def findings(
    coordinator: TransactionDescription | None,
    producer: ProducerState = OPEN,
    part: DecidedPart = PART,
    logged: Outcome = Outcome.COMMITTED,
) -> tuple[Finding, ...]:
    evidence = Evidence(
        parts=(part,),
        described={part.identity.transactional_id: coordinator},
        decided=(decided(part, coordinator, logged),),
    )
    return judge(evidence, {part.where: (replace(OPEN, producer_id=99), producer)})


def finding(
    coordinator: TransactionDescription | None,
    producer: ProducerState = OPEN,
    part: DecidedPart = PART,
    logged: Outcome = Outcome.COMMITTED,
) -> Finding:
    (found,) = findings(coordinator, producer, part, logged)
    assert (found.verdict is Verdict.MISSING) == (found.marker is not None)
    return found


@pytest.mark.parametrize("logged", [Outcome.COMMITTED, Outcome.OPEN])
def test_marker_is_missing_if_decision_and_coordinator_committed(logged: Outcome) -> None:
    assert finding(described(), logged=logged).marker == TransactionMarker(
        topic="orders",
        partition=1,
        producer_id=10,
        producer_epoch=5,
        committed=True,
        coordinator_epoch=6,
        transaction_version=2,
    )


def test_below_version_2_marker_has_the_transactions_own_epoch() -> None:
    old = replace(PART, identity=replace(TASK, transaction_version=0))
    marker = finding(described(epoch=4), part=old).marker
    assert marker is not None
    assert (marker.producer_epoch, marker.transaction_version) == (4, 0)
    assert finding(described(epoch=5), part=old, logged=Outcome.OPEN).verdict is Verdict.UNPROVEN


def test_marker_gets_coordinator_epoch_0_if_partition_has_none() -> None:
    marker = finding(described(), replace(OPEN, coordinator_epoch=-1)).marker
    assert marker is not None
    assert marker.coordinator_epoch == 0


@pytest.mark.parametrize(
    "producer",
    [
        replace(OPEN, current_txn_start_offset=-1),
        replace(OPEN, current_txn_start_offset=200, producer_epoch=5),
        replace(OPEN, producer_id=11),
    ],
    ids=["ended", "a later one, which is open", "another producer"],
)
def test_partition_without_open_transaction_misses_no_marker(producer: ProducerState) -> None:
    assert findings(described("Ongoing"), producer) == ()


@pytest.mark.parametrize(
    "producer",
    [replace(OPEN, current_txn_start_offset=99), replace(OPEN, producer_epoch=5), replace(OPEN, producer_epoch=3)],
    ids=["has joined an older one", "a later one has joined", "older epoch"],
)
def test_joined_transaction_gets_no_marker(producer: ProducerState) -> None:
    assert finding(described(), producer).verdict is Verdict.UNPROVEN


@pytest.mark.feature("coordinator states")
@pytest.mark.parametrize(
    "coordinator",
    [
        None,
        described("Empty", 6),
        described(epoch=4),
        described(epoch=6),
        described(producer_id=11),
        described("Dead"),
        described("SomethingNew"),
        described("Ongoing", 5),
    ],
    ids=named,
)
def test_unproven_marker_is_not_written_without_coordinator(coordinator: TransactionDescription | None) -> None:
    assert finding(coordinator, logged=Outcome.OPEN).verdict is Verdict.UNPROVEN


@pytest.mark.parametrize(
    "coordinator",
    [None, described("Empty", 6), described("Ongoing", 6), described(epoch=6), described(producer_id=11)],
    ids=named,
)
def test_commit_log_proves_commit_after_id_was_reused(coordinator: TransactionDescription | None) -> None:
    marker = finding(coordinator).marker
    assert marker is not None
    assert (marker.producer_epoch, marker.committed) == (5, True)


@pytest.mark.parametrize("logged", IN_LOG)
@pytest.mark.parametrize("version", [2, 0])
def test_aborted_transaction_gets_no_marker(version: int, logged: Outcome) -> None:
    """Recovery copies its records. Kafka's own tool ends what the partition holds."""
    part = replace(PART, identity=replace(TASK, transaction_version=version))
    found = finding(described("CompleteAbort", 4 if version < 2 else 5), part=part, logged=logged)
    assert (found.verdict, found.start_offset) == (Verdict.UNPROVEN, 100)
    assert "CompleteAbort" in found.reason
    gone_on = finding(None, part=part, logged=Outcome.ABORTED)
    assert gone_on.verdict is Verdict.UNPROVEN
    assert "aborted" in gone_on.reason


@pytest.mark.parametrize("state", ["CompleteAbort", "Empty", "Dead", "SomethingNew"])
@pytest.mark.parametrize("epoch", [4, 5])
def test_contradicting_coordinator_state_leaves_it_unproven(state: str, epoch: int) -> None:
    assert finding(described(state, epoch)).verdict is Verdict.UNPROVEN


@pytest.mark.parametrize("logged", [Outcome.ABORTED, Outcome.UNRESOLVED])
def test_contradicting_commit_log_leaves_it_unproven(logged: Outcome) -> None:
    assert finding(described(), logged=logged).verdict is Verdict.UNPROVEN


@pytest.mark.feature("coordinator states")
@pytest.mark.parametrize(
    "coordinator",
    [
        described("Ongoing", 4),
        described("PrepareCommit", 4),
        described("PrepareCommit", 5),
        described("PrepareAbort", 5),
    ],
    ids=named,
)
def test_transaction_not_ended_by_coordinator_is_running(coordinator: TransactionDescription) -> None:
    assert finding(coordinator, logged=Outcome.OPEN).verdict is Verdict.RUNNING


def of_attempt(coordinator: TransactionDescription | None, producer: ProducerState = LOSER) -> tuple[Finding, ...]:
    evidence = Evidence(
        parts=(PART,),
        described={"w.0.0": described(), "w.0.1": coordinator},
        decided=(decided(PART, described(), Outcome.COMMITTED),),
    )
    return judge(evidence, {WHERE: (producer, replace(OPEN, current_txn_start_offset=-1))})


@pytest.mark.parametrize(
    "coordinator",
    [
        described("CompleteAbort", 5, 20),
        described("CompleteAbort", 4, 20),
        described("CompleteCommit", 5, 20),
        described("Empty", 6, 20),
        described("Ongoing", 6, 20),
    ],
    ids=named,
)
def test_ended_attempt_that_is_held_open_is_reported(coordinator: TransactionDescription) -> None:
    (found,) = of_attempt(coordinator)
    assert (found.verdict, found.transactional_id, found.version) == (Verdict.UNPROVEN, "w.0.1", None)
    assert (found.where, found.start_offset, found.marker) == (WHERE, 150, None)


@pytest.mark.parametrize(
    ("coordinator", "producer"),
    [
        (described("Ongoing", 4, 20), LOSER),
        (described("PrepareAbort", 5, 20), LOSER),
        (described("Empty", 4, 20), LOSER),
        (described("CompleteAbort", 3, 20), LOSER),
        (described("CompleteAbort", 5, 21), LOSER),
        (None, LOSER),
        (described("CompleteAbort", 5, 20), replace(LOSER, current_txn_start_offset=-1)),
    ],
    ids=["open", "being ended", "begun since", "begun since, new epoch", "another id", "unknown", "ended here"],
)
def test_attempt_not_known_to_be_ended_is_not_reported(
    coordinator: TransactionDescription | None, producer: ProducerState
) -> None:
    assert of_attempt(coordinator, producer) == ()


def test_attempt_after_decided_transaction_of_same_id_is_found() -> None:
    loser = replace(OPEN, producer_epoch=6, current_txn_start_offset=300)
    found = finding(described("CompleteAbort", 7), loser)
    assert (found.verdict, found.version, found.start_offset) == (Verdict.UNPROVEN, None, 300)
