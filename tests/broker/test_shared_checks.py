"""Consecutive writes with random ids share one check of the cluster."""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import replace

import pytest

from dead_writes import ROWS, tasks, varied, write_all, write_settings
from kafka_eos_sink.commit.transactional_id import random_write_id
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import InvalidRowError
from kafka_eos_sink.runtime import session
from kafka_testing import create_topic, delete_topic, read_committed

CONNECTION = "kafka_eos_sink.client.connection"


def random_write(kafka: EmbeddedKafka, topic: str, **of_producer: int) -> session.WriteSettings:
    given = write_settings(kafka, topic, write_id=random_write_id(None, str(uuid.uuid4())), version=0)
    return varied(given, producer=replace(given.producer, **of_producer))


def requested(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The APIs requested since the last call, without refreshes that depend on the time."""
    found = [re.search(r"request: (\w+)", record.getMessage()) for record in caplog.records]
    caplog.clear()
    return [each[1] for each in found if each is not None and each[1] not in ("ApiVersions", "Metadata")]


def test_second_random_write_skips_the_checks(any_kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    with caplog.at_level(logging.DEBUG, CONNECTION):
        session.plan(random_write(any_kafka, topic))
        assert {"DescribeConfigs", "Fetch"} < set(requested(caplog))
        given = random_write(any_kafka, topic)
        plan = session.plan(given)
        assert requested(caplog) == ["FindCoordinator", "InitProducerId", "Produce"]
        session.commit(given, plan, tasks(given, plan))
    assert len(read_committed(any_kafka.bootstrap_servers, topic)) == 2 * ROWS


def test_topic_deleted_after_the_check_fails_the_next_plan(any_kafka: EmbeddedKafka) -> None:
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers)
    write_all(random_write(any_kafka, topic, max_block_ms=500))
    delete_topic(servers, topic)
    with pytest.raises(InvalidRowError, match=r"UNKNOWN_TOPIC\]"):
        session.plan(random_write(any_kafka, topic, max_block_ms=500))
