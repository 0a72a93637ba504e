"""Errors and warnings name the setting of the brokers that a write breaks: on a Kafka whose settings are unusually low."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from dead_writes import write_settings
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import at_least_once, session
from kafka_testing import create_topic

SOCKET_REQUEST_MAX_BYTES = 200_000


@pytest.fixture(scope="module")
def low() -> Iterator[EmbeddedKafka]:
    properties = {"socket.request.max.bytes": str(SOCKET_REQUEST_MAX_BYTES)}
    with EmbeddedKafka(properties=properties, transaction_version=2) as started:
        yield started


def large_row(topic: str) -> Rows:
    return Rows(topic=topic, partition=None, columns=RecordColumns(value=pa.array([b"x" * 300_000])))


def write_task(settings: session.WriteSettings, rows: Rows) -> session.TaskMessage:
    task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
    return session.write_task(settings, session.plan(settings), task, iter([rows]))


def write_at_least_once(settings: session.WriteSettings, rows: Rows) -> None:
    at_least_once.write_rows(settings, iter([rows]))


@pytest.mark.parametrize("write", [write_task, write_at_least_once], ids=["exactly-once", "at-least-once"])
def test_request_above_the_brokers_limit_names_the_options(
    low: EmbeddedKafka, write: Callable[[session.WriteSettings, Rows], object]
) -> None:
    topic = create_topic(low.bootstrap_servers, partitions=1)
    settings = write_settings(low, topic)
    with pytest.raises(KafkaEosError) as raised:
        write(replace(settings, producer=replace(settings.producer, delivery_timeout_ms=3_000)), large_row(topic))
    assert raised.value.code == "DELIVERY_TIMEOUT"
    assert "request of 300072 bytes was in flight" in raised.value.message
    assert "lower kafka.max.request.size and kafka.batch.size" in raised.value.message
