"""`kafka-eos recover` against a real Kafka, on writes whose driver died at every point that matters."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from dead_writes import ROWS, die_at, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.commit.transactional_id import random_write_id
from kafka_eos_sink.commit.values import DEFAULT_TOPIC
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import FencedError, WriteRefusedError
from kafka_eos_sink.runtime import session
from kafka_testing import assert_nothing_open, create_topic, delete_topic, read_committed, unique_topic


def recovered(kafka: EmbeddedKafka, write_id: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    arguments = ["recover", "--yes", "--bootstrap-servers", kafka.bootstrap_servers, "--write-id", write_id, "--json"]
    assert main(arguments) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_recover_aborts_undecided_write_and_fences_its_driver(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    given = write_settings(kafka, topic)
    write_all(given)
    later = write_settings(kafka, topic, write_id=given.write.id, version=4)
    plan = session.plan(later)
    messages = tasks(later, plan)
    assert main(["recover", "--yes", "--bootstrap-servers", kafka.bootstrap_servers, "--write-id", given.write.id]) == 0
    shown = capsys.readouterr().out
    for message in messages:
        assert message.prepared is not None
        assert f"{message.prepared.identity.transactional_id}  abort" in shown
    assert len(read_committed(kafka.bootstrap_servers, topic)) == 2 * ROWS
    assert_nothing_open(kafka.bootstrap_servers, [topic])
    fresh = tasks(later, plan)
    with pytest.raises(FencedError):
        session.commit(later, plan, fresh)
    recovered(kafka, given.write.id, capsys)
    assert_nothing_open(kafka.bootstrap_servers, [topic])


def test_recover_names_each_version_that_it_aborts(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two query ids: one never decided, the other with an older decision and a dead attempt of it."""
    servers = any_kafka.bootstrap_servers
    given = varied(write_settings(any_kafka, create_topic(servers)), query_id="first", version=7)
    write_all(given)
    where = ["recover", "--yes", "--bootstrap-servers", servers, "--write-id", given.write.id]
    tasks(varied(given, version=8), session.plan(given))
    assert main(where) == 0
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert [line[:3] for line in lines if line[:1] == ["first"]] == [
        ["first", "7", "finished"],
        ["first", "8", "aborted"],
    ]
    plan = session.plan(given)
    for version, query_id in ((8, "first"), (0, "second")):
        tasks(varied(given, version=version, query_id=query_id), plan)
    found = recovered(any_kafka, given.write.id, capsys)
    shown = [(each["query_id"], each["version"], each["state"]) for each in found["versions"]]
    assert shown == [("first", 7, "finished"), ("first", 8, "aborted"), ("second", 0, "aborted")]
    assert len(recovered(any_kafka, given.write.id, capsys)["versions"]) == 1
    assert_nothing_open(servers, [given.batch.topic or ""])


@pytest.mark.parametrize("txn_app_id", ["given", "none"])
def test_another_commit_log_than_the_writes_own_ends_nothing(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, txn_app_id: str
) -> None:
    """The default log is there, and knows nothing of a write that has decided in its own."""
    servers = kafka.bootstrap_servers
    topic = create_topic(servers)
    write_all(write_settings(kafka, create_topic(servers)), 1)
    given = varied(write_settings(kafka, topic), commit_log_topic=unique_topic("ledger"))
    if txn_app_id == "none":
        given = varied(given, write_id=random_write_id(None, str(uuid.uuid4())))
    where = ["--bootstrap-servers", servers, "--write-id", given.write.id]
    assert main(["recover", "--yes", *where]) == 1  # nor does it leave anything behind while nothing is open
    assert "[KAFKA_EOS.UNKNOWN_WRITE_ID]" in capsys.readouterr().err
    plan = session.plan(given)
    messages = tasks(given, plan)
    die_at("commit.decided", given, plan, messages, monkeypatch)
    for command in (
        ["recover", "--yes"],
        ["recover", "--yes", "--discard"],
        ["resolve", "--yes", "--version", "3", "--as", "committed", "--query-id", "batch"],
    ):
        for _ in range(2):  # the first try leaves nothing behind that the second could take for the write's own
            assert main([*command, *where]) == 1
            assert (
                f"[KAFKA_EOS.NOT_THIS_COMMIT_LOG] write id {given.write.id!r} has open transactions"
                in capsys.readouterr().err
            )
    if txn_app_id == "given":
        with pytest.raises(WriteRefusedError, match="NOT_THIS_COMMIT_LOG"):
            session.plan(varied(given, commit_log_topic=DEFAULT_TOPIC))  # the same job, started without its option
    assert main(["recover", "--yes", *where, "--commit-log-topic", given.write.log_topic]) == 0
    assert len(read_committed(servers, topic)) == 2 * ROWS
    assert_nothing_open(servers, [topic])


