"""Lost transactions of a decision are copied from the log: all of them, or none."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from kafka_eos_sink.cli.resolve import resolved_sentence
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.decide import DriverTransaction
from kafka_eos_sink.commit.log_records import (
    barrier_record,
    done_record,
    part_record,
)
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.resolve import Resolved, resolve
from kafka_eos_sink.commit.restore import MOST_COPIES, _sort_copies, finish
from kafka_eos_sink.commit.steps import Step
from kafka_eos_sink.commit.take_over import TakeOver, take_over
from kafka_eos_sink.commit.values import (
    PROOFS_WITHIN_MS,
    DeadLetters,
    Decision,
    DecisionStatus,
    OffsetRange,
    Resolution,
    ResolveRequest,
    TaskOutcome,
)
from kafka_eos_sink.commit.versions import Versions
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerUnavailableError,
    DecisionPendingError,
    KafkaEosError,
    TransactionAbortedError,
    WriteRefusedError,
)
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.wire_types import ZERO_UUID
from tests.model import simulated_cluster as kafka
from tests.model.scripted_cluster import BATCH, TIMEOUT_MS, ScriptedCluster, decided, written
from tests.runs import run_of

S = TypeVar("S")

NEXT = TakeOver(run=run_of("next"))


class Cluster(ScriptedCluster):
    """A decision of some transactions, each with rows in its own data partition, of which ``lost`` were aborted after it."""

    def __init__(self, *lost: int, partitions: int = 2, version: int = 2) -> None:
        super().__init__(max(partitions, 2), version)
        self.gone: set[int] = set()
        """Data partitions whose records cannot be copied."""
        self.times_lost = 0
        """How many further copies are aborted between their decision and their EndTxn."""
        self.first_plan = self.plan()
        self.found = self.decide([self.attempt(self.first_plan, each, slot=7) for each in range(partitions)])
        self.decision = self.found.decision
        self.named = self.decision.transactions
        self.driver = self.first_plan.driver.after_end
        """W.driver's identity once the coordinator has ended the decision's transaction."""
        for each in lost:
            self.end(self.named[each].identity, commit=False)

    def perform(self, step: Step[Any]) -> Any:
        match step:
            case steps.CopyRecords():
                return tuple(map(self.copy, step.copies))
            case steps.EndTransactions():
                for end in step.ends:
                    if self.times_lost and end.commit and self.is_copy(end.identity):
                        self.times_lost -= 1
                        self.end(end.identity, commit=False)
        return super().perform(step)

    def copy(self, copy: steps.Copy) -> steps.Copied | steps.Gone:
        for part in copy.ranges:
            if part.partition in self.gone:
                where = f"{part.topic}-{part.partition} [{part.first_offset}..{part.last_offset}]"
                return steps.Gone(f"{where}: the partition does not hold these offsets any more")
        copied: steps.Copied
        (copied,) = super().perform(steps.CopyRecords((copy,)))
        return copied

    def is_copy(self, identity: ProducerIdentity) -> bool:
        return identity.transactional_id not in {"w.driver", *(entry.identity.transactional_id for entry in self.named)}

    def finish(
        self,
        driver: DriverTransaction | None = None,
        losers: Sequence[ProducerIdentity] = (),
        within_ms: int = PROOFS_WITHIN_MS,
    ) -> tuple[Decision, DriverTransaction]:
        driver = driver or DriverTransaction(self.driver)
        decision: Decision = self.run(
            finish(run_of(within_ms=within_ms), self.found, driver, losers=losers, recovering=True)
        )
        return decision, driver

    # what was done

    def copies(self) -> list[steps.Copy]:
        return [copy for step in self.done(steps.CopyRecords) for copy in step.copies]

    def done(self, kind: type[S]) -> list[S]:
        return [step for step in self.steps if isinstance(step, kind)]

    @property
    def ended_copies(self) -> list[tuple[str, bool]]:
        return [(identity.transactional_id, commit) for identity, commit in self.ends if self.is_copy(identity)]

    @property
    def open_ids(self) -> list[str]:
        return [name for name, found in self.kafka.transactions if found.state == kafka.ONGOING]


def test_fenced_driver_copies_nothing_and_ends_nothing() -> None:
    """A newer driver may have committed a transaction under the copy's id: an abort of it could discard committed rows."""
    cluster = Cluster(1)
    cluster.perform(steps.InitProducerId("w.driver", TIMEOUT_MS))
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*FENCED"):
        cluster.finish()
    assert len(cluster.done(steps.InitProducerId)) == 1
    assert (cluster.done(steps.CopyRecords), cluster.ended_copies) == ([], [])


