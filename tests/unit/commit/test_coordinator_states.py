"""A state that is neither free nor open: nobody takes such an id, decides its transaction, or ends it.

Today's coordinators pass through these states in an instant, or do not have them yet, so the simulated cluster has none of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.abort import sweep
from kafka_eos_sink.errors import TransactionAbortedError
from tests.model.scripted_cluster import TIMEOUT_MS, ScriptedCluster, written
from tests.runs import run_of

pytestmark = [
    pytest.mark.parametrize("version", [2, 0]),
    # The last one no Kafka has today.
    pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort", "PrepareEpochFence", "Dead", "HeldByTheMoon"]),
]


def report(cluster: ScriptedCluster, state: str, *transactional_ids: str) -> None:
    """The coordinator reports this state of these ids."""

    def describe(step: steps.DescribeTransactions) -> Any:
        found = dict(cluster.perform(step))
        return found | {name: replace(found[name], state=state) for name in transactional_ids if name in found}

    cluster.own[steps.DescribeTransactions] = describe


def test_slot_in_a_busy_state_is_not_taken(version: int, state: str) -> None:
    cluster = ScriptedCluster(version=version)
    plan, busy = cluster.plan(), ("w.0.0", "w.0.1")
    for name in busy:
        cluster.perform(steps.InitProducerId(name, TIMEOUT_MS))
    before = [cluster.kafka.transaction(name) for name in busy]
    report(cluster, state, *busy)
    prepared = cluster.attempt(plan).prepared
    assert prepared is not None
    assert prepared.identity.transactional_id == "w.0.2"
    assert [cluster.kafka.transaction(name) for name in busy] == before


def test_transaction_in_an_unexpected_state_is_not_decided(version: int, state: str) -> None:
    cluster, messages = written(version=version)
    report(cluster, state, "w.0.0")
    with pytest.raises(TransactionAbortedError, match=rf"TRANSACTION_NOT_OPEN\].*reports {state}"):
        cluster.commit(messages)
    assert cluster.ends == []
    assert cluster.view().query("batch").newest is None


def test_next_driver_ends_no_transaction_in_an_unexpected_state(version: int, state: str) -> None:
    cluster, _ = written(partitions=2, version=version)
    report(cluster, state, "w.0.0")
    cluster.plan("next")
    assert [(identity.transactional_id, commit) for identity, commit in cluster.ends] == [("w.1.0", False)]


def test_sweep_ends_no_transaction_in_an_unexpected_state(version: int, state: str) -> None:
    """A losing attempt opened its transaction after the commit had looked, and was killed before it asked."""
    cluster, messages = written(version=version)
    decision = cluster.commit(messages)
    late = cluster.open("w.0.5")
    cluster.ends.clear()
    report(cluster, state, "w.0.5")
    run, plan = run_of(version=version), messages[0].plan
    assert cluster.run(sweep(run, plan, decision)) == 0
    assert cluster.ends == []
    cluster.own.clear()
    assert cluster.run(sweep(run, plan, decision)) == 1
    assert cluster.ends == [(late, False)]
