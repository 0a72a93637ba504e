"""What commit and abort make of answers that a simulated cluster does not give: errors in the middle, stuck logs, missing rights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.decide import DriverTransaction, decide_again
from kafka_eos_sink.commit.log_access import STUCK_LOG_MS, read_to_barrier
from kafka_eos_sink.commit.log_records import barrier_record
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.steps import Step
from kafka_eos_sink.commit.task import fail_if_too_late
from kafka_eos_sink.commit.transactional_id import SLOTS
from kafka_eos_sink.commit.transactions import (
    DRIVER_TRANSACTION_TIMEOUT_MS,
    SLOT_DEADLINE_MS,
    fresh_identity,
)
from kafka_eos_sink.commit.values import PreparedTransaction, TaskMessage, TaskOutcome
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerRefusedError,
    BrokerUnavailableError,
    DecisionPendingError,
    TransactionAbortedError,
    WriteRefusedError,
)
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.model.scripted_cluster import BATCH, TIMEOUT_MS, ScriptedCluster, written
from tests.runs import RANDOM, WRITE, run_of


def unreachable(_: Any) -> Any:
    raise BrokerUnavailableError("REQUEST_DEADLINE", "Fetch was not done in time")


def prepared_of(message: TaskMessage) -> PreparedTransaction:
    assert message.prepared is not None
    return message.prepared


@pytest.mark.parametrize("created_again", ["after the tasks", "before the tasks", "before an empty batch"])
def test_decision_in_a_log_without_its_plan_is_not_committed(created_again: str) -> None:
    """Otherwise the new log would count as the write's own, and a query whose decision was lost would write its batch again."""
    cluster, messages = written()
    cluster.commit(messages)
    other = replace(BATCH, query_id="other")
    plan = cluster.plan("other")
    if created_again != "after the tasks":
        cluster.delete_log()
    message = cluster.attempt(plan, batch=other)
    if created_again == "after the tasks":
        cluster.delete_log()
        cluster.perform(steps.Append((barrier_record("another write", "n"),) * plan.log_offset))
    elif created_again == "before an empty batch":
        message = replace(message, outcome=TaskOutcome.EMPTY, prepared=None)
    cluster.ends.clear()
    with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\]"):
        cluster.commit([message], plan=plan, batch=other)
    assert cluster.ends == []
    with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG|COMMIT_LOG_LOST"):
        cluster.plan("batch again")


def test_decision_is_not_repeated_in_a_log_that_was_created_again() -> None:
    cluster, messages = written()
    cluster.commit(messages)
    plan, logged = cluster.plan("next"), cluster.newest_logged()
    cluster.delete_log()
    with pytest.raises(DecisionPendingError, match="NOT_THIS_COMMIT_LOG"):
        cluster.run(decide_again(run_of("next"), logged, DriverTransaction(plan.driver)))
    assert cluster.records("barrier") == []
    with pytest.raises(WriteRefusedError, match="COMMIT_LOG_LOST"):
        cluster.plan("batch again")


@pytest.mark.parametrize("fails", [steps.AppendInTransaction, steps.EndTransactions])
def test_tombstones_that_cannot_be_written_fail_nothing(fails: type[Step[Any]]) -> None:
    """A write with a random id is finished by then, and visible."""
    cluster, messages = written(write_id=RANDOM)

    def fail_late(step: Step[Any]) -> Any:
        return unreachable(step) if steps.Reached("commit.finished") in cluster.steps else cluster.perform(step)

    cluster.own = {fails: fail_late}
    assert cluster.commit(messages) is not None
    assert ["could not be removed" in said for said in cluster.warnings] == [True]


def test_timeout_lowered_by_a_task_bounds_the_commit() -> None:
    cluster, messages = written()

    def lowered(step: steps.DescribeTransactions) -> dict[str, Any]:
        return {name: found and replace(found, timeout_ms=300_000) for name, found in cluster.perform(step).items()}

    cluster.own = {steps.DescribeTransactions: lowered}
    cluster.now = 290_000
    with pytest.raises(TransactionAbortedError, match=r"TRANSACTION_TOO_OLD\].*ends it at 300\.0 s"):
        cluster.commit(messages)
    assert cluster.ends == []


def test_log_hiding_acknowledged_records_raises_unavailable() -> None:
    cluster = ScriptedCluster()
    began = cluster.now

    def nothing(step: steps.ReadLog) -> steps.LogChunk:
        cluster.now += 1_000
        return chunk_of(step.offset)

    cluster.own = {steps.ReadLog: nothing}
    with pytest.raises(BrokerUnavailableError, match=r"COMMIT_LOG_UNAVAILABLE\].*min.insync.replicas"):
        cluster.run(read_to_barrier(LogView("w"), "n"))
    assert cluster.now - began < STUCK_LOG_MS + 5_000


def chunk_of(end: int, *entries: steps.ReadRecord | steps.Marker) -> steps.LogChunk:
    return steps.LogChunk(entries=entries, next_offset=end, log_start_offset=0, end_offset=end)


