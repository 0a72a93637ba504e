"""Batch writes on a real Kafka, read back by two clients that are not ours, under both transaction protocols."""

from __future__ import annotations

import datetime
import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafka_eos_sink import activate_session
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import (
    READERS,
    assert_nothing_open,
    create_topic,
    read_committed,
    read_uncommitted,
    wait_until,
)

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
EVERYTHING = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS),
        StructField("timestamp", TimestampType()),
        StructField("partition", IntegerType()),
        StructField("topic", StringType()),
    ]
)


def writer(frame: DataFrame, cluster: EmbeddedKafka, **options: str) -> DataFrameWriter:
    found = frame.write.format("kafka-eos").mode("append").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    return found.options(**options)


def numbered(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    """Keys that repeat, and values that say which Spark partition wrote them, in which order."""
    return spark.range(0, rows, 1, partitions).selectExpr(
        "cast(id % 97 as string) key", "concat(spark_partition_id(), ':', id) value"
    )


def expected_values(rows: int, partitions: int) -> Counter[bytes]:
    """The values of `numbered`; Spark's range begins partition i at i * rows // partitions."""
    starts = [index * rows // partitions for index in range(partitions + 1)]
    return Counter(
        f"{index}:{number}".encode()
        for index in range(partitions)
        for number in range(starts[index], starts[index + 1])
    )


@pytest.mark.parametrize("reader", READERS)
def test_every_row_is_visible_once_with_equal_bytes(spark: SparkSession, any_kafka: EmbeddedKafka, reader: str) -> None:
    one, two = (create_topic(any_kafka.bootstrap_servers, partitions=3) for _ in range(2))
    moment = datetime.datetime(2026, 3, 1, 12, 30, 15, 123_000, tzinfo=datetime.UTC)
    rows = [
        (b"k1", b"v1", [("h", b"1"), ("h", b"2"), ("n", None)], moment, 2, one),
        (None, b"no key", [], moment, 0, one),
        (b"", b"", None, moment, 1, two),
        (b"tombstone", None, None, moment, 1, two),
        ("ключ ☃".encode(), "значение 🚚".encode() * 50, [("имя", "ценность".encode())], moment, 0, two),
        (bytes(range(256)), bytes(range(255, -1, -1)), [("", b"")], moment, 2, two),
    ]
    frame = spark.createDataFrame(rows, EVERYTHING).repartition(3)
    writer(frame, any_kafka).save()
    found = {
        (topic, record.partition, record.key, record.value, record.headers, record.timestamp)
        for topic in (one, two)
        for record in read_committed(any_kafka.bootstrap_servers, topic, reader=reader)  # type: ignore[arg-type]
    }
    milliseconds = int(moment.timestamp() * 1000)
    wanted = {
        (topic, partition, key, value, tuple(headers or ()), milliseconds)
        for key, value, headers, _, partition, topic in rows
    }
    assert found == wanted
    assert_nothing_open(any_kafka.bootstrap_servers)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_order_is_kept_per_spark_partition_and_topic_partition(
    spark: SparkSession, any_kafka: EmbeddedKafka, codec: str
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=4)
    options = {"topic": topic, "kafka.compression.type": codec, "kafka.batch.size": "4096"}
    writer(numbered(spark, 40_000, 4), any_kafka, **options).save()
    records = read_committed(any_kafka.bootstrap_servers, topic)
    assert Counter(record.value for record in records) == expected_values(40_000, 4)
    last: dict[tuple[int, str], int] = {}
    for record in records:
        spark_partition, number = (record.value or b"").decode().split(":")
        where = (record.partition, spark_partition)
        assert int(number) > last.get(where, -1), f"order broken in {where}"
        last[where] = int(number)
    # A key lies in one partition only.
    partitions_of_key: dict[bytes | None, set[int]] = {}
    for record in records:
        partitions_of_key.setdefault(record.key, set()).add(record.partition)
    assert all(len(partitions) == 1 for partitions in partitions_of_key.values())
    assert_nothing_open(any_kafka.bootstrap_servers)


def test_user_partitioner_and_interceptor_run_in_the_tasks(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The rows have no key before the interceptor gives them one, by which the partitioner then goes."""
    topic = create_topic(kafka.bootstrap_servers, partitions=3)
    options = {
        "topic": topic,
        "txnAppId": str(tmp_path),
        "txnVersion": "1",
        "partitioner": "tests.spark.users_code:by_key",
        "interceptors": "tests.spark.users_code:Diary",
        "kafka.batch.size": "1000",
    }
    writer(spark.range(0, 1_000, 1, 2).selectExpr("cast(id as string) value"), kafka, **options).save()
    records = read_committed(kafka.bootstrap_servers, topic)
    found = {record.value: (record.key, record.partition) for record in records}
    assert len(records) == 1_000
    assert found == {b"%d" % number: (b"%d" % number, 2 - number % 3) for number in range(1_000)}
    diaries = [[json.loads(line) for line in file.read_text().splitlines()] for file in tmp_path.iterdir()]
    assert len(diaries) == 2  # one of each task
    acknowledged: list[tuple[int, int]] = []
    for diary in diaries:
        assert [sum(rows) for what, *rows in diary if what == "sent"] == [500]
        assert [what for what, *_ in diary].index("closed") == len(diary) - 1
        for what, *told in diary:
            if what == "acknowledged" and told[0] == topic:
                _, partition, base_offset, count, error = told
                assert error is None
                acknowledged += [(partition, offset) for offset in range(base_offset, base_offset + count)]
    assert sorted(acknowledged) == [(record.partition, record.offset) for record in records]
    assert_nothing_open(kafka.bootstrap_servers)


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_QUICKACK is Linux's")
def test_tasks_acknowledge_on_sparks_connection_only(spark: SparkSession, kafka: EmbeddedKafka) -> None:
    """The client's connections are on the loopback, too. Several tasks run in one worker, one after the other."""
    topic = create_topic(kafka.bootstrap_servers, partitions=2)
    options = {"topic": topic, "partitioner": "tests.spark.users_code:on_the_acknowledged_connection"}
    writer(numbered(spark, 1_000, 8), kafka, **options).save()
    records = read_committed(kafka.bootstrap_servers, topic)
    assert Counter(record.value for record in records) == expected_values(1_000, 8)
    assert {record.partition for record in records} == {0}
    assert_nothing_open(kafka.bootstrap_servers)


def test_threads_of_a_driver_write_at_the_same_time(spark: SparkSession, kafka: EmbeddedKafka) -> None:
    """As docs/batch.md shows it; Spark does not find the format otherwise."""
    topics = [create_topic(kafka.bootstrap_servers, partitions=2) for _ in range(3)]

    def write(topic: str) -> None:
        activate_session(spark)
        writer(numbered(spark, 100, 2), kafka, topic=topic, txnAppId="parallel", txnVersion="1").save()

    with ThreadPoolExecutor() as threads:
        list(threads.map(write, topics))
    for topic in topics:
        values = Counter(record.value for record in read_committed(kafka.bootstrap_servers, topic))
        assert values == expected_values(100, 2)
    assert_nothing_open(kafka.bootstrap_servers)


def test_forbidden_version_is_rejected_before_a_task_starts(spark: SparkSession, kafka: EmbeddedKafka) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    options = {"topic": topic, "txnAppId": f"app-{topic}"}
    writer(numbered(spark, 100, 1), kafka, **options, txnVersion="7").save()
    spark.sparkContext.setJobGroup(topic, "refused writes")
    with pytest.raises(Exception, match=r"KAFKA_EOS\.DIFFERENT_BATCH"):
        writer(numbered(spark, 100, 1).select("value"), kafka, **options, txnVersion="7").save()
    writer(numbered(spark, 100, 1), kafka, **options, txnVersion="8").save()
    # Spark notes jobs a moment later, in their order: with the last one all that there were are known.
    jobs = spark.sparkContext.statusTracker()
    wait_until(lambda: jobs.getJobIdsForGroup(topic), "the job of version 8")
    assert len(jobs.getJobIdsForGroup(topic)) == 1


def test_empty_partitions_and_empty_frames_are_written_as_such(spark: SparkSession, any_kafka: EmbeddedKafka) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    options = {"topic": topic, "txnAppId": f"app-{topic}"}
    frame = numbered(spark, 1_000, 4)
    writer(frame.where("key is null"), any_kafka, **options, txnVersion="1").save()
    writer(frame.where("value like '2:%'"), any_kafka, **options, txnVersion="2").save()
    writer(spark.createDataFrame([], "value string"), any_kafka, **options, txnVersion="3").save()
    assert len(read_committed(any_kafka.bootstrap_servers, topic)) == 250
    assert_nothing_open(any_kafka.bootstrap_servers)


def test_at_least_once_writes_without_transactions(spark: SparkSession, kafka: EmbeddedKafka) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    options = {"topic": topic, "delivery.guarantee": "at-least-once", "kafka.batch.size": "2000"}
    writer(numbered(spark, 5_000, 3), kafka, **options).save()
    records = read_uncommitted(kafka.bootstrap_servers, topic)
    assert Counter(record.value for record in records) == expected_values(5_000, 3)
