"""`kafka-eos top` against a real Kafka: what it shows of writes, of open transactions, and of the readers that they block."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dead_writes import ROWS, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.operations.cluster_view import ClusterWatch
from kafka_eos_sink.operations.write_status import CommitLogWatch
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.history_reading import HistoryTail
from kafka_testing import create_topic, delete_topic, open_transaction, unique_topic, wait_until

TIMEOUT_MS = 30_000


def new_write(kafka: EmbeddedKafka, **changed: Any) -> session.WriteSettings:
    """Of a write with a commit log and a history of its own."""
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers, partitions=2))
    own = {"commit_log_topic": unique_topic("ledger"), "history_topic": unique_topic("history")}
    return varied(given, **{**own, **changed})


def arguments(given: session.WriteSettings, *more: str) -> list[str]:
    host, port = given.client.bootstrap_servers[0]
    topics = ["--commit-log-topic", given.write.log_topic, "--history-topic", given.history_topic]
    return ["top", "--bootstrap-servers", f"{host}:{port}", *topics, "--prefix", given.write.id, *more]


def shown(given: session.WriteSettings, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    capsys.readouterr()
    assert main(arguments(given, *more)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def read(given: session.WriteSettings, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown(given, capsys, "--json"))
    return found


@pytest.fixture
def stuck(kafka: EmbeddedKafka) -> Iterator[tuple[session.WriteSettings, str]]:
    """A finished write, and another program's open transaction on its topic under an id below the write id."""
    given = new_write(kafka)
    write_all(given, 2)
    transactional_id = f"{given.write.id}.stuck"
    producer = open_transaction(kafka.bootstrap_servers, transactional_id, given.batch.topic or "", partitions=2)
    yield given, transactional_id
    producer.abort_transaction(60)


def test_top_shows_a_write_beside_an_open_transaction(
    stuck: tuple[session.WriteSettings, str], capsys: pytest.CaptureFixture[str]
) -> None:
    given, transactional_id = stuck
    found = read(given, capsys)
    (write,) = found["writes"]
    assert (write["write_id"], write["version"], write["state"]) == (given.write.id, 3, "finished")
    assert (write["rows"], write["transactions_copied"]) == (2 * ROWS, 0)
    assert write["rows_per_second"] > 0
    assert write["finished_at"][:19] <= found["read_at"][:19]
    (transaction,) = found["transactions"]
    assert (transaction["transactional_id"], transaction["state"]) == (transactional_id, "Ongoing")
    assert 0 <= transaction["age_ms"] < 300_000
    assert transaction["age_ms"] + transaction["time_left_ms"] == 600_000
    # One row in each partition, and no marker behind it.
    blocked = {"topic": given.batch.topic, "hidden_offsets": 1, "blocked_by": [transactional_id]}
    since_ms = transaction["transaction_start_time_ms"]
    blocked |= {"since_ms": since_ms, "hanging": None}
    assert found["blocked"] == [{**blocked, "partition": each} for each in range(2)]
    assert found["not_read"] == []

    # It is no transaction of the write.
    of_write = json.loads(shown(given, capsys, "--json", "--write-id", given.write.id))
    assert (of_write["writes"], of_write["transactions"]) == (found["writes"], [])


def test_deleted_topic_of_a_transaction_delays_no_view(kafka: EmbeddedKafka) -> None:
    servers, given = kafka.bootstrap_servers, new_write(kafka)
    gone = create_topic(servers, partitions=1)
    producer = open_transaction(servers, f"{given.write.id}.stuck", given.batch.topic or "", (gone, 0), partitions=1)
    delete_topic(servers, gone)
    with connected(servers) as admin:
        began = time.monotonic()
        topics = given.write.log_topic, given.history_topic
        found = ClusterWatch(admin, *topics, timeout_ms=10_000, prefix=given.write.id).look()
        took_s = time.monotonic() - began
    producer.abort_transaction(60)
    assert {each.topic: each.hidden_offsets for each in found.blocked} == {given.batch.topic: 1, gone: None}
    assert not [line for line in found.not_read if line.startswith("hidden")]
    assert took_s < 9


def test_second_view_reads_only_what_was_appended(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    given = new_write(kafka)
    write_all(given, 2)
    offsets: list[int] = []
    run = Executor._read_log

    def counted(self: Executor, step: Any) -> Any:
        offsets.append(step.offset)
        return run(self, step)

    with connected(kafka.bootstrap_servers) as admin:
        topics = given.write.log_topic, given.history_topic
        watch = ClusterWatch(admin, *topics, timeout_ms=TIMEOUT_MS, write_id=given.write.id)
        first = watch.look()
        monkeypatch.setattr(Executor, "_read_log", counted)
        again = watch.look()
        assert offsets == []
        (before,), (after,) = first.writes, again.writes
        # The parts of a write that has ended are not kept, so what has not changed is not computed again.
        assert after.as_json() == before.as_json()
        for version in (4, 5):
            write_all(varied(given, version=version), 1)
            offsets.clear()
            (line,) = watch.look().writes
            assert (line.write.version, line.write.state, line.write.rows) == (version, "finished", ROWS)
            assert line.rows_per_second is not None
            assert offsets
            assert 0 not in offsets


def test_views_begin_again_when_the_topics_are_new(kafka: EmbeddedKafka) -> None:
    servers, given = kafka.bootstrap_servers, new_write(kafka)
    for version in (3, 4):
        write_all(varied(given, version=version), 3)
    with connected(servers) as admin:
        log = CommitLogWatch(admin, given.write.log_topic, timeout_ms=TIMEOUT_MS)
        tail = HistoryTail(admin, given.history_topic, timeout_ms=TIMEOUT_MS)
        assert [write.version for write in log.writes()] == [4]
        assert [record.version for record in tail.read()] == [4, 3]
        for topic in (given.write.log_topic, given.history_topic):
            delete_topic(servers, topic)
        assert tail.read() == ()
        create_topic(servers, given.write.log_topic, partitions=16, configs={"cleanup.policy": "compact"})
        create_topic(servers, given.history_topic, partitions=1)
        topics = {"commit_log_topic": given.write.log_topic, "history_topic": given.history_topic}
        write_all(new_write(kafka, version=1, **topics), 1)
        assert [write.version for write in log.writes()] == [1]
        assert [record.version for record in tail.read()] == [1]


def test_live_view_changes_and_ends_with_ctrl_c(stuck: tuple[session.WriteSettings, str]) -> None:
    given, _ = stuck
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "160", "LINES": "50", "TERM": "xterm"}
    command = [sys.executable, "-m", "kafka_eos_sink.cli.main", *arguments(given, "--interval", "0.1")]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = ""

    def look(wanted: str) -> bool:
        nonlocal seen
        while select.select([ours], [], [], 0.1)[0]:
            try:
                seen += os.read(ours, 65_536).decode()
            except OSError:
                return False  # Linux: the command has closed its end
            if wanted in seen:
                return True
        return False

    try:
        wait_until(lambda: look("2 blocked partitions"), lambda: f"the first view in {seen[-2000:]!r}")
        write_all(varied(given, version=17), 1)
        wait_until(lambda: look(" 17  \x1b[32mfinished"), lambda: f"version 17 in {seen[-2000:]!r}")
        process.send_signal(signal.SIGINT)
        # Read on, because a full terminal would block the last view.
        wait_until(lambda: look("nothing") or process.poll() is not None, "the end of the command")
        assert process.returncode == 0, seen[-2000:]
    finally:
        process.kill()
        process.wait()
        os.close(ours)
