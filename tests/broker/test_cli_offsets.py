"""`kafka-eos offsets` against a real Kafka: where a group stands, as startingOffsets, and which write has put it there."""

from __future__ import annotations

import json
from dataclasses import replace

import confluent_kafka
import pytest

from dead_writes import write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import create_topic, delete_topic, unique_topic, wait_until


def commit_by_consumer(servers: str, group: str, topic: str, offset: int) -> None:
    """As any other program does, in partition 0."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


@pytest.mark.feature("lost checkpoint")
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
    # A partition that is new begins at its earliest record, as it does in a running query.
    assert json.loads(shown.out) == {source: {"0": 7, "1": 8, "2": -2}, other: {"0": 3}}
    assert len(shown.out.splitlines()) == 1
    recover = f"kafka-eos recover --bootstrap-servers {servers} --write-id {settings.write.id}"
    assert shown.err == f"Committed by {settings.write.id}. To finish what that query left undone: {recover}\n"

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


def test_group_without_offsets_is_an_error(kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["offsets", "--bootstrap-servers", kafka.bootstrap_servers, "--group", "no such group"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(
        "kafka-eos: [KAFKA_EOS.NO_GROUP_OFFSETS] group 'no such group' has no committed offsets"
    )
