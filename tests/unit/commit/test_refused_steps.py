"""What an error of one step makes of a commit, of copies and of a resolution: step x error -> code.

The simulated cluster gives none of these responses, so the model does not search them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.commit.steps import Answered, Appended, EndResult, Step
from kafka_eos_sink.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerUnavailableError,
    DecisionPendingError,
    KafkaEosError,
)
from kafka_eos_sink.protocol.error_codes import ErrorCode
from tests.model.scripted_cluster import TIMEOUT_MS, ScriptedCluster, written
from tests.unit.commit.test_resolve import Cluster as Resolving
from tests.unit.commit.test_restore import Cluster as Copying

Behaviour = Callable[[ScriptedCluster, Any], Any]
UNREACHABLE = BrokerUnavailableError("REQUEST_DEADLINE", "not done in time")
DENIED = AuthorizationError("TOPIC_AUTHORIZATION_FAILED", "no Read on t")


def raises(error: Exception) -> Behaviour:
    def behave(_cluster: ScriptedCluster, _step: Step[Any]) -> Any:
        raise error

    return behave


def returns(result: Any) -> Behaviour:
    return lambda _cluster, _step: result


def takes(ms: int) -> Behaviour:
    def behave(cluster: ScriptedCluster, step: Step[Any]) -> Any:
        cluster.now += ms
        return cluster.perform(step)

    return behave


def is_of_driver(step: steps.EndTransactions) -> bool:
    return step.ends[0].identity.transactional_id == "w.driver"


def driver_gets(error: int | None, *, is_done: bool | None = None) -> Behaviour:
    """The response to the driver's EndTxn, which commits (``is_done``), aborts, or does nothing."""

    def behave(cluster: ScriptedCluster, step: steps.EndTransactions) -> Any:
        if not is_of_driver(step):
            return cluster.perform(step)
        if is_done is not None:
            cluster.end(step.ends[0].identity, commit=is_done)
        return (EndResult(error=error),)

    return behave


def tasks_get(error: int | None) -> Behaviour:
    """The responses to EndTxn of tasks, which does nothing."""
    return lambda cluster, step: (
        cluster.perform(step) if is_of_driver(step) else tuple(EndResult(error=error) for _ in step.ends)
    )


def ended_by_others(cluster: ScriptedCluster, step: steps.CopyRecords) -> Any:
    """Another program aborts the copies."""
    copied = cluster.perform(step)
    for copy in step.copies:
        cluster.end(copy.identity, commit=False)
    return copied


LOST = Appended(error=None, earlier_error=ErrorCode.NOT_ENOUGH_REPLICAS.value)
COMMIT: list[tuple[type[Step[Any]], Behaviour, str, int]] = [
    # step, what happens, code, the ends that were sent before
    (steps.DescribeProducers, raises(steps.ReadDeniedError("one of them", ["t"])), "TOPIC_AUTHORIZATION_FAILED", 0),
    (steps.AddPartitions, returns(LOST), "NOT_DECIDED", 0),
    (steps.CommitGroupOffsets, returns(LOST), "NOT_DECIDED", 0),
    (steps.AppendInTransaction, returns(LOST), "NOT_DECIDED", 0),
    (steps.AppendInTransaction, takes(880_000), "TRANSACTION_TOO_OLD", 0),
    (
        steps.EndTransactions,
        raises(AuthenticationError("SASL_AUTHENTICATION_FAILED", "expired")),
        "DECISION_UNKNOWN",
        0,
    ),
    (steps.EndTransactions, raises(MemoryError("full")), "DECISION_UNKNOWN", 0),
    (steps.EndTransactions, driver_gets(ErrorCode.PRODUCER_FENCED, is_done=False), "FENCED", 0),
    (steps.EndTransactions, driver_gets(ErrorCode.PRODUCER_FENCED, is_done=True), "DECIDED_NOT_FINISHED", 0),
    (steps.ReadLog, raises(UNREACHABLE), "DECISION_UNKNOWN", 1),
    (steps.ReadLog, raises(MemoryError("full")), "DECISION_UNKNOWN", 1),
    (steps.EndTransactions, tasks_get(ErrorCode.CONCURRENT_TRANSACTIONS), "DECIDED_NOT_FINISHED", 1),
    (steps.LastStableOffsets, raises(ZeroDivisionError("a bug")), "DECIDED_NOT_FINISHED", 2),
    (steps.Append, raises(UNREACHABLE), "", 2),  # of the done record alone
]


