"""States of a transactional id that today's coordinators pass through in an instant, keep to themselves, or do not have yet.

The proxy puts them into the answers to DescribeTransactions. Whatever is not known to be free or open is left alone and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit.transactional_id import driver_transactional_id, task_transactional_id
from kafka_eos_sink.errors import TransactionAbortedError
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.runtime import session
from kafka_testing import open_transaction

from .bench import TASKS, Bench, of_process, write_tasks, write_whole
from .fault_proxy import Change, Rule

STATES = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence", "Dead", "HeldByTheMoon")
"""The last one no Kafka has today."""


@pytest.fixture(params=(2, 0))
def bench(request: pytest.FixtureRequest, bench_of: Callable[[int], Bench]) -> Bench:
    """Runs a test against both transaction protocols."""
    return bench_of(request.param)


def as_if(state: str, *transactional_ids: str) -> Change:
    """The coordinator's answer, but for the state of these ids, which it knows."""

    def change(answer: m.DescribeTransactionsResponse) -> m.DescribeTransactionsResponse:
        return replace(
            answer,
            transaction_states=tuple(
                replace(each, error_code=0, transaction_state=state)
                if each.transactional_id in transactional_ids
                else each
                for each in answer.transaction_states
            ),
        )

    return Change(change)


def states(bench: Bench, *transactional_ids: str) -> list[str | None]:
    """What the coordinator itself says, past the proxy."""
    config = ClientConfig(bootstrap_servers=parse_bootstrap_servers(bench.kafka.bootstrap_servers))
    with NetworkClient(config) as client:
        found = Admin(client).describe_transactions(transactional_ids, client.clock() + 20_000)
    return [None if (each := found[name]) is None else each.transaction_state for name in transactional_ids]


@pytest.mark.parametrize("state", STATES)
def test_slot_in_a_busy_state_is_not_taken(bench: Bench, state: str) -> None:
    topic = bench.topic()
    settings = bench.write_settings(topic)
    slots = [task_transactional_id(settings.write.id, 0, slot) for slot in range(3)]
    bench.proxy.inject(Rule(m.DescribeTransactionsRequest, as_if(state, *slots[:2]), count=None, client="task-0"))
    plan = session.plan(of_process(settings, "planner"))
    messages = write_tasks(settings, plan)
    prepared = messages[0].prepared
    assert prepared is not None
    assert prepared.identity.transactional_id == slots[2]
    session.commit(of_process(settings, "committer"), plan, messages)
    bench.assert_exactly_once(topic)
    assert states(bench, *slots[:2]) == [None, None]  # nobody has asked for a producer id in the others' place
    bench.assert_nothing_open(topic)


@pytest.mark.parametrize("state", STATES)
def test_transaction_in_an_unexpected_state_is_not_decided(bench: Bench, state: str) -> None:
    topic = bench.topic()
    settings = bench.write_settings(topic)
    plan = session.plan(of_process(settings, "planner"))
    messages = write_tasks(settings, plan)
    prepared = messages[0].prepared
    assert prepared is not None
    own = prepared.identity.transactional_id
    bench.proxy.inject(Rule(m.DescribeTransactionsRequest, as_if(state, own), client="committer"))
    with pytest.raises(TransactionAbortedError, match=rf"TRANSACTION_NOT_OPEN\].*its coordinator reports {state}"):
        session.commit(of_process(settings, "committer"), plan, messages)
    assert not bench.proxy.unfired
    assert states(bench, own, driver_transactional_id(settings.write.id)) == ["Ongoing", "Empty"]
    bench.assert_nothing_visible(topic)
    write_whole(settings)
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)


@pytest.mark.parametrize("state", STATES)
def test_next_driver_ends_no_transaction_in_an_unexpected_state(bench: Bench, state: str) -> None:
    """What is left open the next plan ends, or the transaction's timeout."""
    topic = bench.topic()
    settings = bench.write_settings(topic)
    messages = write_tasks(settings, session.plan(of_process(settings, "planner")))
    left = [message.prepared.identity.transactional_id for message in messages if message.prepared is not None]
    bench.proxy.inject(Rule(m.DescribeTransactionsRequest, as_if(state, left[0]), count=None))
    session.plan(of_process(settings, "second-planner"))
    assert not bench.proxy.unfired
    assert states(bench, *left)[0] == "Ongoing"
    assert states(bench, *left)[1] != "Ongoing"
    bench.proxy.inject()
    write_whole(settings)
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)


@pytest.mark.parametrize("state", STATES)
def test_sweep_ends_no_transaction_in_an_unexpected_state(bench: Bench, state: str) -> None:
    """Losing attempts opened their transactions after the commit had looked, and were killed before they asked."""
    topic = bench.topic()
    settings = bench.write_settings(topic)
    plan = session.plan(of_process(settings, "planner"))
    messages = write_tasks(settings, plan)
    decision = session.commit(of_process(settings, "committer"), plan, messages)
    left = [task_transactional_id(settings.write.id, task, 5) for task in range(TASKS)]  # no ids of the decision
    _late = [open_transaction(bench.kafka.bootstrap_servers, each, topic, partitions=1) for each in left]
    bench.proxy.inject(Rule(m.DescribeTransactionsRequest, as_if(state, *left)))
    assert session.sweep(of_process(settings, "committer"), plan, decision) == 0
    assert not bench.proxy.unfired
    assert set(states(bench, *left)) == {"Ongoing"}
    bench.proxy.inject()
    assert session.sweep(of_process(settings, "committer"), plan, decision) == len(left)
    bench.assert_exactly_once(topic)
    bench.assert_nothing_open(topic)
