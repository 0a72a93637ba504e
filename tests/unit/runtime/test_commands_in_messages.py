"""Commands in messages run on the write and the commit log that they are about; and how often a warning comes."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.cli.console import require_found
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.security import SecurityConfig
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.evidence import verify_visible
from kafka_eos_sink.commit.refusals import refused, resolve_command
from kafka_eos_sink.commit.steps import Procedure, Step
from kafka_eos_sink.commit.values import (
    Decision,
    OffsetRange,
    PreparedTransaction,
    Write,
)
from kafka_eos_sink.errors import BrokerRefusedError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.runtime.executor import Executor

AT = "--bootstrap-servers b1:9092"
LEDGER = Write("w", "ledger", AT)


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


def test_a_shell_reads_the_ids_of_a_command_as_they_are() -> None:
    write_id, query_id = "nightly 'orders' $(id)/t;o", 'a "b" \\c'
    words = shlex.split(resolve_command(replace(LEDGER, id=write_id), query_id, 3, "committed"))
    assert words[words.index("--write-id") + 1] == write_id
    assert words[words.index("--query-id") + 1] == query_id
    assert words[-1] == query_id


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