@pytest.mark.parametrize("others", ["open", "silent"])
def test_copy_never_takes_the_slot_of_the_lost_one(others: str) -> None:
    cluster = Cluster(1)
    for slot in range(7):
        cluster.open(f"w.1.{slot}")

    def describe(step: steps.DescribeTransactions) -> Any:
        cluster.now += 10_000
        if others == "silent" and step.transactional_ids not in (("w.driver",), ("w.0.7", "w.1.7")):
            raise BrokerUnavailableError("REQUEST_DEADLINE", "no response")
        return cluster.perform(step)

    cluster.own = {steps.DescribeTransactions: describe}
    with pytest.raises(DecisionPendingError, match="could not be copied"):
        cluster.finish()
    assert cluster.done(steps.InitProducerId) == []


def test_lost_transaction_is_copied_and_decided_with_the_rest() -> None:
    cluster = Cluster(1)
    decision, driver = cluster.finish()
    (step,) = cluster.copies()
    assert (step.source, step.ranges) == (cluster.named[1].identity, cluster.named[1].offsets)
    rest, copy = decision.transactions
    assert rest == replace(cluster.named[0], proven=True)
    assert (copy.partition, copy.identity, copy.rows, copy.proven) == (1, step.identity, 10, False)
    assert copy.offsets == (OffsetRange(topic="t", partition=1, first_offset=11, last_offset=20, rows=10),)
    assert decision == replace(cluster.decision, nonce="mine~1", driver=cluster.driver, transactions=(rest, copy))
    assert driver == DriverTransaction(cluster.driver.after_end)
    assert "10 rows of 1 transaction that had been aborted after the decision were copied" in cluster.warnings[-1]


def test_steps_of_a_copy_are_taken_in_this_order() -> None:
    """Nothing is committed before the marker of the second decision was read."""
    cluster = Cluster(0, 1)
    cluster.finish()
    kinds = (steps.InitProducerId, steps.CopyRecords, steps.DescribeProducers, steps.AppendInTransaction)
    began = cluster.steps.index(cluster.done(steps.InitProducerId)[0])
    taken = [
        type(step).__name__
        if isinstance(step, kinds)
        else ", ".join(f"{'commit' if end.commit else 'abort'} {end.identity.transactional_id}" for end in step.ends)
        for step in cluster.steps[began:]
        if isinstance(step, (*kinds, steps.EndTransactions))
    ]
    assert taken == [
        "InitProducerId",
        "InitProducerId",
        "CopyRecords",
        "DescribeProducers",
        "AppendInTransaction",
        "commit w.driver",
        "commit w.0.0, commit w.1.0",
    ]


def test_copy_takes_another_slot_and_leaves_its_own_part_record() -> None:
    cluster = Cluster(1)
    cluster.finish()
    (initialised,) = cluster.done(steps.InitProducerId)
    assert initialised.transactional_id == "w.1.0", "the lost one has slot 7"
    (step,) = cluster.copies()
    assert step.part == part_record("w", "batch", 1, 1, -1)
    assert step.identity.transaction_version == 2


def test_nothing_is_copied_of_a_decision_that_was_committed() -> None:
    cluster = Cluster()
    decision, driver = cluster.finish()
    assert decision == cluster.found.decision
    assert driver == DriverTransaction(cluster.driver)
    assert cluster.done(steps.CopyRecords) == []


def test_lost_copy_is_copied_from_the_copy() -> None:
    cluster = Cluster(1)
    cluster.times_lost = 1
    decision, driver = cluster.finish()
    first, second = cluster.copies()
    assert (second.source, second.ranges) == (
        first.identity,
        (OffsetRange(topic="t", partition=1, first_offset=11, last_offset=20, rows=10),),
    )
    assert second.identity.transactional_id == "w.1.1", "the lost copy has slot 0"
    assert (decision.nonce, decision.copies) == ("mine~2", 2)
    assert driver.identity == cluster.driver.after_end.after_end
    assert decision.transactions[0].proven


def test_losing_attempts_are_ended_once_before_the_copies() -> None:
    cluster = Cluster(1)
    loser = cluster.open("w.1.3")
    cluster.finish(losers=[loser])
    assert [commit for identity, commit in cluster.ends if identity == loser] == [False]
    kinds = [type(step) for step in cluster.steps]
    assert kinds.index(steps.EndTransactions) < kinds.index(steps.CopyRecords)


def test_sequence_continues_where_the_driver_keeps_its_epoch() -> None:
    """Below version 2 an EndTxn does not bump the epoch."""
    cluster = Cluster(1, version=0)
    _, driver = cluster.finish(DriverTransaction(cluster.driver, 1))
    (appended,) = cluster.done(steps.AppendInTransaction)
    assert (appended.identity, appended.base_sequence) == (cluster.driver, 1)
    assert driver == DriverTransaction(cluster.driver, 2)


