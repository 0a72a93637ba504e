"""Which requests the judgement of a decision takes, and which it does not."""

from __future__ import annotations

from collections.abc import Collection
from typing import Never, TypeVar

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.evidence import Judged, _blocked_by_others, _is_before, judged, look_at
from kafka_eos_sink.commit.log_view import LoggedDecision
from kafka_eos_sink.commit.outcome import Do, Shown
from kafka_eos_sink.commit.steps import POLL_MS, TransactionDescription, Unseen
from kafka_eos_sink.errors import DecisionPendingError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.model.scripted_cluster import ScriptedCluster, decided
from tests.runs import run_of

S = TypeVar("S")


def ended(committed: Collection[int]) -> tuple[ScriptedCluster, LoggedDecision]:
    """Three decided transactions, each with rows in the data partition of its number, which all have ended."""
    cluster, logged = decided(partitions=3)
    for number, prepared in enumerate(logged.decision.transactions):
        cluster.end(prepared.identity, commit=number in committed)
    return cluster, logged


def judgement(
    cluster: ScriptedCluster,
    logged: LoggedDecision,
    accepted: Collection[ProducerIdentity] = (),
    within_ms: int = 9_000,
) -> Judged:
    named = logged.decision.transactions
    return cluster.run(judged(run_of(), logged.decision, named, accepted, cluster.now + within_ms))


def sent(cluster: ScriptedCluster, kind: type[S]) -> list[S]:
    return [step for step in cluster.steps if isinstance(step, kind)]


def test_all_ranges_are_read_in_one_request() -> None:
    cluster, logged = ended(committed=[0, 2])
    assert judgement(cluster, logged) == ((Do.NOTHING,), (Do.COPY,), (Do.NOTHING,))
    (read,) = sent(cluster, steps.AbortedTransactions)
    assert read.ranges == tuple(part for each in logged.decision.transactions for part in each.offsets)
    assert read.producer_ids == tuple(each.identity.producer_id for each in logged.decision.transactions)
    names = [type(step) for step in cluster.steps if not isinstance(step, steps.Now)]
    assert names == [steps.DescribeTransactions, steps.AbortedTransactions]


@pytest.mark.parametrize("begins", [-5, 0, 9])
@pytest.mark.parametrize("unseen", [Unseen.BLOCKED, Unseen.GONE])
def test_markers_are_searched_only_where_nothing_is_held_open(unseen: Unseen, begins: int) -> None:
    """The search reads the partition to its end. What is open may have begun before the range, and have another epoch (JOIN)."""
    cluster, logged = ended(committed=range(3))
    first, second, last = logged.decision.transactions
    held = {("t", 2): {last.identity.producer_id: (7, max(0, last.offsets[0].first_offset + begins))}}
    blocked = (first.offsets[0], second.offsets[0])
    cluster.own = {
        steps.AbortedTransactions: lambda step: {
            part: Unseen.BLOCKED if part in blocked else unseen for part in step.ranges
        },
        steps.AreCommitted: lambda step: (True, False),
        steps.DescribeProducers: lambda step: {where: held.get(where, {}) for where in step.partitions},
    }
    assert cluster.run(look_at(logged.decision.transactions)) == [(Shown.VISIBLE,), (Shown.DISCARDED,), (Shown.HELD,)]
    (described,) = sent(cluster, steps.DescribeProducers)
    assert described.partitions == (("t", 0), ("t", 1), ("t", 2))
    (searched,) = sent(cluster, steps.AreCommitted)
    assert tuple(part for _, part in searched.written) == blocked


@pytest.mark.parametrize("begins", [-1, 10])
def test_transaction_behind_the_range_does_not_hold_it(begins: int) -> None:
    cluster, logged = ended(committed=range(3))
    cluster.own = {
        steps.AbortedTransactions: lambda step: dict.fromkeys(step.ranges, Unseen.BLOCKED),
        steps.AreCommitted: lambda step: (None,) * len(step.written),
        steps.DescribeProducers: lambda step: {
            where: {each.identity.producer_id: (0, begins) for each in logged.decision.transactions}
            for where in step.partitions
        },
    }
    assert cluster.run(look_at(logged.decision.transactions)) == [(Shown.LATE,)] * 3


