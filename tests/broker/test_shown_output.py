"""What the pages show of the output of ``kafka-eos`` is what the commands print, on a broker in the state that the page describes.

How to show output on a page: write the commands in a block of their own, and directly below it a block of the language ``text`` with what
the last command prints:

    ```
    kafka-eos status --write-id kafka-eos/nightly-orders/orders
    ```

    ```text
    2026-11-21 02:10:44 UTC: 1 write, 0 open transactions, 0 blocked partitions
    ...
    ```

Nothing else is needed: the test finds the pair, and runs the commands as they are. tests/shown_output.py compares every word, column and
line. Offsets, ids, times, ports, durations, numbers of two and more digits and the widths of columns may differ. A line longer than 140
characters may be broken at a space. So take the output from a real run, and leave nothing out. If the test fails, it shows what the command
prints.

The blocks of one section are a story: they run one after the other on the same broker, those without output also. Before the first one, the
broker is in the state ``finished``. Another one needs a row in `SHOWN_AFTER` of tests/snippets.py: the name of the block, and the name of a
function below. A row for a later block of the section begins another story there. ``~ name`` instead adds to the story what a page says
that happened in between, for example ``~ next_run``.

The output of a Python block is what it prints (spark/test_snippets.py). Output of anything else needs a row in tests/snippets.py, with a
test that calls `shown_output.assert_shows`.

A command that asks (``recover``, ``resolve``, ``forget`` without ``--yes``) runs on a terminal, and the answer is ``y``. ``localhost:9092``
is the test's broker, which is also in ``KAFKA_EOS_BOOTSTRAP_SERVERS``. Placeholders such as ``W`` get the values of the pages' example.
"""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace

import confluent_kafka
import pyarrow as pa
import pytest

from dead_writes import abort_open, die_at, varied, write_settings
from documents import is_kafka_eos, words_of
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import history, planning, session
from kafka_eos_sink.runtime.batch_record import DEFAULT_HISTORY_TOPIC
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.topics import ensure_commit_log
from kafka_testing import (
    assert_nothing_open,
    create_topic,
    delete_topic,
    find_coordinators,
    open_transaction,
    topic_names,
)
from shown_output import assert_shows
from snippets import OUTPUTS, SHOWN_AFTER, STORIES, Story
from terminals import on_terminal
from tests.conftest import TEST_PROPERTIES
from unmarked_transactions import (
    SIDE,
    abort_by_hand,
    begin,
    commit_at_coordinator,
    produce_without_adding,
    unverified_partitions,
)

TOPIC, WRITE_ID, VERSION = "orders", "kafka-eos/nightly-orders/orders", 20261121
GROUP = "orders-lag"
ROWS = 1_000
COMMIT_LOG = "__kafka_eos_commits"
ASKING = ("recover", "resolve", "forget")
ENDLESS = ("metrics",)
"""Commands that run until Ctrl-C."""
ELSEWHERE = ("broker", "demo", "jars")
"""Commands of which other tests compare the output."""
PLACEHOLDERS = {
    "T": TOPIC,
    "W": WRITE_ID,
    "V": str(VERSION),
    "G": GROUP,
    "Q": BATCH_QUERY_ID,
    "N": "10",
    "P": "0",
    "O": "17",
}


