"""A marker is written by hand only with two witnesses, and exactly as the coordinator would have written it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_eos_sink.commit.log_view import Outcome
from kafka_eos_sink.commit.operator.missing_markers import Evidence, Finding, Part, Verdict, judge, rounds
from kafka_eos_sink.commit.steps import TransactionDescription
from kafka_eos_sink.protocol.identity import ProducerIdentity, TransactionMarker
from kafka_eos_sink.protocol.messages import ProducerState

TASK = ProducerIdentity(transactional_id="w.0.0", producer_id=10, producer_epoch=4, transaction_version=2)
WHERE = ("orders", 1)
PART = Part(query_id="batch", version=3, identity=TASK, where=WHERE, first_offset=100, last_offset=199)
OPEN = ProducerState(
    producer_id=10,
    producer_epoch=4,
    last_sequence=99,
    last_timestamp=0,
    coordinator_epoch=6,
    current_txn_start_offset=100,
)


def described(state: str = "CompleteCommit", epoch: int = 5, producer_id: int = 10) -> TransactionDescription:
    return TransactionDescription(
        state=state,
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=900_000,
        start_time_ms=-1,
        partitions=frozenset(),
    )


def finding(
    coordinator: TransactionDescription | None,
    producer: ProducerState = OPEN,
    part: Part = PART,
    witness: Outcome = Outcome.COMMITTED,
) -> Finding | None:
    evidence = Evidence(
        write_id="w",
        parts=(part,),
        described={part.identity.transactional_id: coordinator},
        witnesses={part.identity: witness},
    )
    found = judge(evidence, {part.where: (replace(OPEN, producer_id=99), producer)})
    return found[0] if found else None


@pytest.mark.parametrize("witness", [Outcome.COMMITTED, Outcome.OPEN])
def test_marker_is_missing_if_decision_and_coordinator_committed(witness: Outcome) -> None:
    found = finding(described(), witness=witness)
    assert found is not None
    assert found.verdict is Verdict.MISSING
    assert found.marker == TransactionMarker(
        topic="orders",
        partition=1,
        producer_id=10,
        producer_epoch=5,
        committed=True,
        coordinator_epoch=6,
        transaction_version=2,
    )


def test_below_version_2_it_carries_the_transactions_own_epoch() -> None:
    old = replace(PART, identity=replace(TASK, transaction_version=0))
    found = finding(described(epoch=4), part=old)
    assert found is not None
    assert found.marker is not None
    assert (found.marker.producer_epoch, found.marker.transaction_version) == (4, 0)
    bumped = finding(described(epoch=5), part=old, witness=Outcome.OPEN)
    assert bumped is not None
    assert bumped.verdict is Verdict.UNPROVEN


def test_marker_gets_coordinator_epoch_0_if_partition_has_none() -> None:
    found = finding(described(), replace(OPEN, coordinator_epoch=-1))
    assert found is not None
    assert found.marker is not None
    assert found.marker.coordinator_epoch == 0


@pytest.mark.parametrize(
    "producer",
    [
        replace(OPEN, current_txn_start_offset=-1),
        replace(OPEN, current_txn_start_offset=200, producer_epoch=5),
        replace(OPEN, producer_id=11),
    ],
    ids=["ended", "a later one", "another producer"],
)
def test_partition_without_open_transaction_misses_no_marker(producer: ProducerState) -> None:
    assert finding(described(), producer) is None


@pytest.mark.parametrize(
    "producer",
    [replace(OPEN, current_txn_start_offset=99), replace(OPEN, producer_epoch=5), replace(OPEN, producer_epoch=3)],
)
def test_another_transaction_of_the_same_producer_gets_no_marker(producer: ProducerState) -> None:
    found = finding(described(), producer)
    assert found is not None
    assert (found.verdict, found.marker) == (Verdict.UNPROVEN, None)


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
    ids=lambda each: "unknown id" if each is None else f"{each.state} {each.producer_id}/{each.producer_epoch}",
)
def test_unproven_marker_is_not_written_without_coordinator(coordinator: TransactionDescription | None) -> None:
    found = finding(coordinator, witness=Outcome.OPEN)
    assert found is not None
    assert (found.verdict, found.marker) == (Verdict.UNPROVEN, None)


@pytest.mark.parametrize(
    "coordinator",
    [None, described("Empty", 6), described("Ongoing", 6), described(epoch=6), described(producer_id=11)],
    ids=lambda each: "unknown id" if each is None else f"{each.state} {each.producer_id}/{each.producer_epoch}",
)
def test_commit_log_marker_proves_commit_after_id_was_reused(
    coordinator: TransactionDescription | None,
) -> None:
    found = finding(coordinator)
    assert found is not None
    assert found.verdict is Verdict.MISSING
    assert found.marker is not None
    assert (found.marker.producer_epoch, found.marker.committed) == (5, True)


@pytest.mark.parametrize("version", [2, 0])
def test_lost_part_gets_abort_if_coordinator_and_log_aborted(version: int) -> None:
    epoch = 4 if version < 2 else 5
    part = replace(PART, identity=replace(TASK, transaction_version=version))
    found = finding(described("CompleteAbort", epoch), part=part, witness=Outcome.ABORTED)
    assert found is not None
    assert found.verdict is Verdict.MISSING
    assert found.marker is not None
    assert (found.marker.producer_epoch, found.marker.committed) == (epoch, False)
    for witness, verdict in (
        (Outcome.OPEN, Verdict.MISSING if version >= 2 else Verdict.UNPROVEN),
        (Outcome.UNRESOLVED, Verdict.UNPROVEN),
    ):
        alone = finding(described("CompleteAbort", epoch), part=part, witness=witness)
        assert alone is not None
        assert alone.verdict is verdict


@pytest.mark.parametrize("version", [2, 0])
@pytest.mark.parametrize(
    "coordinator",
    [None, described("Empty", 6), described("CompleteAbort", 6), described(producer_id=11)],
    ids=lambda each: "unknown id" if each is None else f"{each.state} {each.producer_id}/{each.producer_epoch}",
)
def test_lost_part_gets_abort_from_commit_log_if_id_was_reused(
    coordinator: TransactionDescription | None, version: int
) -> None:
    """A timeout bumps the epoch below version 2, too, and a repeat of the batch takes the id."""
    part = replace(PART, identity=replace(TASK, transaction_version=version))
    found = finding(coordinator, part=part, witness=Outcome.ABORTED)
    assert found is not None
    assert found.verdict is Verdict.MISSING
    assert found.marker is not None
    assert (found.marker.producer_epoch, found.marker.committed) == (4 if version < 2 else 5, False)


@pytest.mark.parametrize("version", [2, 0])
@pytest.mark.parametrize(
    ("coordinator", "verdict"), [(None, Verdict.UNPROVEN), ("its abort", Verdict.MISSING)], ids=["gone on", "its abort"]
)
def test_marker_left_by_compaction_alone_proves_no_abort(
    coordinator: str | None, verdict: Verdict, version: int
) -> None:
    """A committed transaction that another has joined, which was aborted, leaves the same."""
    part = replace(PART, identity=replace(TASK, transaction_version=version))
    evidence = Evidence(
        write_id="w",
        parts=(part,),
        described={} if coordinator is None else {"w.0.0": described("CompleteAbort", 4 if version < 2 else 5)},
        witnesses={part.identity: Outcome.ABORTED},
        inferred=frozenset({part.identity}),
    )
    (found,) = judge(evidence, {WHERE: (OPEN,)})
    assert found.verdict is verdict


@pytest.mark.parametrize("state", ["CompleteAbort", "Empty", "Dead", "SomethingNew"])
@pytest.mark.parametrize("epoch", [4, 5])
def test_contradicting_coordinator_state_leaves_it_unproven(state: str, epoch: int) -> None:
    found = finding(described(state, epoch))
    assert found is not None
    assert (found.verdict, found.marker) == (Verdict.UNPROVEN, None)


@pytest.mark.parametrize("witness", [Outcome.ABORTED, Outcome.UNRESOLVED])
def test_nor_where_the_commit_log_contradicts_it(witness: Outcome) -> None:
    found = finding(described(), witness=witness)
    assert found is not None
    assert (found.verdict, found.marker) == (Verdict.UNPROVEN, None)


@pytest.mark.parametrize(
    "coordinator",
    [
        described("Ongoing", 4),
        described("PrepareCommit", 4),
        described("PrepareCommit", 5),
        described("PrepareAbort", 5),
    ],
)
def test_transaction_not_ended_by_coordinator_is_running(coordinator: TransactionDescription) -> None:
    found = finding(coordinator, witness=Outcome.OPEN)
    assert found is not None
    assert (found.verdict, found.marker) == (Verdict.RUNNING, None)


def test_a_round_holds_one_marker_per_partition() -> None:
    findings = []
    for producer_id, partition in [(10, 1), (11, 1), (12, 2), (13, 1)]:
        part = replace(PART, identity=replace(TASK, producer_id=producer_id), where=("orders", partition))
        found = finding(described(producer_id=producer_id), replace(OPEN, producer_id=producer_id), part)
        assert found is not None
        findings.append(found)
    written = [[(marker.producer_id, marker.partition) for marker in each] for each in rounds(findings)]
    assert written == [[(10, 1), (12, 2)], [(11, 1)], [(13, 1)]]


def test_undecided_attempt_gets_the_abort_of_its_coordinator() -> None:
    loser = replace(OPEN, producer_id=20, current_txn_start_offset=150)
    evidence = Evidence(
        write_id="w",
        parts=(PART,),
        described={"w.0.0": described(), "w.0.1": described("CompleteAbort", 5, producer_id=20)},
        witnesses={TASK: Outcome.COMMITTED},
    )
    (found,) = judge(evidence, {WHERE: (loser, replace(OPEN, current_txn_start_offset=-1))})
    assert (found.verdict, found.part.identity.transactional_id) == (Verdict.MISSING, "w.0.1")
    assert found.marker == TransactionMarker(
        topic="orders",
        partition=1,
        producer_id=20,
        producer_epoch=5,
        committed=False,
        coordinator_epoch=6,
        transaction_version=2,
    )


def test_below_version_2_it_is_left_alone() -> None:
    """The transaction of epoch 4 may be committed there, and CompleteAbort that of a later attempt, which has epoch 5."""
    evidence = Evidence(
        write_id="w",
        parts=(PART,),
        described={"w.0.1": described("CompleteAbort", 5, producer_id=20)},
        witnesses={TASK: Outcome.COMMITTED},
        transaction_version=0,
    )
    (found,) = judge(evidence, {WHERE: (replace(OPEN, producer_id=20),)})
    assert (found.verdict, found.marker) == (Verdict.UNPROVEN, None)


@pytest.mark.parametrize("epoch", [4, 5])
def test_attempt_with_commit_of_that_epoch_in_log_is_unproven(epoch: int) -> None:
    """An older decision's transaction, whose marker was left out here, and a later one of the id that was aborted."""
    evidence = Evidence(
        write_id="w",
        parts=(PART,),
        described={"w.0.1": described("CompleteAbort", 5, producer_id=20)},
        witnesses={TASK: Outcome.COMMITTED},
        committed=frozenset({(20, epoch)}),
    )
    (found,) = judge(evidence, {WHERE: (replace(OPEN, producer_id=20),)})
    assert (found.verdict, found.marker) == (Verdict.UNPROVEN, None)