def test_range_that_is_gone_is_searched_for_no_marker() -> None:
    cluster, logged = ended(committed=[0])
    cluster.forget("w.2.0")
    cluster.own = {steps.AbortedTransactions: lambda step: dict.fromkeys(step.ranges, Unseen.GONE)}
    assert judgement(cluster, logged) == ((Do.SEEN,), (Do.MISS,), (Do.ASK,))
    assert not sent(cluster, steps.AreCommitted)


def test_range_of_a_deleted_topic_is_gone() -> None:
    cluster, logged = ended(committed=[0])

    def deleted(step: steps.DescribeProducers) -> Never:
        raise steps.DataTopicGoneError("UNKNOWN_TOPIC", "there is no such topic")

    cluster.own = {
        steps.AbortedTransactions: lambda step: dict.fromkeys(step.ranges, Unseen.GONE),
        steps.DescribeProducers: deleted,
    }
    assert cluster.run(look_at(logged.decision.transactions)) == [(Shown.GONE,)] * 3


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
    cluster, logged = ended(committed=[])
    ending = {"w.1.0": described(logged, 1, "PrepareAbort")}
    reports = iter(
        [
            {"w.0.0": described(logged, 0, "CompleteAbort"), "w.2.0": None} | ending,
            ending,
            {"w.1.0": described(logged, 1, "CompleteAbort")},
        ]
    )
    cluster.own = {
        steps.DescribeTransactions: lambda _: next(reports),
        steps.AbortedTransactions: lambda step: dict.fromkeys(step.ranges, Unseen.GONE),
    }
    began = cluster.now
    assert judgement(cluster, logged) == ((Do.MISS,), (Do.MISS,), (Do.ASK,))
    asked = [step.transactional_ids for step in sent(cluster, steps.DescribeTransactions)]
    assert asked == [("w.0.0", "w.1.0", "w.2.0"), ("w.1.0",), ("w.1.0",)]
    assert cluster.now == began + 2 * POLL_MS


def test_leaders_are_not_asked_while_a_coordinator_writes_markers() -> None:
    """What they hold open then may still get its marker."""
    cluster, logged = ended(committed=[])
    cluster.own = {steps.DescribeTransactions: lambda _: {"w.0.0": described(logged, 0, "PrepareCommit")}}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*has not finished w\.0\.0 in time"):
        judgement(cluster, logged, within_ms=1_000)
    assert not sent(cluster, steps.AbortedTransactions)


def test_accepted_end_does_not_count_against_a_coordinator_that_reports_it_open() -> None:
    """LATE ADD: a late request has opened it again, so what the leader holds may still be committed."""
    cluster, logged = decided()
    accepted = [prepared.identity for prepared in logged.decision.transactions]
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*its coordinator reports it as open"):
        judgement(cluster, logged, accepted)


def test_abort_of_a_later_transaction_does_not_discard_the_range() -> None:
    cluster, logged = decided()
    (named,) = logged.decision.transactions
    (part,) = named.offsets
    for first, shown in ((part.last_offset, Shown.DISCARDED), (part.last_offset + 1, Shown.VISIBLE)):
        aborted = (named.identity.producer_id, first)
        cluster.own = {steps.AbortedTransactions: lambda step, aborted=aborted: dict.fromkeys(step.ranges, (aborted,))}
        assert cluster.run(look_at(logged.decision.transactions)) == [(shown,)]


def test_readers_pass_only_behind_the_last_row() -> None:
    assert [_is_before(5, stable) for stable in (4, 5, 6, None)] == [True, True, False, False]


def test_only_others_transactions_are_called_blockers() -> None:
    _, logged = decided()
    identity = logged.decision.transactions[0].identity
    own, writers = identity.producer_id, {("t", 0): [(identity, 9)]}
    last = {("t", 0): 9}
    assert _blocked_by_others(writers, last, {("t", 0): {own: (0, 3), 7: (0, 4)}}) == {}
    assert _blocked_by_others(writers, last, {("t", 0): {7: (0, 4)}}) == {("t", 0): 7}
    assert _blocked_by_others(writers, last, {("t", 0): {7: (0, 10)}}) == {}