class Readers:
    """The data partition after our EndTxn: where its last stable offset stands at each look, and who holds it there."""

    def __init__(
        self,
        cluster: ScriptedCluster,
        task: ProducerIdentity,
        *offsets: int,
        held_by: Mapping[int, tuple[int, int]] | None,
    ) -> None:
        self.cluster, self.task, self.offsets, self.held_by = cluster, task, list(offsets), held_by
        cluster.own = {steps.LastStableOffsets: self.stable, steps.DescribeProducers: self.producers}

    def stable(self, step: steps.LastStableOffsets) -> dict[Any, int]:
        self.cluster.now += 500
        at = self.offsets.pop(0) if len(self.offsets) > 1 else self.offsets[0]
        return dict.fromkeys(step.partitions, at)

    def producers(self, step: steps.DescribeProducers) -> Any:
        if (self.task, True) not in self.cluster.ends:
            return self.cluster.perform(step)
        if self.held_by is None:
            raise AuthorizationError("TOPIC_AUTHORIZATION_FAILED", "no Read on t")
        return {("t", 0): self.held_by}


def held(
    *offsets: int, by: Mapping[int, tuple[int, int]] | None, write_id: str = WRITE.id
) -> tuple[ScriptedCluster, list[TaskMessage], Readers]:
    cluster, messages = written(write_id=write_id)
    return cluster, messages, Readers(cluster, prepared_of(messages[0]).identity, *offsets, held_by=by)


def test_readers_blocked_by_other_writers_are_not_awaited() -> None:
    cluster, messages, _ = held(5, by={77: (0, 5)})
    assert cluster.commit(messages) is not None
    assert ["producer id 77 blocks read_committed readers" in said for said in cluster.warnings] == [True]
    assert len(cluster.records("done")) == 1


@pytest.mark.parametrize("write_id", [WRITE.id, RANDOM], ids=["txnAppId", "random write id"])
def test_read_withdrawn_after_the_decision_leaves_the_decision(write_id: str) -> None:
    """A marker may be missing behind the other program's transaction, and the decision is needed to write it."""
    cluster, (message,), _ = held(5, by=None, write_id=write_id)
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*TOPIC_AUTHORIZATION_FAILED"):
        cluster.commit([message])
    assert cluster.records("done") == []
    assert cluster.ends == [(message.plan.driver, True), (prepared_of(message).identity, True)]


def test_a_commit_of_no_messages_is_refused() -> None:
    cluster = ScriptedCluster()
    with pytest.raises(WriteRefusedError, match=r"MISSING_MESSAGE\]"):
        cluster.commit([])
    assert cluster.ends == []


def test_commit_refuses_tasks_of_different_runs() -> None:
    cluster, (message,) = written()
    with pytest.raises(WriteRefusedError, match=r"MIXED_MESSAGES\].*different runs"):
        cluster.commit([message, replace(message, batch=replace(BATCH, version=2))])
    assert cluster.ends == []


def test_commit_refuses_two_messages_of_one_partition() -> None:
    cluster, (message,) = written()
    with pytest.raises(WriteRefusedError, match=r"MIXED_MESSAGES\].*two messages of one partition"):
        cluster.commit([message, message])
    assert cluster.ends == []


def test_attempt_fails_when_all_its_ids_have_open_transactions() -> None:
    cluster = ScriptedCluster()
    for slot in range(SLOTS):
        cluster.open(f"w.0.{slot}")
    with pytest.raises(
        TransactionAbortedError,
        match=r"NO_FREE_TRANSACTIONAL_ID\].*kafka-eos status --bootstrap-servers ... --write-id w",
    ):
        cluster.run(fresh_identity(WRITE, 0, range(SLOTS), TIMEOUT_MS))
    assert cluster.now > SLOT_DEADLINE_MS


def test_a_task_reads_the_log_to_its_end_at_the_first_look() -> None:
    """The partition is shared: somebody else writes to it whenever it is read."""
    cluster = ScriptedCluster()
    plan = cluster.plan()
    looks = 0

    def growing(step: steps.ReadLog) -> Any:
        nonlocal looks
        looks += 1
        assert looks <= 10
        chunk = cluster.perform(step)
        cluster.perform(steps.Append((barrier_record("other", "x"),)))
        next_offset = step.offset + 1
        entries = tuple(entry for entry in chunk.entries if entry.offset < next_offset)
        return replace(chunk, entries=entries, next_offset=next_offset)

    cluster.perform(steps.Append((barrier_record("other", "x"),) * 5))
    cluster.own = {steps.ReadLog: growing}
    cluster.now = TIMEOUT_MS + 1_001
    cluster.run(fail_if_too_late(plan, "batch", 1, 0))
    assert looks == 6


def refused(_: Any) -> Any:
    raise BrokerRefusedError("BROKER_REFUSED", "DescribeTransactions: TRANSACTIONAL_ID_AUTHORIZATION_FAILED")


@pytest.mark.parametrize("failed", [unreachable, refused])
def test_failed_search_for_losing_attempts_stops_no_decision(failed: Callable[[Any], Any]) -> None:
    cluster, (message,) = written()
    asked: list[steps.DescribeTransactions] = []

    def silent_once(step: steps.DescribeTransactions) -> Any:
        asked.append(step)
        return failed(step) if len(asked) == 2 else cluster.perform(step)

    cluster.own = {steps.DescribeTransactions: silent_once}
    assert cluster.commit([message]) is not None
    check, losers, _ = asked
    assert check.transactional_ids == ("w.0.0",)
    assert len(losers.transactional_ids) == SLOTS
    assert losers.within_ms is not None
    assert losers.within_ms < DRIVER_TRANSACTION_TIMEOUT_MS, "the decision's transaction is open meanwhile"
    assert cluster.ends == [(message.plan.driver, True), (prepared_of(message).identity, True)]
