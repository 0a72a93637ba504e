"""The operator's resolution of a version, on the simulated cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_records import decision_records, part_record
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.resolve import Resolved, resolve
from kafka_eos_sink.commit.steps import Procedure, Step
from kafka_eos_sink.commit.take_over import TakeOver, take_over
from kafka_eos_sink.commit.task import write_attempt
from kafka_eos_sink.commit.values import BatchIdentity, Decision, Resolution, ResolveRequest, TaskIdentity, TaskMessage
from kafka_eos_sink.errors import (
    BrokerUnavailableError,
    DecisionPendingError,
    FencedError,
    TransactionAbortedError,
    WriteRefusedError,
)
from kafka_eos_sink.operations.operator import up_to_fence
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.model import simulated_cluster as kafka
from tests.model.scripted_cluster import BATCH, TIMEOUT_MS, ScriptedCluster
from tests.runs import drive, run_of

Q = "batch"
NOVEMBER_2026 = 1_796_000_000_000
GONE: dict[int, tuple[int, int]] = {}


def batch_of(query_id: str = Q, version: int = 3) -> BatchIdentity:
    return replace(BATCH, query_id=query_id, version=version, offsets_hash="h")


class Cluster(ScriptedCluster):
    """Retention has removed what was aborted, so recovery copies nothing."""

    def __init__(self, version: int = 2) -> None:
        super().__init__(partitions=3, version=version)
        self.own = {steps.CopyRecords: lambda step: tuple(steps.Gone("retention") for _ in step.copies)}

    def prepare(self, task: int, query_id: str = Q, version: int = 3) -> TaskMessage:
        return self.attempt(self.fence(f"n-{query_id}-{version}"), task, batch=batch_of(query_id, version))

    def write_no_row(self) -> None:
        """Version 3 is finished by a run without rows."""
        self.rows = ()
        task = TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
        message = self.run(write_attempt(self.fence("n"), batch_of(), task))
        assert self.commit([message], batch=batch_of()) == self.newest()
        assert self.newest().is_empty

    def decided(self, *tasks: int, query_id: str = Q) -> Decision:
        """Version 3, whose driver dies before it has ended a transaction."""
        plan, batch = self.fence(f"n-{query_id}-3"), batch_of(query_id)
        return self.decide([self.attempt(plan, each, batch=batch) for each in tasks], batch=batch).decision

    def undecided(self, query_id: str = Q, version: int = 6, state: str = kafka.ONGOING) -> ProducerIdentity:
        """Append a decision without rows and without marker, and return its driver; ``state`` is that of the driver's transaction."""
        driver: ProducerIdentity = self.perform(steps.InitProducerId("w.driver", TIMEOUT_MS))
        decision = Decision(
            write_id="w",
            query_id=query_id,
            version=version,
            nonce="n",
            driver=driver,
            topic=None,
            schema="",
            offsets_hash=None,
            transactions=(),
            resolution="committed",
        )
        self.perform(steps.AppendInTransaction(driver, 0, decision_records(decision)))
        if state != kafka.ONGOING:
            self.end_without_marker(driver, commit=state == kafka.COMPLETE_COMMIT, partition=kafka.LOG)
        return driver

    def before(self, kind: type[Step[Any]], happens: Callable[[], object]) -> None:
        """Something happens before the next step of a kind."""

        def first(step: Step[Any]) -> Any:
            del self.own[kind]
            happens()
            return self.own.get(kind, self.perform)(step)

        self.own[kind] = first

    def resolve(
        self,
        resolution: Resolution,
        version: int = 3,
        query_id: str | None = None,
        *,
        allow_duplicates: bool = False,
    ) -> Resolved:
        self.steps.clear()
        self.ends.clear()
        request = ResolveRequest(
            run=run_of("operator", within_ms=1_000, version=self.kafka.version),
            query_id=query_id,
            version=version,
            resolution=resolution,
            allow_duplicates=allow_duplicates,
        )
        return self.run(resolve(request))

    def done(self, query_id: str = Q, field: str = "nonce") -> Any:
        done = self.view().query(query_id).done
        return None if done is None else done[field]

    def state(self, transactional_id: str) -> str:
        found = self.kafka.transaction(transactional_id)
        assert found is not None
        return found.state

    @property
    def ended(self) -> list[tuple[str, bool]]:
        """Task transactions that were asked to end, and how."""
        ends = [(identity.transactional_id, commit) for identity, commit in self.ends]
        return [(name, commit) for name, commit in ends if name != "w.driver"]

    @property
    def fenced(self) -> bool:
        return any(isinstance(step, steps.InitProducerId) for step in self.steps)


def identity(decision: Decision, number: int = 0) -> ProducerIdentity:
    return decision.transactions[number].identity