@pytest.mark.parametrize(
    ("coordinator", "producer"),
    [
        (described("Ongoing", 4, 20), replace(OPEN, producer_id=20)),
        (described("PrepareAbort", 5, 20), replace(OPEN, producer_id=20)),
        (described("CompleteAbort", 4, 20), replace(OPEN, producer_id=20)),
        (described("CompleteAbort", 5, 21), replace(OPEN, producer_id=20)),
        (None, replace(OPEN, producer_id=20)),
        (described("CompleteAbort", 5, 20), replace(OPEN, producer_id=20, current_txn_start_offset=-1)),
    ],
    ids=[
        "open",
        "being ended",
        "another one of its epoch",
        "another id",
        "unknown",
        "ended here",
    ],
)
def test_attempt_not_known_to_be_ended_is_no_finding(
    coordinator: TransactionDescription | None, producer: ProducerState
) -> None:
    evidence = Evidence(
        write_id="w", parts=(PART,), described={"w.0.1": coordinator}, witnesses={TASK: Outcome.COMMITTED}
    )
    assert judge(evidence, {WHERE: (producer,)}) == ()


@pytest.mark.parametrize(
    "coordinator",
    [
        described("CompleteCommit", 5, 20),
        described("Empty", 6, 20),
        described("Ongoing", 6, 20),
        described("CompleteAbort", 6, 20),
    ],
    ids=lambda each: f"{each.state} {each.producer_epoch}",
)
def test_ended_attempt_with_open_partition_is_unproven(coordinator: TransactionDescription) -> None:
    evidence = Evidence(
        write_id="w", parts=(PART,), described={"w.0.1": coordinator}, witnesses={TASK: Outcome.COMMITTED}
    )
    (found,) = judge(evidence, {WHERE: (replace(OPEN, producer_id=20),)})
    assert (found.verdict, found.marker) == (Verdict.UNPROVEN, None)


def test_below_version_2_attempt_aborted_at_its_epoch_is_shown() -> None:
    evidence = Evidence(
        write_id="w",
        parts=(PART,),
        described={"w.0.1": described("CompleteAbort", 4, producer_id=20)},
        witnesses={TASK: Outcome.COMMITTED},
        transaction_version=0,
    )
    (found,) = judge(evidence, {WHERE: (replace(OPEN, producer_id=20),)})
    assert (found.verdict, found.marker) == (Verdict.UNPROVEN, None)


def test_attempt_after_decided_transaction_of_same_id_is_found() -> None:
    loser = replace(OPEN, producer_epoch=6, current_txn_start_offset=300)
    evidence = Evidence(
        write_id="w",
        parts=(PART,),
        described={"w.0.0": described("CompleteAbort", 7)},
        witnesses={TASK: Outcome.COMMITTED},
    )
    (found,) = judge(evidence, {WHERE: (loser,)})
    assert (found.verdict, found.part.version, found.part.first_offset) == (Verdict.MISSING, None, 300)
    assert found.marker is not None
    assert (found.marker.producer_epoch, found.marker.committed) == (7, False)
