"""Errors name the commit log's limit, and another cluster behind the same address."""

from __future__ import annotations

import pytest

from dead_writes import ROWS, tasks, varied, write_all, write_settings
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import ConfigurationError, KafkaEosError
from kafka_eos_sink.runtime import session
from kafka_testing import assert_nothing_open, create_topic, read_committed, unique_topic

# the commit log's limit


def of_log(kafka: EmbeddedKafka, limit: int) -> session.WriteSettings:
    log = unique_topic("log")
    configs = {"cleanup.policy": "compact", "max.message.bytes": str(limit)}
    create_topic(kafka.bootstrap_servers, log, partitions=16, configs=configs)
    return varied(write_settings(kafka, create_topic(kafka.bootstrap_servers)), commit_log_topic=log)


def test_plan_rejects_commit_log_without_room_for_a_decision(kafka: EmbeddedKafka) -> None:
    settings = of_log(kafka, 65_535)
    with pytest.raises(ConfigurationError) as raised:
        session.plan(settings)
    assert raised.value.code == "COMMIT_LOG_TOPIC"
    assert "max.message.bytes=65535" in raised.value.message
    assert f"--entity-name {settings.write.log_topic} --alter --add-config max.message.bytes=1048576" in str(
        raised.value
    )


def test_decision_above_the_commit_logs_limit_names_the_option(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    # The schema is part of the decision, so a long one stands for many tasks.
    settings = varied(of_log(kafka, 65_536), schema="value binary" * 6_000)
    plan = session.plan(settings)
    assert "max.message.bytes=65536: it rejects larger decisions" in caplog.text
    messages = tasks(settings, plan, 1)
    with pytest.raises(KafkaEosError) as raised:
        session.commit(settings, plan, messages)
    assert raised.value.code == "NOT_DECIDED"
    assert "MESSAGE_TOO_LARGE" in raised.value.message
    assert "Raise max.message.bytes of the commit log topic to 1048576" in raised.value.message
    session.abort(settings, plan, messages)
    assert_nothing_open(kafka.bootstrap_servers)


# two clusters


def test_task_on_another_cluster_names_both(kafka: EmbeddedKafka, kafka_tv0: EmbeddedKafka) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    settings = write_settings(kafka, topic)
    plan = session.plan(settings)
    create_topic(kafka_tv0.bootstrap_servers, topic)
    elsewhere = varied(settings, client=write_settings(kafka_tv0, topic).client)
    with connected(kafka_tv0.bootstrap_servers) as admin:
        assert admin.client.wait_for_metadata(admin.client.clock() + 30_000)
        other = admin.client.metadata.cluster_id
    assert plan.cluster_id not in (None, other)
    with pytest.raises(ConfigurationError) as raised:
        tasks(elsewhere, plan, 1)
    assert raised.value.code == "OTHER_CLUSTER"
    assert f"belong to cluster {other!r}" in raised.value.message
    assert f"began on cluster {plan.cluster_id!r}" in raised.value.message
    assert_nothing_open(kafka_tv0.bootstrap_servers)
    write_all(settings, 1)
    assert len(read_committed(kafka.bootstrap_servers, topic)) == ROWS
