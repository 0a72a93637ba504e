"""The commit log is created as it has to be, and one that could lose a decision is refused."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Mapping
from dataclasses import replace

import confluent_kafka
import confluent_kafka.admin
import pytest

from dead_writes import tasks, varied, write_all, write_settings
from documents import ROOT
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit.log_records import TOPIC_CONFIGURATION
from kafka_eos_sink.commit.values import TaskOutcome
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import ConfigurationError, KafkaEosError, WriteRefusedError
from kafka_eos_sink.protocol.record_batch import read_record_batches
from kafka_eos_sink.runtime import session
from kafka_testing import (
    assert_nothing_open,
    change_config,
    create_topic,
    read_committed,
    topic_names,
    unique_topic,
    wait_until,
)


def test_two_names_of_one_broker_are_no_second_replica(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    log, port = unique_topic("commits"), kafka.bootstrap_servers.rpartition(":")[2]
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers))
    # No topic option that would have asked for metadata before.
    servers = parse_bootstrap_servers(f"127.0.0.1:{port},localhost:{port}")
    session.plan(
        varied(given, topic=None, commit_log_topic=log, client=replace(given.client, bootstrap_servers=servers))
    )
    assert log in topic_names(kafka.bootstrap_servers)
    assert "as replicas" not in caplog.text


@pytest.mark.parametrize(
    ("partitions", "configs", "said"),
    [
        (16, {"cleanup.policy": "delete"}, "cleanup.policy=delete"),
        (16, {"cleanup.policy": "compact,delete"}, "cleanup.policy=compact,delete"),
        (4, {"cleanup.policy": "compact"}, "4 partitions and needs 16"),
        (16, {"cleanup.policy": "compact", "max.message.bytes": "65535"}, "max.message.bytes=65535"),
    ],
)
def test_topic_that_could_lose_a_decision_is_rejected(
    kafka: EmbeddedKafka, partitions: int, configs: Mapping[str, str], said: str
) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    log = create_topic(kafka.bootstrap_servers, unique_topic("commits"), partitions=partitions, configs=configs)
    with pytest.raises(ConfigurationError, match="COMMIT_LOG_TOPIC") as refused:
        session.plan(varied(write_settings(kafka, topic), commit_log_topic=log))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"cleanup.policy": "compact"}, r"--add-config cleanup.policy=delete \(kafka-eos explain"),
        ({"max.message.bytes": "16383"}, r"--add-config max.message.bytes=1048576 \(kafka-eos explain"),
    ],
)
def test_dead_letter_topic_that_would_lose_letters_is_refused(
    kafka: EmbeddedKafka, configs: Mapping[str, str], said: str
) -> None:
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers))
    letters = create_topic(kafka.bootstrap_servers, configs=configs)
    with pytest.raises(ConfigurationError, match=rf"DEAD_LETTER_TOPIC\] .*{letters}.* {said}"):
        session.plan(replace(given, producer=replace(given.producer, dead_letter_topic=letters)))


def delete_records(admin: confluent_kafka.admin.AdminClient, topic: str, partition: int) -> None:
    """All of a partition, once its log follows a policy that has just been set: it does after the broker shows it."""
    end = confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_END)

    def deleted() -> bool:
        try:
            return bool(admin.delete_records([end])[end].result(30).low_watermark > 0)
        except confluent_kafka.KafkaException as refused:
            if refused.args[0].code() != confluent_kafka.KafkaError.POLICY_VIOLATION:
                raise
            return False

    wait_until(deleted, "records that may be deleted")


def test_commit_log_with_deleted_records_is_rejected(any_kafka: EmbeddedKafka) -> None:
    """Under another policy for a moment, with its decisions gone: the same write would be written twice."""
    servers = any_kafka.bootstrap_servers
    topic, log = create_topic(servers), unique_topic("commits")
    given = varied(write_settings(any_kafka, topic), commit_log_topic=log)
    write_all(given)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    change_config(servers, "topic", log, "cleanup.policy", "delete")
    delete_records(admin, log, given.write.commit_log[1])
    change_config(servers, "topic", log, "cleanup.policy", "compact")
    for _ in range(2):
        with pytest.raises(WriteRefusedError, match=r"COMMIT_LOG_TRUNCATED\].*not at 0.*commit.log.topic"):
            write_all(given)
    with pytest.raises(WriteRefusedError, match=r"COMMIT_LOG_TRUNCATED\]"):
        session.abort(given, None, [])
    log = create_topic(servers, unique_topic("commits"), partitions=16, configs={"cleanup.policy": "compact"})
    other = varied(given, commit_log_topic=log)
    values = {"T": log, "W": given.write.id, "Q": given.batch.query_id, "N": str(given.batch.version)}
    page = (ROOT / "docs" / "errors.md").read_text("utf-8").partition("### COMMIT_LOG_TRUNCATED\n")[2]
    command = re.search(r"`kafka-eos (resolve [^`]*--commit-log-topic T[^`]*)`", page)
    assert command is not None
    words = [values.get(word, word) for word in command[1].split()]
    assert main([*words, "--yes", "--bootstrap-servers", servers]) == 0
    assert {message.outcome for message in write_all(other)} == {TaskOutcome.ALREADY_COMMITTED}
    assert len(read_committed(servers, topic)) == 20
    assert_nothing_open(servers)


def test_a_data_topic_is_refused(kafka: EmbeddedKafka) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    with pytest.raises(ConfigurationError, match=r"COMMIT_LOG_TOPIC\]"):
        session.plan(varied(write_settings(kafka, topic), commit_log_topic=topic))


def test_compaction_and_restart_keep_commit_log_start_offset() -> None:
    """Else a log in order would be refused: whoever begins above offset 0 has lost records."""
    with EmbeddedKafka(properties={"log.cleaner.backoff.ms": "200"}) as kafka:
        topic, log = create_topic(kafka.bootstrap_servers), unique_topic("commits")
        # Every append begins a segment, and whatever is not in the newest one may be cleaned at once.
        eager = {
            **TOPIC_CONFIGURATION,
            "segment.ms": "50",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "0",
        }
        create_topic(kafka.bootstrap_servers, log, partitions=16, configs=eager)
        given = varied(write_settings(kafka, topic), commit_log_topic=log)
        where = (log, given.write.commit_log[1])
        with NetworkClient(given.client) as client:
            admin = Admin(client)

            def first_record() -> int:
                result = admin.fetch(where, 0, deadline_ms=client.clock() + 30_000)
                assert result.log_start_offset == 0
                batches = read_record_batches(result.records)
                return next(record.offset for batch in batches if not batch.control for record in batch.records)

            versions = itertools.count(given.batch.version)
            write_all(varied(given, version=next(versions)))
            give_up_at = time.monotonic() + 90
            while first_record() < 4:
                assert time.monotonic() < give_up_at, "the log was not cleaned"
                write_all(varied(given, version=next(versions)))
            (node,) = kafka.node_ids
            kafka.stop_node(node)
            kafka.start_node(node)
            assert first_record() >= 4
        newest = varied(given, version=next(versions))
        write_all(newest)
        assert len(read_committed(kafka.bootstrap_servers, topic)) == 20 * (
            newest.batch.version - given.batch.version + 1
        )


def test_decision_above_the_commit_logs_limit_names_the_option(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    configs = {"cleanup.policy": "compact", "max.message.bytes": "65536"}
    log = create_topic(kafka.bootstrap_servers, unique_topic("log"), partitions=16, configs=configs)
    # The schema is part of the decision, so a long one stands for many tasks.
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers), schema="value binary" * 6_000)
    given = varied(given, commit_log_topic=log)
    plan = session.plan(given)
    assert "max.message.bytes=65536: it rejects larger decisions" in caplog.text
    messages = tasks(given, plan, 1)
    with pytest.raises(KafkaEosError, match=r"NOT_DECIDED\].*MESSAGE_TOO_LARGE.*max\.message\.bytes"):
        session.commit(given, plan, messages)
    session.abort(given, plan, messages)
    assert_nothing_open(kafka.bootstrap_servers)
