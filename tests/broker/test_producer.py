"""The producer against real brokers; what it wrote is read by other clients under read_committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_testing import (
    BEING_ENDED,
    READERS,
    assert_nothing_open,
    commit_as_driver,
    create_topic,
    read_committed,
    started_producer,
    unique_topic,
    wait_until,
)

DEADLINE_MS = 30_000


@pytest.fixture
def client(any_kafka: EmbeddedKafka) -> Iterator[NetworkClient]:
    with connect(any_kafka) as connected:
        yield connected


def connect(kafka: EmbeddedKafka, **settings: Any) -> NetworkClient:
    return NetworkClient(ClientConfig(bootstrap_servers=parse_bootstrap_servers(kafka.bootstrap_servers), **settings))


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


def deadline(client: NetworkClient) -> int:
    return client.clock() + DEADLINE_MS


def commit(client: NetworkClient, producer: Producer) -> None:
    """Returns when the rows can be read."""
    commit_as_driver(client, producer)
    if (name := producer._transactions.transactional_id) is not None:
        wait_until(lambda: not is_being_ended(client, name), "the markers")


def is_being_ended(client: NetworkClient, transactional_id: str) -> bool:
    """A coordinator answers EndTxn before it has the markers written."""
    found = Admin(client).describe_transactions([transactional_id], deadline(client))[transactional_id]
    return found is not None and found.transaction_state in BEING_ENDED


def columns(first: int, count: int, *, keyed: bool = True, size: int = 0) -> RecordColumns:
    numbers = range(first, first + count)
    return RecordColumns(
        value=pa.array([(b"%d" % n).ljust(size, b".") for n in numbers], pa.binary()),
        key=pa.array([b"key-%d" % (n % 997) for n in numbers], pa.binary()) if keyed else None,
        headers=None,
        timestamp=None,
    )


def rows(topic: Any, first: int, count: int, partition: Any = None, **shape: Any) -> Rows:
    return Rows(topic=topic, partition=partition, columns=columns(first, count, **shape))


def write_all(producer: Producer, batches: list[Rows]) -> None:
    for batch in batches:
        producer.write(batch)
    producer.flush()


def assert_exactly_once_in_order(kafka: EmbeddedKafka, topic: str, count: int, reader: str = "confluent") -> None:
    """Numbers 0 to count - 1, each once, ascending in every partition."""
    records = read_committed(kafka.bootstrap_servers, topic, reader=reader)  # type: ignore[arg-type]
    numbers = [int((record.value or b"").rstrip(b".")) for record in records]
    assert Counter(numbers) == Counter(range(count))
    for partition in {record.partition for record in records}:
        own = [n for n, record in zip(numbers, records, strict=True) if record.partition == partition]
        assert own == sorted(own)


@pytest.mark.feature("adding partitions", "compression")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_row_is_read_once_and_in_order_with_each_codec(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any, codec: str
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    producer = started(compression=codec, batch_size=20_000)
    for first in range(0, 30_000, 10_000):
        producer.write(rows(topic, first, 10_000))
    commit(client, producer)
    for reader in READERS:
        assert_exactly_once_in_order(any_kafka, topic, 30_000, reader)
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])


@pytest.mark.feature("epoch bump", "producer without transactions")
def test_idempotent_producer_bumps_epoch_on_unresolved_sequence(
    any_kafka: EmbeddedKafka, client: NetworkClient, started: Any
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    producer = started(None)
    producer.write(rows(topic, 0, 10))
    producer.flush()
    epoch = producer.producer_epoch
    # As if the broker had lost what it acknowledged: it answers OUT_OF_ORDER_SEQUENCE_NUMBER to all that follows.
    producer._accumulator.queue(topic, 0).next_sequence = 1_000
    producer.write(rows(topic, 10, 10))
    producer.flush()
    producer.write(rows(topic, 20, 10))
    producer.flush()
    assert producer.producer_epoch == epoch + 1
    assert_exactly_once_in_order(any_kafka, topic, 30)


@pytest.mark.feature("rejected records")
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
    commit(client, producer)
    kept = [int(r.value or b"") for r in read_committed(any_kafka.bootstrap_servers, topic)]
    assert kept == [n for n in numbers if n not in without_key | old]
    letters = {int(r.value or b""): dict(r.headers) for r in read_committed(any_kafka.bootstrap_servers, dlq)}
    assert letters.keys() == without_key | old
    assert {headers["kafka-eos.error"] for headers in letters.values()} == {b"RECORD_REFUSED"}
    assert {n for n, headers in letters.items() if headers.get("kafka-eos.timestamp") == b"1500000000000"} == old
    assert all(headers["kafka-eos.row"] == b"%d" % n for n, headers in letters.items())
    assert_nothing_open(any_kafka.bootstrap_servers, [topic, dlq])


@pytest.mark.feature("metadata")
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
    producer.write(rows(topic, 10, 10, partition=pa.array(np.full(10, 2), pa.int32())))
    commit(client, producer)
    assert sum(r.partition == 2 for r in read_committed(any_kafka.bootstrap_servers, topic)) == 10
