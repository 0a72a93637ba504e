"""A Kafka of one node with the replication that Kafka has by default: no transaction can begin, and each way in names the setting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dead_writes import rows_of, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.client.coordinator_topics import GROUPS, TRANSACTIONS
from kafka_eos_sink.commit.values import Write
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.operations.cluster_check import CheckLine, CheckResult, check_cluster
from kafka_eos_sink.runtime import at_least_once, session
from kafka_eos_sink.runtime.source_offsets import FirstBatch
from kafka_testing import (
    create_topic,
    read_committed,
)

FACTOR, IN_SYNC = TRANSACTIONS.factor, TRANSACTIONS.in_sync
TRANSACTION_PARTITIONS = 5


@pytest.fixture
def bare() -> Iterator[EmbeddedKafka]:
    """Kafka's defaults, which fit three brokers."""
    properties = {
        FACTOR: "3",
        IN_SYNC: "2",
        GROUPS.factor: "3",
        "default.replication.factor": "3",
        "transaction.state.log.num.partitions": str(TRANSACTION_PARTITIONS),
    }
    with EmbeddedKafka(properties=properties) as started:
        yield started


def topic_of(kafka: EmbeddedKafka) -> str:
    return create_topic(kafka.bootstrap_servers, partitions=1, replication_factor=1)


def impatient(settings: session.WriteSettings) -> session.WriteSettings:
    return replace(settings, producer=replace(settings.producer, max_block_ms=5_000, delivery_timeout_ms=5_000))


def lines(kafka: EmbeddedKafka) -> dict[str, CheckLine]:
    with connected(kafka.bootstrap_servers) as admin:
        return {
            each.what: each
            for each in check_cluster(admin, topic=None, commit_log_topic="__kafka_eos_commits", timeout_ms=30_000)
        }


def test_every_way_in_names_the_setting_that_needs_three_brokers(
    bare: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = bare.bootstrap_servers
    wanted = f"{FACTOR}=3, and the cluster has 1 broker"
    began = time.monotonic()
    found = lines(bare)
    assert time.monotonic() - began < 25, "within the time limit of the command, with its whole table"
    assert found[TRANSACTIONS.name].result is CheckResult.FAILS
    assert wanted in found[TRANSACTIONS.name].meaning
    assert f"set {FACTOR}=1 and {IN_SYNC}=1" in found[TRANSACTIONS.name].meaning
    assert found[GROUPS.name].result is CheckResult.WARNING
    assert f"set {GROUPS.factor}=1 in" in found[GROUPS.name].meaning
    assert list(found)[-1].startswith("transactional ids")
    assert main(["check", "--bootstrap-servers", servers]) == 1
    assert FACTOR in "".join(capsys.readouterr().out.split())

    topic = topic_of(bare)
    given = impatient(write_settings(bare, topic))
    random = replace(given, write=Write("kafka-eos/01234567-0123-0123-0123-0123456789ab", given.write.log_topic, ""))
    for settings in (given, random):
        with pytest.raises(KafkaEosError) as raised:
            session.plan(settings)
        assert raised.value.code == "NO_COORDINATOR"
        assert wanted in str(raised.value)
        assert f"set {FACTOR}=1 and {IN_SYNC}=1" in raised.value.way_out
    # A request that waits for a coordinator, as of any command.
    with connected(servers) as admin:
        with pytest.raises(BrokerUnavailableError, match=wanted) as late:
            admin.describe_transactions(["any"], admin.client.clock() + 2_000)
        assert late.value.code == "NO_COORDINATOR"
        with pytest.raises(BrokerUnavailableError, match=f"{GROUPS.factor}=3, and the cluster has 1 broker"):
            admin.group_offsets("any", None, admin.client.clock() + 2_000)

    # Without transactions no coordinator is needed.
    assert at_least_once.write_rows(given, iter([rows_of(topic, 0)])).rows == 10
    assert len(read_committed(servers, topic)) == 10

    # Brokers that join, or the topic that somebody creates, end the wait.
    create_topic(servers, TRANSACTIONS.name, partitions=TRANSACTION_PARTITIONS, replication_factor=1)
    first = FirstBatch(query_id="q", checkpoint="/c", group_id="g", sources=())
    with pytest.raises(KafkaEosError, match=rf"NO_COORDINATOR\].*{GROUPS.factor}=3"):
        session.plan(replace(given, first_batch=first))
