"""One of three brokers is stopped (SIGSTOP): its connections stay open, it answers nothing, and the cluster still names it.

What it leads and coordinates waits. A write that does not need it goes on: tasks take the ids of other coordinators, and plan and abort
continue without what it would list.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import confluent_kafka.admin
import pytest

from dead_writes import varied, write_settings
from kafka_eos_sink import logs
from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.commit.transactional_id import SLOTS, driver_transactional_id, task_transactional_id
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import planning, session
from kafka_testing import assert_nothing_open, find_coordinators, read_committed, unique_topic, wait_until

from .bench import numbered
from .three_nodes import PATIENCE_S, QUICK_ELECTIONS, confluent_admin, leader, make_whole

VICTIM = 3
ROWS = 10
TASKS = 2
STAYS_IN_METADATA = {
    **QUICK_ELECTIONS,
    "broker.session.timeout.ms": "600000",
    # The other two leave it out of their in-sync replicas soon: until then nothing is acknowledged.
    "replica.lag.time.max.ms": "1500",
}


@pytest.fixture(scope="module", params=[2, 0], ids=["transaction.version=2", "transaction.version=0"])
def three(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(
        brokers=3, transaction_version=request.param, heap="256m", properties=STAYS_IN_METADATA
    ) as cluster:
        settings = write_settings(cluster, topic_beside_the_victim(cluster))
        session.commit(settings, plan := session.plan(settings), tasks(settings, plan))
        yield cluster


@pytest.fixture(autouse=True)
def whole(three: EmbeddedKafka) -> None:
    make_whole(three)


def topic_beside_the_victim(three: EmbeddedKafka) -> str:
    name = unique_topic()
    others = [[1, 2, VICTIM], [2, 1, VICTIM]]
    admin = confluent_admin(three)
    admin.create_topics([confluent_kafka.admin.NewTopic(name, len(others), replica_assignment=others)])[name].result(
        PATIENCE_S
    )

    def leaders() -> list[int]:
        partitions = admin.list_topics(name, timeout=PATIENCE_S).topics[name].partitions
        return [partitions[each].leader for each in sorted(partitions)]

    wait_until(lambda: leaders() == [1, 2], "the leaders")
    return name


def beside_the_victim(three: EmbeddedKafka) -> tuple[session.WriteSettings, list[int]]:
    """A write that needs the victim for slots of its tasks alone, and by task the slot that it coordinates."""
    topic = topic_beside_the_victim(three)
    with connected(three.bootstrap_servers) as admin:
        while True:
            settings = write_settings(three, topic)
            if leader(three, settings.write.log_topic, settings.write.commit_log[1]) == VICTIM:
                continue
            if coordinators(admin, [driver_transactional_id(settings.write.id)]) == [VICTIM]:
                continue
            slots = [
                coordinators(admin, [task_transactional_id(settings.write.id, task, slot) for slot in range(SLOTS)])
                for task in range(TASKS)
            ]
            if all(VICTIM in each and set(each) != {VICTIM} for each in slots):
                break
    client = replace(settings.client, request_timeout_ms=5_000)
    return varied(settings, client=client), [each.index(VICTIM) for each in slots]


def coordinators(admin: Admin, ids: list[str]) -> list[int]:
    found = find_coordinators(admin, ids, admin.client.clock() + int(PATIENCE_S * 1_000))
    return [found[each] for each in ids]


def tasks(
    settings: session.WriteSettings, plan: session.Plan, slots: list[int] | None = None
) -> list[session.TaskMessage]:
    return [
        session.write_task(
            settings,
            plan,
            session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=slots[task] if slots else 0),
            iter([numbered(settings.batch.topic or "", settings.batch.version * 100 + task * ROWS, ROWS)]),
        )
        for task in range(TASKS)
    ]


@contextmanager
def stopped(three: EmbeddedKafka) -> Iterator[None]:
    os.kill(three.pids[VICTIM], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(three.pids[VICTIM], signal.SIGCONT)


def values(three: EmbeddedKafka, topic: str | None) -> list[int]:
    return sorted(int(record.value or b"") for record in read_committed(three.bootstrap_servers, topic or ""))


def test_batches_continue_while_a_broker_hangs(three: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    settings, slots = beside_the_victim(three)
    session.commit(settings, plan := session.plan(settings), tasks(settings, plan))
    with stopped(three):
        later = varied(settings, version=settings.batch.version + 1)
        planning._remembered.clear()  # a new planner process, which always lists, and has warned of nothing
        logs.forget()
        plan = session.plan(later)
        assert "the open transactions did not succeed before its deadline" in caplog.text
        messages = tasks(later, plan, slots)
        assert session.commit(later, plan, messages) is not None
        wanted = [version * 100 + number for version in (3, 4) for number in range(TASKS * ROWS)]
        assert values(three, settings.batch.topic) == wanted
    for task, message in enumerate(messages):
        assert message.prepared is not None
        assert message.prepared.identity.transactional_id != task_transactional_id(settings.write.id, task, slots[task])
    assert_nothing_open(three.bootstrap_servers, [settings.batch.topic or ""], of=settings.write.id)


def test_abort_ends_prepared_transactions_while_a_broker_hangs(three: EmbeddedKafka) -> None:
    settings, slots = beside_the_victim(three)
    session.commit(settings, plan := session.plan(settings), tasks(settings, plan))
    with stopped(three):
        later = varied(settings, version=settings.batch.version + 1)
        plan = session.plan(later)
        messages = tasks(later, plan, slots)
        session.abort(later, plan, messages)
        ids = [message.prepared.identity.transactional_id for message in messages if message.prepared is not None]
        with connected(settings.client) as admin:

            def are_ended() -> bool:
                found = admin.describe_transactions(ids, admin.client.clock() + int(PATIENCE_S * 1_000))
                states = [state.transaction_state for state in found.values() if state is not None]
                return states == ["CompleteAbort"] * TASKS

            wait_until(are_ended, "the markers of the aborts")
    assert_nothing_open(three.bootstrap_servers, [settings.batch.topic or ""], of=settings.write.id)
