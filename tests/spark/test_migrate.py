"""docs/migrate.md: Spark's own `kafka` sink beside ours, for each column and option that it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import ReadRecord, assert_nothing_open, create_topic, read_committed

PARTITIONS = 3
Sink = Literal["kafka", "kafka-eos"]
VALUE = "CAST(id AS STRING) AS value"
HEADERS = (
    "array(named_struct('key', 'a', 'value', CAST('1' AS BINARY)), named_struct('key', 'a', 'value', NULL)) AS headers"
)


@dataclass(frozen=True)
class Same:
    """What both sinks write alike. ``TOPIC`` stands for the topic, ``OTHER`` for one that does not exist."""

    columns: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=lambda: {"topic": "TOPIC"})
    placed: bool = True
    """Whether the records' partitions are determined."""


SAME = {
    "string value": Same((VALUE,), placed=False),
    "binary value": Same(("CAST(CAST(id AS STRING) AS BINARY) AS value",), placed=False),
    "tombstones": Same(("CAST(id AS STRING) AS key", "IF(id % 2 = 0, NULL, CAST(id AS STRING)) AS value")),
    "string key": Same(("CONCAT('customer ', id) AS key", VALUE)),
    "binary key": Same(("CAST(CONCAT('customer ', id) AS BINARY) AS key", VALUE)),
    "null keys": Same(("IF(id % 2 = 0, NULL, CAST(id AS STRING)) AS key", VALUE), placed=False),
    "column topic": Same((VALUE, "'TOPIC' AS topic"), {}, placed=False),
    "option topic wins": Same((VALUE, "'OTHER' AS topic"), placed=False),
    "column partition": Same((VALUE, "CAST(id % 3 AS INT) AS partition")),
    "null partition": Same(("CAST(id AS STRING) AS key", VALUE, "CAST(NULL AS INT) AS partition")),
    "headers": Same((VALUE, HEADERS), placed=False),
    "null headers": Same(
        (VALUE, HEADERS.replace("array(", "IF(id % 2 = 0, NULL, array(").replace(") AS", ")) AS")), placed=False
    ),
    "headers with names of another case": Same(
        (VALUE, HEADERS.replace("'key'", "'Key'").replace("'value'", "'VALUE'")), placed=False
    ),
    "option topic wins over a column of another type": Same((VALUE, "id AS topic"), placed=False),
    "another partitioner": Same(
        (VALUE,),
        {"topic": "TOPIC", "kafka.partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"},
        placed=False,
    ),
    "other columns": Same((VALUE, "id AS order_id", "current_timestamp() AS written"), placed=False),
    **{
        f"{name}={value}": Same(("CAST(id AS STRING) AS key", VALUE), {"topic": "TOPIC", name: value})
        for name, value in {
            "kafka.acks": "all",
            "kafka.batch.size": "1000",
            "kafka.buffer.memory": "33554432",
            "kafka.client.id": "orders",
            "kafka.compression.type": "gzip",
            "kafka.delivery.timeout.ms": "60000",
            "kafka.enable.idempotence": "true",
            "kafka.linger.ms": "20",
            "kafka.max.in.flight.requests.per.connection": "1",
            "kafka.max.request.size": "100000",
            "kafka.request.timeout.ms": "20000",
            "kafka.partitioner.ignore.keys": "false",
        }.items()
    },
}


def frame(spark: SparkSession, columns: tuple[str, ...], topic: str) -> DataFrame:
    return spark.range(0, 60, 1, 2).selectExpr(*(column.replace("TOPIC", topic) for column in columns))


def write(rows: DataFrame, sink: Sink, kafka: EmbeddedKafka, options: Mapping[str, str]) -> None:
    writer = rows.write.format(sink).option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    writer.options(**options).mode("append").save()


def content(records: list[ReadRecord], *, placed: bool) -> list[Any]:
    """What the two sinks must agree on: all but offsets and the time of writing."""
    return sorted(
        repr((record.partition if placed else None, record.key, record.value, record.headers)) for record in records
    )


@pytest.fixture
def topics(kafka: EmbeddedKafka) -> Iterator[dict[Sink, str]]:
    sinks: tuple[Sink, ...] = ("kafka", "kafka-eos")
    yield {sink: create_topic(kafka.bootstrap_servers, partitions=PARTITIONS) for sink in sinks}
    assert_nothing_open(kafka.bootstrap_servers)


@pytest.mark.parametrize("name", SAME)
def test_both_sinks_write_equal_records(
    spark: SparkSession, kafka: EmbeddedKafka, topics: dict[Sink, str], name: str
) -> None:
    case = SAME[name]
    found = {}
    for sink, topic in topics.items():
        options = {option: value.replace("TOPIC", topic) for option, value in case.options.items()}
        write(frame(spark, case.columns, topic), sink, kafka, options)
        found[sink] = content(read_committed(kafka.bootstrap_servers, topic), placed=case.placed)
    assert len(found["kafka"]) == 60
    assert found["kafka-eos"] == found["kafka"]


@pytest.mark.parametrize("mode", ["append", "complete", "update"])
def test_both_sinks_stream_equal_records(
    spark: SparkSession, kafka: EmbeddedKafka, topics: dict[Sink, str], tmp_path: Path, mode: str
) -> None:
    frame(spark, ("CAST(id AS STRING) AS key", VALUE), "").write.parquet(str(tmp_path / "rows"))
    found = {}
    for sink, topic in topics.items():
        rows = spark.readStream.schema("key STRING, value STRING").parquet(str(tmp_path / "rows"))
        if mode != "append":
            rows = rows.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")
        writer = rows.writeStream.format(sink).outputMode(mode).trigger(availableNow=True)
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}
        writer = writer.options(**options).option("checkpointLocation", str(tmp_path / sink))
        if sink == "kafka-eos" and mode == "update":
            with pytest.raises(Exception, match=r"(?i)update"):
                writer.start().awaitTermination()
        else:
            writer.start().awaitTermination()
        found[sink] = content(read_committed(kafka.bootstrap_servers, topic), placed=True)
    assert len(found["kafka"]) == 60
    assert found["kafka-eos"] == ([] if mode == "update" else found["kafka"])
