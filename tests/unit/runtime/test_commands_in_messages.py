"""Commands in messages run on the write and the commit log that they are about; and how often a warning comes."""

from __future__ import annotations

import re
import shlex
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.cli.console import require_found
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.security import SecurityConfig
from kafka_eos_sink.commit import refusals, steps
from kafka_eos_sink.commit.evidence import verify_visible
from kafka_eos_sink.commit.refusals import refused, resolve_command
from kafka_eos_sink.commit.steps import Procedure, Step
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID
from kafka_eos_sink.commit.values import (
    DEFAULT_TOPIC,
    Decision,
    OffsetRange,
    PreparedTransaction,
    Write,
)
from kafka_eos_sink.errors import BrokerRefusedError, Job
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.history_reading import read_history
from tests.messages import WRITES, sample

COMMIT = Path(refusals.__file__).parent


AT = "--bootstrap-servers b1:9092"
LEDGER = Write("w", "ledger", AT)


def test_a_command_names_the_cluster_and_log_of_its_write() -> None:
    plain = replace(LEDGER, log_topic=DEFAULT_TOPIC)
    assert plain.command("recover") == f"kafka-eos recover {AT} --write-id w"
    assert LEDGER.command("resolve", "--version 3") == (
        f"kafka-eos resolve {AT} --commit-log-topic ledger --write-id w --version 3"
    )


def test_unknown_write_id_ends_with_the_command_that_lists_them() -> None:
    error = refused("UNKNOWN_WRITE_ID", write=LEDGER)
    assert "the commit log 'ledger' holds nothing of write id 'w'. Nothing was changed" in error.message
    assert error.way_out.endswith(f": kafka-eos status {AT} --commit-log-topic ledger")


@pytest.mark.parametrize(
    ("of_task", "owner"), [("w.1.1", "w"), ("kafka-eos/a/t.12.7", "kafka-eos/a/t"), ("w.driver", "w")]
)
def test_transactional_id_as_write_id_names_its_write(of_task: str, owner: str) -> None:
    """`status` shows transactional ids, which a person copies."""
    hint = f"If it is a transactional id, leave out {of_task[len(owner) :]}: its write id is {owner}. "
    assert refused("UNKNOWN_WRITE_ID", write=replace(LEDGER, id=of_task)).way_out.startswith(hint)
    config = ClientConfig(bootstrap_servers=(("b1", 9092),))
    with pytest.raises(BrokerRefusedError) as raised:
        require_found((), "batch", "h", config, of_task)
    assert raised.value.way_out.startswith(hint)
    for other in ("w", "w.1", "w.01.1", "w.1.8"):
        assert "transactional id" not in refused("UNKNOWN_WRITE_ID", write=replace(LEDGER, id=other)).way_out


def test_missing_history_ends_with_a_complete_command() -> None:
    config = ClientConfig(bootstrap_servers=(("b1", 9092),))
    with pytest.raises(BrokerRefusedError) as raised:
        require_found((), "batch of 'w'", "h", config, "w")
    assert raised.value.message == "the history 'h' on b1:9092 holds no batch of 'w'"
    assert raised.value.way_out.endswith(f": kafka-eos status {AT}")
    admin: Any = SimpleNamespace(client=SimpleNamespace(clock=lambda: 0, config=config), topic=lambda *_: None)
    with pytest.raises(BrokerRefusedError) as raised:
        read_history(admin, "h", "w", limit=1, timeout_ms=1)
    assert raised.value.way_out.endswith(f": kafka-eos topics {AT}")


def test_command_of_the_history_names_the_cluster_only() -> None:
    error = sample("VERSION_TOO_OLD", write=LEDGER)
    assert error.way_out.endswith(f"kafka-eos history --write-id w {AT}")


TLS = SecurityConfig(protocol="SSL")


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (ClientConfig(bootstrap_servers=(("b1", 9092), ("::1", 9093))), "--bootstrap-servers b1:9092,[::1]:9093"),
        (
            ClientConfig(bootstrap_servers=(("b1", 9092),), properties_file="/etc/my kafka.properties"),
            f"{AT} --properties '/etc/my kafka.properties'",
        ),
        (ClientConfig(bootstrap_servers=(("b1", 9092),), security=TLS), f"{AT} --properties FILE"),
        (
            ClientConfig(bootstrap_servers=(("b1", 9092),), security=TLS, properties_file="f"),
            f"{AT} --properties f",
        ),
    ],
    ids=["plaintext", "file", "credentials in options", "credentials in file"],
)
def test_a_command_reaches_the_cluster_of_its_client(config: ClientConfig, options: str) -> None:
    assert config.command_options == options


