"""`kafka-eos audit` on a real Kafka: what it counts, what it does not count, and what nobody can read any more."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest

from dead_writes import ROWS, prepared_by, rows_of, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.protocol.record_batch import MAX_DECOMPRESSED_BYTES
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.history_reading import read_history
from kafka_testing import (
    await_markers,
    change_config,
    create_topic,
    delete_topic,
    open_transaction,
    read_committed,
    unique_topic,
    wait_until,
)

TIMEOUT_MS = 30_000


def settings_of(kafka: EmbeddedKafka, partitions: int = 2) -> session.WriteSettings:
    """A write with a history of its own."""
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers, partitions=partitions))
    return replace(given, history_topic=unique_topic("history"))


def audited(
    given: session.WriteSettings, capsys: pytest.CaptureFixture[str], *more: str, status: int = 0
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shown(given, capsys, "--json", *more, status=status)[0])
    return found


def shown(
    given: session.WriteSettings, capsys: pytest.CaptureFixture[str], *more: str, status: int = 0
) -> tuple[str, str]:
    """Standard output and error."""
    host, port = given.client.bootstrap_servers[0]
    where = ["--bootstrap-servers", f"{host}:{port}", "--write-id", given.write.id]
    ended = main(["audit", *where, "--history-topic", given.history_topic, *more])
    printed = capsys.readouterr()
    assert ended == status, printed.err
    return printed.out, printed.err


def figures(found: dict[str, Any]) -> tuple[int, int, int, int, str]:
    return found["expected"], found["found"], found["missing"], found["not_readable"], found["result"]


def claim(given: session.WriteSettings, **changed: Any) -> None:
    """Append a changed copy of the newest record to the history."""
    with connected(given.client) as admin:
        (newest,) = read_history(admin, given.history_topic, given.write.id, limit=1, timeout_ms=TIMEOUT_MS)
    host, port = given.client.bootstrap_servers[0]
    producer = confluent_kafka.Producer({"bootstrap.servers": f"{host}:{port}"})
    changed_record = replace(newest, finished_ms=newest.finished_ms + 1, **changed)
    producer.produce(given.history_topic, key=given.write.id.encode(), value=changed_record.encoded())
    assert producer.flush(60) == 0


def attempt(
    given: session.WriteSettings, plan: session.Plan, task: int, attempt_number: int = 0, *, partitions: int = 1
) -> session.TaskMessage:
    """A task's rows, spread over the first partitions."""
    identity = session.TaskIdentity(
        partition=task, attempt_number=attempt_number, task_attempt_id=10 * attempt_number + task
    )
    where = pa.array([row % partitions for row in range(ROWS)], pa.int32())
    return session.write_task(
        given, plan, identity, iter([replace(rows_of(given.batch.topic or "", task), partition=where)])
    )


def write_beside(kafka: EmbeddedKafka, topic: str, *, commit: bool) -> None:
    """A row of another program."""
    producer = open_transaction(kafka.bootstrap_servers, unique_topic("beside"), topic, partitions=1)
    (producer.commit_transaction if commit else producer.abort_transaction)(60)


