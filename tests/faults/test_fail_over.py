"""Brokers of three that die or are stopped while a write is under way: it goes on with the other two, every row exactly once.

One cluster for all tests. Each test looks up who leads or coordinates at that moment, ends that node at a named place of the
write, finishes the write with the two others, and starts the node again. Nothing tells the client: it finds out by itself.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from dead_writes import write_settings
from kafka_eos_sink.commit.transactional_id import driver_transactional_id, task_transactional_id
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import failpoints, session
from kafka_testing import READERS, assert_nothing_open, create_topic, read_committed, wait_until

from .three_nodes import QUICK_ELECTIONS, coordinator, leader, make_whole

PARTITIONS = 3
TASKS = 2
ROWS = 60
"""In one delivery to a task."""
SETTINGS = ProducerConfig(
    batch_size=1_000,  # some records each, so that several requests are in flight when a node dies
    linger_ms=0,
)


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(brokers=3, transaction_version=2, heap="256m", properties=QUICK_ELECTIONS) as cluster:
        settings = settings_of(cluster, create_topic(cluster.bootstrap_servers))
        plan = session.plan(settings)  # the first use of transactions and of the commit log creates their topics
        session.commit(settings, plan, tasks(settings, plan, Deliveries()))
        yield cluster


@pytest.fixture(autouse=True)
def whole(three: EmbeddedKafka) -> None:
    """Every test begins with three nodes that hold everything, whatever became of the test before."""
    make_whole(three)


@dataclass(slots=True)
class Deliveries:
    """Hands deliveries of numbered rows to the tasks, and counts what it has handed over."""

    count: int = 0
    between: Callable[[], bool] = field(default=lambda: False)
    """Called after some deliveries of the first task; more deliveries follow as long as it says so."""

    def to(self, topic: str, task: int) -> Iterator[Rows]:
        for _ in range(5):
            yield self._next(topic)
        while task == 0 and self.between():
            yield self._next(topic)
        for _ in range(5):
            yield self._next(topic)

    def _next(self, topic: str) -> Rows:
        numbers = range(self.count, self.count + ROWS)
        self.count += ROWS
        value = pa.array([b"%d" % number for number in numbers])
        return Rows(topic=topic, partition=None, columns=RecordColumns(key=value, value=value))


def settings_of(three: EmbeddedKafka, topic: str) -> session.WriteSettings:
    return replace(write_settings(three, topic), producer=SETTINGS)


def tasks(settings: session.WriteSettings, plan: session.Plan, deliveries: Deliveries) -> list[session.TaskMessage]:
    return [
        session.write_task(
            settings,
            plan,
            session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task),
            deliveries.to(settings.batch.topic or "", task),
        )
        for task in range(TASKS)
    ]


# who is to die

Find = Callable[[EmbeddedKafka, session.WriteSettings], int]


def leads_rows(three: EmbeddedKafka, settings: session.WriteSettings) -> int:
    return leader(three, settings.batch.topic or "", 0)


def leads_commit_log(three: EmbeddedKafka, settings: session.WriteSettings) -> int:
    return leader(three, settings.write.log_topic, settings.write.commit_log[1])


def coordinates_task(_: EmbeddedKafka, settings: session.WriteSettings) -> int:
    return coordinator(settings, task_transactional_id(settings.write.id, 0, 0))


def coordinates_last_task(_: EmbeddedKafka, settings: session.WriteSettings) -> int:
    return coordinator(settings, task_transactional_id(settings.write.id, TASKS - 1, TASKS - 1))


def coordinates_driver(_: EmbeddedKafka, settings: session.WriteSettings) -> int:
    return coordinator(settings, driver_transactional_id(settings.write.id))


class Victim:
    """The node that is ended in a test, as it was found when the write began to need it."""

    def __init__(self, three: EmbeddedKafka, number: signal.Signals = signal.SIGKILL) -> None:
        self._three = three
        self._number = number
        self.node: int | None = None

    def signal(self, node: int) -> None:
        self.node = node
        os.kill(self._three.pids[node], self._number)

    @property
    def is_gone(self) -> bool:
        return self.node is not None and self.node not in self._three.pids

    def end(self, node: int) -> None:
        """Returns when the node is gone: at once when killed, with all it led handed over when stopped."""
        self.signal(node)
        wait_until(lambda: self.is_gone, f"the end of node {node}")

    def start_again(self, find: Find, settings: session.WriteSettings) -> None:
        """Once another node has taken its place."""
        assert self.node is not None
        assert self.is_gone
        wait_until(lambda: find(self._three, settings) != self.node, f"another node in the place of {self.node}")
        self._three.start_node(self.node)


# tests

ENDS = [pytest.param(signal.SIGKILL, id="killed"), pytest.param(signal.SIGTERM, id="stopped")]
WHO: dict[str, Find] = {"leader": leads_rows, "coordinator": coordinates_task, "commit-log": leads_commit_log}
AT_A_STEP: dict[str, tuple[str, dict[str, Find]]] = {
    # The rows of the first task are acknowledged, its part record is not written.
    "last-row": ("task.flushed", WHO),
    # The first task hands its transaction over, the second has not begun. What is asked of the commit log's leader from there on is
    # asked of it in the step before, too.
    "handed-over": ("task.prepared", {who: WHO[who] for who in ("leader", "coordinator")}),
    # The record of the decision is written, its transaction not ended.
    "deciding": ("commit.decision_written", WHO | {"coordinator": coordinates_driver}),
    # The first EndTxn of the tasks' transactions is answered, the others are not sent.
    "finishing": ("commit.between_ends", WHO | {"coordinator": coordinates_last_task}),
}
STEPS_AND_WHO = [(step, who) for step, (_, finds) in AT_A_STEP.items() for who in finds]


def assert_every_row_once(three: EmbeddedKafka, settings: session.WriteSettings, count: int) -> None:
    assert settings.batch.topic is not None
    for reader in READERS:
        records = read_committed(three.bootstrap_servers, settings.batch.topic, reader=reader)
        assert Counter(int(record.value or b"") for record in records) == Counter(range(count))
    assert_nothing_open(three.bootstrap_servers, [settings.batch.topic, settings.write.log_topic])


@pytest.mark.parametrize("number", ENDS)
@pytest.mark.parametrize("who", WHO)
def test_a_node_that_ends_while_rows_are_written(three: EmbeddedKafka, who: str, number: signal.Signals) -> None:
    settings = settings_of(three, create_topic(three.bootstrap_servers, partitions=PARTITIONS))
    plan = session.plan(settings)
    victim = Victim(three, number)

    def goes_on() -> bool:
        """Rows keep coming while a stopped node hands over what it led."""
        if victim.node is None:
            victim.signal(WHO[who](three, settings))
            return True
        time.sleep(0.02)
        return not victim.is_gone

    deliveries = Deliveries(between=goes_on)
    decision = session.commit(settings, plan, tasks(settings, plan, deliveries))
    assert decision is not None
    victim.start_again(WHO[who], settings)
    assert_every_row_once(three, settings, deliveries.count)


@contextmanager
def ended_at(point: str, victim: Victim, find: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the write comes to the point for the first time, the node that is found there ends before it goes on."""

    def reached(name: str) -> None:
        if name == point and victim.node is None:
            victim.end(find())

    with monkeypatch.context() as patched:
        patched.setenv(failpoints.VARIABLE, f"{point}=here")
        patched.setattr(failpoints, "reached", reached)
        yield
    assert victim.is_gone, f"{point} was not reached"


@pytest.mark.parametrize(("step", "who"), STEPS_AND_WHO)
def test_a_node_that_ends_at_a_step_of_the_write(
    three: EmbeddedKafka, step: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(three, create_topic(three.bootstrap_servers, partitions=PARTITIONS))
    point, finds = AT_A_STEP[step]
    plan = session.plan(settings)
    deliveries = Deliveries()
    victim = Victim(three)
    with ended_at(point, victim, lambda: finds[who](three, settings), monkeypatch):
        assert session.commit(settings, plan, tasks(settings, plan, deliveries)) is not None
    victim.start_again(finds[who], settings)
    assert_every_row_once(three, settings, deliveries.count)
