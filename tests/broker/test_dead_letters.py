"""Dead letters are counted on their way from the task to the operator: warning, history, audit, status and metrics."""

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


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [text for text in found if "dead letter topic" in text]


def assert_one_warning(caplog: pytest.LogCaptureFixture, given: session.WriteSettings, of: str) -> None:
    (text,) = warnings(caplog)
    dead = given.producer.dead_letter_topic
    assert text == (
        f"kafka-eos: 6 of {TASKS * ROWS} rows of {of} went to the dead letter topic {dead}: NO_SUCH_PARTITION 4, RECORD_REFUSED 2. To "
        f"see them, with the reason of each: kafka-eos consume {given.client.command_options} --topic {dead} --from-beginning --json"
    )


def shown(given: session.WriteSettings, capsys: pytest.CaptureFixture[str], command: str, *more: str) -> str:
    servers = given.client.bootstrap_servers_text
    of_log = ["--commit-log-topic", given.write.log_topic] if command == "status" else []
    where = ["--bootstrap-servers", servers, "--write-id", given.write.id, "--history-topic", given.history_topic]
    assert main([command, *where, *of_log, *more]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def assert_counted(given: session.WriteSettings, capsys: pytest.CaptureFixture[str]) -> None:
    dead = given.producer.dead_letter_topic
    counts = [{"topic": dead, "code": code, "rows": rows} for code, rows in LETTERS.items()]
    (record,) = json.loads(shown(given, capsys, "history", "--json"))
    assert (record["rows"], record["dead_letters"]) == (TASKS * ROWS, counts)
    assert "dead letters: NO_SUCH_PARTITION 4" in shown(given, capsys, "history")
    (audit,) = json.loads(shown(given, capsys, "audit", "--json"))
    assert (audit["expected"], audit["found"], audit["result"]) == (TASKS * ROWS, TASKS * ROWS, "complete")
    assert audit["dead_letters"] == counts
    assert "6 of these rows are dead letters:" in shown(given, capsys, "audit")
    (write,) = json.loads(shown(given, capsys, "status", "--json"))["writes"]
    assert (write["rows"], write["dead_letters"]) == (TASKS * ROWS, counts)
    lines = shown(given, capsys, "status").splitlines()
    heading, line = lines[next(at for at, each in enumerate(lines) if each.startswith("write id")) :][:2]
    assert "dead letters" in heading
    assert line[heading.index("dead letters") :][: len("dead letters")].strip() == "6"


def test_dead_letters_are_counted_for_the_operator(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    given = settings_of(any_kafka)
    plan = session.plan(given)
    session.commit(given, plan, tasks(given, plan))
    assert len(read_committed(any_kafka.bootstrap_servers, given.producer.dead_letter_topic or "")) == 6
    assert len(read_committed(any_kafka.bootstrap_servers, given.batch.topic or "")) == TASKS * ROWS - 6
    assert_one_warning(caplog, given, f"version 3 of write id {given.write.id!r}")
    assert_counted(given, capsys)
    # A repeat writes nothing and counts nothing.
    caplog.clear()
    plan = session.plan(given)
    session.commit(given, plan, tasks(given, plan))
    assert warnings(caplog) == []


def test_run_that_finishes_a_batch_counts_its_dead_letters(
    kafka: EmbeddedKafka,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = settings_of(kafka)
    plan = session.plan(given)
    messages = tasks(given, plan)
    die_at("commit.decided", given, plan, messages, monkeypatch)
    abort_by_hand(given, messages)
    assert warnings(caplog) == []
    session.plan(given)
    assert_one_warning(caplog, given, f"version 3 of write id {given.write.id!r}")
    assert_counted(given, capsys)
