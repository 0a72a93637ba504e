"""A data topic that somebody deletes under a write: before its decision nothing happens, after it the rows are gone and that is said.

It is said after max.block.ms, as for every topic that the cluster does not know.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from dead_writes import ROWS, die_at, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import DecisionPendingError, TransactionAbortedError
from kafka_eos_sink.operations import operator
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.runtime import session
from kafka_testing import assert_nothing_open, create_topic, delete_topic, read_committed

MAX_BLOCK_MS = 1_000
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
    # Also the operator waits for a moment only.
    monkeypatch.setattr(operator, "ProducerConfig", partial(ProducerConfig, max_block_ms=MAX_BLOCK_MS))
    if lose is delete_topic:
        create_topic(kafka.bootstrap_servers, topic)
    resolved(kafka, given, "rewrite", "--allow-duplicates")
    plan = session.plan(given)
    session.commit(given, plan, tasks(of_topic(given, topic), plan))
    assert len({record.value for record in read_committed(kafka.bootstrap_servers, topic)}) == 2 * ROWS
    assert len(read_committed(kafka.bootstrap_servers, topic)) == 2 * ROWS
    assert_nothing_open(kafka.bootstrap_servers)


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