class World:
    """A broker with the topic of the pages' example, and what runs on it."""

    def __init__(self, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka = kafka
        self.servers = kafka.bootstrap_servers
        self.programs: list[confluent_kafka.Producer] = []
        """Other programs with an open transaction."""
        self.hanging: list[ProducerIdentity] = []
        """Other programs with a transaction that hangs on the first partition of the topic."""
        self._monkeypatch = monkeypatch

    def settings(
        self, version: int = VERSION, *, write_id: str = WRITE_ID, query_id: str = BATCH_QUERY_ID
    ) -> session.WriteSettings:
        given = write_settings(
            self.kafka, TOPIC, write_id=write_id, query_id=query_id, version=version, schema="key string, value string"
        )
        streaming = {} if query_id == BATCH_QUERY_ID else {"streaming": True}
        return varied(replace(given, history_topic=DEFAULT_HISTORY_TOPIC), **streaming)

    def write(self, given: session.WriteSettings) -> None:
        plan = self._plan(given)
        session.commit(given, plan, self.tasks(given, plan))

    def _plan(self, given: session.WriteSettings) -> session.Plan:
        planning._remembered.clear()  # each run has a driver of its own, which remembers nothing
        return session.plan(given)

    def tasks(self, given: session.WriteSettings, plan: session.Plan) -> list[session.TaskMessage]:
        """What the two tasks of a batch hand over."""
        half = ROWS // 2
        return [
            replace(
                session.write_task(
                    given,
                    plan,
                    session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task),
                    iter([_orders(task * half, (task + 1) * half)]),
                ),
                application_id="local-1795764365791",
            )
            for task in range(2)
        ]

    def die_at(self, point: str, given: session.WriteSettings) -> None:
        plan = self._plan(given)
        die_at(point, given, plan, self.tasks(given, plan), self._monkeypatch)


def _orders(first: int, end: int) -> Rows:
    numbers = range(first, end)
    return Rows(
        topic=TOPIC,
        partition=None,
        columns=RecordColumns(
            key=pa.array([b"%d" % each for each in numbers]), value=pa.array([b"order %d" % each for each in numbers])
        ),
    )


# the states that a page may begin with


def empty(world: World) -> None:
    """A new cluster with the topic."""
    # Other stories leave a commit log, because their write ids are known.
    if COMMIT_LOG in topic_names(world.servers):
        delete_topic(world.servers, COMMIT_LOG)


def finished(world: World) -> None:
    """Two versions of the nightly job."""
    for version in (VERSION - 1, VERSION):
        world.write(world.settings(version))


def decided(world: World) -> None:
    """The driver of the second version died after the decision, before it committed a transaction of the tasks."""
    world.write(world.settings(VERSION - 1))
    world.die_at("commit.decided", world.settings())


def prepared(world: World) -> None:
    """The driver of the second version died before the decision."""
    world.write(world.settings(VERSION - 1))
    world.die_at("commit.before_decision", world.settings())


def copied(world: World) -> None:
    """Kafka aborted the transactions of a decided version, and the next run copied its rows."""
    world.write(world.settings(VERSION - 1))
    world.die_at("commit.decided", world.settings())
    abort_open(world.settings())
    world.write(world.settings())


def foreign(world: World) -> None:
    """An open transaction of another program, and a write that is finished."""
    world.write(world.settings())
    world.programs.append(open_transaction(world.servers, "billing-export-7", TOPIC, partitions=1))


def hanging(world: World) -> None:
    """Another program's transaction has ended, and lacks its marker on a partition of the topic."""
    world.write(world.settings())
    side = create_topic(world.servers, "billing-log", partitions=1)
    with unverified_partitions(world.kafka), NetworkClient(world.settings().client) as client:
        executor = Executor(Admin(client), (side, 0), ProducerConfig())
        identity = executor.run(begin("billing-export-7", SIDE))
        produce_without_adding(Admin(client), identity, (TOPIC, 0), [(None, b"a bill")])
        world.hanging.append(identity)
        executor.run(commit_at_coordinator(identity, False))


def no_commit_log(world: World) -> None:
    """An operator deleted the commit log, and the next run of the job failed."""
    finished(world)
    delete_topic(world.servers, COMMIT_LOG)
    with pytest.raises(WriteRefusedError, match="COMMIT_LOG_LOST"):
        world.write(world.settings(VERSION + 1))


def query_without_commit_log(world: World) -> None:
    """An operator deleted the commit log, and the next batch of the query failed."""
    for batch in (0, 1):
        world.write(_of_query(world, batch))
    delete_topic(world.servers, COMMIT_LOG)
    with pytest.raises(WriteRefusedError, match="COMMIT_LOG_LOST"):
        world.write(_of_query(world, 2))


