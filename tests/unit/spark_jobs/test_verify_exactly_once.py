"""The command line and the report of verify_exactly_once.py, without Spark."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from kafka_eos_sink.jobs.record_comparison import Comparison
from kafka_eos_sink.jobs.submit_job import JobFailed
from kafka_eos_sink.jobs.topic_frame import TopicFrame
from spark_jobs import verify_exactly_once
from spark_jobs.verify_exactly_once import arguments, source_options

TOPIC = ("--bootstrap-servers", "a:1", "--topic", "t")


def test_the_cluster_of_the_source(tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": "a:1", "kafka.client.id": "x"}
    assert source_options(arguments((*TOPIC, "--from-topic", "s")), options) == options
    given = arguments((*TOPIC, "--from-topic", "s", "--from-bootstrap-servers", "b:1"))
    assert source_options(given, options) == {"kafka.bootstrap.servers": "b:1"}
    file = tmp_path / "client.properties"
    file.write_text("client.id=y\n", "utf-8")
    given = arguments((*TOPIC, "--from-topic", "s", "--from-properties", str(file)))
    assert source_options(given, options) == {"kafka.bootstrap.servers": "a:1", "kafka.client.id": "y"}
    in_file = {"kafka.properties.file": str(file)}
    assert source_options(arguments((*TOPIC, "--from-topic", "s")), in_file) == in_file


def test_a_column_that_never_names_the_topic_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SELECT *, Spark's Kafka source adds the name of its own topic, and an empty topic would seem to be right."""
    nothing = Comparison(expected=0, found=0, missing=0, duplicated=0, unexpected=0)
    monkeypatch.setattr("pyspark.sql.SparkSession", MagicMock())
    topic = TopicFrame(frame=MagicMock(), reader="somebody", offsets=())
    monkeypatch.setattr(verify_exactly_once, "topic_frame", lambda *_: topic)
    monkeypatch.setattr(verify_exactly_once, "expected_records", lambda *_: MagicMock(columns=["value", "topic"]))
    monkeypatch.setattr(verify_exactly_once, "compare", lambda *_, **__: nothing)
    with pytest.raises(JobFailed, match="no record of the source has topic t in its column topic"):
        verify_exactly_once.run(arguments((*TOPIC, "--from-topic", "s", "--sql", "SELECT * FROM source")))
