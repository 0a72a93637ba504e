"""`kafka-eos offsets` against a real Kafka: where a group stands, as startingOffsets, and which write has put it there."""

from __future__ import annotations

import json
from dataclasses import replace

import confluent_kafka
import pytest

from dead_writes import decided, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import create_topic, delete_topic, unique_topic, wait_until


def commit_by_consumer(servers: str, group: str, topic: str, offset: int) -> None:
    """As any other program does, in partition 0."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_group_is_printed_as_starting_offsets_with_its_writes(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    servers, group = any_kafka.bootstrap_servers, unique_topic("group")
    source, other = create_topic(servers, partitions=3), create_topic(servers, partitions=1)
    written = GroupOffsets(group_id=group, offsets=((source, 0, 7), (source, 1, 8)))
    settings = replace(write_settings(any_kafka, create_topic(servers)), group_offsets=written)
    write_all(settings)
    commit_by_consumer(servers, group, other, 3)
    arguments = ["offsets", "--bootstrap-servers", servers, "--group", group]

    assert main(arguments) == 0
    shown = capsys.readouterr()
    # A line for each query: Spark rejects a value with the topics of another one.
    # A partition that is new begins at its earliest record, as it does in a running query.
    lines = [json.loads(line) for line in shown.out.splitlines()]
    expected = [{source: {"0": 7, "1": 8, "2": -2}}, {other: {"0": 3}}]
    assert sorted(lines, key=str) == sorted(expected, key=str)
    recover = f"kafka-eos recover --bootstrap-servers {servers} --write-id {settings.write.id}"
    assert f"Committed by {settings.write.id}. To finish what that query left undone: {recover}\n" in shown.err
    assert "Committed by another program, or a person.\n" in shown.err
    assert shown.err.endswith("leave out the topics that it does not read any more.\n")

    assert main([*arguments, "--json"]) == 0
    writers = {(each["topic"], each["partition"]): each["write_id"] for each in json.loads(capsys.readouterr().out)}
    assert writers == {
        (source, 0): settings.write.id,
        (source, 1): settings.write.id,
        (source, 2): None,
        (other, 0): None,
    }

    delete_topic(servers, source)

    def has_only_the_other() -> bool:
        assert main(arguments) == 0
        return bool(json.loads(capsys.readouterr().out) == {other: {"0": 3}})

    wait_until(has_only_the_other, "the group without the deleted topic")


def test_offsets_in_an_open_transaction_are_not_taken_for_none(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition whose first offset is pending must not be printed as -2: the query would read its rows a second time."""
    servers, group = any_kafka.bootstrap_servers, unique_topic("group")
    source = create_topic(servers, partitions=2)
    written = GroupOffsets(group_id=group, offsets=((source, 0, 7), (source, 1, 8)))
    settings = replace(write_settings(any_kafka, create_topic(servers)), group_offsets=written)
    decided(settings, "commit.decision_written", monkeypatch, 1)
    arguments = ["offsets", "--bootstrap-servers", servers, "--group", group]
    recover = f"kafka-eos recover --bootstrap-servers {servers} --write-id {settings.write.id}"

    def failure() -> str:
        assert main(arguments) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        return shown.err

    error = failure()
    assert f"[KAFKA_EOS.NO_GROUP_OFFSETS] group '{group}' has no committed offsets on {servers}:" in error
    listing = (
        f"run kafka-eos recover for its write id, which this shows: kafka-eos status --bootstrap-servers {servers}"
    )
    assert listing in error

    commit_by_consumer(servers, group, source, 3)
    monkeypatch.setattr("kafka_eos_sink.cli.console.TIMEOUT_MS", 3_000)
    error = failure()
    assert "UNSTABLE_OFFSET_COMMIT" in error
    assert listing in error

    monkeypatch.undo()
    assert main([*recover.split()[1:], "--yes"]) == 0
    capsys.readouterr()
    assert main(arguments) == 0
    # The decision was not committed, and its offsets with it.
    assert json.loads(capsys.readouterr().out) == {source: {"0": 3, "1": -2}}