def test_driver_whose_end_may_still_arrive_copies_nothing() -> None:
    """Below version 2 the late EndTxn could commit the first records of the next decision alone."""
    cluster = Cluster(1, version=0)
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED.*only a new run can continue"):
        cluster.finish(DriverTransaction(cluster.driver, 1, late_end_possible=True))
    assert cluster.done(steps.CopyRecords) == []
    assert cluster.done(steps.AppendInTransaction) == []


def test_next_epoch_is_known_without_a_response() -> None:
    cluster = Cluster(1)

    def silent(step: steps.EndTransactions) -> Any:
        results = cluster.perform(step)
        return (steps.EndResult(error=None),) if step.ends[0].identity == cluster.driver else results

    cluster.own = {steps.EndTransactions: silent}
    _, driver = cluster.finish()
    assert driver == DriverTransaction(cluster.driver.after_end)


def test_copies_that_are_lost_again_and_again_end_in_an_error() -> None:
    cluster = Cluster(1)
    cluster.times_lost = MOST_COPIES
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*copied from the log 4 times"):
        cluster.finish()
    assert len(cluster.done(steps.CopyRecords)) == MOST_COPIES
    assert cluster.newest().copies == MOST_COPIES, "the next run continues from there"


def test_last_copy_that_is_not_lost_finishes_the_run() -> None:
    cluster = Cluster(1)
    cluster.times_lost = MOST_COPIES - 1
    decision, _ = cluster.finish()
    assert (decision.is_void, decision.copies) == (False, MOST_COPIES)
    assert cluster.open_ids == []


def test_records_that_are_gone_are_named_and_nothing_is_copied() -> None:
    cluster = Cluster(1, 2, partitions=3)
    cluster.gone = {2}
    with pytest.raises(DecisionPendingError, match=r"LOST_PARTS\]") as raised:
        cluster.finish()
    lost, _, gone = raised.value.message.partition("can be copied from the log: ")
    assert (
        "20 rows of version 1 of write id 'w' are missing from the topic: 2 of its 3 transactions were aborted" in lost
    )
    assert "in t-1 [0..9], t-2 [0..9]" in lost
    assert "t-2 [0..9]: the partition does not hold these offsets any more" in gone
    assert "t-1" not in gone, "its records can be copied"
    way_out = raised.value.way_out
    assert "kafka-eos resolve --bootstrap-servers ... --write-id w --version 1 --as committed" in way_out
    assert way_out.endswith(
        "kafka-eos resolve --bootstrap-servers ... --write-id w --version 1 --as rewrite --allow-duplicates"
    )
    assert cluster.ended_copies == [("w.1.0", False), ("w.2.0", False)]
    assert (cluster.newest(), cluster.open_ids) == (cluster.decision, [])


def test_missing_rows_are_counted_and_nothing_is_copied() -> None:
    cluster = Cluster(1)
    for offset in range(3):
        cluster.change(2, offset, gone=True)
    with pytest.raises(
        DecisionPendingError, match=r"LOST_PARTS\].*3 of 10 rows of Spark partition 1 are gone from t-1 \[0\.\.9\]"
    ):
        cluster.finish()
    assert cluster.ended_copies == [("w.1.0", False)]
    assert cluster.newest() == cluster.decision


@pytest.mark.parametrize("gone", [{0}, {0, 1}])
def test_decision_without_visible_or_copyable_rows_is_void(gone: set[int]) -> None:
    """Nothing partial: what could be copied is not copied either."""
    cluster = Cluster(0, 1)
    cluster.gone = gone
    decision, driver = cluster.finish()
    assert cluster.ended_copies == [("w.0.0", False), ("w.1.0", False)]
    # For good, even if the records come back: somebody may have been told to write them again.
    void = replace(cluster.decision, nonce="mine~1", driver=cluster.driver, transactions=(), versions=Versions())
    assert cluster.newest() == decision == void
    assert decision.is_void
    assert driver == DriverTransaction(cluster.driver.after_end)
    assert "cannot be copied from the log: 10 rows of Spark partition 0: t-0 [0..9]" in cluster.warnings[-1]
    assert "restart the query from its checkpoint" in cluster.warnings[-1]


def unreachable(_: Any) -> Any:
    raise BrokerUnavailableError("REQUEST_DEADLINE", "Fetch was not done in time")


def test_failed_copy_ends_its_transactions_and_decides_nothing() -> None:
    cluster = Cluster(0, 1)
    cluster.own = {steps.CopyRecords: unreachable}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*could not be copied.*Fetch was not done"):
        cluster.finish()
    assert cluster.ended_copies == [("w.0.0", False), ("w.1.0", False)]
    assert cluster.newest() == cluster.decision


