"""`kafka-eos forget` against a real Kafka: what it removes, what it refuses, and what the next write finds."""

from __future__ import annotations

import json

import pytest

from dead_writes import ROWS, die_at, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.commit.log_access import commit_in_transaction
from kafka_eos_sink.commit.log_records import done_record, parse_key
from kafka_eos_sink.commit.steps import LogRecord, Procedure
from kafka_eos_sink.commit.values import TaskOutcome
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.runtime import session
from kafka_testing import assert_nothing_open, create_topic, read_committed, unique_topic
from terminals import on_terminal


def new_write(kafka: EmbeddedKafka) -> session.WriteSettings:
    """Of a write with a commit log of its own."""
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers))
    return varied(given, commit_log_topic=unique_topic("ledger"))


def options(kafka: EmbeddedKafka, given: session.WriteSettings) -> list[str]:
    named = ["--commit-log-topic", given.write.log_topic, "--write-id", given.write.id]
    return ["--bootstrap-servers", kafka.bootstrap_servers, *named]


def states(kafka: EmbeddedKafka, given: session.WriteSettings, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    # A forgotten id has no decision. It is known, also to recover, until compaction removes the barriers of its runs.
    assert main(["status", *options(kafka, given), "--json"]) == 0
    return [each["state"] for each in json.loads(capsys.readouterr().out)["writes"]]


def kept_keys(kafka: EmbeddedKafka, given: session.WriteSettings) -> set[str]:
    """Kinds of the records of the write that compaction would keep, read by another client."""
    newest = {record.key: record.value for record in read_committed(kafka.bootstrap_servers, given.write.log_topic)}
    keys = [parse_key(key) for key, value in newest.items() if key is not None and value is not None]
    return {key.kind for key in keys if key is not None and key.write_id == given.write.id}


def test_forgotten_write_leaves_only_its_barrier_and_can_begin(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = any_kafka.bootstrap_servers
    given = new_write(any_kafka)
    topic = given.batch.topic or ""
    other = varied(given, write_id=f"{given.write.id}.v2")
    write_all(other, 1)
    write_all(given, 3)
    write_all(varied(given, version=4), 1)  # fewer tasks: the parts of version 3 stay in the log
    assert kept_keys(any_kafka, given) == {"barrier", "decision", "done", "part"}
    assert main(["forget", "--yes", *options(any_kafka, given)]) == 0, capsys.readouterr().err
    # A decision, a done record and three parts.
    assert f"The commit log forgets {given.write.id}: it wrote 5 tombstones." in capsys.readouterr().out
    assert kept_keys(any_kafka, given) == {"barrier"}
    assert states(any_kafka, given, capsys) == []
    assert states(any_kafka, other, capsys) == ["finished"]
    assert_nothing_open(servers, [topic, given.write.log_topic])

    assert {message.outcome for message in write_all(given)} == {TaskOutcome.PREPARED}
    assert {message.outcome for message in write_all(given)} == {TaskOutcome.ALREADY_COMMITTED}
    assert states(any_kafka, given, capsys) == ["finished"]
    assert len(read_committed(servers, topic)) == (1 + 3 + 1 + 2) * ROWS
    assert_nothing_open(servers, [topic, given.write.log_topic])
    assert main(["forget", "--yes", *options(any_kafka, given)]) == 0, capsys.readouterr().err
    assert kept_keys(any_kafka, given) == {"barrier"}


def test_forget_rejects_open_transactions_without_fencing(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    given = new_write(any_kafka)
    plan = session.plan(given)
    messages = tasks(given, plan)
    for consent in ([], ["--yes"]):
        assert main(["forget", *consent, *options(any_kafka, given)]) == 1
        errors = capsys.readouterr().err
        assert "[KAFKA_EOS.WRITE_NOT_ENDED]" in errors
        assert "it has 2 open transactions (first: " in errors
        assert "version 3 of query id 'batch' has 2 prepared transactions without an outcome" in errors
        assert f"kafka-eos recover {given.client.command_options} --commit-log-topic {given.write.log_topic}" in errors
    session.commit(given, plan, messages)
    assert len(read_committed(any_kafka.bootstrap_servers, given.batch.topic or "")) == 2 * ROWS
    assert states(any_kafka, given, capsys) == ["finished"]


def test_forget_needs_consent(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    given = new_write(kafka)
    write_all(given)
    assert main(["forget", *options(kafka, given)]) == 1
    captured = capsys.readouterr()
    assert "finished" in captured.out
    assert f"forget would fence every job or query that runs under {given.write.id}" in captured.out
    assert "Nothing was changed" in captured.err
    status, shown = on_terminal(["forget", *options(kafka, given)], "n")
    assert (status, states(kafka, given, capsys)) == (1, ["finished"]), shown
    status, shown = on_terminal(["forget", *options(kafka, given)], "y")
    assert (status, states(kafka, given, capsys)) == (0, []), shown


def test_newer_driver_fences_forget_and_its_tombstones(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = new_write(any_kafka)
    write_all(given)
    later = varied(given, version=4)
    plans = []

    def append_late(driver: ProducerIdentity, records: tuple[LogRecord, ...], first: int) -> Procedure[int | None]:
        plans.append(session.plan(later))
        return (yield from commit_in_transaction(driver, records, first))

    with monkeypatch.context() as patched:
        patched.setattr("kafka_eos_sink.commit.forget.commit_in_transaction", append_late)
        assert main(["forget", "--yes", *options(any_kafka, given)]) == 1
    assert "[KAFKA_EOS.NOT_FORGOTTEN]" in capsys.readouterr().err
    assert kept_keys(any_kafka, given) == {"barrier", "decision", "done", "part"}
    (plan,) = plans
    session.commit(later, plan, tasks(later, plan))
    assert len(read_committed(any_kafka.bootstrap_servers, given.batch.topic or "")) == 4 * ROWS
    assert states(any_kafka, given, capsys) == ["finished"]


def test_old_writes_of_a_prefix_are_forgotten_and_others_left(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = new_write(any_kafka)
    prefix = old.write.id
    another, young, dead, stranger = (
        varied(old, write_id=each) for each in (f"{prefix}.b", f"{prefix}.c", f"{prefix}.d", f"x{prefix}")
    )
    age_ms = 91 * 24 * 3_600_000
    with monkeypatch.context() as patched:
        patched.setattr(
            "kafka_eos_sink.commit.log_access.done_record",
            lambda decision, finished_ms: done_record(decision, finished_ms - age_ms),
        )
        for each in (old, another, stranger):
            write_all(each, 1)
    write_all(young, 1)
    plan = session.plan(dead)
    die_at("commit.decided", dead, plan, tasks(dead, plan, 1), monkeypatch)
    where = ["--bootstrap-servers", any_kafka.bootstrap_servers, "--commit-log-topic", old.write.log_topic]
    command = ["forget", *where, "--prefix", prefix, "--older-than", "90d"]
    assert main(command) == 1
    captured = capsys.readouterr()
    assert "one of these 2 write ids" in captured.out
    left = {line.split()[0]: line for line in captured.out.partition("\nwrite id")[0].splitlines() if line}
    assert left.keys() == {"not", dead.write.id, young.write.id}
    assert left[dead.write.id].endswith(" a transaction is open")
    assert " finished at " in left[young.write.id]
    assert "Nothing was changed" in captured.err
    assert states(any_kafka, old, capsys) == ["finished"]
    status, shown = on_terminal(command, "y")
    assert status == 0, shown
    assert "forgets 2 write ids" in shown
    for given, wanted in (
        (old, []),
        (another, []),
        (young, ["finished"]),
        (dead, ["decided"]),
        (stranger, ["finished"]),
    ):
        assert states(any_kafka, given, capsys) == wanted
    assert main([*command, "--yes"]) == 0
    assert "Nothing to forget" in capsys.readouterr().out
    assert {message.outcome for message in write_all(old, 1)} == {TaskOutcome.PREPARED}
    assert main(["recover", "--yes", *options(any_kafka, dead)]) == 0
    assert_nothing_open(any_kafka.bootstrap_servers, of=prefix)
