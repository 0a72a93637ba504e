"""batch_to_kafka.py runs through spark-submit with nothing but a zip of the package."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed
from tests.spark.spark_submit import SparkSubmit, own_lines

JOB = "batch_to_kafka"


def test_a_failure_is_one_sentence_and_status_1(spark_submit: SparkSubmit, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"a": 1}\n', "utf-8")
    done = spark_submit(
        JOB,
        *("--topic", "orders", "--bootstrap-servers", "127.0.0.1:1"),
        *("--format", "json", "--option", "kafka.acks=1", "data.json"),
    )
    assert done.returncode == 1, done.stderr
    (line,) = own_lines(done.stdout, JOB)
    assert line.startswith("batch_to_kafka: [KAFKA_EOS.INVALID_OPTIONS] kafka.acks=1 contradicts exactly-once")


ROWS = [{"id": i, "name": f"n{i}"} for i in range(50)]
HEADERS = "array(named_struct('key', 'h', 'value', CAST(name AS BINARY)))"


def submit_files(spark_submit: SparkSubmit, servers: str, topic: str, folder: Path) -> None:
    """Write the first 40 rows as version 3 of the application ``files``."""
    (folder / "data.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    (folder / "client.properties").write_text(
        f"bootstrap.servers={servers}\ncompression.type=lz4\ngroup.id=not-ours\n", "utf-8"
    )
    done = spark_submit(
        JOB,
        *("--topic", topic, "--format", "json", "--properties", "client.properties", "--key", "id"),
        *("--headers", HEADERS, "--where", "id < 40", "--txn-app-id", "files", "--txn-version", "3", "data.json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert own_lines(done.stdout, JOB) == [f"batch_to_kafka: topic {topic} holds the rows"]
    assert_nothing_open(servers, [topic])


def test_files_go_to_a_topic_with_their_keys_and_headers(
    spark_submit: SparkSubmit, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    submit_files(spark_submit, kafka.bootstrap_servers, topic, tmp_path)
    records = read_committed(kafka.bootstrap_servers, topic)
    assert [(record.key, json.loads(record.value or b""), record.headers) for record in records] == [
        (str(row["id"]).encode(), row, (("h", str(row["name"]).encode()),)) for row in ROWS[:40]
    ]


def test_files_that_an_earlier_run_has_written_are_not_written_again(
    spark: SparkSession, spark_submit: SparkSubmit, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    columns = "string(id) key", "to_json(struct(*)) value", f"{HEADERS} headers"
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic, "txnAppId": "files", "txnVersion": 3}
    rows = spark.createDataFrame(ROWS[:40]).selectExpr(*columns)
    rows.write.format("kafka-eos").options(**options).mode("append").save()
    submit_files(spark_submit, kafka.bootstrap_servers, topic, tmp_path)
    assert len(read_committed(kafka.bootstrap_servers, topic)) == 40
