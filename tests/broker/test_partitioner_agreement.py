"""librdkafka and this producer write equal keys to equal partitions."""

from __future__ import annotations

import random

import confluent_kafka
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
from kafka_testing import create_topic, read_committed

KEYS = [random.Random(length).randbytes(length) for length in (*range(70), 255, 256, 1_000, 4_099) for _ in range(4)]


@pytest.mark.feature("partitioning")
def test_keys_are_placed_as_by_librdkafka(kafka: EmbeddedKafka) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=7)
    theirs = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"})
    for key in KEYS:
        theirs.produce(topic, b"theirs", key)
    assert theirs.flush(30) == 0
    with NetworkClient(ClientConfig(bootstrap_servers=parse_bootstrap_servers(kafka.bootstrap_servers))) as client:
        ours = Producer(Admin(client), ProducerConfig(), transactional_id=None)
        ours.init_producer_id(client.clock() + 30_000)
        value = pa.array([b"ours"] * len(KEYS), pa.binary())
        columns = RecordColumns(value=value, key=pa.array(KEYS, pa.binary()), headers=None, timestamp=None)
        ours.write(Rows(topic=topic, partition=None, columns=columns))
        ours.flush()
    placed: dict[bytes, dict[bytes, set[int]]] = {b"ours": {}, b"theirs": {}}
    for record in read_committed(kafka.bootstrap_servers, topic):
        # librdkafka cannot send an empty key other than as null, which it places at random.
        if record.key:
            placed[record.value or b""].setdefault(record.key, set()).add(record.partition)
    assert placed[b"ours"] == placed[b"theirs"]
    assert len(placed[b"ours"]) == len({key for key in KEYS if key})
