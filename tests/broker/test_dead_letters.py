"""Dead letters are counted on their way from the task to the operator, by the run that finishes their batch."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dead_writes import ROWS, abort_by_hand, die_at, rows_of, varied, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import session
from kafka_testing import create_topic, read_committed, unique_topic

TASKS = 2
LETTERS = {"NO_SUCH_PARTITION": 2 * TASKS, "RECORD_REFUSED": TASKS}
"""Of each task: two rows that the client rejects, and one that the broker does."""


def settings_of(kafka: EmbeddedKafka) -> session.WriteSettings:
    """A write with commit log and history of its own, to a topic that accepts no row from 2017."""
    configs = {"message.timestamp.before.max.ms": "3600000"}
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers, partitions=2, configs=configs))
    producer = replace(given.producer, dead_letter_topic=create_topic(kafka.bootstrap_servers, partitions=1))
    topics = {"commit_log_topic": unique_topic("ledger"), "history_topic": unique_topic("history")}
    return varied(given, producer=producer, **topics)


def rows_with_bad_ones(topic: str, task: int) -> Any:
    rows = rows_of(topic, task)
    timestamp = pa.array([1_500_000_000_000, *[None] * (ROWS - 1)], pa.int64())
    partition = pa.array([None] * (ROWS - 2) + [7, 9], pa.int32())
    return replace(rows, partition=partition, columns=replace(rows.columns, timestamp=timestamp))


def tasks(given: session.WriteSettings, plan: session.Plan) -> list[session.TaskMessage]:
    return [
        session.write_task(
            given,
            plan,
            session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task),
            iter([rows_with_bad_ones(given.batch.topic or "", task)]),
        )
        for task in range(TASKS)
    ]


def shown(given: session.WriteSettings, capsys: pytest.CaptureFixture[str], command: str) -> Any:
    servers = given.client.bootstrap_servers_text
    of_log = ["--commit-log-topic", given.write.log_topic] if command == "status" else []
    where = ["--bootstrap-servers", servers, "--write-id", given.write.id, "--history-topic", given.history_topic]
    assert main([command, *where, *of_log, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_run_that_finishes_a_batch_counts_its_dead_letters(
    any_kafka: EmbeddedKafka,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The transactions are copied, too. Mutation: the counts are those of the run that finishes, or of a repeat."""
    given = settings_of(any_kafka)
    plan = session.plan(given)
    messages = tasks(given, plan)
    die_at("commit.decided", given, plan, messages, monkeypatch)
    abort_by_hand(given, messages)
    for _ in range(2):
        session.plan(given)
    dead = given.producer.dead_letter_topic
    assert len(read_committed(any_kafka.bootstrap_servers, dead or "")) == 6
    assert len(read_committed(any_kafka.bootstrap_servers, given.batch.topic or "")) == TASKS * ROWS - 6
    warned = [record for record in caplog.records if "went to the dead letter topic" in record.getMessage()]
    assert [record.levelno for record in warned] == [logging.WARNING]
    counts = [{"topic": dead, "code": code, "rows": rows} for code, rows in LETTERS.items()]
    (record,) = shown(given, capsys, "history")
    (audit,) = shown(given, capsys, "audit")
    (write,) = shown(given, capsys, "status")["writes"]
    assert audit["result"] == "complete"
    for found in (record, audit, write):
        assert (found.get("rows", found.get("expected")), found["dead_letters"]) == (TASKS * ROWS, counts)
