"""``partition_for_topic``: Java's partitions, and one transaction per partition of the topic."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kafka_eos_sink import partition_for_topic
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import ConfigurationError, InvalidRowError, SchemaError
from kafka_testing import assert_nothing_open, create_topic, read_committed, topic_names

ROWS, TASKS, PARTITIONS = 2_000, 4, 5


@pytest.fixture(params=["this Spark", "as Spark 4.0"])
def spark_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "as Spark 4.0":
        monkeypatch.delattr("pyspark.sql.functions.arrow_udf")
        monkeypatch.delattr("pyspark.sql.classic.dataframe.DataFrame.repartitionById")
        monkeypatch.delattr("pyspark.sql.dataframe.DataFrame.repartitionById")


def numbered(spark: SparkSession, key: str = "string(id % 97)") -> DataFrame:
    return spark.range(0, ROWS, 1, TASKS).selectExpr(f"{key} AS key", "string(id) AS value")


def options(kafka: EmbeddedKafka, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}


def save(rows: DataFrame, kafka: EmbeddedKafka, topic: str) -> None:
    rows.write.format("kafka-eos").options(**options(kafka, topic)).mode("append").save()


def partitions_of(kafka: EmbeddedKafka, topic: str) -> dict[bytes | None, set[int]]:
    """The partitions of each key; every row must be there once."""
    found: dict[bytes | None, set[int]] = {}
    records = read_committed(kafka.bootstrap_servers, topic)
    assert sorted(int(record.value or b"") for record in records) == list(range(ROWS))
    for record in records:
        found.setdefault(record.key, set()).add(record.partition)
    return found


def transactions(kafka: EmbeddedKafka, topic: str) -> list[int]:
    """How many transactions each partition holds: the offsets that no row has are their markers."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "watermarks"})
    rows = [0] * PARTITIONS
    for record in read_committed(kafka.bootstrap_servers, topic):
        rows[record.partition] += 1
    ends = [
        consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, at), timeout=30)[1]
        for at in range(PARTITIONS)
    ]
    consumer.close()
    return [end - count for end, count in zip(ends, rows, strict=True)]


def test_each_task_writes_one_partition_as_java_would(
    spark: SparkSession, kafka: EmbeddedKafka, spark_version: None
) -> None:
    """The sink's own partitioner is that of Java (spark/test_migrate.py)."""
    plain, placed = (create_topic(kafka.bootstrap_servers, partitions=PARTITIONS) for _ in range(2))
    save(numbered(spark), kafka, plain)
    rows = partition_for_topic(numbered(spark), placed, options(kafka, placed))
    of_task = rows.select(f.spark_partition_id(), "partition").distinct().collect()
    assert len(of_task) == len({task for task, _ in of_task}) == len({at for _, at in of_task}) == PARTITIONS
    save(rows, kafka, placed)
    assert partitions_of(kafka, placed) == partitions_of(kafka, plain)
    assert transactions(kafka, plain) == [TASKS] * PARTITIONS
    assert transactions(kafka, placed) == [1] * PARTITIONS
    assert_nothing_open(kafka.bootstrap_servers)


def test_keyless_rows_are_spread_and_given_partitions_kept(
    spark: SparkSession, kafka: EmbeddedKafka, spark_version: None
) -> None:
    topic, no_keys = (create_topic(kafka.bootstrap_servers, partitions=PARTITIONS) for _ in range(2))
    some_keys = numbered(spark, "IF(id % 2 = 0, binary(string(id % 4)), NULL)")
    given = some_keys.withColumn("partition", f.expr("IF(int(value) % 4 = 0, 3, NULL)"))
    save(partition_for_topic(given, topic, partitions=PARTITIONS), kafka, topic)
    found = partitions_of(kafka, topic)
    assert found.keys() == {None, b"0", b"2"}
    assert found[b"0"] == {3}
    assert len(found[b"2"]) == 1
    assert found[None] == set(range(PARTITIONS))
    save(partition_for_topic(numbered(spark).drop("key"), no_keys, partitions=PARTITIONS), kafka, no_keys)
    assert partitions_of(kafka, no_keys) == {None: set(range(PARTITIONS))}
    assert transactions(kafka, no_keys) == [1] * PARTITIONS


def test_streaming_rows_are_placed(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, spark_version: None
) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=PARTITIONS)
    numbered(spark).write.parquet(f"{tmp_path}/rows")
    rows = spark.readStream.schema("key STRING, value STRING").parquet(f"{tmp_path}/rows")
    given = options(kafka, topic) | {"checkpointLocation": f"{tmp_path}/checkpoint"}
    query = partition_for_topic(rows, topic, given).writeStream.format("kafka-eos").options(**given)
    query.trigger(availableNow=True).start().awaitTermination()
    assert all(len(at) == 1 for at in partitions_of(kafka, topic).values())
    assert transactions(kafka, topic) == [1] * PARTITIONS


def test_bad_input_is_named(spark: SparkSession, kafka: EmbeddedKafka) -> None:
    rows = numbered(spark)
    with pytest.raises(SchemaError, match=r"key attribute unsupported type bigint"):
        partition_for_topic(numbered(spark, "id"), "t", partitions=1)
    with pytest.raises(ConfigurationError, match="partitions=0"):
        partition_for_topic(rows, "t", partitions=0)
    with pytest.raises(ConfigurationError, match=r"kafka.bootstrap.servers is required"):
        partition_for_topic(rows, "t", {})
    with pytest.raises(InvalidRowError, match=r"UNKNOWN_TOPIC\] topic 'no-such' does not exist"):
        partition_for_topic(rows, "no-such", options(kafka, "no-such"))
    assert "no-such" not in topic_names(kafka.bootstrap_servers)