def test_committed_records_a_version_that_was_finished_before() -> None:
    """DIFFERENT_BATCH leads here: the next run is skipped although it has other rows."""
    cluster = Cluster()
    decision = cluster.decided(0, 1)
    cluster.plan("finishes it")
    cluster.own[steps.WallClock] = lambda _: NOVEMBER_2026
    done = cluster.resolve("committed")
    assert done.superseded == decision
    assert "it needs no record unless DIFFERENT_BATCH or DIFFERENT_QUERY names this command" in cluster.warnings[-1]
    newest = cluster.newest()
    assert (newest.version, newest.resolution, newest.transactions, newest.nonce) == (3, "committed", (), "operator")
    assert (newest.topic, newest.schema, newest.offsets_hash) == ("t", "value string", "h")
    assert cluster.done() == "operator"
    # `status` and the metrics show it as a time; the clock of this process shows 1970.
    assert cluster.done(field="finished_ms") == NOVEMBER_2026


def test_open_version_is_finished_and_not_rewritten() -> None:
    """Its rows are complete, and a new run would write them twice."""
    cluster = Cluster()
    decision = cluster.decided(0, 1)
    with pytest.raises(WriteRefusedError, match=r"ROWS_ARE_VISIBLE\].*just finished it.*--allow-duplicates"):
        cluster.resolve("rewrite")
    assert cluster.ended[:2] == [("w.0.0", True), ("w.1.0", True)]
    assert (cluster.newest(), cluster.done()) == (decision, decision.nonce)
    cluster.resolve("rewrite", allow_duplicates=True)
    assert (cluster.newest().resolution, cluster.newest().transactions) == ("rewrite", ())
    assert cluster.done() == decision.nonce, "not the resolution's, which would mean that it is finished"


def test_batch_that_begins_before_a_recovery_that_decides_is_noticed() -> None:
    """The recovery of another query begins again, and its second list lacks the batch that it has aborted, which would count as written."""
    cluster = Cluster()
    lost = cluster.decided(0, query_id="other")
    cluster.end(identity(lost), commit=False)

    def look(step: steps.ListOpenTransactions) -> Any:
        # The batch begins between the command's look and the list of its recovery.
        cluster.before(steps.ListOpenTransactions, lambda: cluster.open("w.1.0"))
        return cluster.perform(step)

    cluster.own[steps.ListOpenTransactions] = look
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE\].*w\.1\.0"):
        cluster.resolve("committed", 0, "q")
    assert cluster.newest("other").is_void, "so it has decided, and begun again"
    assert cluster.view().query("q").newest is None


def test_rewrite_of_a_finished_version_is_refused_before_the_fence() -> None:
    """So that the command refuses it before it asks, and no running query is fenced for nothing."""
    cluster = Cluster()
    cluster.decided(0)
    cluster.plan("finishes it")
    cluster.before(steps.InitProducerId, lambda: pytest.fail("fenced"))
    with pytest.raises(WriteRefusedError, match="counts as written"):
        cluster.resolve("rewrite")


def test_rewrite_of_an_empty_version_is_rejected_if_written_meanwhile() -> None:
    """Another `resolve` and another run come between the first look and the fence."""
    cluster = Cluster()
    cluster.write_no_row()

    def meanwhile() -> None:
        cluster.resolve("rewrite")
        cluster.decided(0)
        cluster.plan("finishes it")

    cluster.before(steps.InitProducerId, meanwhile)
    with pytest.raises(WriteRefusedError, match="counts as written") as refused:
        cluster.resolve("rewrite")
    assert refused.value.code == "ROWS_ARE_VISIBLE"
    assert cluster.newest().resolution is None


STREAM = "5f1c"


def finished(query_id: str = STREAM) -> Cluster:
    cluster = Cluster()
    cluster.commit([cluster.prepare(0, query_id)], batch=batch_of(query_id))
    assert cluster.done(query_id) == f"n-{query_id}-3"
    return cluster


def test_stream_resumes_above_versions_written_elsewhere() -> None:
    cluster = finished()
    done = cluster.resolve("committed", 7, STREAM)
    assert done.superseded is not None
    assert done.superseded.version == 3
    newest = cluster.newest(STREAM)
    assert (newest.version, newest.resolution, newest.transactions) == (7, "committed", ())
    assert (newest.topic, newest.schema, newest.offsets_hash) == (None, "", None), "those of version 3 are not its own"
    assert cluster.done(STREAM) == "operator"
    assert cluster.ended == []
    assert cluster.resolve("committed", 9, STREAM).decision.version == 9


