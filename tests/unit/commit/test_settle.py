"""What settling a decision makes of the responses to EndTxn, the commit log and the data topics."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_view import LoggedDecision
from kafka_eos_sink.commit.settle import Settled, _sort_results, settle
from kafka_eos_sink.commit.steps import EndResult
from kafka_eos_sink.commit.values import PROOFS_WITHIN_MS
from kafka_eos_sink.errors import DecisionPendingError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import EndTxnRequest
from kafka_eos_sink.protocol.reactions import REACTIONS, Reaction, reaction
from tests.model import simulated_cluster as kafka
from tests.model.scripted_cluster import ScriptedCluster, decided
from tests.runs import WRITE, run_of

_, DECIDED = decided()


@pytest.mark.parametrize("code", [*ErrorCode, ErrorCode.of(9_999)], ids=lambda code: code.name)
def test_end_txn_responses_follow_the_reaction_table(code: ErrorCode) -> None:
    decision = DECIDED.decision
    named = decision.transactions
    results = [EndResult(error=code.value)]
    if code is ErrorCode.NONE:
        assert _sort_results(WRITE, decision, named, results) == ([*named], [])
    elif (EndTxnRequest, code) in REACTIONS and reaction(EndTxnRequest, code) is Reaction.UNKNOWN:
        assert _sort_results(WRITE, decision, named, results) == ([], [*named])
    else:
        # Only a rejection with a row proves that the transaction is not open. Any other code leaves it to the next run.
        with pytest.raises(DecisionPendingError, match=rf"DECIDED_NOT_FINISHED\].*{code.name}"):
            _sort_results(WRITE, decision, named, results)


def in_doubt(*, is_aborted: bool) -> tuple[ScriptedCluster, LoggedDecision]:
    """A decision whose EndTxn is rejected: its transaction is aborted; or committed, unmarked in the commit log, and forgotten."""
    cluster, logged = decided()
    (named,) = logged.decision.transactions
    if is_aborted:
        cluster.end(named.identity, commit=False)
    else:
        cluster.end_without_marker(named.identity, commit=True, partition=kafka.LOG)
        cluster.forget(named.identity.transactional_id)
    return cluster, logged


def settled(cluster: ScriptedCluster, logged: LoggedDecision, within_ms: int = PROOFS_WITHIN_MS) -> Settled:
    """What a new driver makes of a decision."""
    return cluster.run(settle(run_of(within_ms=within_ms), logged, recovering=True))


def test_transaction_that_joined_an_older_one_is_aborted_with_it() -> None:
    """The list names the older one's first offset, below the range."""
    cluster, logged = in_doubt(is_aborted=True)
    cluster.own = {
        steps.AbortedTransactions: lambda step: {
            part: ((producer_id, part.first_offset - 5),)
            for part, producer_id in zip(step.ranges, step.producer_ids, strict=True)
        }
    }
    assert settled(cluster, logged).lost == logged.decision.transactions


def test_range_behind_a_lagging_high_watermark_is_not_unresolved() -> None:
    """The leader is new and does not show the marker yet. Nothing has to be decided by a person."""
    cluster, logged = in_doubt(is_aborted=False)
    cluster.own = {
        steps.AbortedTransactions: lambda step: dict.fromkeys(step.ranges, steps.Unseen.BLOCKED),
        steps.AreCommitted: lambda _: (None,),
    }
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*t-0 does not show how w\.0\.0 ended"):
        settled(cluster, logged)


def test_committed_range_beside_an_aborted_one_is_unresolved() -> None:
    """A marker was written by hand. The message names the range whose rows readers see."""
    cluster = ScriptedCluster(partitions=2)
    logged = cluster.decide([cluster.attempt(cluster.plan(), into=(0, 1))])
    (named,) = logged.decision.transactions
    cluster.kafka = kafka.write_marker_by_hand(cluster.kafka, 2, named.identity.producer_id, True)
    cluster.end(named.identity, commit=False)
    with pytest.raises(DecisionPendingError, match=r"UNRESOLVED\].*t-1 shows the records of w\.0\.0 from offset 0 on"):
        settled(cluster, logged)


@pytest.mark.parametrize("version", [2, 0])
def test_without_faults_only_end_txn_and_two_reads_are_sent(version: int) -> None:
    """Below version 2, one read_committed Fetch of the rows more, because of LATE ADD."""
    cluster, logged = decided(version=version)
    done = cluster.run(settle(run_of(within_ms=8_000), logged, recovering=False))
    assert (done.lost, done.marked) == ((), True)
    sent = [type(step) for step in cluster.steps if not isinstance(step, (steps.Now, steps.WallClock, steps.Reached))]
    looks = [] if version >= 2 else [steps.AbortedTransactions]
    assert sent == [steps.EndTransactions, steps.LastStableOffsets, *looks, steps.ReadLog]


def test_short_delivery_timeout_leaves_time_for_proofs() -> None:
    """The marker is missing in the commit log only. Every run would end before it looks at the data topics."""
    cluster, logged = decided()

    def end(step: steps.EndTransactions) -> tuple[EndResult, ...]:
        (named,) = step.ends
        cluster.end_without_marker(named.identity, commit=True, partition=kafka.LOG)
        return (EndResult(error=0),)

    def slow(step: steps.ReadLog) -> Any:
        cluster.now += 500
        return cluster.perform(step)

    cluster.own = {steps.EndTransactions: end, steps.ReadLog: slow}
    done = settled(cluster, logged, within_ms=8_000)
    assert (done.lost, done.marked) == ((), False)
