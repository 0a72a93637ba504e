"""`kafka-eos consume` and `kafka-eos topics` against a real Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import await_markers, create_topic, open_transaction, unique_topic, wait_until


def produce(servers: str, topic: str, *values: bytes, partition: int = 0, key: bytes | None = None) -> None:
    """One batch per value."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, key, partition=partition)
        assert producer.flush(60) == 0


def lines(capsys: pytest.CaptureFixture[str], servers: str, *arguments: str) -> list[str]:
    assert main([*arguments, "--bootstrap-servers", servers]) == 0, capsys.readouterr().err
    return capsys.readouterr().out.splitlines()


def test_consume_reads_to_the_end_that_readers_see(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=3)
    for partition in (0, 1):
        produce(servers, topic, b"a", b"b", b"c", partition=partition)
    read = ("consume", "--topic", topic)
    assert sorted(lines(capsys, servers, *read, "--from-beginning", "--to-end")) == [
        f"{partition}\t{offset}\tnull\t{value}" for partition in (0, 1) for offset, value in enumerate("abc")
    ]
    # Readers stop at the last stable offset, behind which an open transaction begins.
    producer = open_transaction(servers, unique_topic("id"), topic, partitions=1)
    committed = [*read, "--from-beginning", "--to-end"]
    assert len(lines(capsys, servers, *committed)) == 6
    assert len(lines(capsys, servers, *committed, "--uncommitted")) == 7
    producer.abort_transaction(60)
    await_markers(servers)
    assert len(lines(capsys, servers, *committed)) == 6


def test_consume_takes_turns_between_partitions(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response has room for one batch: a partition with many rows must not hide the others."""
    monkeypatch.setattr("kafka_eos_sink.client.committed_records._FETCH_BYTES", 1)
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, partitions=3)
    for partition in range(3):
        produce(servers, topic, b"a", b"b", b"c", partition=partition)
    read = ("consume", "--topic", topic, "--from-beginning", "--count")
    assert sorted(line[0] for line in lines(capsys, servers, *read, "3")) == ["0", "1", "2"]
    assert len(set(lines(capsys, servers, *read, "9"))) == 9


def test_consume_follows_the_end_until_interrupted(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, partitions=2)
    produce(servers, topic, b"old")
    output = tmp_path / "output"
    with output.open("wb") as file:
        command = subprocess.Popen(
            [sys.executable, "-m", "kafka_eos_sink.cli.main", "consume", "--topic", topic],
            stdout=file,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"KAFKA_EOS_BOOTSTRAP_SERVERS": servers},
        )
    try:
        # The command shows none of the rows that come before it has looked up the end.
        wait_until(
            lambda: b"\n" in output.read_bytes() or command.poll() is not None,
            "a row",
            meanwhile=lambda: produce(servers, topic, b"new", partition=1),
        )
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=60)
    finally:
        command.kill()
        command.wait()
    assert command.returncode == 0, errors
    assert {line.split(b"\t")[3] for line in output.read_bytes().splitlines()} == {b"new"}


def test_topics_shows_visible_offsets_and_open_transactions(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=3)
    monkeypatch.setenv("KAFKA_EOS_BOOTSTRAP_SERVERS", servers)

    def shown() -> dict[str, Any]:
        assert main(["topics", "--json"]) == 0, capsys.readouterr().err
        (found,) = (each for each in json.loads(capsys.readouterr().out) if each["name"] == topic)
        del found["name"]
        return dict(found)

    empty = {"partitions": 3, "replicas": 1, "visible_offsets": 0, "open_transactions": 0}
    assert shown() == empty
    produce(servers, topic, b"a", b"b")
    produce(servers, topic, b"c", partition=2)
    assert shown() == empty | {"visible_offsets": 3}
    producer = open_transaction(servers, unique_topic("id"), topic, partitions=2)
    assert shown() == empty | {"visible_offsets": 3, "open_transactions": 1}
    producer.abort_transaction(60)
    await_markers(servers)
    # A row and a marker on each of two partitions.
    assert shown() == empty | {"visible_offsets": 7}
    assert main(["topics"]) == 0
    table = capsys.readouterr().out
    assert [line.split() for line in table.splitlines() if topic in line] == [[topic, "3", "1", "7", "0"]]
    assert "__transaction_state" not in table
