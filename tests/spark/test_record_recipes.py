"""The recipes of docs/records.md, as they stand there: what they write is what a consumer expects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import ReadRecord, create_topic, read_committed

PAGE = (Path(__file__).parents[2] / "docs" / "records.md").read_text("utf-8")


def recipe(title: str) -> str:
    """The Python block under a heading of the page."""
    return PAGE.split(f"\n### {title}\n")[1].split("```python\n")[1].split("```")[0]


def run(title: str, **names: Any) -> dict[str, Any]:
    exec(recipe(title), names)
    return names


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    return spark.sql("SELECT id, IF(id = 7, NULL, concat('customer ', id)) AS customer FROM range(0, 100, 1, 2)")


def written(rows: DataFrame, kafka: EmbeddedKafka) -> dict[bytes | None, ReadRecord]:
    topic = create_topic(kafka.bootstrap_servers, partitions=2)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}
    rows.write.format("kafka-eos").options(**options).mode("append").save()
    return {record.key: record for record in read_committed(kafka.bootstrap_servers, topic)}


def test_json_recipe_writes_json(orders: DataFrame, kafka: EmbeddedKafka) -> None:
    found = written(run("JSON", df=orders)["rows"], kafka)
    wanted = {b"%d" % n: {"id": n} | ({} if n == 7 else {"customer": f"customer {n}"}) for n in range(100)}
    assert {key: json.loads(record.value or b"") for key, record in found.items()} == wanted


def test_avro_recipe_writes_the_registrys_format(orders: DataFrame, kafka: EmbeddedKafka) -> None:
    found = written(run("Avro", df=orders)["rows"], kafka)

    def avro(number: int) -> bytes:
        encoded = zigzag(number)
        if number == 7:
            return encoded + zigzag(0)  # the first type of the union
        text = b"customer %d" % number
        return encoded + zigzag(1) + zigzag(len(text)) + text

    assert {key: record.value for key, record in found.items()} == {
        b"%d" % n: b"\x00\x00\x00\x00\x2a" + avro(n) for n in range(100)
    }


def test_protobuf_recipe_writes_the_registrys_format(
    orders: DataFrame, spark: SparkSession, kafka: EmbeddedKafka
) -> None:
    spark.sparkContext.addPyFile(str(Path(__file__).with_name("orders_pb2.py")))  # what --py-files does
    found = written(run("Protobuf", df=orders)["rows"], kafka)

    def protobuf(number: int) -> bytes:
        encoded = bytes([0x08, number]) if number else b""  # Protobuf does not write a zero
        text = b"customer %d" % number
        return encoded if number == 7 else encoded + bytes([0x12, len(text)]) + text

    assert {key: record.value for key, record in found.items()} == {
        b"%d" % n: b"\x00\x00\x00\x00\x2a\x00" + protobuf(n) for n in range(100)
    }


def zigzag(number: int) -> bytes:
    """A long of Avro, from 0 on."""
    doubled = 2 * number
    return bytes([doubled]) if doubled < 128 else bytes([doubled & 127 | 128, doubled >> 7])