def test_copy_ended_by_another_client_is_not_decided() -> None:
    cluster = Cluster(1)

    def abort_copies(step: steps.CopyRecords) -> Any:
        copied = cluster.perform(step)
        for copy in step.copies:
            cluster.end(copy.identity, commit=False)
        return copied

    cluster.own = {steps.CopyRecords: abort_copies}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*TRANSACTION_NOT_OPEN"):
        cluster.finish()
    assert cluster.ended_copies == [("w.1.0", False)]
    assert cluster.newest() == cluster.decision


def test_copy_that_took_too_long_is_not_decided() -> None:
    cluster = Cluster(1)

    def slow(step: steps.AppendInTransaction) -> Any:
        cluster.now += TIMEOUT_MS
        return cluster.perform(step)

    cluster.own = {steps.AppendInTransaction: slow}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*TRANSACTION_TOO_OLD"):
        cluster.finish()
    assert cluster.ended_copies == [("w.1.0", False)]
    assert cluster.newest() == cluster.decision


def test_copies_of_a_fenced_driver_are_ended_at_once() -> None:
    """The marker of their decision is an ABORT, so no driver will ever commit them."""
    cluster = Cluster(1)

    def fenced(step: steps.EndTransactions) -> Any:
        if step.ends[0].identity == cluster.driver:
            cluster.end(cluster.driver, commit=False)
            return (steps.EndResult(error=ErrorCode.PRODUCER_FENCED),)
        return cluster.perform(step)

    cluster.own = {steps.EndTransactions: fenced}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*FENCED"):
        cluster.finish()
    assert cluster.ended_copies == [("w.1.0", False)]
    assert cluster.newest() == cluster.decision


def test_copies_whose_decision_is_rejected_are_ended_at_once() -> None:
    cluster = Cluster(1)
    cluster.own = {steps.AppendInTransaction: lambda _: steps.Appended(error=ErrorCode.MESSAGE_TOO_LARGE)}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*NOT_DECIDED.*MESSAGE_TOO_LARGE"):
        cluster.finish()
    assert cluster.ended_copies == [("w.1.0", False)]


def test_second_decision_without_marker_is_unknown_ends_nothing() -> None:
    """The copies may be decided: only a driver that has read the log may end them."""
    cluster = Cluster(1)

    def unmarked(step: steps.EndTransactions) -> Any:
        return (steps.EndResult(error=None),) if step.ends[0].identity == cluster.driver else cluster.perform(step)

    def later(step: steps.ReadLog) -> Any:
        cluster.now += 100
        return cluster.perform(step)

    cluster.own = {steps.EndTransactions: unmarked, steps.ReadLog: later}
    with pytest.raises(DecisionPendingError, match="that run finds out, and writes nothing twice") as raised:
        cluster.finish(within_ms=5_000)
    assert raised.value.code == "DECISION_UNKNOWN"
    assert cluster.ended_copies == []


def test_commit_heals_its_own_batch() -> None:
    """So a job without txnAppId heals too, whose next run has another write id."""
    cluster, (message,) = written()
    assert message.prepared is not None
    task, driver = message.prepared.identity, message.plan.driver

    def times_out(step: steps.EndTransactions) -> Any:
        results = cluster.perform(step)
        if step.ends[0].identity == driver:
            cluster.end(task, commit=False)
        return results

    cluster.own = {steps.EndTransactions: times_out}
    decision = cluster.commit([message])
    assert decision is not None
    assert (decision.nonce, [copy.rows for copy in decision.transactions]) == ("mine~1", [10])
    (done,) = cluster.records("done")
    assert done["nonce"] == "mine~1", "the next run finds nothing left to do"
    assert all(found.state != kafka.ONGOING for _, found in cluster.kafka.transactions)


def test_take_over_begins_again_after_it_decided_copies() -> None:
    """Tasks recognise their driver by the state that a fence leaves, and the decision of copies has changed it."""
    cluster = Cluster(1)
    plan = cluster.run(take_over(NEXT))
    fences = [step for step in cluster.done(steps.InitProducerId) if step.transactional_id == "w.driver"]
    assert len(fences) == 2
    (settled,) = plan.decisions
    decision = settled.decision
    assert (decision.version, decision.nonce, settled.status) == (1, "mine~1", DecisionStatus.FINISHED)
    assert len(cluster.done(steps.CopyRecords)) == 1
    decided_by = [step.identity for step in cluster.done(steps.AppendInTransaction)]
    assert plan.driver not in decided_by


def test_take_over_returns_a_void_version() -> None:
    cluster = Cluster(0, 1)
    cluster.gone = {0, 1}
    plan = cluster.run(take_over(NEXT))
    (decision,) = plan.decisions
    assert decision.status is DecisionStatus.VOID
    assert len(cluster.done(steps.CopyRecords)) == 1, "the second look finds it void"
    assert cluster.records("done") == []


