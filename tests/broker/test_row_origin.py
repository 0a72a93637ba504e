"""`kafka-eos history --topic T --partition P --offset O` on a real Kafka: which write a row belongs to, or why nobody can know."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest

from dead_writes import ROWS, abort_by_hand, die_at, prepared_by, rows_of, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import at_least_once, session
from kafka_testing import (
    create_topic,
    open_transaction,
    read_committed,
    unique_topic,
)


def settings_of(kafka: EmbeddedKafka, topic: str, **changed: Any) -> session.WriteSettings:
    """A write with a history and a commit log of its own."""
    given = varied(write_settings(kafka, topic), commit_log_topic=unique_topic("log"))
    return replace(given, **{"history_topic": unique_topic("history"), **changed})


def task(given: session.WriteSettings, plan: session.Plan, number: int, partition: int = 0) -> session.TaskMessage:
    """Rows of one task, all in one partition of the topic."""
    rows = replace(rows_of(given.batch.topic or "", number), partition=pa.array([partition] * ROWS, pa.int32()))
    identity = session.TaskIdentity(partition=number, attempt_number=0, task_attempt_id=number)
    return replace(session.write_task(given, plan, identity, iter([rows])), application_id="app-1")


def ask(
    given: session.WriteSettings, offset: int, capsys: pytest.CaptureFixture[str], *more: str, topic: str | None = None
) -> tuple[int, str, str]:
    """Exit status, standard output and error of the command for a row of the first partition."""
    capsys.readouterr()
    host, port = given.client.bootstrap_servers[0]
    row = ["--topic", topic or given.batch.topic or "", "--partition", "0", "--offset", str(offset)]
    status = main(
        ["history", "--bootstrap-servers", f"{host}:{port}", *row, "--history-topic", given.history_topic, *more]
    )
    return status, *capsys.readouterr()


def named(given: session.WriteSettings, offset: int, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    status, out, err = ask(given, offset, capsys, "--json")
    assert status == 0, err
    found: dict[str, Any] = json.loads(out)
    assert found["reason"] is None
    return found | found["record"]


def unnamed(given: session.WriteSettings, offset: int, capsys: pytest.CaptureFixture[str], **more: Any) -> str:
    """The reason, which both forms of the command name."""
    status, out, err = ask(given, offset, capsys, "--json", **more)
    found: dict[str, Any] = json.loads(out)
    assert (status, found["record"]) == (1, None)
    assert err.startswith("kafka-eos: [KAFKA_EOS.UNKNOWN_ROW] no write is known for ")
    assert found["reason"] in err
    assert ask(given, offset, capsys, **more) == (1, "", err)
    return str(found["reason"])


def offsets_of(message: session.TaskMessage) -> range:
    (part,) = (part for prepared in prepared_by([message]) for part in prepared.offsets)
    return range(part.first_offset, part.last_offset + 1)


def test_rows_of_interleaved_writes_name_their_own(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    one = settings_of(any_kafka, topic, user_metadata="ticket 7")
    two = replace(
        varied(write_settings(any_kafka, topic), version=5, commit_log_topic=one.write.log_topic),
        history_topic=one.history_topic,
        user_metadata="ticket 8",
    )
    plans = [session.plan(each) for each in (one, two)]
    # The range of each write holds rows of the other one, so only the producer decides.
    messages = [
        (given, task(given, plan, number)) for number in (0, 1) for given, plan in zip((one, two), plans, strict=True)
    ]
    for given, plan in zip((one, two), plans, strict=True):
        session.commit(given, plan, [message for of, message in messages if of is given])
    for given, message in messages:
        for offset in (offsets_of(message)[0], offsets_of(message)[-1]):
            found = named(one, offset, capsys)
            assert (found["write_id"], found["version"]) == (given.write.id, given.batch.version)
            assert (found["application_id"], found["user_metadata"]) == ("app-1", given.user_metadata)
            assert (found["recovered_by"], found["notes"]) == (None, [])
            assert found["finished_at"].startswith("20")
    status, table, _ = ask(one, offsets_of(messages[0][1])[0], capsys)
    lines = {line[:15].strip(): line[15:].strip() for line in table.splitlines()}
    assert (status, lines["write id"], lines["version"], lines["user metadata"]) == (0, one.write.id, "3", "ticket 7")

    end = max(offsets_of(messages[-1][1])) + 1  # the markers follow
    assert "no row has this offset yet" in unnamed(one, end + 100, capsys)


def test_row_of_a_recovered_batch_names_the_run_that_wrote_it(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings_of(kafka, create_topic(kafka.bootstrap_servers, partitions=1), user_metadata="ticket 7")
    plan = session.plan(given)
    message = task(given, plan, 0)
    die_at("commit.decided", given, plan, [message], monkeypatch)
    abort_by_hand(given, [message])
    assert "its transaction was aborted" in unnamed(given, offsets_of(message)[0], capsys)
    session.plan(given)  # copies the rows
    copies = [record.offset for record in read_committed(kafka.bootstrap_servers, given.batch.topic or "")]
    assert len(copies) == ROWS
    found = named(given, copies[-1], capsys)
    assert (found["version"], found["recovered_by"], found["user_metadata"]) == (3, "the next run", "ticket 7")
    assert "appended the row again" in unnamed(given, offsets_of(message)[0], capsys)


def test_row_of_another_program_is_not_guessed(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1)
    given = settings_of(kafka, topic)
    write_all(given, 1)
    before = read_committed(servers, topic)[-1].offset + 2  # behind the marker
    open_transaction(servers, unique_topic("flink-sink"), topic, partitions=1).commit_transaction(60)
    why = unnamed(given, before, capsys)
    assert why.endswith("or another program wrote it")
    assert f"the history {given.history_topic!r}, which begins at 20" in why

    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": False})
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(60) == 0
    assert "outside a transaction: by another program" in unnamed(given, before + 2, capsys)

    at_least_once.write_rows(given, iter([rows_of(topic, 0)]))
    assert "delivery.guarantee=at-least-once" in unnamed(given, before + 3, capsys)


def test_dead_letter_names_its_write_and_its_reason(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    servers = kafka.bootstrap_servers
    letters = create_topic(servers, partitions=1)
    given = settings_of(kafka, create_topic(servers, partitions=1))
    given = replace(given, producer=replace(given.producer, dead_letter_topic=letters))
    plan = session.plan(given)
    session.commit(given, plan, [task(given, plan, 0, partition=7)])
    status, out, err = ask(given, 0, capsys, "--json", topic=letters)
    assert status == 0, err
    found = json.loads(out)
    assert (found["record"]["write_id"], found["record"]["version"]) == (given.write.id, 3)
    assert any(note.startswith("the row is a dead letter: NO_SUCH_PARTITION") for note in found["notes"])


def test_removed_row_is_not_guessed(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    servers = kafka.bootstrap_servers
    given = settings_of(kafka, create_topic(servers, partitions=1))
    write_all(given, 1)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    for deleted in admin.delete_records([confluent_kafka.TopicPartition(given.batch.topic, 0, 3)]).values():
        deleted.result(30)
    assert "DeleteRecords or compaction has removed the row" in unnamed(given, 2, capsys)
    # DeleteRecords has ended within the batch, which the broker keeps.
    assert named(given, 3, capsys)["write_id"] == given.write.id
