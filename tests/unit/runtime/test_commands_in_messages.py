"""Commands in messages run on the write and the commit log that they are about; and how often a warning comes."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit import refusals, steps
from kafka_eos_sink.commit.commit_log import DEFAULT_TOPIC
from kafka_eos_sink.commit.prepared_transaction import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.commit.proofs import verify_visible
from kafka_eos_sink.commit.refusals import command, on_commit_log, resolve_command
from kafka_eos_sink.commit.steps import Procedure
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.runtime.executor import Executor

COMMIT = Path(refusals.__file__).parent


@pytest.mark.parametrize("name", ["recover", "resolve", "repair"])
def test_a_command_gets_the_commit_log_of_its_write(name: str) -> None:
    message = f"the next run finishes it, or: {command(name, 'w', ' --version 3')}; and kafka-eos {name} alone"
    assert f"kafka-eos {name} --bootstrap-servers ... --write-id w --version 3;" in message
    assert on_commit_log(message, DEFAULT_TOPIC) == message
    named = on_commit_log(message, "ledger")
    assert f"kafka-eos {name} --bootstrap-servers ... --commit-log-topic ledger --write-id w --version 3" in named
    assert named.endswith(f"kafka-eos {name} alone")


def test_a_shell_reads_the_ids_of_a_command_as_they_are() -> None:
    write_id, query_id = "nightly 'orders' $(id)/t;o", 'a "b" \\c'
    words = shlex.split(resolve_command(write_id, query_id, 3, "committed"))
    assert words[words.index("--write-id") + 1] == write_id
    assert words[words.index("--query-id") + 1] == query_id
    assert words[-1] == query_id


def test_command_names_the_query_of_a_stream_only() -> None:
    assert "--query-id 0a1b" in resolve_command("w", "0a1b", 3, "committed")
    assert "--query-id" not in resolve_command("w", BATCH_QUERY_ID, 3, "committed")


def test_every_command_with_a_write_id_is_recognised() -> None:
    """`command` makes them all, but for one that names its commit log itself."""
    sources = {path.name: path.read_text() for path in sorted(COMMIT.rglob("*.py"))}
    assert sum(len(re.findall(r"command\(|_resolve\(", text)) for text in sources.values()) > 10
    by_hand = {name: re.findall(r".*--write-id \{.*", text) for name, text in sources.items()}
    assert {name: len(lines) for name, lines in by_hand.items() if lines} == {"refusals.py": 1}
    joined = re.sub(r'"\s*\n\s*(?:\+ )?f?"', "", sources["refusals.py"])
    (names_its_log,) = re.findall(r"kafka-eos [^;]*?--write-id \{", joined)
    assert "--commit-log-topic ..." in names_its_log


class Held:
    """A committed batch on four partitions, whose readers two other producers block."""

    own, others, now = 5, {0: 7, 1: 7, 2: 7, 3: 9}, 0

    def batch(self, version: int) -> Procedure[bool]:
        identity = ProducerIdentity(
            transactional_id="w.0.0", producer_id=self.own, producer_epoch=0, transaction_version=2
        )
        offsets = tuple(OffsetRange(topic="t", partition=each, first_offset=5, last_offset=6) for each in self.others)
        prepared = PreparedTransaction(partition=0, identity=identity, part_offset=1, rows=8, offsets=offsets)
        decision = Decision(
            write_id="w",
            query_id="q",
            version=version,
            nonce="n",
            driver=identity,
            topic="t",
            schema="",
            offsets_hash=None,
            transactions=(prepared,),
        )
        return verify_visible(decision, [prepared], 60_000)

    def perform(self, step: steps.Step) -> Any:
        match step:
            case steps.LastStableOffsets(partitions=partitions):
                return dict.fromkeys(partitions, 2)
            case steps.DescribeProducers(partitions=partitions):
                return {where: {self.others[where[1]]: (0, 2)} for where in partitions}
            case steps.Wait():
                self.now += 1_000
        return self.now


def test_blocked_readers_are_warned_of_once_a_minute_per_holder(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    with connected("localhost:1") as admin:
        executor = Executor(admin, ("ledger", 0), ProducerConfig())
        for kind in (steps.LastStableOffsets, steps.DescribeProducers, steps.Now, steps.Wait):
            executor._performers[kind] = held.perform
        for version in range(3):
            assert executor.run(held.batch(version))
        assert len(caplog.records) == 2
        assert "t-0, t-1, t-2: version 0" in caplog.text
        assert "kafka-eos repair --bootstrap-servers ... --commit-log-topic ledger --write-id w" in caplog.text
        clock = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 61)
        assert executor.run(held.batch(3))
        assert len(caplog.records) == 4