@pytest.mark.parametrize("job", WRITES)
def test_only_a_job_with_an_id_is_sent_to_its_next_run(job: Job) -> None:
    """A job without txnAppId has a new id in its next run, which writes the rows a second time."""
    for key in ("DECIDED_NOT_FINISHED", "TOPIC_GONE", "LOST_PARTS", "DECISION_UNKNOWN"):
        error = sample(key, job)
        first = error.way_out.partition("kafka-eos")[0].lower()
        error.concern(job)
        if job is Job.RANDOM:
            assert "Do not run the job again" in error.safety
            assert "run the job again" not in first
            assert "same version" not in first
        else:
            again = {Job.BATCH: "run the same version again", Job.STREAM: "restart the query from its checkpoint"}[job]
            assert again in first


def test_version_counted_as_written_never_reruns_without_an_id() -> None:
    """With an id the next run skips it; without one it would write the rows a second time."""
    decision = Held().decision(0)
    way_out = sample("UNRESOLVED", Job.RANDOM, decision=decision).way_out
    committed, rewrite, duplicates = way_out.split("; ")
    assert "do not run the job again: kafka-eos resolve" in committed
    assert committed.endswith("--as committed --query-id q")
    assert "then run the job again: kafka-eos resolve" in rewrite
    assert rewrite.endswith("--as rewrite --query-id q")
    assert duplicates.endswith(" --allow-duplicates")


def test_a_shell_reads_the_ids_of_a_command_as_they_are() -> None:
    write_id, query_id = "nightly 'orders' $(id)/t;o", 'a "b" \\c'
    words = shlex.split(resolve_command(replace(LEDGER, id=write_id), query_id, 3, "committed"))
    assert words[words.index("--write-id") + 1] == write_id
    assert words[words.index("--query-id") + 1] == query_id
    assert words[-1] == query_id


def test_command_names_the_query_of_a_stream_only() -> None:
    assert "--query-id 0a1b" in resolve_command(LEDGER, "0a1b", 3, "committed")
    assert "--query-id" not in resolve_command(LEDGER, BATCH_QUERY_ID, 3, "committed")


def test_every_command_with_a_write_id_is_made_by_its_write() -> None:
    """`Write.command` makes them all, but that of the history, which has no commit log; it is made beside it."""
    sources = {path.name: path.read_text() for path in sorted(COMMIT.rglob("*.py"))}
    assert sum(len(re.findall(r"command\(|_resolve\(", text)) for text in sources.values()) > 10
    by_hand = {name: re.findall(r".*--write-id \{.*", text) for name, text in sources.items()}
    (by_hand_only,) = by_hand["values.py"]
    assert "kafka-eos history --write-id {" in by_hand_only
    assert [name for name, lines in by_hand.items() if lines] == ["values.py"]


class Held:
    """A committed batch on four partitions, whose readers two other producers block."""

    own, others, now = 5, {0: 7, 1: 7, 2: 7, 3: 9}, 0

    def batch(self, version: int) -> Procedure[None]:
        decision = self.decision(version)
        write = Write("w", "ledger", "--bootstrap-servers localhost:1")
        return verify_visible(write, decision, decision.transactions, 60_000)

    def decision(self, version: int) -> Decision:
        identity = ProducerIdentity(
            transactional_id="w.0.0", producer_id=self.own, producer_epoch=0, transaction_version=2
        )
        offsets = tuple(OffsetRange(topic="t", partition=each, first_offset=5, last_offset=6) for each in self.others)
        prepared = PreparedTransaction(partition=0, identity=identity, part_offset=1, rows=8, offsets=offsets)
        return Decision(
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

    def perform(self, step: Step[Any]) -> Any:
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
        described = {9: "it is the one of 'theirs'"}
        queried: list[int] = []
        monkeypatch.setattr(admin, "transaction_of", lambda each: queried.append(each) or described.get(each, ""))
        for version in range(3):
            executor.run(held.batch(version))
        assert len(caplog.records) == 2
        assert sorted(queried) == [7, 9]  # a warning that is not repeated sends no requests
        assert "t-0, t-1, t-2: version 0" in caplog.text
        (theirs,) = (each.message for each in caplog.records if "t-3: version 0" in each.message)
        assert theirs.endswith("it is the one of 'theirs'")
        command = "kafka-eos status --bootstrap-servers localhost:1 --commit-log-topic ledger --write-id w"
        assert f"kafka-transactions.sh abort discards it: {command}" in caplog.text
        clock = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 61)
        executor.run(held.batch(3))
        assert len(caplog.records) == 4
