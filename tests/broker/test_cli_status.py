"""`kafka-eos status` against a real Kafka, on writes through the commit protocol."""

from __future__ import annotations

import json

import pytest

from dead_writes import ROWS, tasks, varied, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import session
from kafka_testing import assert_nothing_open, create_topic, read_committed, unique_topic


def settings(kafka: EmbeddedKafka, partitions: int = 4) -> session.WriteSettings:
    """A write with a commit log of its own."""
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers, partitions=partitions))
    return varied(given, commit_log_topic=unique_topic("log"))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_a_write_is_followed_from_prepared_to_finished(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = any_kafka.bootstrap_servers
    given = settings(any_kafka, partitions=2)
    topic, log = given.batch.topic or "", given.write.log_topic
    where = ("--bootstrap-servers", servers)
    one = ("status", *where, "--commit-log-topic", log, "--write-id", given.write.id)

    plan = session.plan(given)
    messages = tasks(given, plan, 3)
    found = json.loads(shown(capsys, *one, "--json"))
    (begun,) = found["writes"]
    assert (begun["state"], begun["version"], begun["transactions"]) == ("prepared", 3, 3)
    ids = [f"{given.write.id}.{task}.{task}" for task in range(3)]
    assert [(each["transactional_id"], each["state"]) for each in found["transactions"]] == [
        (each, "Ongoing") for each in ids
    ]
    assert {part["topic"] for each in found["transactions"] for part in each["partitions"]} == {topic, log}
    assert {each["topic"] for each in found["blocked"]} == {topic}
    others = json.loads(shown(capsys, *one[:-2], "--prefix", given.write.id + "x", "--json"))
    assert (others["writes"], others["transactions"], others["blocked"]) == ([], [], [])

    session.commit(given, plan, messages)
    (found,) = json.loads(shown(capsys, *one, "--json"))["writes"]
    assert (found["state"], found["rows"], found["transactions"]) == ("finished", 3 * ROWS, 3)
    assert found["finished_at"].endswith("+00:00")
    records = read_committed(servers, topic)
    assert len(records) == 3 * ROWS
    for partition in {record.partition for record in records}:
        offsets = [record.offset for record in records if record.partition == partition]
        assert {"topic": topic, "partition": partition, "first_offset": min(offsets), "last_offset": max(offsets)} in (
            found["offsets"]
        )
    assert found["written_versions"] == [{"first": 3, "last": 3}]
    assert_nothing_open(servers, [topic, log])
