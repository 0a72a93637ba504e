"""A driver, a task or a commit dies at each step; the same txnAppId and txnVersion run again.

Nothing is lost then, nothing is there twice and nothing stays open.
"""

from __future__ import annotations

import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kafka_eos_sink import activate_session
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed, read_uncommitted, wait_until
from tests.spark.jobs.write_rows import rows_to_write, writer_of
from tests.spark.killable_job import KillableJob

JOB = Path(__file__).parent / "jobs" / "write_rows.py"
ROWS, PARTITIONS = 4_000, 4


class Job(KillableJob):
    """The write in a process of its own."""

    def __init__(
        self, environment: dict[str, str], cluster: EmbeddedKafka, topic: str, folder: Path, txn_app_id: str = "app"
    ) -> None:
        super().__init__(JOB, environment, folder)
        self._cluster, self._topic, self._txn_app_id = cluster, topic, txn_app_id

    def arguments(self) -> list[str]:
        return [self._cluster.bootstrap_servers, self._topic, str(ROWS), str(PARTITIONS), self._txn_app_id, "1"]

    def run_once(self, fail: str) -> int:
        return self.run(self.arguments(), fail)

    def die(self, point: str) -> None:
        self.die_at(point, self.arguments())

    def run_again(self, spark: SparkSession) -> None:
        """The same version once more, by a driver that lives."""
        frame = rows_to_write(spark, ROWS, PARTITIONS)
        writer_of(frame, self._cluster.bootstrap_servers, self._topic, "app", "1").save()


@pytest.fixture
def job(spark_environment: dict[str, str], kafka: EmbeddedKafka, tmp_path: Path) -> Job:
    topic = create_topic(kafka.bootstrap_servers, partitions=3)
    return Job(spark_environment, kafka, topic, tmp_path)


def assert_every_row_once(job: Job) -> None:
    bootstrap_servers, topic = job._cluster.bootstrap_servers, job._topic
    numbers = Counter(
        int((record.value or b"").decode().split(":")[1]) for record in read_committed(bootstrap_servers, topic)
    )
    assert numbers == Counter(range(ROWS))
    assert_nothing_open(bootstrap_servers)


# Every point under both protocols: without Spark in tests/broker/test_write_deaths.py, with it in test_streaming_failures.py.
DRIVER_POINTS = ["commit.before_decision", "commit.between_ends"]


@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_the_driver_dies(job: Job, spark: SparkSession, point: str) -> None:
    job.die(point)
    job.run_again(spark)
    assert_every_row_once(job)


@pytest.mark.parametrize(("point", "action"), [("task.writing", "kill"), ("task.flushed", "raise")])
def test_a_task_dies_and_spark_runs_it_again(job: Job, tmp_path: Path, point: str, action: str) -> None:
    assert job.run_once(f"{point}={action}:{tmp_path / 'once'}") == 0, job.said()[-3000:]
    assert (tmp_path / "once").exists()
    assert_every_row_once(job)


def test_command_in_error_finishes_job_without_txn_app_id(
    spark_environment: dict[str, str], kafka: EmbeddedKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its next run would have another id and write the rows twice: the error forbids it, and its command is complete."""
    topic = create_topic(kafka.bootstrap_servers, partitions=3)
    job = Job(spark_environment, kafka, topic, tmp_path, txn_app_id="")
    assert job.run_once("commit.decided=raise") != 0
    said = job.said()
    assert "[KAFKA_EOS.DECIDED_NOT_FINISHED]" in said
    assert "Rows visible: maybe. Safe to run again: no, it would write rows twice. Do not run the job again" in said
    (command, *_) = re.findall(r"kafka-eos (recover [^(;\n]*) \(kafka-eos explain", said)
    capsys.readouterr()
    assert main([*shlex.split(command), "--yes"]) == 0
    assert "every row is visible, unless" in capsys.readouterr().out
    assert_every_row_once(job)


def test_cancelled_batch_leaves_nothing_open(spark: SparkSession, kafka: EmbeddedKafka) -> None:
    topic = create_topic(kafka.bootstrap_servers)

    def endless(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        time.sleep(600)

    def write() -> None:
        activate_session(spark)
        spark.sparkContext.setJobGroup(topic, "cancelled")
        # More than an Arrow batch (10,000 rows) and more than a slab (2 MB) of each task: both are passed on only when full.
        rows = spark.range(0, 50_000, 1, 2).selectExpr("repeat('x', 1000) value")
        writer = rows.mapInArrow(endless, rows.schema).write.format("kafka-eos").mode("append")
        writer.option("kafka.bootstrap.servers", kafka.bootstrap_servers).option("topic", topic).save()

    with ThreadPoolExecutor(1) as beside:
        writing = beside.submit(write)
        try:
            wait_until(
                lambda: writing.done() or read_uncommitted(kafka.bootstrap_servers, topic),
                "rows of an open transaction",
            )
        finally:
            spark.sparkContext.cancelJobGroup(topic)
        with pytest.raises(Exception, match="cancelled"):
            writing.result()
    assert_nothing_open(kafka.bootstrap_servers)
    assert read_committed(kafka.bootstrap_servers, topic) == []
