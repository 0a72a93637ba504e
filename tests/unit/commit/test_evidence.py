"""Which requests the facts of a transaction in doubt take, and which they do not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.evidence import of_doubtful
from kafka_eos_sink.commit.log_view import LoggedDecision
from kafka_eos_sink.commit.outcome import Coordinator, Facts, Part, Shown
from kafka_eos_sink.commit.steps import POLL_MS, TransactionDescription, Unseen
from kafka_eos_sink.commit.values import PreparedTransaction
from kafka_eos_sink.errors import DecisionPendingError
from tests.model.scripted_cluster import ScriptedCluster, decided
from tests.model.simulated_cluster import LOG
from tests.runs import run_of

S = TypeVar("S")


def in_doubt(
    marked: Collection[int] = (), aborted: Collection[int] = (), known: Collection[int] = ()
) -> tuple[ScriptedCluster, LoggedDecision]:
    """Three decided transactions, each with rows in the data partition of its number, all of them ended.

    The commit log holds the markers of those in ``marked`` and ``aborted`` only. Coordinators know those in ``known`` only.
    """
    cluster, logged = decided(partitions=3)
    for number, prepared in enumerate(logged.decision.transactions):
        if number in marked or number in aborted:
            cluster.end(prepared.identity, commit=number in marked)
        else:
            cluster.end_without_marker(prepared.identity, commit=True, partition=LOG)
        if number not in known:
            cluster.forget(prepared.identity.transactional_id)
    return cluster, logged


def gathered(
    cluster: ScriptedCluster,
    logged: LoggedDecision,
    doubtful: Sequence[PreparedTransaction] = (),
    within_ms: int = 9_000,
) -> list[Facts]:
    named = doubtful or logged.decision.transactions
    return cluster.run(of_doubtful(run_of(), logged, named, cluster.now + within_ms))


def sent(cluster: ScriptedCluster, kind: type[S]) -> list[S]:
    return [step for step in cluster.steps if isinstance(step, kind)]


def test_data_topics_are_not_read_if_the_log_proves_all_commits() -> None:
    cluster, logged = in_doubt(marked=range(3))
    assert [(each.part, each.ranges) for each in gathered(cluster, logged)] == [(Part.OWN, ())] * 3
    names = [type(step) for step in cluster.steps if not isinstance(step, steps.Now)]
    assert names == [steps.DescribeTransactions, steps.Append, steps.ReadLog, steps.LogPolicy]


def test_only_ranges_of_transactions_without_a_commit_are_read() -> None:
    cluster, logged = in_doubt(marked=[0], aborted=[1])
    assert [each.ranges for each in gathered(cluster, logged)] == [(), (Shown.ABORTED,), (Shown.COMMITTED,)]
    (read,) = sent(cluster, steps.AbortedTransactions)
    asked = logged.decision.transactions[1:]
    assert read.ranges == tuple(part for each in asked for part in each.offsets)
    assert read.producer_ids == tuple(each.identity.producer_id for each in asked)
    assert not sent(cluster, steps.AreCommitted)
    assert not sent(cluster, steps.DescribeProducers)


def test_commit_at_the_coordinator_takes_no_read_of_the_topic() -> None:
    """Only the marker in the commit log is missing."""
    cluster, logged = in_doubt(marked=[1, 2], known=[0])
    assert gathered(cluster, logged)[0].coordinator is Coordinator.COMMITTED
    assert not sent(cluster, steps.AbortedTransactions)


@pytest.mark.parametrize(
    ("ends", "asked", "shown"),
    [
        ((True, False), (), (Shown.COMMITTED, Shown.ABORTED)),
        ((True, None), (("t", 2),), (Shown.COMMITTED, Shown.OPEN)),
        ((None, None), (("t", 1), ("t", 2)), (Shown.UNSHOWN, Shown.OPEN)),
    ],
)
def test_producers_are_described_only_of_ranges_without_end(
    ends: tuple[bool | None, ...], asked: tuple[tuple[str, int], ...], shown: tuple[Shown, ...]
) -> None:
    """The markers behind blocked readers count first. A leader holds only the last transaction open."""
    cluster, logged = in_doubt(marked=[0])
    last = logged.decision.transactions[2]
    held = {("t", 2): {last.identity.producer_id: (0, last.offsets[0].first_offset)}}
    cluster.own = {
        steps.AbortedTransactions: lambda step: dict.fromkeys(step.ranges, Unseen.BLOCKED),
        steps.AreCommitted: lambda _: ends,
        steps.DescribeProducers: lambda step: {where: held.get(where, {}) for where in step.partitions},
    }
    facts = gathered(cluster, logged)
    assert tuple(each.ranges for each in facts[1:]) == tuple((each,) for each in shown)
    assert [step.partitions for step in sent(cluster, steps.DescribeProducers)] == ([asked] if asked else [])


def test_range_that_is_gone_takes_no_further_request() -> None:
    cluster, logged = in_doubt()
    cluster.own = {steps.AbortedTransactions: lambda step: dict.fromkeys(step.ranges, Unseen.GONE)}
    assert [each.ranges for each in gathered(cluster, logged)] == [(Shown.GONE,)] * 3
    assert not sent(cluster, steps.AreCommitted)
    assert not sent(cluster, steps.DescribeProducers)


def test_committed_range_ends_the_search_of_its_transaction() -> None:
    """One COMMIT proves the commit as a whole, so no leader describes its producers for the other range."""
    cluster = ScriptedCluster(partitions=2)
    logged = cluster.decide([cluster.attempt(cluster.plan(), into=(0, 1))])
    (both,) = logged.decision.transactions
    cluster.end_without_marker(both.identity, commit=True, partition=LOG)
    cluster.forget(both.identity.transactional_id)
    cluster.own = {
        steps.AbortedTransactions: lambda _: {both.offsets[0]: (), both.offsets[1]: Unseen.BLOCKED},
        steps.AreCommitted: lambda _: (None,),
    }
    (facts,) = gathered(cluster, logged)
    assert facts.ranges == (Shown.COMMITTED, Shown.UNSHOWN)
    assert not sent(cluster, steps.DescribeProducers)


def described(logged: LoggedDecision, number: int, state: str) -> TransactionDescription:
    identity = logged.decision.transactions[number].identity
    return TransactionDescription(
        state=state,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch + 1,
        timeout_ms=900_000,
        start_time_ms=-1,
        partitions=frozenset(),
    )


def test_only_ending_coordinators_are_described_again() -> None:
    """What the others reported stays a fact: a later transaction of the id cannot change it."""
    cluster, logged = in_doubt()
    ending = {"w.1.0": described(logged, 1, "PrepareAbort")}
    reports = iter(
        [
            {"w.0.0": described(logged, 0, "CompleteAbort"), "w.2.0": None} | ending,
            ending,
            {"w.1.0": described(logged, 1, "CompleteAbort")},
        ]
    )
    cluster.own = {steps.DescribeTransactions: lambda _: next(reports)}
    began = cluster.now
    facts = gathered(cluster, logged)
    asked = [step.transactional_ids for step in sent(cluster, steps.DescribeTransactions)]
    assert asked == [("w.0.0", "w.1.0", "w.2.0"), ("w.1.0",), ("w.1.0",)]
    assert [each.coordinator for each in facts] == [Coordinator.ABORTED, Coordinator.ABORTED, Coordinator.UNKNOWN]
    assert cluster.now == began + 2 * POLL_MS


def test_log_is_not_read_while_a_coordinator_writes_markers() -> None:
    cluster, logged = in_doubt()
    cluster.own = {steps.DescribeTransactions: lambda _: {"w.0.0": described(logged, 0, "PrepareCommit")}}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*has not finished w\.0\.0 in time"):
        gathered(cluster, logged, within_ms=1_000)
    assert not sent(cluster, steps.Append)
    assert not sent(cluster, steps.ReadLog)
