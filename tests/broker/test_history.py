"""The history topic on a real Kafka: what a commit and a recovery leave there, and writes that cannot reach it."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from typing import Any

import confluent_kafka
import pytest

from dead_writes import ROWS, abort_by_hand, die_at, prepared_by, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.batch_record import DEFAULT_HISTORY_TOPIC
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


def topic_exists(kafka: EmbeddedKafka, topic: str) -> bool:
    with connected(kafka.bootstrap_servers) as admin:
        return admin.topic(topic, admin.client.clock() + TIMEOUT_MS) is not None


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


def test_history_shows_the_newest_batches_first(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_eos_sink.runtime.history_reading.WINDOW", 2)
    given = settings_of(kafka)
    for version in (3, 4, 5):
        write_all(varied(given, version=version), 1)
        write_all(replace(settings_of(kafka), history_topic=given.history_topic), 1)  # another write between
    # Records that the sink did not write, also under its key.
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in (b"x", b'{"format": 1}', b"\x1b[31m"):
        producer.produce(given.history_topic, key=given.write.id.encode(), value=value)
    producer.flush(30)
    assert [each["version"] for each in records_of(given, capsys)] == [5, 4, 3]
    assert [each["version"] for each in records_of(given, capsys, "--limit", "2")] == [5, 4]
    table = shown(given, capsys)
    assert "\x1b[31m" not in table
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["5", "4", "3"]


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


@pytest.mark.feature("which run wrote this row")
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


@pytest.mark.feature("which run wrote this row")
def test_abort_records_the_batch_that_it_finishes(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings_of(any_kafka, user_metadata="ticket 7")
    messages = die_decided(given, monkeypatch)
    session.abort(given, messages[0].plan, messages)
    (found,) = records_of(given, capsys)
    assert_whole(found, messages, "abort")
    assert "recovered by abort" in shown(given, capsys)
    assert len(read_committed(any_kafka.bootstrap_servers, given.batch.topic or "")) == 2 * ROWS


@pytest.mark.feature("which run wrote this row")
@pytest.mark.parametrize("command", ["recover", "resolve"])
@pytest.mark.parametrize("is_lost", [False, True], ids=["open", "aborted"])
def test_operator_records_the_batch_that_the_command_finishes(
    kafka: EmbeddedKafka,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    is_lost: bool,
) -> None:
    given = settings_of(kafka, user_metadata="ticket 7")
    write_all(varied(given, version=2), 1)
    messages = die_decided(given, monkeypatch)
    if is_lost:
        abort_by_hand(given, messages)
    more = ["--version", "3", "--as", "committed"] if command == "resolve" else []
    assert operate(given, command, "--history-topic", given.history_topic, *more) == 0, capsys.readouterr().err
    assert operate(given, command, "--history-topic", given.history_topic, *more) == 0  # nothing is left to finish
    capsys.readouterr()
    found, before = records_of(given, capsys)
    assert_whole(found, messages, f"kafka-eos {command}", copied=2 * is_lost)
    assert (before["version"], before["recovered_by"]) == (2, None)


def test_operator_creates_no_history_topic(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings_of(kafka)
    die_decided(given, monkeypatch)
    assert not topic_exists(kafka, given.history_topic)
    assert operate(given, "recover", "--history-topic", given.history_topic) == 0, capsys.readouterr().err
    assert not topic_exists(kafka, given.history_topic)
    assert len(read_committed(kafka.bootstrap_servers, given.batch.topic or "")) == 2 * ROWS


def operate(given: session.WriteSettings, command: str, *more: str) -> int:
    host, port = given.client.bootstrap_servers[0]
    where = ["--bootstrap-servers", f"{host}:{port}", "--write-id", given.write.id]
    return main([command, "--yes", *where, *more])


def test_empty_history_topic_leaves_no_record(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    given = settings_of(kafka, history_topic="")
    write_all(given, 1)
    write_all(varied(given, history_topic=DEFAULT_HISTORY_TOPIC, version=4), 1)
    in_default_topic = records_of(replace(given, history_topic=DEFAULT_HISTORY_TOPIC), capsys)
    assert [record["version"] for record in in_default_topic] == [4]


def test_full_history_record_warns_once_and_commits(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_eos_sink.runtime.history.AGAIN_AFTER_S", 0.0)
    given = settings_of(kafka, user_metadata="x" * 2_000_000)
    for version in (3, 4):
        write_all(varied(given, version=version), 1)
    (warning,) = [record.getMessage() for record in caplog.records if "history" in record.getMessage()]
    assert given.history_topic in warning
    assert len(read_committed(kafka.bootstrap_servers, given.batch.topic or "")) == 2 * ROWS


def test_history_command_without_topic_names_the_option(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--write-id", "w"]
    assert main(["history", *where, "--history-topic", unique_topic("none")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kafka-eos: [KAFKA_EOS.NO_HISTORY]")
    assert "--history-topic" in line
    assert f": kafka-eos topics --bootstrap-servers {kafka.bootstrap_servers} (kafka-eos explain NO_HISTORY)" in line


@pytest.mark.parametrize("as_json", [False, True])
def test_history_of_unknown_write_fails_and_names_the_topic(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    given = settings_of(kafka)
    write_all(given, 1)
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--history-topic", given.history_topic]
    assert main(["history", *where, "--write-id", "other/write", *(["--json"] if as_json else [])]) == 1
    found = capsys.readouterr()
    assert found.out == ("[]\n" if as_json else "")
    (line,) = found.err.splitlines()
    assert line.startswith("kafka-eos: [KAFKA_EOS.NO_HISTORY]")
    assert f"the history {given.history_topic!r} on {kafka.bootstrap_servers} holds no batch of 'other/write'" in line
    assert set(re.findall(r"--[a-z-]+", line)) == {
        "--history-topic",
        "--bootstrap-servers",
    }  # the command takes no --commit-log-topic
    assert f": kafka-eos status --bootstrap-servers {kafka.bootstrap_servers} (kafka-eos explain NO_HISTORY)" in line


def test_history_of_a_prefix_has_batches_of_all_its_writes(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    first = settings_of(kafka)
    prefix = first.write.id.removesuffix("/" + (first.batch.topic or ""))
    second, stranger = (varied(first, write_id=each) for each in (f"{prefix}/second", f"x{prefix}"))
    for given in (first, second, stranger, varied(first, version=4)):
        write_all(given, 1)
    where = ["history", "--bootstrap-servers", kafka.bootstrap_servers, "--history-topic", first.history_topic]
    assert main([*where, "--prefix", prefix, "--json"]) == 0
    found = [(each["write_id"], each["version"]) for each in json.loads(capsys.readouterr().out)]
    assert found == [(first.write.id, 4), (second.write.id, 3), (first.write.id, 3)]
    assert main([*where, "--prefix", prefix, "--limit", "2"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith("write id")
    assert [line.split()[:2] for line in table[1:]] == [[first.write.id, "4"], [second.write.id, "3"]]
    assert main([*where, "--prefix", f"{prefix}/third"]) == 1
    assert "[KAFKA_EOS.NO_HISTORY]" in capsys.readouterr().err
    for wrong in ([], ["--prefix", prefix, "--write-id", first.write.id]):
        assert main([*where, *wrong]) == 2
        assert "give one of these" in capsys.readouterr().err