def test_abort_unknown_ends_transactions_of_a_lost_commit_log(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = kafka.bootstrap_servers
    topic = create_topic(servers)
    write_all(write_settings(kafka, create_topic(servers)), 1)
    given = varied(write_settings(kafka, topic), commit_log_topic=unique_topic("ledger"))
    tasks(given, session.plan(given))
    where = ["--bootstrap-servers", servers, "--write-id", given.write.id]
    assert main(["recover", "--yes", *where, "--abort-unknown"]) == 0
    assert "The commit log holds no decision of" in capsys.readouterr().out
    assert_nothing_open(servers, [topic])


@pytest.mark.parametrize("is_cleaned", [False, True], ids=["tombstones", "nothing left"])
def test_finished_write_without_txn_app_id_is_not_declared_invisible(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], is_cleaned: bool
) -> None:
    """Its driver has written tombstones for its records; once the cleaner has run, the log looks as if it had never begun."""
    servers = kafka.bootstrap_servers
    topic, log = create_topic(servers), unique_topic("ledger")
    given = varied(
        write_settings(kafka, topic), write_id=random_write_id(None, str(uuid.uuid4())), commit_log_topic=log
    )
    write_all(given)
    if is_cleaned:
        delete_topic(servers, log)
        write_all(varied(write_settings(kafka, topic), commit_log_topic=log), 1)
    where = ["--bootstrap-servers", servers, "--commit-log-topic", log, "--write-id", given.write.id]
    for command in (
        ["recover", "--yes"],
        ["resolve", "--yes", "--version", "0", "--as", "rewrite"],
        ["resolve", "--yes", "--version", "0", "--as", "rewrite", "--query-id", "batch"],
        ["status"],
    ):
        main([*command, *where])
        text = "".join(capsys.readouterr())
        assert ("[KAFKA_EOS.UNKNOWN_WRITE_ID]" in text) is is_cleaned
        for claim in ("Rows visible", "Safe to run again", "its next run writes", "Run the job again"):
            assert claim not in text


def test_nothing_to_recover_and_no_commit_log(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    write_all(write_settings(kafka, create_topic(kafka.bootstrap_servers)), 1)  # so that there is a commit log
    where = ["--bootstrap-servers", kafka.bootstrap_servers]
    assert main(["recover", "--yes", *where, "--write-id", unique_topic("nobody")]) == 1
    assert (
        "[KAFKA_EOS.UNKNOWN_WRITE_ID] the commit log '__kafka_eos_commits' holds nothing of" in capsys.readouterr().err
    )
    missing = unique_topic("log")
    assert main(["recover", "--yes", *where, "--write-id", "w", "--commit-log-topic", missing]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kafka-eos: [KAFKA_EOS.NO_COMMIT_LOG]")
    data = create_topic(kafka.bootstrap_servers, partitions=16)
    assert main(["recover", "--yes", *where, "--write-id", "w", "--commit-log-topic", data]) == 1
    assert "[KAFKA_EOS.COMMIT_LOG_TOPIC]" in capsys.readouterr().err
    assert read_committed(kafka.bootstrap_servers, data) == []
    assert main(["recover", "--yes", *where]) == 2
