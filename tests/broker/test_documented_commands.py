"""The commands of README and docs on a real broker, each as it stands there, and the consumer in Java.

Those of which a page shows the output run in test_shown_output.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dead_writes import ROWS, die_at, tasks, varied, write_all, write_settings
from documents import Block, all_blocks, is_kafka_eos, words_of
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.ports import choose_free_ports
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.batch_record import DEFAULT_HISTORY_TOPIC
from kafka_testing import assert_nothing_open, create_topic, open_transaction, unique_topic
from shown_output import assert_shows
from snippets import ON_A_BROKER, OUTPUTS, STORIES
from terminals import broker

VERSION = 3
ASKING = ("recover", "resolve", "forget")
"""Commands that ask on a terminal; what the user types there is ``--yes`` here."""
WITHOUT_OUTPUT = [block for block in ON_A_BROKER if all(block not in story.blocks for story in STORIES)]


def block_of(name: str) -> Block:
    (block,) = (block for block in all_blocks() if block.name == name)
    return block


def with_history(given: session.WriteSettings) -> session.WriteSettings:
    """As a write without the option ``history.topic`` has it."""
    return replace(given, history_topic=DEFAULT_HISTORY_TOPIC)


def dead_write(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> session.WriteSettings:
    """A write whose driver died after the decision of its second version."""
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    given = with_history(write_settings(kafka, topic, version=VERSION - 1))
    write_all(given)
    given = varied(given, version=VERSION)
    plan = session.plan(given)
    die_at("commit.decided", given, plan, tasks(given, plan), monkeypatch)
    return given


def filled(words: list[str], given: session.WriteSettings, servers: str, folder: Path) -> list[str]:
    """Put a real cluster and write where the documents have placeholders."""
    (folder / "client.properties").write_text(f"bootstrap.servers={servers}\n", "utf-8")
    topic = str(given.batch.topic)
    values = {
        "--bootstrap-servers": servers,
        "--write-id": given.write.id,
        "--version": str(given.batch.version),
        "--topic": topic,
        "--prefix": given.write.id,
        "--properties": str(folder / "client.properties"),
        "--count": "2",
        "--partition": "0",
        "--offset": "0",
    }
    return [values.get(before, word) for before, word in zip(["", *words], words, strict=False)]


@pytest.mark.parametrize("block", WITHOUT_OUTPUT, ids=lambda block: block.name)
def test_documented_command_succeeds(
    block: Block,
    kafka: EmbeddedKafka,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = kafka.bootstrap_servers
    monkeypatch.setenv("KAFKA_EOS_BOOTSTRAP_SERVERS", servers)
    monkeypatch.setenv("COLUMNS", "200")
    for command in filter(is_kafka_eos, block.commands()):
        name, *words = words_of(command)
        given = dead_write(kafka, monkeypatch)
        arguments = [name, *filled(words, given, servers, tmp_path)]
        if name == "forget" or "rewrite" in arguments:  # resolve records nothing of a version that it finishes itself
            assert main(["recover", "--write-id", given.write.id, "--yes"]) == 0
        if name in ("audit", "history", "consume"):
            write_all(varied(given, version=VERSION + 1))  # finishes the dead version, too
        if name in ASKING and "--yes" not in arguments:
            arguments.append("--yes")
        if name == "consume" and "--count" not in arguments:
            arguments += ["--count", "2"]  # Ctrl-C ends it otherwise
        capsys.readouterr()
        status = main(arguments)
        shown = capsys.readouterr()
        assert main(["recover", "--write-id", given.write.id, "--abort-unknown", "--yes"]) == 0
        assert status == 0, f"{command}: {shown.err}"
        assert shows_the_write(name, arguments, given, shown.out), f"{command}: {shown.out}"
        assert_nothing_open(servers, [str(given.batch.topic)])


def shows_the_write(name: str, arguments: list[str], given: session.WriteSettings, shown: str) -> bool:
    """Whether the output is about this write."""
    if name == "consume":
        return len(shown.splitlines()) == 2
    if name in ("check", "explain"):
        return "replication" in shown or "Rows visible" in shown
    if name in (
        "topics",
        "status",
        "top",
        "recover",
        "resolve",
        "forget",
        "audit",
    ):
        return given.write.id in shown or str(given.batch.topic) in shown
    if name == "history" and "--topic" in arguments:
        return given.write.id in shown  # the row may be of any version
    return str(given.batch.version) in shown


def test_what_is_documented_is_every_command_that_connects() -> None:
    named = {words_of(command)[0] for block in ON_A_BROKER for command in filter(is_kafka_eos, block.commands())}
    assert {*ASKING, "topics", "consume", "check", "status", "history", "audit", "top"} <= named


@contextmanager
def java(program: Path, jars: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        ["java", "-cp", f"{jars}/*", str(program)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_java_consumer_shows_only_committed_rows(kafka: EmbeddedKafka, kafka_jars: Path, tmp_path: Path) -> None:
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1)
    open_transaction(servers, unique_topic("other"), topic, partitions=1).abort_transaction(60)
    write_all(write_settings(kafka, topic))
    text = block_of("docs/read.md#java").text.replace("localhost:9092", servers).replace('"orders"', f'"{topic}"')
    program = tmp_path / "ReadOrders.java"
    program.write_text(text.replace("orders-reader", f"reader-of-{topic}"), "utf-8")
    with java(program, kafka_jars) as process:
        assert process.stdout is not None
        read = [process.stdout.readline().strip() for _ in range(2 * ROWS)]
    assert sorted(read) == sorted(str(number) for number in range(2 * ROWS))


def test_documented_broker_serves_the_other_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``kafka-eos broker`` as docs/cli.md runs it, on a free port."""
    block = block_of("docs/cli.md#kafka-eos-broker")
    (command,) = block.commands()
    (port,) = choose_free_ports("127.0.0.1", 1)
    words = [str(port) if word == "9092" else word for word in words_of(command)]
    with broker(*words[1:]) as (servers, printed):
        assert servers.endswith(f":{port}")
        monkeypatch.setenv("KAFKA_EOS_BOOTSTRAP_SERVERS", f"localhost:{port}")
        assert main(["topics", "--json"]) == 0
        assert [(each["name"], each["partitions"]) for each in json.loads(capsys.readouterr().out)] == [("orders", 3)]
    *started, ready, _stopping = printed
    assert_shows(OUTPUTS[block.name].text, "\n".join([*started, servers, ready]), block.name)
