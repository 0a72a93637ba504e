"""The producer against real brokers; what it wrote is read by other clients under read_committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_testing import (
    READERS,
    assert_nothing_open,
    await_markers,
    commit_as_driver,
    create_topic,
    read_committed,
    started_producer,
    unique_topic,
    wait_until,
)


@pytest.fixture
def client(any_kafka: EmbeddedKafka) -> Iterator[NetworkClient]:
    with connected(any_kafka.bootstrap_servers) as admin:
        yield admin.client


@pytest.fixture
def started(client: NetworkClient) -> Iterator[Callable[..., Producer]]:
    """A producer in its transaction; without a transactional id one that is only idempotent."""
    made: list[Producer] = []

    def start(transactional_id: str | None = "", **settings: Any) -> Producer:
        wanted = unique_topic("tx") if transactional_id == "" else transactional_id
        producer = started_producer(client, wanted, ProducerConfig(**settings))
        made.append(producer)
        return producer

    yield start
    for producer in made:
        producer.close()


def commit(kafka: EmbeddedKafka, client: NetworkClient, producer: Producer) -> None:
    """Returns when the rows can be read."""
    commit_as_driver(client, producer)
    await_markers(kafka.bootstrap_servers)


def rows(topic: str, first: int, count: int, partition: int | None = None) -> Rows:
    numbers = range(first, first + count)
    columns = RecordColumns(
        value=pa.array([b"%d" % n for n in numbers], pa.binary()),
        key=pa.array([b"key-%d" % (n % 997) for n in numbers], pa.binary()),
    )
    where = None if partition is None else pa.array([partition] * count, pa.int32())
    return Rows(topic=topic, partition=where, columns=columns)


def assert_exactly_once_in_order(kafka: EmbeddedKafka, topic: str, count: int, reader: str = "confluent") -> None:
    """Numbers 0 to count - 1, each once, ascending in every partition."""
    records = read_committed(kafka.bootstrap_servers, topic, reader=reader)  # type: ignore[arg-type]
    numbers = [int(record.value or b"") for record in records]
    assert Counter(numbers) == Counter(range(count))
    for partition in {record.partition for record in records}:
        own = [n for n, record in zip(numbers, records, strict=True) if record.partition == partition]
        assert own == sorted(own)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_row_is_read_once_and_in_order_with_each_codec(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any, codec: str
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    producer = started(compression=codec, batch_size=20_000)
    for first in range(0, 30_000, 10_000):
        producer.write(rows(topic, first, 10_000))
    commit(any_kafka, client, producer)
    for reader in READERS:
        assert_exactly_once_in_order(any_kafka, topic, 30_000, reader)
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])


@pytest.mark.parametrize("transactional_id", ["", None], ids=["transactional", "idempotent"])
def test_batch_that_one_topic_rejects_is_split_beside_another(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any, transactional_id: str | None
) -> None:
    """One response acknowledges a topic, and answers MESSAGE_TOO_LARGE for the other."""
    servers = any_kafka.bootstrap_servers
    small = create_topic(servers, partitions=1, configs={"max.message.bytes": "2000"})
    topics = (small, create_topic(servers, partitions=1))
    producer = started(transactional_id)
    for topic in topics:
        producer.write(rows(topic, 0, 1_000))
    producer.flush()
    if transactional_id is not None:
        commit(any_kafka, client, producer)
    for topic in topics:
        assert_exactly_once_in_order(any_kafka, topic, 1_000)


def test_idempotent_producer_bumps_epoch_on_unresolved_sequence(any_kafka: EmbeddedKafka, started: Any) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    producer = started(None)
    producer.write(rows(topic, 0, 10))
    producer.flush()
    _, epoch = producer.identity
    # As if the broker had lost what it acknowledged: it answers OUT_OF_ORDER_SEQUENCE_NUMBER to all that follows.
    producer._accumulator.queue(topic, 0).next_sequence = 1_000
    producer.write(rows(topic, 10, 10))
    producer.flush()
    producer.write(rows(topic, 20, 10))
    producer.flush()
    assert producer.identity[1] == epoch + 1
    assert_exactly_once_in_order(any_kafka, topic, 30)


def test_rows_that_broker_rejects_reach_dead_letter_topic(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    """A null key on a compacted topic, and a time that is older than the topic takes."""
    configs = {"cleanup.policy": "compact", "message.timestamp.before.max.ms": "3600000"}
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1, configs=configs)
    dlq = create_topic(
        any_kafka.bootstrap_servers, partitions=1, configs={"message.timestamp.before.max.ms": "3600000"}
    )
    producer = started(dead_letter_topic=dlq, batch_size=2_000)
    numbers = range(1_000)
    without_key, old = {7, 8, 500, 999}, {0, 7, 300}
    given = RecordColumns(
        value=pa.array([b"%d" % n for n in numbers], pa.binary()),
        key=pa.array([None if n in without_key else b"%d" % n for n in numbers], pa.binary()),
        headers=None,
        timestamp=pa.array([1_500_000_000_000 if n in old else None for n in numbers], pa.int64()),
    )
    producer.write(Rows(topic=topic, partition=None, columns=given))
    commit(any_kafka, client, producer)
    kept = [int(r.value or b"") for r in read_committed(any_kafka.bootstrap_servers, topic)]
    assert kept == [n for n in numbers if n not in without_key | old]
    letters = {int(r.value or b""): dict(r.headers) for r in read_committed(any_kafka.bootstrap_servers, dlq)}
    assert letters.keys() == without_key | old
    assert {headers["kafka-eos.error"] for headers in letters.values()} == {b"RECORD_REFUSED"}
    assert {n for n, headers in letters.items() if headers.get("kafka-eos.timestamp") == b"1500000000000"} == old
    assert all(headers["kafka-eos.row"] == b"%d" % n for n, headers in letters.items())
    assert_nothing_open(any_kafka.bootstrap_servers, [topic, dlq])


def test_partitions_added_while_writing_are_found(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    producer = started()
    producer.write(rows(topic, 0, 10))
    producer.flush()
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": any_kafka.bootstrap_servers})
    for future in admin.create_partitions([confluent_kafka.admin.NewPartitions(topic, 3)]).values():
        future.result(30)
    wait_until(lambda: len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == 3, "the new partitions")
    producer.write(rows(topic, 10, 10, partition=2))
    commit(any_kafka, client, producer)
    assert sum(r.partition == 2 for r in read_committed(any_kafka.bootstrap_servers, topic)) == 10