def query_of_another_sink(world: World) -> None:
    """A query wrote batches 0 to 41 with Spark's sink, and its first batch with ours failed."""
    with pytest.raises(WriteRefusedError, match="COMMIT_LOG_LOST"):
        world.write(_of_query(world, 42))


def new_cluster(world: World) -> None:
    """A cluster to which only rows were copied: its commit log is new."""
    if COMMIT_LOG in topic_names(world.servers):
        delete_topic(world.servers, COMMIT_LOG)
    with NetworkClient(ClientConfig(bootstrap_servers=parse_bootstrap_servers(world.servers))) as client:
        ensure_commit_log(Admin(client), COMMIT_LOG, client.clock() + 60_000)


def no_history(world: World) -> None:
    finished(world)
    delete_topic(world.servers, DEFAULT_HISTORY_TOPIC)


def group(world: World) -> None:
    """A query that commits the offsets of its source, as the option ``source.offsets.group`` has it."""
    create_topic(world.servers, "clicks", partitions=2)
    offsets = GroupOffsets(group_id=GROUP, offsets=(("clicks", 0, 1180), ("clicks", 1, 1204)))
    write_id = "kafka-eos-6c1f0a52-9d0e-4a57-8a0e-1b2c3d4e5f60"
    given = world.settings(0, write_id=write_id, query_id=write_id.removeprefix("kafka-eos-"))
    world.write(replace(given, group_offsets=offsets))


def prepared_query(world: World) -> None:
    """The driver of a query was killed before the decision of its second batch."""
    world.write(_of_query(world, 0))
    world.die_at("commit.before_decision", _of_query(world, 1))


def killed_query(world: World) -> None:
    """The driver of a query was killed after the decision of its second batch."""
    world.write(_of_query(world, 0))
    world.die_at("commit.decided", _of_query(world, 1))


def _of_query(world: World, batch: int) -> session.WriteSettings:
    query_id = "6c1f0a52-9d0e-4a57-8a0e-1b2c3d4e5f60"
    return world.settings(batch, write_id=f"kafka-eos-{query_id}", query_id=query_id)


def without_rows(world: World) -> None:
    """The second version of the nightly job found an empty source."""
    world.write(world.settings(VERSION - 1))
    given = world.settings()
    plan = session.plan(given)
    task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
    session.commit(given, plan, [session.write_task(given, plan, task, iter([]))])


def dead_letter(world: World) -> None:
    """A row with a partition that the topic lacks, and the option ``dead.letter.topic``."""
    create_topic(world.servers, "orders-dead-letters", partitions=1)
    given = world.settings()
    given = replace(given, producer=replace(given.producer, dead_letter_topic="orders-dead-letters"))
    plan = session.plan(given)
    row = replace(_orders(2, 3), partition=pa.array([9], pa.int32()))
    task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
    session.commit(given, plan, [session.write_task(given, plan, task, iter([row]))])


# what a page may say that happens between two blocks


def next_run(world: World) -> None:
    """The job runs again, with the same version."""
    world.write(world.settings())


def next_start(world: World) -> None:
    """The query starts again with its checkpoint."""
    world.write(_of_query(world, 1))


def next_batch(world: World) -> None:
    """The query continues with its next batch."""
    world.write(_of_query(world, 42))


