"""`resolve` of one query id must not cost another one its decision."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.resolve import resolve
from kafka_eos_sink.commit.values import Resolution, ResolveRequest
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerUnavailableError,
    DecisionPendingError,
    Job,
    KafkaEosError,
    WriteRefusedError,
    safety_sentence,
)
from tests.model import simulated_cluster as kafka
from tests.model.scripted_cluster import BATCH, ROWS, ScriptedCluster
from tests.runs import run_of

from .test_resolve import Cluster

A, B = replace(BATCH, query_id="a"), replace(BATCH, query_id="b")


def rows_of_b(cluster: ScriptedCluster) -> list[str]:
    """What read_committed consumers read of query b, in any order; the same row twice if it is there twice."""
    found = []
    for partition, log in enumerate(cluster.kafka.logs[1:], 1):
        ended = kafka.outcomes(cluster.kafka, partition)
        found += [each.key for each, end in zip(log, ended, strict=True) if isinstance(each, kafka.Data) and end]
    return sorted(found)


def lost_parts_below_an_undecided_decision() -> ScriptedCluster:
    """Query a is done. Query b has a decision that nobody can finish, and above it one whose marker is missing (KAFKA-20734).

    The timeout of one transaction of b passes between its decision and its EndTxn. The driver copies its rows and decides the copy, and the
    broker omits the marker of that decision in the commit log. Before the next run, the topic's retention removes the aborted rows.
    """
    cluster = ScriptedCluster(partitions=2)
    cluster.own[steps.Now] = lambda step: passing(cluster)
    plan = cluster.plan("for a")
    cluster.commit([cluster.attempt(plan, batch=A)], batch=A)
    plan = cluster.plan("for b")
    messages = [cluster.attempt(plan, partition, slot=1, batch=B) for partition in (0, 1)]
    driver_ends = 0

    def end(step: steps.EndTransactions) -> object:
        nonlocal driver_ends
        identity = step.ends[0].identity
        if identity.transactional_id == "w.driver":
            driver_ends += 1
            if driver_ends == 2:
                cluster.end_without_marker(identity, commit=True, partition=0)
                return (
                    steps.EndResult(
                        error=0, producer_id=identity.producer_id, producer_epoch=identity.producer_epoch + 1
                    ),
                )
        elif driver_ends == 1 and step.ends[0].commit:
            cluster.kafka = kafka.fence(cluster.kafka, "w.0.1")
            cluster.write_markers()
        return cluster.perform(step)

    cluster.own[steps.EndTransactions] = end
    with pytest.raises(DecisionPendingError, match="DECISION_UNKNOWN"):
        cluster.commit(messages, batch=B)
    del cluster.own[steps.EndTransactions]
    cluster.kafka = kafka.clean(end_open_copies(cluster.kafka))
    with pytest.raises(DecisionPendingError, match="LOST_PARTS"):
        cluster.plan("recover")
    return cluster


def passing(cluster: ScriptedCluster) -> int:
    """A second passes with each look at the clock: a read of the log waits for data."""
    cluster.now += 1_000
    return cluster.now


def end_open_copies(cluster: kafka.Cluster) -> kafka.Cluster:
    """The timeouts of the open transactions pass."""
    for name, found in cluster.transactions:
        if found.state == kafka.ONGOING:
            cluster = kafka.fence(cluster, name)
            for partition in found.partitions:
                cluster = kafka.write_marker(cluster, name, partition)
    return cluster


def resolve_a(cluster: ScriptedCluster, resolution: Resolution = "rewrite") -> None:
    request = ResolveRequest(
        run=run_of("operator", within_ms=20, version=cluster.kafka.version),
        query_id="a",
        version=1,
        resolution=resolution,
        allow_duplicates=resolution == "rewrite",
    )
    cluster.run(resolve(request))


@pytest.mark.parametrize("resolution", ["committed", "rewrite"])
def test_resolution_keeps_another_querys_decision_in_the_log(resolution: Resolution) -> None:
    """The COMMIT of the resolution ends the undecided decision of b, and the cleaner, which compares no epochs, drops the one below."""
    cluster = lost_parts_below_an_undecided_decision()
    before = cluster.view().query("b").newest
    assert before is not None
    visible = rows_of_b(cluster)
    with contextlib.suppress(KafkaEosError):  # refused: as good
        resolve_a(cluster, resolution)
    cluster.perform(steps.Append((steps.LogRecord(b'["barrier","w"]', b'{"format":2,"nonce":"later","log":null}'),)))
    cluster.kafka = kafka.compact(cluster.kafka, "record")
    after = cluster.view().query("b").newest
    assert rows_of_b(cluster) == visible
    assert after is not None, (
        "the log knows no decision of b any more: its next run writes the rows that readers see again"
    )
    assert after.decision.version == before.decision.version


def test_next_run_of_the_other_query_writes_each_row_once() -> None:
    cluster = lost_parts_below_an_undecided_decision()
    with contextlib.suppress(KafkaEosError):
        resolve_a(cluster)
    cluster.perform(steps.Append((steps.LogRecord(b'["barrier","w"]', b'{"format":2,"nonce":"later","log":null}'),)))
    cluster.kafka = kafka.compact(cluster.kafka, "record")
    with contextlib.suppress(DecisionPendingError):  # LOST_PARTS, for an operator
        plan = cluster.plan("again")
        messages = [cluster.attempt(plan, partition, slot=3, batch=B) for partition in (0, 1)]
        cluster.commit(messages, batch=B)
    rows = rows_of_b(cluster)
    in_partition_1 = [row for row in rows if row.startswith("1.")]
    assert len(in_partition_1) == len(set(in_partition_1)), f"rows of b are there twice: {in_partition_1}"


def test_rewrite_of_an_empty_version_is_refused_with_a_code() -> None:
    """A decision above it has no marker, and recovery cannot decide it again: nothing is in doubt."""
    cluster = Cluster()
    cluster.write_no_row()
    cluster.undecided(version=4, state=kafka.COMPLETE_COMMIT)

    def unavailable(_: steps.AppendInTransaction) -> object:
        raise BrokerUnavailableError("COMMIT_LOG_UNAVAILABLE", "no acknowledgement")

    cluster.own[steps.AppendInTransaction] = unavailable
    with pytest.raises(KafkaEosError) as failed:
        cluster.resolve("rewrite")
    assert failed.value.code == "COMMIT_LOG_UNAVAILABLE"


@pytest.mark.parametrize("is_known", [True, False])
def test_version_that_begins_meanwhile_does_not_count_as_written(is_known: bool) -> None:
    """What opens behind the first list belongs to a batch that would count as written, and is aborted."""
    cluster = Cluster()
    cluster.plan("a run that decided nothing")
    if is_known:
        cluster.decided(0, query_id="q")
        cluster.plan("finishes it")
    cluster.before(steps.InitProducerId, lambda: cluster.open("w.0.1"))
    with pytest.raises(WriteRefusedError, match="NOTHING_TO_RESOLVE"):
        cluster.resolve("committed", 4, "q")
    assert cluster.records("decision") == [] or cluster.newest("q").version == 3


def test_recovery_without_read_does_not_call_rows_hidden() -> None:
    """It has just committed every row of the version; only the proof needs Read. docs/internals/recovery.md: DECIDED_NOT_FINISHED."""
    cluster = ScriptedCluster(partitions=2)
    plan = cluster.plan()
    messages = [cluster.attempt(plan, partition) for partition in (0, 1)]

    def dies(step: steps.EndTransactions) -> object:
        if step.ends[0].identity.transactional_id == "w.driver":
            return cluster.perform(step)
        raise BrokerUnavailableError("REQUEST_DEADLINE", "the driver dies here")

    cluster.own[steps.EndTransactions] = dies
    with pytest.raises(DecisionPendingError):
        cluster.commit(messages)
    cluster.own.clear()

    def denied(step: steps.AbortedTransactions) -> object:
        raise AuthorizationError("TOPIC_AUTHORIZATION_FAILED", "the principal may not Read topic t")

    cluster.own[steps.AbortedTransactions] = denied
    with pytest.raises(KafkaEosError) as raised:
        cluster.plan("again")
    assert len(rows_of_b(cluster)) == 2 * ROWS, "all rows are visible"
    assert "Rows visible: no" not in str(safety_sentence(raised.value.code, Job.BATCH))
