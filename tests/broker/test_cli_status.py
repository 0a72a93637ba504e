"""`kafka-eos status` against a real Kafka, on writes through the commit protocol."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, batch_write_id
from kafka_eos_sink.commit.values import BatchIdentity, Write
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import session
from kafka_testing import assert_nothing_open, create_topic, read_committed, unique_topic

ROWS = 100


def settings(kafka: EmbeddedKafka, topic: str, app: str, log: str, version: int = 3) -> session.WriteSettings:
    return session.WriteSettings(
        batch=BatchIdentity(query_id=BATCH_QUERY_ID, version=version, topic=topic, schema="", offsets_hash=None),
        write=Write(batch_write_id(None, app, topic), log),
        client=ClientConfig(bootstrap_servers=parse_bootstrap_servers(kafka.bootstrap_servers)),
        producer=ProducerConfig(),
    )


def prepared(given: session.WriteSettings, plan: session.Plan, tasks: int) -> list[session.TaskMessage | None]:
    """What each of so many tasks hands over, with ROWS rows written and not committed."""
    messages: list[session.TaskMessage | None] = []
    for task in range(tasks):
        numbers = range(task * ROWS, (task + 1) * ROWS)
        columns = RecordColumns(
            value=pa.array([b"%d" % n for n in numbers]),
            key=pa.array([b"k%d" % n for n in numbers]),
            headers=None,
            timestamp=None,
        )
        rows = Rows(topic=given.batch.topic or "", partition=None, columns=columns)
        identity = session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task)
        messages.append(session.write_task(given, plan, identity, iter([rows])))
    return messages


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_a_write_is_followed_from_prepared_to_finished(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = any_kafka.bootstrap_servers
    topic, app, log = create_topic(servers, partitions=2), unique_topic("app"), unique_topic("log")
    given = settings(any_kafka, topic, app, log)
    where = ("--bootstrap-servers", servers)
    one = ("status", *where, "--commit-log-topic", log, "--write-id", given.write.id)

    plan = session.plan(given)
    messages = prepared(given, plan, 3)
    found = json.loads(shown(capsys, *one, "--json"))
    (begun,) = found["writes"]
    assert (begun["state"], begun["version"], begun["transactions"]) == ("prepared", 3, 3)
    ids = [f"{given.write.id}.{task}.{task}" for task in range(3)]
    assert [(each["transactional_id"], each["state"]) for each in found["transactions"]] == [
        (each, "Ongoing") for each in ids
    ]
    assert {part["topic"] for each in found["transactions"] for part in each["partitions"]} == {topic, log}
    assert {each["topic"] for each in found["blocked"]} == {topic}
    open_now = shown(capsys, *one)
    assert [line.split()[0] for line in open_now.splitlines() if ", epoch " in line] == ids
    numbers = [f"{each['producer_id']}, epoch {each['producer_epoch']}" for each in found["transactions"]]
    assert all(each in open_now for each in numbers)
    others = json.loads(shown(capsys, *one[:-2], "--prefix", given.write.id + "x", "--json"))
    assert (others["writes"], others["transactions"], others["blocked"]) == ([], [], [])

    session.commit(given, plan, messages)
    (found,) = json.loads(shown(capsys, *one, "--json"))["writes"]
    assert (found["state"], found["rows"], found["transactions"]) == ("finished", 3 * ROWS, 3)
    assert found["finished_at"].endswith("+00:00")
    records = read_committed(servers, topic)
    assert len(records) == 3 * ROWS
    for partition in range(2):
        offsets = [record.offset for record in records if record.partition == partition]
        assert {"topic": topic, "partition": partition, "first_offset": min(offsets), "last_offset": max(offsets)} in (
            found["offsets"]
        )
    table = shown(capsys, *one)
    assert given.write.id in table
    assert "finished" in table
    for part in found["offsets"]:
        assert f"{topic}-{part['partition']}: {part['first_offset']} to {part['last_offset']}" in table
    assert found["written_versions"] == [{"first": 3, "last": 3}]
    assert "written versions: 3" in table.splitlines()
    assert_nothing_open(servers, [topic, log])


@pytest.mark.parametrize("began", ["planned", "prepared"])
def test_status_and_recover_agree_on_an_id_without_decision(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], began: str
) -> None:
    given = settings(kafka, create_topic(kafka.bootstrap_servers), "app", unique_topic("log"))
    plan = session.plan(given)
    if began == "prepared":
        prepared(given, plan, 1)
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--commit-log-topic", given.write.log_topic]
    where += ["--write-id", given.write.id]
    sentence = f"The commit log holds no decision of {given.write.id}.\n"
    assert main(["status", *where]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith(sentence) == (began == "planned")
    assert ("prepared" in shown) == (began == "prepared")
    for _ in range(2):
        assert main(["recover", "--yes", *where]) == 0
        assert capsys.readouterr().out.startswith(sentence)
        assert main(["status", *where]) == 0
        said = capsys.readouterr()
        assert re.fullmatch(rf".* UTC: 0 writes, 0 open .*, 0 blocked partitions\n{re.escape(sentence)}", said.out)
        assert said.err == ""
    assert main(["status", "--json", *where]) == 0
    said = capsys.readouterr()
    assert (json.loads(said.out)["writes"], said.err) == ([], "")
    where[-1] = unknown = unique_topic("nobody")
    for command in (["status"], ["recover", "--yes"]):
        assert main([*command, *where]) == 1
        error = capsys.readouterr().err
        assert "[KAFKA_EOS.UNKNOWN_WRITE_ID]" in error
        assert f"holds nothing of write id {unknown!r}" in error
