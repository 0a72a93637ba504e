"""Lost transactions of a decision are copied from the log: all of them, or none."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from kafka_eos_sink.commit import steps
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
    Resolution,
    ResolveRequest,
)
from kafka_eos_sink.commit.versions import Versions
from kafka_eos_sink.errors import (
    BrokerUnavailableError,
    DecisionPendingError,
    KafkaEosError,
    TransactionAbortedError,
    WriteRefusedError,
)
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.wire_types import ZERO_UUID
from tests.model import simulated_cluster as kafka
from tests.model.scripted_cluster import BATCH, TIMEOUT_MS, ScriptedCluster, decided
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


def with_second_query(cluster: Cluster) -> None:
    """Another query id of the write, decided by a newer driver that has not finished the first; its only transaction is aborted as well."""
    batch = replace(BATCH, query_id="second")
    plan = cluster.fence("other")
    found = cluster.decide([cluster.attempt(plan, slot=6, batch=batch)], batch=batch)
    cluster.end(found.decision.transactions[0].identity, commit=False)


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


def outgrown(cluster: Cluster) -> TakeOver:
    """By a planner that has read a log as long as the one that another process has begun since."""
    view = LogView("w", next_offset=len(cluster.kafka.logs[kafka.LOG]), topic_id=uuid.uuid4())
    return replace(NEXT, view=view)


def test_recreated_longer_log_is_read_from_its_start() -> None:
    cluster = Cluster(partitions=1)
    cluster.run(take_over(outgrown(cluster)))
    assert cluster.ends[0] == (cluster.named[0].identity, True)


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


def test_copies_are_not_decided_in_a_log_that_was_created_again_meanwhile() -> None:
    cluster = Cluster(1)

    def delete(step: steps.CopyRecords) -> Any:
        copied = cluster.perform(step)
        cluster.delete_log()
        return copied

    cluster.own[steps.CopyRecords] = delete
    with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\]"):
        cluster.finish()
    assert [commit for _, commit in cluster.ended_copies] == [False]
    assert cluster.view().query("batch").newest is None


def test_copy_keeps_the_count_of_its_dead_letters() -> None:
    """The letters themselves are among the copied rows."""
    _, logged = decided()
    letters = (DeadLetters(topic="dead", code="NULL_TOPIC", rows=3),)
    lost = replace(logged.decision.transactions[0], dead_letters=letters)
    rows = steps.WrittenRows(rows=lost.rows, offsets=lost.offsets)
    ((copy,), gone) = _sort_copies([lost], [lost.identity], [steps.Copied(written=rows, part_offset=5)])
    assert gone == []
    assert copy.dead_letters == letters


def test_copies_that_are_lost_again_and_again_end_in_an_error() -> None:
    cluster = Cluster(1)
    cluster.times_lost = MOST_COPIES
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*copied from the log 4 times"):
        cluster.finish()
    assert len(cluster.done(steps.CopyRecords)) == MOST_COPIES
    assert cluster.newest().copies == MOST_COPIES, "the next run continues from there"