@pytest.mark.parametrize(("step", "happens", "code", "ends"), COMMIT)
def test_commit_fails_with_the_code_of_its_step(
    step: type[Step[Any]], happens: Behaviour, code: str, ends: int
) -> None:
    cluster, messages = written(version=0)
    cluster.own = {
        steps.CommitGroupOffsets: lambda _: Answered(error=0),
        step: lambda asked: happens(cluster, asked),
    }
    offsets = GroupOffsets(group_id="g", offsets=(("t", 0, 1),))
    assert code_of(lambda: cluster.commit(messages, group_offsets=offsets)) == code
    assert len(cluster.ends) == ends or code in ("FENCED", "DECIDED_NOT_FINISHED")
    if code in ("NOT_DECIDED", "TRANSACTION_TOO_OLD", "TOPIC_AUTHORIZATION_FAILED"):
        assert cluster.view().query("batch").newest is None


def code_of(procedure: Callable[[], object]) -> str:
    try:
        procedure()
    except KafkaEosError as failure:
        return failure.code
    return ""


COPIES: list[tuple[type[Step[Any]], Behaviour]] = [
    (steps.CopyRecords, raises(UNREACHABLE)),
    (steps.CopyRecords, ended_by_others),
    (steps.AppendInTransaction, takes(TIMEOUT_MS)),
    (steps.AppendInTransaction, returns(Appended(error=ErrorCode.MESSAGE_TOO_LARGE))),
    (steps.EndTransactions, driver_gets(ErrorCode.PRODUCER_FENCED, is_done=False)),
]


@pytest.mark.parametrize(("step", "happens"), COPIES)
def test_copies_that_cannot_be_decided_are_aborted(step: type[Step[Any]], happens: Behaviour) -> None:
    cluster = Copying(1)
    cluster.own = {step: lambda asked: happens(cluster, asked)}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\]"):
        cluster.finish()
    assert cluster.ended_copies == [("w.1.0", False)]
    assert cluster.newest() == cluster.decision


def test_copies_whose_decision_is_unknown_stay_open() -> None:
    """They may be decided: only a driver that has read the log may end them."""
    cluster = Copying(1)
    silent = driver_gets(None)
    cluster.own = {
        steps.EndTransactions: lambda step: silent(cluster, step),
        steps.ReadLog: lambda step: takes(100)(cluster, step),
    }
    assert code_of(lambda: cluster.finish(within_ms=5_000)) == "DECISION_UNKNOWN"
    assert cluster.ended_copies == []


NO_LEADER = BrokerUnavailableError("REQUEST_DEADLINE", "t-0 has no leader")
RESOLUTION: list[tuple[str, type[Step[Any]], Behaviour, bool, str]] = [
    # resolution, step, what happens, whether the version was finished before, code
    ("committed", steps.AbortedTransactions, raises(DENIED), False, "DECIDED_NOT_FINISHED"),
    ("rewrite", steps.AbortedTransactions, raises(DENIED), False, "DECIDED_NOT_FINISHED"),
    ("rewrite", steps.AbortedTransactions, raises(NO_LEADER), False, "DECIDED_NOT_FINISHED"),
    ("committed", steps.DescribeProducers, raises(NO_LEADER), True, "REQUEST_DEADLINE"),
    ("committed", steps.EndTransactions, tasks_get(None), False, "DECIDED_NOT_FINISHED"),
    ("committed", steps.EndTransactions, driver_gets(ErrorCode.PRODUCER_FENCED), True, "FENCED"),
    ("committed", steps.EndTransactions, driver_gets(None), True, "NOT_RESOLVED"),
    ("committed", steps.EndTransactions, driver_gets(ErrorCode.NONE), True, "NOT_RESOLVED"),
    ("committed", steps.AppendInTransaction, returns(replace(LOST, error=ErrorCode.REQUEST_TIMED_OUT)), True, "NOT_RESOLVED"),
]  # fmt: skip


@pytest.mark.parametrize(("resolution", "step", "happens", "is_finished", "code"), RESOLUTION)
def test_resolution_that_fails_records_nothing(
    resolution: Any, step: type[Step[Any]], happens: Behaviour, is_finished: bool, code: str
) -> None:
    cluster = Resolving()
    decision = cluster.decided(0)
    if is_finished:
        cluster.plan("finishes it")
    cluster.own[step] = lambda asked: happens(cluster, asked)
    assert code_of(lambda: cluster.resolve(resolution)) == code
    assert cluster.newest() == decision
    assert cluster.done() == (decision.nonce if is_finished else None)