def with_second_query(cluster: Cluster) -> None:
    """Another query id of the write, decided by a newer driver that has not finished the first; its only transaction is aborted as well."""
    batch = replace(BATCH, query_id="second")
    plan = cluster.fence("other")
    found = cluster.decide([cluster.attempt(plan, slot=6, batch=batch)], batch=batch)
    cluster.end(found.decision.transactions[0].identity, commit=False)


def test_take_over_copies_for_two_queries_under_one_fence() -> None:
    cluster = Cluster(1)
    with_second_query(cluster)
    plan = cluster.run(take_over(NEXT))
    nonces = {settled.decision.query_id: settled.decision.nonce for settled in plan.decisions}
    assert nonces == {"batch": "mine~1", "second": "other~1"}
    first, second = cluster.done(steps.AppendInTransaction)
    assert second.identity == first.identity.after_end
    assert (first.base_sequence, second.base_sequence) == (0, 0)
    kinds = [step for step in cluster.steps if isinstance(step, (steps.InitProducerId, steps.AppendInTransaction))]
    fences = [at for at, step in enumerate(kinds) if getattr(step, "transactional_id", "") == "w.driver"]
    assert fences == [0, len(kinds) - 1]


def test_failed_decision_is_not_committed_with_another_querys() -> None:
    """The leader takes the same producer id, epoch and sequence for a resend, whatever the records are."""
    cluster = Cluster(0, 1)
    with_second_query(cluster)

    def slow(step: steps.AppendInTransaction) -> Any:
        cluster.now += 2 * TIMEOUT_MS
        return cluster.perform(step)

    cluster.own = {steps.AppendInTransaction: slow}
    with pytest.raises(DecisionPendingError):
        cluster.run(take_over(NEXT))
    assert len(cluster.done(steps.AppendInTransaction)) == 1
    assert not [identity for identity, _ in cluster.ends if identity.transactional_id == "w.driver"]


def test_copies_of_one_query_stand_if_another_fails() -> None:
    cluster = Cluster(1)
    with_second_query(cluster)

    def some(step: steps.CopyRecords) -> Any:
        if step.copies[0].ranges[0].partition == 1:
            raise BrokerUnavailableError("REQUEST_DEADLINE", "Fetch was not done in time")
        return cluster.perform(step)

    cluster.own = {steps.CopyRecords: some}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*version 1 .*could not be copied"):
        cluster.run(take_over(NEXT))
    query = cluster.view().query("second")
    assert (cluster.newest("second").nonce, query.has_done_record(cluster.newest("second"))) == ("other~1", True)
    assert cluster.newest() == cluster.decision
    assert cluster.open_ids == []


def outgrown(cluster: Cluster) -> TakeOver:
    """By a planner that has read a log as long as the one that another process has begun since."""
    view = LogView("w", next_offset=len(cluster.kafka.logs[kafka.LOG]), topic_id=uuid.uuid4())
    return replace(NEXT, view=view)


def test_recreated_longer_log_is_read_from_its_start() -> None:
    cluster = Cluster(partitions=1)
    cluster.run(take_over(outgrown(cluster)))
    assert cluster.ends[0] == (cluster.named[0].identity, True)


def test_half_finished_batch_in_a_recreated_log_is_not_admitted() -> None:
    """Its first transaction is committed already, so a second run would write those rows twice."""
    cluster = Cluster()
    cluster.end(cluster.named[0].identity, commit=True)
    plan = cluster.run(take_over(outgrown(cluster)))
    assert admit(plan, BATCH)[0] is TaskOutcome.ALREADY_COMMITTED


def test_log_recreated_during_the_read_is_read_again() -> None:
    cluster = Cluster(partitions=1)
    reads: list[int] = []

    def changing(step: steps.ReadLog) -> Any:
        reads.append(step.offset)
        chunk = cluster.perform(step)
        return replace(chunk, topic_id=uuid.uuid4()) if len(reads) < 2 else chunk

    cluster.own = {steps.ReadLog: changing}
    cluster.run(take_over(outgrown(cluster)))
    assert reads[1] == 0
    assert cluster.ends[0] == (cluster.named[0].identity, True)


def resolve_it(cluster: Cluster, resolution: Resolution = "rewrite") -> Resolved:
    request = ResolveRequest(
        run=run_of("answer", version=cluster.kafka.version), query_id="batch", version=1, resolution=resolution
    )
    return cluster.run(resolve(request))


