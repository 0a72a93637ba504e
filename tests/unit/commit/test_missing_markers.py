"""A marker is written by hand only with two witnesses, and exactly as the coordinator would have written it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_eos_sink.client.admin import ProducerState, TransactionMarker
from kafka_eos_sink.commit.commit_log import Outcome
from kafka_eos_sink.commit.missing_markers import Evidence, Finding, Part, Verdict, judge, rounds
from kafka_eos_sink.commit.prepared_transaction import ProducerIdentity
from kafka_eos_sink.commit.steps import TransactionDescription

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
        parts=(part,),
        described={part.identity.transactional_id: coordinator},
        witnesses={part.identity: witness},
    )
    found = judge(evidence, {part.where: (replace(OPEN, producer_id=99), producer)})
    return found[0] if found else None


@pytest.mark.parametrize("witness", [Outcome.COMMITTED, Outcome.OPEN])
def test_a_marker_is_missing_where_decision_and_coordinator_say_committed(witness: Outcome) -> None:
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
    bumped = finding(described(epoch=5), part=old)
    assert bumped is not None
    assert bumped.verdict is Verdict.UNPROVEN


def test_a_partition_on_which_no_coordinator_wrote_yet_gets_epoch_0() -> None:
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
def test_what_is_not_open_is_not_missing(producer: ProducerState) -> None:
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
        described("CompleteAbort"),
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
def test_without_the_coordinators_word_nothing_is_written(coordinator: TransactionDescription | None) -> None:
    found = finding(coordinator)
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
def test_what_its_coordinator_has_not_ended_is_left_to_it(coordinator: TransactionDescription) -> None:
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