def delete_before(kafka: EmbeddedKafka, topic: str, offset: int) -> None:
    """Delete the records of the first partition, as retention does."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for deleted in admin.delete_records([confluent_kafka.TopicPartition(topic, 0, offset)]).values():
        deleted.result(30)


def test_finished_batch_is_complete(any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    given = settings_of(any_kafka)
    for version in (3, 4, 5):
        one = varied(given, version=version)
        plan = session.plan(one)
        session.commit(one, plan, [attempt(one, plan, task, partitions=2) for task in range(3)])
    (found,) = audited(given, capsys)
    assert (found["version"], *figures(found)) == (5, 3 * ROWS, 3 * ROWS, 0, 0, "complete")
    (older,) = audited(given, capsys, "--version", "3")
    assert (older["version"], *figures(older)) == (3, 3 * ROWS, 3 * ROWS, 0, 0, "complete")
    both = audited(given, capsys, "--limit", "2")
    assert [each["version"] for each in both] == [5, 4]

    # Per partition, against another consumer: the batches follow one another, so a range holds rows of one batch only.
    read = read_committed(any_kafka.bootstrap_servers, given.batch.topic or "")
    rows = Counter(
        (part["partition"], each["version"])
        for each in (*both, older)
        for part in each["partitions"]
        for record in read
        if record.partition == part["partition"] and part["first_offset"] <= record.offset <= part["last_offset"]
    )
    assert rows == {
        (part["partition"], each["version"]): part["found"] for each in (*both, older) for part in each["partitions"]
    }

    assert len(rows) == 6  # two partitions of three batches

    table, _ = shown(given, capsys)
    assert "complete" in table
    assert all(f"{given.batch.topic}-{partition}" in table for partition in (0, 1))


def test_rows_of_others_between_do_not_count(any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    given = settings_of(any_kafka, partitions=1)
    plan = session.plan(given)
    topic = given.batch.topic or ""
    first = attempt(given, plan, 0)
    write_beside(any_kafka, topic, commit=True)
    # The driver aborts the attempt that lost. Its rows stay in the log.
    attempt(given, plan, 0, 1)
    write_beside(any_kafka, topic, commit=False)
    session.commit(given, plan, [first, attempt(given, plan, 1)])
    await_markers(any_kafka.bootstrap_servers)
    (found,) = audited(given, capsys)
    assert figures(found) == (2 * ROWS, 2 * ROWS, 0, 0, "complete")
    (part,) = found["partitions"]
    offsets = range(part["first_offset"], part["last_offset"] + 1)
    visible = [record for record in read_committed(any_kafka.bootstrap_servers, topic) if record.offset in offsets]
    assert len(visible) == 2 * ROWS + 1
    # The rows of the lost attempt lie between, too.
    assert len(offsets) > 3 * ROWS


def test_unreadable_rows_of_others_between_do_not_count(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any program with Write on the topic could make every audit of it fail."""
    given = settings_of(any_kafka, partitions=1)
    plan = session.plan(given)
    first = attempt(given, plan, 0)
    settings = {"bootstrap.servers": any_kafka.bootstrap_servers, "compression.type": "zstd"}
    bomb = confluent_kafka.Producer({**settings, "message.max.bytes": 100_000_000})
    bomb.produce(given.batch.topic or "", bytes(MAX_DECOMPRESSED_BYTES))
    assert bomb.flush(60) == 0
    session.commit(given, plan, [first, attempt(given, plan, 1)])
    (found,) = audited(given, capsys)
    assert figures(found) == (2 * ROWS, 2 * ROWS, 0, 0, "complete")
    (part,) = found["partitions"]
    assert part["last_offset"] - part["first_offset"] >= 2 * ROWS


def test_deleted_records_are_not_readable(any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    given = settings_of(any_kafka, partitions=1)
    plan = session.plan(given)
    first = attempt(given, plan, 0)
    session.commit(given, plan, [first, attempt(given, plan, 1)])
    # Within a batch: a Fetch returns it whole all the same.
    ((written,),) = [prepared.offsets for prepared in prepared_by([first])]
    delete_before(any_kafka, written.topic, written.first_offset + 3)
    (found,) = audited(given, capsys)
    assert figures(found) == (2 * ROWS, 2 * ROWS - 3, 0, 3, "not readable")

    delete_before(any_kafka, written.topic, written.last_offset + 1)
    (found,) = audited(given, capsys)
    assert figures(found) == (2 * ROWS, ROWS, 0, ROWS, "not readable")
    (part,) = found["partitions"]
    assert (part["hidden"], part["reason"]) == (ROWS, "removed by retention or DeleteRecords")
    assert "removed by retention" in " ".join(shown(given, capsys)[0].split())
    # Deleted offsets do not excuse rows of which there was never a trace.
    claim(given, rows=3 * ROWS + 1)
    (found,) = audited(given, capsys, status=1)
    assert found["missing"] > 0
    assert "[KAFKA_EOS.NOT_AS_DECIDED]" in shown(given, capsys, status=1)[1]


def test_rows_of_deleted_topic_are_not_readable(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    given = settings_of(kafka)
    write_all(given, 2)
    delete_topic(kafka.bootstrap_servers, given.batch.topic or "")

    def is_gone() -> bool:
        with connected(kafka.bootstrap_servers) as admin:
            return admin.topic(given.batch.topic or "", admin.client.clock() + TIMEOUT_MS) is None

    wait_until(is_gone, "the topic's end")
    (found,) = audited(given, capsys)
    assert figures(found) == (2 * ROWS, 0, 0, 2 * ROWS, "not readable")


def test_missing_rows_of_compacted_topic_are_not_readable(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """The claim stands for the cleaner, which runs at any time: fewer rows than decided, and offsets without a row of the batch."""
    given = settings_of(kafka, partitions=1)
    ((earlier,),) = [prepared.offsets for prepared in prepared_by(write_all(given, 1))]
    ((part,),) = [prepared.offsets for prepared in prepared_by(write_all(varied(given, version=4), 1))]
    claim(given, rows=ROWS + 1, offsets=(replace(part, first_offset=earlier.first_offset),))
    (found,) = audited(given, capsys, status=1)
    assert figures(found) == (ROWS + 1, ROWS, 1, 0, "missing")
    change_config(kafka.bootstrap_servers, "topic", given.batch.topic or "", "cleanup.policy", "compact")
    (found,) = audited(given, capsys)
    assert figures(found) == (ROWS + 1, ROWS, 0, 1, "not readable")
    assert found["partitions"][0]["reason"] == "the topic is compacted"