@pytest.mark.parametrize("at", [steps.ReadLog, steps.InitProducerId, steps.Append, steps.EndTransactions])
def test_version_counts_as_written_after_its_rows_were_copied(at: type[Step[Any]]) -> None:
    """No run copies a row of a version that counts as written. Kafka aborts one of its transactions before the step."""
    cluster = Cluster()
    lost = cluster.named[1].identity

    def times_out(step: Step[Any]) -> Any:
        del cluster.own[at]
        cluster.end(lost, commit=False)
        return cluster.perform(step)

    cluster.own = {at: times_out}
    resolve_it(cluster, "committed")
    (copy,) = cluster.copies()
    assert (copy.source, cluster.ended_copies) == (lost, [(copy.identity.transactional_id, True)])
    assert copy.identity in [each.identity for each in cluster.newest().transactions]
    assert "were copied from the log" in cluster.warnings[-1]


def test_version_that_counts_as_written_names_the_rows_given_up() -> None:
    cluster = Cluster(1)
    cluster.gone = {1}
    resolve_it(cluster, "committed")
    assert cluster.newest().resolution == "committed"
    assert any("will count as written" in each and "t-1 [0..9]" in each for each in cluster.warnings)


@pytest.mark.parametrize("lost", [(1,), (0, 1)])
@pytest.mark.parametrize("step", [steps.AbortedTransactions, steps.CopyRecords])
def test_rows_that_the_operator_may_not_read_are_not_given_up(lost: tuple[int, ...], step: type[Step[Any]]) -> None:
    """The next run of a principal with Read copies them."""

    def unauthorized(_: object) -> None:
        raise AuthorizationError("TOPIC_AUTHORIZATION_FAILED", "no Read on t")

    cluster = Cluster(*lost)
    cluster.own = {step: unauthorized}
    with pytest.raises(KafkaEosError, match=r"no Read on t"):
        resolve_it(cluster, "committed")
    assert cluster.newest() == cluster.decision
    assert cluster.open_ids == []
    cluster.own = {}
    resolve_it(cluster, "committed")
    assert [end for end in cluster.ended_copies if end[1]] == [(f"w.{each}.0", True) for each in lost]


@pytest.mark.parametrize("transaction_version", [2, 0])
def test_resolution_after_lost_copies_has_the_next_sequence(transaction_version: int) -> None:
    """W.driver has decided the copies, which are lost and gone. A leader drops a record with the sequence of that decision."""
    cluster = Cluster(1, version=transaction_version)
    cluster.times_lost = 1

    def once(step: steps.CopyRecords) -> Any:
        result = cluster.perform(step)
        cluster.gone = {1}
        return result

    cluster.own = {steps.CopyRecords: once}
    resolve_it(cluster, "committed")
    appended = [(step.identity, step.base_sequence) for step in cluster.done(steps.AppendInTransaction)]
    assert len(appended) == len(set(appended)) == 2
    assert len({identity for identity, _ in appended}) == (2 if transaction_version == 2 else 1)
    assert cluster.newest().resolution == "committed"
    assert any("will count as written" in each and "10 rows" in each for each in cluster.warnings)


def delete_under_readers(cluster: Cluster) -> None:
    """The topic of the committed rows was created again; the lost rows of other topics can still be copied."""

    def gone(_: steps.LastStableOffsets) -> None:
        raise steps.DataTopicGoneError("UNKNOWN_TOPIC", "topic 'other' is not known")

    cluster.own = {steps.LastStableOffsets: gone}


def test_lost_rows_are_copied_beside_a_deleted_topic() -> None:
    """The deleted topic takes only its own rows with it."""
    cluster = Cluster(1)
    delete_under_readers(cluster)
    with pytest.raises(DecisionPendingError, match=r"TOPIC_GONE\].*topic 'other' is not known"):
        cluster.finish()
    (copies,) = cluster.done(steps.CopyRecords)
    assert [copy.source for copy in copies.copies] == [cluster.named[1].identity]
    newest = cluster.newest()
    assert [entry.partition for entry in newest.transactions] == [0, 1]
    assert newest.transactions[0] == cluster.named[0]
    assert (newest.transactions[1].identity, True) in cluster.ends


def test_deleted_topic_is_no_reason_to_void_the_batch() -> None:
    """Readers may see none of the rows, so that `--as rewrite --allow-duplicates` doubles none."""
    cluster = Cluster(1)
    cluster.gone = {1}
    delete_under_readers(cluster)
    with pytest.raises(
        DecisionPendingError,
        match=r"LOST_PARTS\].*t-1 \[0..9\].*rows of the committed ones are not seen either: topic 'other' is not known",
    ):
        cluster.finish()
    resolve_it(cluster, "committed")
    assert "rows of the committed ones are not seen either" in cluster.warnings[-1]


