"""batch_to_kafka.py runs through spark-submit with nothing but a zip of the package."""

from __future__ import annotations

import json
from pathlib import Path

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed
from tests.spark.spark_submit import SparkSubmit, own_lines

JOB = "batch_to_kafka"


def test_a_failure_is_one_sentence_and_status_1(spark_submit: SparkSubmit, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"a": 1}\n', "utf-8")
    done = spark_submit(
        JOB,
        "--topic",
        "orders",
        "--bootstrap-servers",
        "127.0.0.1:1",
        "--format",
        "json",
        "--option",
        "kafka.acks=1",
        "data.json",
    )
    assert done.returncode == 1, done.stderr
    (line,) = own_lines(done.stdout, JOB)
    assert line.startswith("batch_to_kafka: [KAFKA_EOS.INVALID_OPTIONS] kafka.acks=1 contradicts exactly-once")


def test_files_go_to_a_topic_once_however_often_the_job_runs(
    spark_submit: SparkSubmit, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    rows = [{"id": i, "name": f"n{i}"} for i in range(50)]
    (tmp_path / "data.json").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (tmp_path / "client.properties").write_text(
        f"bootstrap.servers={kafka.bootstrap_servers}\ncompression.type=lz4\ngroup.id=not-ours\n", "utf-8"
    )
    for _ in range(2):
        done = spark_submit(
            JOB,
            *("--topic", topic, "--format", "json", "--properties", "client.properties"),
            *("--key", "id", "--headers", "array(named_struct('key', 'h', 'value', CAST(name AS BINARY)))"),
            *("--where", "id < 40", "--txn-app-id", "files", "--txn-version", "3", "data.json"),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert own_lines(done.stdout, JOB) == [f"batch_to_kafka: topic {topic} holds the rows"]
    records = read_committed(kafka.bootstrap_servers, topic)
    assert [(record.key, json.loads(record.value or b""), record.headers) for record in records] == [
        (str(row["id"]).encode(), row, (("h", str(row["name"]).encode()),)) for row in rows[:40]
    ]
    assert_nothing_open(kafka.bootstrap_servers, [topic])
