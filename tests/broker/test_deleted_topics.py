"""A data topic that somebody deletes under a write: before its decision nothing happens, after it the rows are gone and that is said.

It is said after max.block.ms, as for every topic that the cluster does not know.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from dead_writes import ROWS, abort_by_hand, die_at, rows_of, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.commit.values import DecisionStatus
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import BrokerRefusedError, DecisionPendingError, TransactionAbortedError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.runtime import session
from kafka_testing import assert_nothing_open, create_topic, delete_topic, read_committed

MAX_BLOCK_MS = 3_000
SOON_S = 30.0
"""Far below delivery.timeout.ms, which is 120 s in these tests."""


def settings_for(kafka: EmbeddedKafka, topic: str) -> session.WriteSettings:
    """As with the topic in a column: the plan itself does not ask for it."""
    given = replace(write_settings(kafka, topic), producer=ProducerConfig(max_block_ms=MAX_BLOCK_MS))
    return varied(given, topic=None)


def of_topic(given: session.WriteSettings, topic: str) -> session.WriteSettings:
    return varied(given, topic=topic)


def delete_and_create(bootstrap_servers: str, topic: str) -> None:
    delete_topic(bootstrap_servers, topic)
    create_topic(bootstrap_servers, topic)


def resolved(kafka: EmbeddedKafka, given: session.WriteSettings, *answer: str) -> None:
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--write-id", given.write.id, "--version", "3"]
    assert main(["resolve", "--yes", *where, "--as", *answer]) == 0


def decided(
    kafka: EmbeddedKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[session.WriteSettings, list[session.TaskMessage]]:
    """A write whose driver died after the first of its two transactions was committed."""
    given = settings_for(kafka, topic)
    plan = session.plan(given)
    messages = tasks(of_topic(given, topic), plan)
    die_at("commit.between_ends", given, plan, messages, monkeypatch)
    return given, messages


@pytest.mark.parametrize(
    ("lose", "says"),
    [(delete_topic, "there is no such topic"), (delete_and_create, "created again")],
    ids=["gone", "anew"],
)
def test_decided_rows_of_deleted_topic_raise_topic_gone(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, lose: Callable[[str, str], None], says: str
) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    given, _ = decided(kafka, topic, monkeypatch)
    lose(kafka.bootstrap_servers, topic)
    started = time.monotonic()
    with pytest.raises(DecisionPendingError, match=rf"TOPIC_GONE\].*{topic}-.*{says}.*--as committed.*--as rewrite"):
        session.plan(given)
    assert time.monotonic() - started < SOON_S
    assert_nothing_open(kafka.bootstrap_servers)
    if lose is delete_topic:
        create_topic(kafka.bootstrap_servers, topic)
    resolved(kafka, given, "rewrite", "--allow-duplicates")
    plan = session.plan(given)
    session.commit(given, plan, tasks(of_topic(given, topic), plan))
    assert len({record.value for record in read_committed(kafka.bootstrap_servers, topic)}) == 2 * ROWS
    assert len(read_committed(kafka.bootstrap_servers, topic)) == 2 * ROWS
    assert_nothing_open(kafka.bootstrap_servers)


def test_resolve_gives_up_the_rows_of_a_deleted_topic(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    given, _ = decided(kafka, topic, monkeypatch)
    delete_topic(kafka.bootstrap_servers, topic)
    with pytest.raises(DecisionPendingError, match="TOPIC_GONE"):
        session.plan(given)
    resolved(kafka, given, "committed")
    other = create_topic(kafka.bootstrap_servers)
    later = varied(given, version=4)
    plan = session.plan(later)
    session.commit(later, plan, tasks(of_topic(later, other), plan))
    assert len(read_committed(kafka.bootstrap_servers, other)) == 2 * ROWS
    assert_nothing_open(kafka.bootstrap_servers)


def test_uncommitted_decision_is_void_when_its_topic_is_deleted(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    given = settings_for(kafka, topic)
    plan = session.plan(given)
    messages = tasks(of_topic(given, topic), plan)
    die_at("commit.decided", given, plan, messages, monkeypatch)
    abort_by_hand(given, messages)
    delete_topic(kafka.bootstrap_servers, topic)
    started = time.monotonic()
    session.plan(given)
    assert time.monotonic() - started < SOON_S
    create_topic(kafka.bootstrap_servers, topic)
    write_all(of_topic(given, topic))
    assert len(read_committed(kafka.bootstrap_servers, topic)) == 2 * ROWS
    assert_nothing_open(kafka.bootstrap_servers)


def test_commit_fails_when_topic_is_deleted_after_the_write(
    kafka: EmbeddedKafka,
) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    given = settings_for(kafka, topic)
    plan = session.plan(given)
    messages = tasks(of_topic(given, topic), plan)
    delete_topic(kafka.bootstrap_servers, topic)
    started = time.monotonic()
    with pytest.raises(BrokerRefusedError, match=rf"UNKNOWN_TOPIC\] {topic}-.*there is no such topic"):
        session.commit(given, plan, messages)
    session.abort(given, plan, messages)
    assert time.monotonic() - started < SOON_S
    assert_nothing_open(kafka.bootstrap_servers)
    create_topic(kafka.bootstrap_servers, topic)
    write_all(of_topic(given, topic))
    assert len(read_committed(kafka.bootstrap_servers, topic)) == 2 * ROWS


def test_commit_fails_when_topic_is_recreated_after_the_write(kafka: EmbeddedKafka) -> None:
    """The new topic ends where the rows began in the old one, at offset 0."""
    topic = create_topic(kafka.bootstrap_servers)
    given = settings_for(kafka, topic)
    plan = session.plan(given)
    messages = tasks(of_topic(given, topic), plan, 1)
    delete_and_create(kafka.bootstrap_servers, topic)
    with pytest.raises(
        TransactionAbortedError,
        match=rf"TRANSACTION_NOT_OPEN\].*{topic}-.* holds no open transaction.*deleted and created again",
    ):
        session.commit(given, plan, messages)
    session.abort(given, plan, messages)
    assert_nothing_open(kafka.bootstrap_servers)
    write_all(of_topic(given, topic), 1)
    assert len(read_committed(kafka.bootstrap_servers, topic)) == ROWS


@pytest.mark.parametrize("aborted", [False, True], ids=["open", "aborted"])
def test_decided_batch_is_finished_after_one_topic_is_deleted(
    kafka: EmbeddedKafka, aborted: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deleted, kept = create_topic(kafka.bootstrap_servers), create_topic(kafka.bootstrap_servers)
    given = settings_for(kafka, kept)
    plan = session.plan(given)
    messages = [
        session.write_task(
            given,
            plan,
            session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task),
            iter([rows_of(topic, task)]),
        )
        for task, topic in enumerate((deleted, kept))
    ]
    die_at("commit.between_ends", given, plan, messages, monkeypatch)
    if aborted:
        abort_by_hand(given, messages[1:])
    delete_topic(kafka.bootstrap_servers, deleted)
    plan = session.plan(given)
    assert [decision.status for decision in plan.decisions] == [DecisionStatus.FINISHED]
    assert f"rows in topic {deleted} are gone" in caplog.text
    assert len(read_committed(kafka.bootstrap_servers, kept)) == ROWS
    assert_nothing_open(kafka.bootstrap_servers, [kept], of=given.write.id)