def test_failure_behind_copies_lets_the_next_query_id_decide() -> None:
    """W.driver has decided the copies of one query id, whose settling then fails; the other query id has lost rows, too."""
    cluster = Cluster(1)
    with_second_query(cluster)
    delete_under_readers(cluster)
    with pytest.raises(DecisionPendingError, match="TOPIC_GONE"):
        cluster.run(take_over(NEXT))
    deciding = [step.identity for step in cluster.done(steps.AppendInTransaction)]
    assert len(deciding) == len(set(deciding)) == 2


def test_version_without_its_deleted_topic_keeps_its_copies() -> None:
    cluster = Cluster(1)
    delete_under_readers(cluster)
    resolve_it(cluster, "committed")
    assert len(cluster.done(steps.CopyRecords)) == 1
    assert cluster.newest().resolution == "committed"
    assert "TOPIC_GONE" in cluster.warnings[-1]
    assert "aborted rows" not in cluster.warnings[-1]


def test_rows_to_give_up_are_named_before_the_record() -> None:
    cluster = Cluster(1)
    cluster.gone = {1}
    cluster.own = {steps.AppendInTransaction: lambda _: steps.Appended(error=ErrorCode.REQUEST_TIMED_OUT)}
    with pytest.raises(TransactionAbortedError, match=r"NOT_RESOLVED\].*REQUEST_TIMED_OUT"):
        resolve_it(cluster, "committed")
    assert "will count as written" in cluster.warnings[-1]
    assert "the aborted rows in t-1 [0..9]" in cluster.warnings[-1]


def test_committed_sees_a_void_decision_that_a_new_leader_hides() -> None:
    """Otherwise all rows of the version are given up, and nobody has agreed to that."""
    cluster = Cluster(0, 1)
    cluster.gone = {0, 1}
    late: list[steps.ReadLog] = []

    def lags(step: steps.ReadLog) -> Any:
        chunk = cluster.perform(step)
        if step.wait or late or not cluster.done(steps.AppendInTransaction):
            return chunk
        late.append(step)
        return replace(chunk, entries=(), next_offset=step.offset, end_offset=step.offset)

    cluster.own = {steps.ReadLog: lags}
    with pytest.raises(TransactionAbortedError, match=r"NOT_RESOLVED\].*is void now"):
        resolve_it(cluster, "committed")
    assert late
    assert cluster.newest().is_void


def test_void_version_counts_as_written_on_the_second_command() -> None:
    """Its next run can write it."""
    cluster = Cluster(0, 1)
    cluster.gone = {0, 1}
    with pytest.raises(
        TransactionAbortedError,
        match=r"NOT_RESOLVED\].*is void now.*none of its rows.*give up .*: kafka-eos resolve .* --as committed \(",
    ):
        resolve_it(cluster, "committed")
    assert cluster.newest().resolution is None
    assert cluster.newest().is_void
    cluster.warnings.clear()
    done = resolve_it(cluster, "committed")
    (warning,) = cluster.warnings
    assert "version 1 of write id 'w' is VOID" in warning, "the first command may have died before its message"
    assert cluster.newest().resolution == "committed"
    assert "although none of its rows is in the topic" in resolved_sentence(done, allow_duplicates=False)


@pytest.mark.parametrize("response", ["arrives", "lost"])
@pytest.mark.parametrize("kept", [0, 50], ids=["shorter", "longer"])
@pytest.mark.parametrize(
    "procedure",
    [lambda cluster: cluster.run(take_over(outgrown(cluster))), resolve_it],
    ids=["take_over", "resolve"],
)
def test_log_created_again_after_the_list_ends_nothing(
    procedure: Callable[[Cluster], object], kept: int, response: str
) -> None:
    """The deleted log may have decided what is open. The next run does not treat the new log as the write's own, either."""
    cluster = Cluster(partitions=1)

    def fence(step: steps.InitProducerId) -> Any:
        cluster.delete_log()
        cluster.perform(steps.Append((barrier_record("other", "n"),) * kept))
        return cluster.perform(step)

    def append(step: steps.Append) -> Any:
        offset = cluster.perform(step)
        if response == "lost":
            raise BrokerUnavailableError("COMMIT_LOG_UNAVAILABLE", "Produce was not done in time")
        return offset

    cluster.own = {steps.InitProducerId: fence, steps.Append: append}
    refused = r"NOT_THIS_COMMIT_LOG\].*deleted and created again.*nothing was ended"
    with pytest.raises(KafkaEosError, match=refused if response == "arrives" else "COMMIT_LOG_UNAVAILABLE"):
        procedure(cluster)
    cluster.own = {}
    with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\].*w\.0\.7"):
        cluster.run(take_over(TakeOver(run=run_of("again"))))
    assert cluster.ends == []