STATES: dict[str, Callable[[World], None]] = {
    each.__name__: each
    for each in (
        empty,
        finished,
        decided,
        prepared,
        copied,
        foreign,
        hanging,
        no_commit_log,
        query_without_commit_log,
        query_of_another_sink,
        new_cluster,
        no_history,
        group,
        prepared_query,
        killed_query,
        dead_letter,
        without_rows,
        next_run,
        next_start,
        next_batch,
    )
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(properties=TEST_PROPERTIES) as started, connected(started.bootstrap_servers) as admin:
        # Kafka creates the topics of groups and of transactions at their first use, which depends on the order of the tests.
        for key_type in (0, 1):
            find_coordinators(admin, ["any"], admin.client.clock() + 60_000, key_type=key_type)
        yield started


@pytest.fixture
def world(cluster: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The cluster as it was at first, but for the topics that the next story needs."""
    monkeypatch.setenv("KAFKA_EOS_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
    monkeypatch.setattr(history, "WITHIN_MS", 60_000)  # a record that a busy broker delays is not missing
    _without_writes(cluster)
    create_topic(cluster.bootstrap_servers, TOPIC, partitions=3)
    made = World(cluster, monkeypatch)
    yield made
    for each in made.hanging:
        abort_by_hand(cluster, (TOPIC, 0), each.producer_id, each.producer_epoch)


def _without_writes(cluster: EmbeddedKafka) -> None:
    """Abort every open transaction, delete the topics, and let each write id begin again."""
    for kept in (planning._remembered, history._partitions, history._not_before):
        kept.clear()
    config = ClientConfig(bootstrap_servers=parse_bootstrap_servers(cluster.bootstrap_servers))
    with NetworkClient(config) as client:
        admin, deadline = Admin(client), client.clock() + 60_000
        for listed in admin.list_transactions(deadline_ms=deadline):
            admin.init_producer_id(listed.transactional_id, 60_000, deadline)
        assert_nothing_open(cluster.bootstrap_servers)
        for name in topic_names(cluster.bootstrap_servers) - {"__consumer_offsets", "__transaction_state"}:
            delete_topic(cluster.bootstrap_servers, name)
        known = [each.transactional_id for each in admin.list_transactions(states=(), deadline_ms=deadline)]
        drivers = [each for each in known if each.endswith(".driver")]
        if drivers:
            ensure_commit_log(admin, COMMIT_LOG, deadline)
    for driver in drivers:
        # Its coordinator remembers the write id: without this it would be COMMIT_LOG_LOST.
        assert main(["recover", "--write-id", driver.removesuffix(".driver"), "--abort-unknown", "--yes"]) == 0


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.blocks[0].name)
def test_page_shows_what_its_commands_print(story: Story, world: World) -> None:
    STATES[story.state](world)
    for block in story.blocks:
        row = SHOWN_AFTER.get(block.name, "")
        if row.startswith("~"):
            STATES[row.removeprefix("~ ")](world)
        output = OUTPUTS.get(block.name)
        lines = 0 if output is None else len(output.text.splitlines())
        commands = [command for command in block.commands() if is_kafka_eos(command)]
        printed = [run(command, world.servers, lines) for command in commands][-1]
        if output is not None:
            assert_shows(output.text, printed, output.name)


def test_rows_of_shown_output_have_a_block_and_a_state() -> None:
    names = {block.name for story in STORIES for block in story.blocks}
    assert sorted(set(SHOWN_AFTER) - names) == []
    assert {row.removeprefix("~ ") for row in SHOWN_AFTER.values()} <= set(STATES)


def run(command: str, servers: str, lines: int) -> str:
    """What a terminal shows of the command; ``lines`` of one that does not end."""
    values = {"localhost:9092": servers, "S": servers, "9400": "0", **PLACEHOLDERS}
    words = [values.get(each, each) for each in words_of(command)]
    name = words[0]
    assert name not in ELSEWHERE, "a row of tests/snippets.py says which test runs it"
    if name in ENDLESS:
        return _first_lines(words, lines)
    if name in ASKING and "--yes" not in words:
        status, shown = on_terminal(words, "y")
        shown = shown.replace("\r\n", "\n")
    else:
        with redirect_stdout(io.StringIO()) as printed, redirect_stderr(printed), warnings_in(printed):
            status = main(words)
        shown = printed.getvalue()
    assert status == 0 or re.search(r"^kafka-eos: (\[|not shown|\d+ of these)", shown, re.MULTILINE), shown
    return shown


@contextmanager
def warnings_in(printed: io.StringIO) -> Iterator[None]:
    """As Python prints warnings of a program that configures no logging, which pytest does."""
    handler = logging.StreamHandler(printed)
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("kafka_eos_sink")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _first_lines(words: Sequence[str], count: int) -> str:
    command = [sys.executable, "-m", "kafka_eos_sink.cli.main", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    with process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(count)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    return "".join(lines)
