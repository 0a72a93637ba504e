"""A topic's committed records as a DataFrame, read by this package's client."""

from __future__ import annotations

import time
import uuid
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql import SparkSession

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import BrokerRefusedError, ConfigurationError
from kafka_eos_sink.jobs.topic_frame import SCHEMA, topic_frame
from kafka_testing import assert_nothing_open, create_topic, read_committed, unique_topic


def transactional_producer(kafka: EmbeddedKafka) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": f"test-{uuid.uuid4()}",
            # Longer than reading may take on a busy machine.
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(60)
    return producer


def test_frame_holds_committed_records_up_to_open_transaction(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=3)
    producer = transactional_producer(kafka)
    started_ms = int(time.time() * 1_000) - 1_000
    for committed in (True, False, True):
        producer.begin_transaction()
        for number in range(30):
            headers = [("h", str(number)), ("none", None)] if number % 2 else None
            key = None if number % 5 == 0 else str(number)
            value = None if number % 7 == 0 else f"{committed} {number}"
            producer.produce(topic, value, key, partition=number % 2, headers=headers, timestamp=started_ms + number)
        producer.flush(60)
        (producer.commit_transaction if committed else producer.abort_transaction)(60)
    assert_nothing_open(kafka.bootstrap_servers, [topic])  # markers come after the answer
    last = transactional_producer(kafka)
    last.begin_transaction()
    last.produce(topic, "open", partition=1)
    last.flush(60)
    try:
        found = topic_frame(spark, topic, {"kafka.bootstrap.servers": kafka.bootstrap_servers}, "client")
        assert found.reader == "this package's client"
        assert [(each.partition, each.high_watermark - each.last_stable) for each in found.offsets] == [
            (0, 0),
            (1, 1),
            (2, 0),
        ]
        assert found.frame.schema == spark.createDataFrame([], SCHEMA).schema
        rows = [
            (
                row["topic"],
                row["partition"],
                row["offset"],
                row["key"] and bytes(row["key"]),
                row["value"] and bytes(row["value"]),
                round(row["timestamp"].timestamp() * 1_000),
                row["timestampType"],
                tuple((header["key"], header["value"] and bytes(header["value"])) for header in row["headers"]),
            )
            for row in found.frame.orderBy("partition", "offset").collect()
        ]
        shown = read_committed(kafka.bootstrap_servers, topic)
    finally:
        last.abort_transaction(60)
    assert len(rows) == 60
    assert rows == [
        (topic, each.partition, each.offset, each.key, each.value, each.timestamp, 0, each.headers) for each in shown
    ]


def test_reading_without_jars_names_the_jars(kafka: EmbeddedKafka, spark: SparkSession) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    java: Any = spark.sparkContext._jvm
    thread = java.java.lang.Thread.currentThread()
    loader = thread.getContextClassLoader()
    thread.setContextClassLoader(loader.getParent())  # which knows Spark without the jars that it was given
    try:
        with pytest.raises(ConfigurationError, match=r"KAFKA_SOURCE_MISSING\] .*spark-sql-kafka-0-10_2\.13:4\.2\.0"):
            topic_frame(spark, topic, options, "spark")
        assert topic_frame(spark, topic, options).reader == "this package's client"
    finally:
        thread.setContextClassLoader(loader)
    assert topic_frame(spark, topic, options).reader == "Spark's Kafka source"
    with pytest.raises(BrokerRefusedError, match=r"UNKNOWN_TOPIC\]"):
        topic_frame(spark, unique_topic(), options)