@pytest.mark.parametrize("left_over", ["part", "done"])
def test_recreated_log_with_late_records_is_another_log(left_over: str) -> None:
    """A losing attempt, or another query's driver, appended them by the topic's name."""
    cluster = Cluster()
    cluster.delete_log()
    if left_over == "part":
        late = cluster.open("w.0.6", part_record("w", "batch", 0, 1, 5))
        cluster.end(late, commit=False)
    else:
        cluster.perform(steps.Append((done_record(replace(cluster.decision, query_id="q1"), 1),)))
    with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\].*first: w\.0\.7"):
        cluster.run(take_over(NEXT))
    assert cluster.ends == []


@pytest.mark.parametrize("end", ["listed as aborted", "readers pass", "gone"])
def test_end_of_parts_in_a_deleted_log_is_read_from_the_topics(end: str) -> None:
    """The log was created again while the tasks ran, and the decision names offsets that the new one does not have yet."""
    cluster = Cluster(*([0] if end == "listed as aborted" else []), partitions=1)
    (named,) = cluster.named
    if end == "readers pass":
        cluster.end(named.identity, commit=True)
        cluster.forget(named.identity.transactional_id)
    cluster.delete_log()
    cluster.perform(steps.Append((barrier_record("w", "plan"),)))
    cluster.append_decision(replace(cluster.decision, transactions=(replace(named, part_offset=5_000),)))
    cluster.own[steps.Now] = seconds_pass(cluster)
    if end == "gone":
        cluster.end(named.identity, commit=False)
        cluster.forget(named.identity.transactional_id)
        cluster.own[steps.AbortedTransactions] = lambda step: dict.fromkeys(step.ranges, steps.Unseen.GONE)
    for _ in range(2):
        if end == "gone":
            with pytest.raises(DecisionPendingError, match=r"UNRESOLVED\].*kafka-eos resolve"):
                cluster.run(take_over(NEXT))
        else:
            cluster.run(take_over(NEXT))
            (entry,) = cluster.newest().transactions
            assert (cluster.newest().copies, entry.proven) == (int(end == "listed as aborted"), False)
    assert len(cluster.copies()) == (1 if end == "listed as aborted" else 0)


def test_log_of_a_leader_without_topic_ids_is_the_same_log() -> None:
    cluster = Cluster(partitions=1)

    def fence(step: steps.InitProducerId) -> Any:
        cluster.log_id = ZERO_UUID
        return cluster.perform(step)

    cluster.own = {steps.InitProducerId: fence}
    cluster.run(take_over(NEXT))
    assert cluster.ends[0] == (cluster.named[0].identity, True)


def test_log_without_topic_ids_is_the_same_if_it_holds_a_barrier() -> None:
    """A leader with topic ids served the driver that appended it."""
    cluster = Cluster(partitions=1)
    cluster.delete_log()
    cluster.perform(steps.Append((barrier_record("w", "plan", cluster.log_id),)))
    cluster.log_id = ZERO_UUID
    cluster.run(take_over(NEXT))
    assert cluster.ends == [(cluster.named[0].identity, False)]


def seconds_pass(cluster: Cluster) -> Callable[[steps.Now], int]:
    """Every look at the clock takes a second, so that waits end."""

    def now(_: steps.Now) -> int:
        cluster.now += 1_000
        return cluster.now

    return now


@pytest.mark.parametrize("log_id", [uuid.uuid4(), ZERO_UUID], ids=["another log", "no topic ids"])
def test_witness_of_a_log_that_was_created_again_proves_nothing(log_id: uuid.UUID) -> None:
    """Without topic ids nobody can notice it."""
    cluster = Cluster(1)
    cluster.log_id = log_id
    if log_id.int:
        with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\]"):
            cluster.finish()
    else:
        assert cluster.finish()[0].copies == 1
    assert cluster.records("barrier")[-1]["log"] == str(cluster.found.log_id)


def test_shorter_log_that_was_created_again_is_refused() -> None:
    """The new log ends before the offset of the part record, so nothing of it would be read."""
    cluster = Cluster(0, partitions=1)
    moved = tuple(replace(each, part_offset=5_000) for each in cluster.named)
    cluster.found = replace(cluster.found, decision=replace(cluster.decision, transactions=moved), offset=5_001)
    cluster.delete_log()
    with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\]"):
        cluster.finish()


def test_copy_keeps_the_count_of_its_dead_letters() -> None:
    """The letters themselves are among the copied rows."""
    _, logged = decided()
    letters = (DeadLetters(topic="dead", code="NULL_TOPIC", rows=3),)
    lost = replace(logged.decision.transactions[0], dead_letters=letters)
    rows = steps.WrittenRows(rows=lost.rows, offsets=lost.offsets)
    ((copy,), gone) = _sort_copies([lost], [lost.identity], [steps.Copied(written=rows, part_offset=5)])
    assert gone == []
    assert copy.dead_letters == letters