def test_running_query_does_not_resume_above_its_newest_version() -> None:
    """Its batch 4 is prepared: it would count as written, and be aborted."""
    cluster = finished()
    prepared = cluster.prepare(1, STREAM, 4).prepared
    assert prepared is not None
    with pytest.raises(
        WriteRefusedError, match=r"NOTHING_TO_RESOLVE\].*first: w\.1\.0\).*its query runs.*kafka-eos recover"
    ):
        cluster.resolve("committed", 4, STREAM)
    assert not cluster.fenced
    assert cluster.ended == []
    cluster.end(prepared.identity, commit=False)
    assert cluster.resolve("committed", 4, STREAM).decision.version == 4


@pytest.mark.parametrize(
    ("is_finished", "resolution", "version", "given"),
    [
        (True, "rewrite", 4, STREAM),
        (True, "committed", 4, None),
        (False, "committed", 4, None),
        (False, "committed", 2, STREAM),
        (False, "rewrite", 0, "other"),
    ],
)
def test_version_that_cannot_be_resolved_is_refused_before_the_fence(
    is_finished: bool, resolution: Resolution, version: int, given: str | None
) -> None:
    cluster = finished() if is_finished else Cluster()
    if not is_finished:
        cluster.decided(0, query_id=STREAM)
    with pytest.raises(WriteRefusedError) as refused:
        cluster.resolve(resolution, version, given)
    assert refused.value.code == "NOTHING_TO_RESOLVE"
    assert not cluster.fenced


@pytest.mark.parametrize("state", ["Ongoing", "CompleteAbort", "CompleteCommit"])
def test_decision_below_an_unmarked_one_is_decided_again_first(state: str) -> None:
    """The resolution's COMMIT would end the decision without marker, and the cleaner drop version 3 for it: the stream would be refused."""
    cluster = finished()
    before = cluster.newest(STREAM)
    hidden = len(cluster.kafka.logs[kafka.LOG])
    driver = cluster.undecided(STREAM, 4, state)
    if state == "Ongoing":  # until the fence aborts it
        cluster.before(
            steps.InitProducerId, lambda: cluster.end_without_marker(driver, commit=False, partition=kafka.LOG)
        )
    assert cluster.resolve("committed", 0, "another").decision.version == 0
    found = cluster.newest_logged(STREAM)
    assert (found.decision.nonce, found.decision.version) == (before.nonce, 3)
    assert hidden < found.offset < cluster.newest_logged("another").offset


def test_query_begins_only_when_nothing_of_the_write_id_is_open() -> None:
    """Its first batch may be about to be decided: it would count as written, and be aborted."""
    cluster = Cluster()
    message = cluster.prepare(0, "q")
    assert message.prepared is not None
    cluster.own[steps.EndTransactions] = unreachable
    with contextlib.suppress(DecisionPendingError):
        cluster.commit([message], batch=batch_of("q"))
    del cluster.own[steps.EndTransactions]
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE\].*its query runs.*kafka-eos recover"):
        cluster.resolve("committed", 3, "q")
    assert not cluster.fenced
    assert cluster.ended == []
    cluster.end(message.prepared.identity, commit=False)
    assert cluster.resolve("committed", 3, "q").superseded is None


def unreachable(_: object) -> None:
    raise BrokerUnavailableError("REQUEST_DEADLINE", "EndTxn was not done in time")


def later_transaction_ends(cluster: Cluster, named: ProducerIdentity) -> None:
    """The broker omits the marker of a committed transaction in the commit log, and that of a later one of the id is the first there."""
    cluster.end_without_marker(named, commit=True, partition=kafka.LOG)
    later = cluster.open(named.transactional_id, part_record("w", Q, 0, 4, 0))
    cluster.end(later, commit=True)


def unseen(cluster: Cluster, why: steps.Unseen) -> None:
    """No reader sees a record of the version, and no marker follows its ranges."""
    cluster.own[steps.AbortedTransactions] = lambda step: dict.fromkeys(step.ranges, why)
    cluster.own[steps.AreCommitted] = lambda step: (None,) * len(step.written)


@pytest.mark.parametrize(
    ("marker", "why"),
    [
        ("its own ABORT", steps.Unseen.BLOCKED),
        ("a later COMMIT", steps.Unseen.BLOCKED),
        ("an empty one", steps.Unseen.BLOCKED),
        ("a later COMMIT", steps.Unseen.GONE),
    ],
)
def test_rewrite_is_rejected_when_visibility_is_unknown(marker: str, why: steps.Unseen) -> None:
    """The ABORT in the commit log may be that of a transaction that joined it. Readers may have seen records that are gone."""
    cluster = Cluster()
    named = identity(cluster.decided(0))
    if marker == "its own ABORT":
        cluster.end(named, commit=False)
    else:
        later_transaction_ends(cluster, named)
    if marker == "an empty one":
        cluster.change(kafka.LOG, len(cluster.kafka.logs[kafka.LOG]) - 1, kept="batch")
    unseen(cluster, why)
    late = r"DECIDED_NOT_FINISHED\].*t-0 does not show how w.0.0 ended"
    gone = r"ROWS_ARE_VISIBLE\].*nothing proves that t-0 \[0..9\] were aborted.*--allow-duplicates"
    with pytest.raises((DecisionPendingError, WriteRefusedError), match=late if why is steps.Unseen.BLOCKED else gone):
        cluster.resolve("rewrite")
    assert cluster.newest().resolution is None
    cluster.resolve("rewrite", allow_duplicates=True)


