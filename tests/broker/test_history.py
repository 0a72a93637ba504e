"""The history topic on a real Kafka: what a commit and a recovery leave there, and writes that cannot reach it."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from dead_writes import ROWS, abort_by_hand, die_at, prepared_by, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import session
from kafka_testing import create_topic, read_committed, unique_topic

TIMEOUT_MS = 30_000


def settings_of(kafka: EmbeddedKafka, **changed: Any) -> session.WriteSettings:
    """A write with a history of its own."""
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers, partitions=2))
    return replace(given, **{"history_topic": unique_topic("history"), **changed})


def shown(given: session.WriteSettings, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    host, port = given.client.bootstrap_servers[0]
    where = ["--bootstrap-servers", f"{host}:{port}", "--write-id", given.write.id]
    assert main(["history", *where, "--history-topic", given.history_topic, *more]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def records_of(given: session.WriteSettings, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shown(given, capsys, "--json", *more))
    return found


def test_commit_leaves_a_line_and_a_record(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    given = settings_of(any_kafka, user_metadata="ticket 7")
    with caplog.at_level(logging.INFO, "kafka_eos_sink"):
        write_all(given, 3)
    (line,) = [record for record in caplog.records if "written version 3" in record.getMessage()]
    assert (line.__dict__["rows"], line.__dict__["transactions"]) == (3 * ROWS, 3)

    (found,) = records_of(given, capsys)
    assert (found["version"], found["rows"], found["transactions"]) == (3, 3 * ROWS, 3)
    assert (found["format"], found["user_metadata"], found["recovered_by"]) == (1, "ticket 7", None)
    assert (found["transactions_copied"], found["attempts_aborted"]) == (0, 0)
    assert found["written_bytes"] > 3 * ROWS
    assert 0 < found["headroom_ms"] < 900_000
    assert all(found[f"{phase}_ms"] >= 0 for phase in ("plan", "write", "check", "decide", "end", "verify"))
    assert found["plan_ms"] > 0
    read = read_committed(any_kafka.bootstrap_servers, given.batch.topic or "")
    for part in found["offsets"]:
        offsets = [record.offset for record in read if record.partition == part["partition"]]
        assert (part["topic"], part["first_offset"], part["last_offset"]) == (
            given.batch.topic,
            min(offsets),
            max(offsets),
        )


def test_history_topic_is_created_with_retention(kafka: EmbeddedKafka) -> None:
    given = settings_of(kafka)
    write_all(given, 1)
    with connected(kafka.bootstrap_servers) as admin:
        deadline = admin.client.clock() + TIMEOUT_MS
        names = ("cleanup.policy", "retention.ms")
        configs = admin.describe_configs("topic", given.history_topic, names, deadline)
    assert configs == {"cleanup.policy": "delete", "retention.ms": str(30 * 24 * 3_600_000)}


def die_decided(given: session.WriteSettings, monkeypatch: pytest.MonkeyPatch) -> list[session.TaskMessage]:
    """Write with 2 tasks in an application of its own; the driver dies behind its decision."""
    plan = session.plan(given)
    messages = [replace(each, application_id="app-1") for each in tasks(given, plan, 2)]
    die_at("commit.decided", given, plan, messages, monkeypatch)
    return messages


def assert_whole(found: dict[str, Any], messages: list[session.TaskMessage], by: str, copied: int = 0) -> None:
    """The record has what the run that wrote the batch knew, although another one has finished it."""
    assert (found["recovered_by"], found["transactions_copied"]) == (by, copied)
    assert (found["application_id"], found["user_metadata"]) == ("app-1", "ticket 7")
    assert (found["rows"], found["transactions"]) == (2 * ROWS, 2)
    sizes = [prepared.written_bytes or 0 for prepared in prepared_by(messages)]
    # A copy has the same rows in batches of its own.
    assert found["written_bytes"] > 0 if copied else found["written_bytes"] == sum(sizes) > 0


def test_next_run_records_the_batch_that_it_recovers(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings_of(any_kafka, user_metadata="ticket 7")
    messages = die_decided(given, monkeypatch)
    abort_by_hand(given, messages)
    # It skips, because its plan recovers the version. What it knows of itself is not the batch's.
    write_all(replace(given, user_metadata="ticket 8"), 2)
    (found,) = records_of(given, capsys)
    assert_whole(found, messages, "the next run", copied=2)
    read = read_committed(any_kafka.bootstrap_servers, given.batch.topic or "")
    assert {part["last_offset"] for part in found["offsets"]} <= {record.offset for record in read}
    assert "2 transactions copied" in shown(given, capsys)


@pytest.mark.parametrize("command", ["recover", "resolve"])
def test_operator_records_the_batch_that_the_command_finishes(
    kafka: EmbeddedKafka,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    given = settings_of(kafka, user_metadata="ticket 7")
    write_all(varied(given, version=2), 1)
    messages = die_decided(given, monkeypatch)
    abort_by_hand(given, messages)
    more = ["--version", "3", "--as", "committed"] if command == "resolve" else []
    assert operate(given, command, "--history-topic", given.history_topic, *more) == 0, capsys.readouterr().err
    assert operate(given, command, "--history-topic", given.history_topic, *more) == 0  # nothing is left to finish
    capsys.readouterr()
    found, before = records_of(given, capsys)
    assert_whole(found, messages, f"kafka-eos {command}", copied=2)
    assert (before["version"], before["recovered_by"]) == (2, None)


def operate(given: session.WriteSettings, command: str, *more: str) -> int:
    host, port = given.client.bootstrap_servers[0]
    where = ["--bootstrap-servers", f"{host}:{port}", "--write-id", given.write.id]
    return main([command, "--yes", *where, *more])
