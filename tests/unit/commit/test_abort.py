"""What abort ends if brokers list nothing, and what a sweep leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.abort import abort
from kafka_eos_sink.commit.log_records import barrier_record
from kafka_eos_sink.commit.take_over import TakeOver
from kafka_eos_sink.commit.values import Plan, TaskMessage
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.model.scripted_cluster import TIMEOUT_MS, ScriptedCluster, written
from tests.runs import RANDOM, WRITE, run_of

REQUEST = TakeOver(run=run_of("abort"))


def left_open(lists: bool = False) -> tuple[ScriptedCluster, TaskMessage, ProducerIdentity]:
    """Return a cluster, and a task's message with the transaction that it left open. Without ``lists`` no broker lists it."""
    cluster, (message,) = written()
    assert message.prepared is not None
    if not lists:
        cluster.own = {steps.ListOpenTransactions: lambda _: ()}
    cluster.steps.clear()
    return cluster, message, message.prepared.identity


def lists_of(cluster: ScriptedCluster) -> Iterator[steps.ListOpenTransactions]:
    return (step for step in cluster.steps if isinstance(step, steps.ListOpenTransactions))


def test_list_waits_only_seconds_for_a_write_that_the_log_knows() -> None:
    cluster, message, _ = left_open()
    cluster.run(abort(REQUEST, message.plan, [message]))
    (listing,) = lists_of(cluster)
    assert listing.within_ms is not None
    assert listing.within_ms <= 5_000


def test_list_of_a_new_write_waits_for_all_brokers() -> None:
    """Another commit log may hold the decision of what a silent broker does not list."""
    cluster, message, _ = left_open()
    cluster.delete_log()
    with pytest.raises(WriteRefusedError, match=r"COMMIT_LOG_LOST\]"):
        cluster.run(abort(REQUEST, message.plan, [message]))
    (listing,) = lists_of(cluster)
    assert listing.within_ms is None


@pytest.mark.parametrize("created_again", [True, False])
@pytest.mark.parametrize("kept", [0, 40], ids=["shorter", "longer"])
def test_abort_of_fenced_driver_notices_another_commit_log(created_again: bool, kept: int) -> None:
    """The deleted log may have decided what the tasks handed over."""
    cluster, message, task = left_open()
    plan = replace(message.plan, log_offset=20)
    cluster.perform(steps.InitProducerId("w.driver", TIMEOUT_MS))  # a newer driver
    if created_again:
        cluster.delete_log()
    cluster.perform(steps.Append((barrier_record("other", "n"),) * kept))
    if created_again:
        with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\]"):
            cluster.run(abort(REQUEST, plan, [message]))
    else:
        assert cluster.run(abort(REQUEST, plan, [message])) is None
    assert cluster.ends == ([] if created_again else [(task, False)])
    assert cluster.records("barrier")[-1]["log"] == str(plan.log_id)


def behind_its_tombstones() -> tuple[ScriptedCluster, Plan, ProducerIdentity]:
    """Decision and tombstones bump the epoch of W.driver twice, and nobody else ever takes the id over."""
    cluster = ScriptedCluster()
    plan = cluster.plan(write_id=RANDOM)
    cluster.commit([cluster.attempt(plan)])
    left = cluster.open(f"{RANDOM}.0.3")
    cluster.ends.clear()
    return cluster, plan, left


def test_abort_of_a_random_write_id_needs_no_driver() -> None:
    cluster, plan, left = behind_its_tombstones()
    assert (
        cluster.run(abort(replace(REQUEST, run=run_of("abort", write=replace(WRITE, id=RANDOM))), plan, [])) is not None
    )
    assert cluster.ends == [(left, False)]