@pytest.mark.parametrize("resolution", ["committed", "rewrite"])
@pytest.mark.parametrize("is_known", [True, False])
def test_truncated_log_is_rejected_before_its_records_count(resolution: Resolution, is_known: bool) -> None:
    """What it still shows proves neither that the version is finished nor that the write id is unknown."""
    cluster = finished(Q) if is_known else Cluster()
    before = truncated(cluster)
    with pytest.raises(WriteRefusedError, match="COMMIT_LOG_TRUNCATED"):
        cluster.resolve(resolution)
    assert cluster.kafka == before
    assert not any(isinstance(step, steps.ListOpenTransactions) for step in cluster.steps)


def truncated(cluster: ScriptedCluster) -> kafka.Cluster:
    """Somebody deletes the first record of the commit log."""
    cluster.own[steps.ReadLog] = lambda step: replace(cluster.perform(step), log_start_offset=1)
    return cluster.kafka


def test_process_that_read_the_deleted_log_refuses_the_new_one() -> None:
    """NEW LOG: the deleted log may have decided what is open, although this process has read a log before."""
    cluster = Cluster()
    view = LogView("w")
    cluster.run(take_over(TakeOver(run=run_of("first"), view=view)))
    cluster.open("w.0.0")
    cluster.delete_log()
    before = cluster.kafka
    with pytest.raises(WriteRefusedError, match="NOT_THIS_COMMIT_LOG"):
        cluster.run(take_over(TakeOver(run=run_of("second"), view=view)))
    assert cluster.kafka == before


@pytest.mark.parametrize("happens", ["a failed append", "a newer driver"])
def test_resolution_is_not_appended_behind_another_decision(happens: str) -> None:
    """The leader would drop it as a duplicate of the open one, and its EndTxn would commit that one."""
    cluster = Cluster()
    decision = cluster.decided(0)
    cluster.end(identity(decision), commit=False)
    held: list[ProducerIdentity] = []

    def before_decision(step: steps.Reached) -> None:
        if step.point != "resolve.before_decision":
            return
        if happens == "a newer driver":
            cluster.perform(steps.InitProducerId("w.driver", TIMEOUT_MS))
        else:
            cluster.perform(steps.AppendInTransaction(held[-1], 0, decision_records(decision)))

    def fence(step: steps.InitProducerId) -> ProducerIdentity:
        held.append(cluster.perform(step))
        return held[-1]

    cluster.own |= {steps.Reached: before_decision, steps.InitProducerId: fence}
    with pytest.raises((TransactionAbortedError, FencedError)) as failed:
        cluster.resolve("rewrite")
    assert failed.value.code == ("FENCED" if happens == "a newer driver" else "NOT_RESOLVED")
    assert cluster.newest().resolution is None
    asked = [step.identity for step in cluster.steps if isinstance(step, steps.AppendInTransaction)]
    assert held[-1] not in asked, "the resolution was not even sent"


def test_query_does_not_resume_above_unfinished_or_rewrite() -> None:
    """Its recovery would never be heard of again."""
    cluster = Cluster()
    cluster.end(identity(cluster.decided(0, query_id=STREAM)), commit=False)
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE.*decided and not finished"):
        cluster.resolve("committed", 7, STREAM)
    assert not cluster.fenced
    cluster.resolve("rewrite", 3, STREAM)
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE.*resolved as rewrite"):
        cluster.resolve("committed", 7, STREAM)
    cluster.resolve("committed", 3, STREAM)
    assert cluster.resolve("committed", 7, STREAM).decision.version == 7


@pytest.mark.parametrize(("state", "warns"), [("finished", True), ("unknown", True), ("decided", False)])
def test_preview_changes_nothing_and_collects_the_warnings(state: str, warns: bool) -> None:
    cluster = {"finished": lambda: finished(Q), "unknown": Cluster, "decided": Cluster}[state]()
    if state == "decided":
        cluster.decided(0)
    request = ResolveRequest(run=run_of("operator"), query_id=Q, version=3, resolution="committed")
    before, warnings = cluster.kafka, list[str]()
    preview: Procedure[None] = up_to_fence(resolve(request), warnings)
    drive(preview, cluster.perform)
    assert cluster.kafka == before
    assert bool(warnings) is warns
    assert cluster.warnings == [], "shown with the confirmation, not before it"
