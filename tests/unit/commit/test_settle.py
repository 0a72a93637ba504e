"""What settling a decision makes of the responses to EndTxn and of what the partitions show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.decide import DriverTransaction
from kafka_eos_sink.commit.log_view import LoggedDecision
from kafka_eos_sink.commit.settle import Settled, _end, settle
from kafka_eos_sink.commit.steps import Answered, EndResult
from kafka_eos_sink.commit.task import write_attempt
from kafka_eos_sink.commit.values import PROOFS_WITHIN_MS, TaskIdentity, TaskOutcome
from kafka_eos_sink.errors import DecisionPendingError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import EndTxnRequest
from kafka_eos_sink.protocol.reactions import REACTIONS, Reaction, reaction
from tests.model import simulated_cluster as kafka
from tests.model.scripted_cluster import BATCH, ROWS, ScriptedCluster, decided, written
from tests.runs import WRITE, drive, run_of

_, DECIDED = decided()


@pytest.mark.parametrize("code", [*ErrorCode, ErrorCode.of(9_999)], ids=lambda code: code.name)
def test_end_txn_responses_follow_the_reaction_table(code: ErrorCode) -> None:
    cluster = ScriptedCluster()
    cluster.own = {steps.EndTransactions: lambda step: tuple(EndResult(error=code.value) for _ in step.ends)}
    named = DECIDED.decision.transactions
    ending = _end(WRITE, DECIDED.decision, named, ())
    if code is ErrorCode.NONE:
        assert cluster.run(ending) == {each.identity for each in named}
    elif (EndTxnRequest, code) in REACTIONS and reaction(EndTxnRequest, code) is Reaction.UNKNOWN:
        assert cluster.run(ending) == frozenset()
    else:
        # Only a rejection with a row proves that the transaction is not open. Any other code leaves it to the next run.
        with pytest.raises(DecisionPendingError, match=rf"DECIDED_NOT_FINISHED\].*{code.name}"):
            cluster.run(ending)


def in_doubt(*, is_aborted: bool) -> tuple[ScriptedCluster, LoggedDecision]:
    """A decision whose EndTxn is rejected: its transaction is aborted, or committed and forgotten."""
    cluster, logged = decided()
    (named,) = logged.decision.transactions
    cluster.end(named.identity, commit=not is_aborted)
    if not is_aborted:
        cluster.forget(named.identity.transactional_id)
    return cluster, logged


def settled(
    cluster: ScriptedCluster, logged: LoggedDecision, within_ms: int = PROOFS_WITHIN_MS, *, recovering: bool = True
) -> Settled:
    """What a driver makes of a decision that its own transaction carries."""
    driver = DriverTransaction(logged.decision.driver.after_end)
    return cluster.run(
        settle(run_of(within_ms=within_ms, version=cluster.kafka.version), logged, driver, recovering=recovering)
    )


def test_range_behind_a_lagging_high_watermark_is_read_again() -> None:
    """The leader is new and does not show the marker yet. Nothing has to be decided by a person."""
    cluster, logged = in_doubt(is_aborted=False)
    shows = iter([None, None, True])
    cluster.own = {
        steps.AbortedTransactions: lambda step: dict.fromkeys(step.ranges, steps.Unseen.BLOCKED),
        steps.AreCommitted: lambda _: (next(shows),),
    }
    assert settled(cluster, logged).lost == ()
    cluster.own[steps.AreCommitted] = lambda _: (None,)
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*t-0 does not show how w\.0\.0 ended"):
        settled(cluster, logged)


def two_ranges(version: int = 2) -> tuple[ScriptedCluster, LoggedDecision]:
    """A decision of one transaction with rows in two partitions."""
    cluster = ScriptedCluster(partitions=2, version=version)
    return cluster, cluster.decide([cluster.attempt(cluster.plan(), into=(0, 1))])


def test_decision_without_rows_of_ranges_is_not_copied_in_part() -> None:
    """An earlier version of the sink wrote it, so nothing shows whether a copy of one range is complete."""
    cluster, logged = two_ranges()
    (named,) = logged.decision.transactions
    older = replace(named, offsets=tuple(replace(part, rows=None) for part in named.offsets))
    logged = replace(logged, decision=replace(logged.decision, transactions=(older,)))
    cluster.kafka = kafka.write_marker_by_hand(cluster.kafka, 2, named.identity.producer_id, False)
    with pytest.raises(DecisionPendingError, match=r"UNRESOLVED\].*t-1 \[0\.\.9\] .*An earlier version of"):
        settled(cluster, logged)
    cluster, logged = two_ranges()
    (named,) = logged.decision.transactions
    logged = replace(logged, decision=replace(logged.decision, transactions=(older,)))
    cluster.end(named.identity, commit=False)
    assert settled(cluster, logged).lost == (older,), "lost as a whole, it has a number of rows"


def test_what_hangs_under_a_forgotten_id_needs_a_person() -> None:
    cluster, logged = two_ranges()
    (named,) = logged.decision.transactions
    cluster.end_without_marker(named.identity, commit=True, partition=1)
    cluster.forget(named.identity.transactional_id)
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*w\.0\.0 on t-0 .*recover .*--discard"):
        settled(cluster, logged)
    assert [end for end in cluster.ends if not end[1]] == [], "the new producer id has nothing open"


def test_discard_that_a_broker_rejects_names_its_code_and_not_a_forgotten_id() -> None:
    """An operator's principal may lack Write on the topic. `recover --discard`, which a forgotten id needs, would not help."""
    cluster, logged = decided()
    (named,) = logged.decision.transactions
    cluster.end_without_marker(named.identity, commit=True, partition=1)
    denied = Answered(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    cluster.own = {steps.AddPartitions: lambda step: denied if step.partitions else cluster.perform(step)}
    with pytest.raises(DecisionPendingError) as raised:
        settled(cluster, logged)
    assert "could not be aborted (TOPIC_AUTHORIZATION_FAILED for AddPartitionsToTxn)" in raised.value.message
    assert "--discard" not in raised.value.way_out


@pytest.mark.parametrize(
    "sleeps", ["before EndTxn", "before the proof", "before EndTxn of a copy", "before the decision of a copy"]
)
@pytest.mark.parametrize("version", [2, 0])
def test_commit_that_slept_copies_what_a_person_has_aborted_by_hand(sleeps: str, version: int) -> None:
    """Its EndTxn is accepted and readers pass, because only the partition knows of the marker: the rows were lost in silence."""
    cluster, messages = written(partitions=2, version=version)
    left = [1]

    def aborted_by_hand(step: steps.EndTransactions) -> Any:
        ended, *_ = [end.identity for end in step.ends]
        copy = cluster.kafka.transaction("w.0.1")
        if sleeps == "before the decision of a copy" and copy is not None and left:
            assert ended.transactional_id == "w.driver"
            left.pop()
            cluster.now += 600_000
            cluster.kafka = kafka.write_marker_by_hand(cluster.kafka, 1, copy.producer_id, False)
        if ended.transactional_id == "w.driver" or not step.ends[0].commit or not left:
            return cluster.perform(step)
        if sleeps.endswith("of a copy") and ended.transactional_id == "w.0.0":
            cluster.end(ended, commit=False)
            return cluster.perform(step)
        left.pop()
        cluster.now += 600_000
        if sleeps == "before the proof":
            cluster.end_without_marker(ended, commit=True, partition=1)
        cluster.kafka = kafka.write_marker_by_hand(cluster.kafka, 1, ended.producer_id, False)
        return cluster.perform(step)

    cluster.own = {steps.EndTransactions: aborted_by_hand}
    assert cluster.commit(messages) is not None
    assert not left
    seen = committed_rows(cluster)
    assert len(seen) == len(set(seen)) == 2 * ROWS


def committed_rows(cluster: ScriptedCluster) -> list[Any]:
    return [
        entry.key
        for partition in range(1, len(cluster.kafka.logs))
        for entry, is_committed in zip(
            cluster.kafka.logs[partition], kafka.outcomes(cluster.kafka, partition), strict=True
        )
        if isinstance(entry, kafka.Data) and is_committed
    ]


@pytest.mark.parametrize("version", [2, 0])
def test_commit_notices_that_a_late_attempt_has_discarded_what_hung(version: int) -> None:
    """A replaced coordinator tells it that the driver waits, so it joins the committed transaction, and its abort ends both (JOIN)."""
    cluster, (message,) = written(version=version)
    plan, named = message.plan, message.prepared
    assert named is not None
    reports = [cluster.perform(steps.DescribeTransactions((plan.driver.transactional_id,)))]

    def of_late_attempt(step: steps.Step[Any]) -> Any:
        asks = isinstance(step, steps.DescribeTransactions) and step.transactional_ids == ("w.driver",)
        return reports.pop() if asks and reports else cluster.perform(step)

    def without_marker(step: steps.EndTransactions) -> Any:
        if step.ends[0].identity != named.identity:
            return cluster.perform(step)
        cluster.end_without_marker(named.identity, commit=True, partition=1)
        late = drive(
            write_attempt(plan, BATCH, TaskIdentity(partition=0, attempt_number=1, task_attempt_id=0)), of_late_attempt
        )
        assert late.outcome is TaskOutcome.OVERTAKEN
        return (EndResult(error=0),)

    cluster.own = {steps.EndTransactions: without_marker}
    assert cluster.commit([message]) is not None
    assert not reports
    assert sorted(committed_rows(cluster)) == [f"0.0.{row}" for row in range(ROWS)]
