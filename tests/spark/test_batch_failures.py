"""A driver, a task or a commit dies at each step; the same txnAppId and txnVersion run again.

Nothing is lost then, nothing is there twice and nothing stays open.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed
from tests.spark.jobs.write_rows import rows_to_write, writer_of
from tests.spark.killable_job import DEADLINE_S, KillableJob
from tests.spark.streams import SHORT

JOB = Path(__file__).parent / "jobs" / "write_rows.py"
ROWS, PARTITIONS = 4_000, 4


class Job(KillableJob):
    """The write in a process of its own."""

    def __init__(
        self, environment: dict[str, str], cluster: EmbeddedKafka, topic: str, folder: Path, txn_app_id: str = "app"
    ) -> None:
        super().__init__(JOB, environment, folder)
        self._cluster, self._topic, self._txn_app_id = cluster, topic, txn_app_id

    def arguments(self, *options: str) -> list[str]:
        write = [self._cluster.bootstrap_servers, self._topic, str(ROWS), str(PARTITIONS), self._txn_app_id, "1"]
        return [*write, *options]

    def run_once(self, fail: str) -> int:
        return self.run(self.arguments(), fail)

    def die(self, point: str, *options: str) -> None:
        self.die_at(point, self.arguments(*options))

    def run_again(self, spark: SparkSession, value: str = "value") -> None:
        """The same version once more, by a driver that lives; `value` is what it makes of the values."""
        frame = rows_to_write(spark, ROWS, PARTITIONS).withColumn("value", expr(value))
        writer_of(frame, self._cluster.bootstrap_servers, self._topic, "app", "1").save()

    def stay_away_until_nothing_is_open(self) -> None:
        """For longer than the transaction timeout: until the coordinator has aborted what the driver left."""
        assert_nothing_open(self._cluster.bootstrap_servers, patience_s=150)


@pytest.fixture
def job(spark_environment: dict[str, str], kafka: EmbeddedKafka, tmp_path: Path) -> Job:
    topic = create_topic(kafka.bootstrap_servers, partitions=3)
    return Job(spark_environment, kafka, topic, tmp_path)


@pytest.fixture
def old_job(spark_environment: dict[str, str], kafka_tv0: EmbeddedKafka, tmp_path: Path) -> Job:
    """The same on a cluster with transaction.version 0."""
    topic = create_topic(kafka_tv0.bootstrap_servers, partitions=3)
    return Job(spark_environment, kafka_tv0, topic, tmp_path)


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


@pytest.mark.parametrize("point", ["task.prepared"])
def test_the_driver_dies_on_an_older_cluster(old_job: Job, spark: SparkSession, point: str) -> None:
    old_job.die(point)
    old_job.run_again(spark)
    assert_every_row_once(old_job)


@pytest.mark.parametrize(("point", "action"), [("task.writing", "kill"), ("task.flushed", "raise")])
def test_a_task_dies_and_spark_runs_it_again(job: Job, tmp_path: Path, point: str, action: str) -> None:
    assert job.run_once(f"{point}={action}:{tmp_path / 'once'}") == 0, job.said()[-3000:]
    assert (tmp_path / "once").exists()
    assert_every_row_once(job)


@pytest.mark.parametrize("point", ["commit.between_ends"])
def test_commit_failing_after_decision_is_finished_by_abort(
    job: Job, spark: SparkSession, tmp_path: Path, point: str
) -> None:
    assert job.run_once(f"{point}=raise:{tmp_path / 'once'}") != 0
    assert "[KAFKA_EOS.DECIDED_NOT_FINISHED]" in job.said()
    assert "Rows visible: maybe. Safe to run again: only with the same txnAppId and txnVersion." in job.said()
    assert_every_row_once(job)  # Spark has called abort, which found the decision
    job.run_again(spark)
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


def test_a_commit_that_fails_before_the_decision_leaves_nothing(
    old_job: Job, spark: SparkSession, tmp_path: Path
) -> None:
    assert old_job.run_once(f"commit.before_decision=raise:{tmp_path / 'once'}") != 0
    assert read_committed(old_job._cluster.bootstrap_servers, old_job._topic) == []
    assert_nothing_open(old_job._cluster.bootstrap_servers)
    old_job.run_again(spark)
    assert_every_row_once(old_job)


def test_a_commit_process_that_dies_between_two_ends_is_finished(job: Job, spark: SparkSession, tmp_path: Path) -> None:
    assert job.run_once(f"commit.between_ends=kill:{tmp_path / 'once'}") != 0
    job.run_again(spark)
    assert_every_row_once(job)


@pytest.mark.parametrize("point", ["commit.decided", "commit.between_ends"])
def test_timed_out_rows_are_restored_if_next_run_has_others(job: Job, spark: SparkSession, point: str) -> None:
    job.die(point, SHORT)
    job.stay_away_until_nothing_is_open()
    assert len(read_committed(job._cluster.bootstrap_servers, job._topic)) < ROWS
    job.run_again(spark, "concat('other', value)")
    assert_every_row_once(job)
    job.run_again(spark)  # the second decision is the one that counts now
    assert_every_row_once(job)


def test_commit_without_txn_app_id_survives_transaction_timeout(
    spark_environment: dict[str, str], kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The job ends in order, although nobody runs it again."""
    job = Job(spark_environment, kafka, create_topic(kafka.bootstrap_servers, partitions=3), tmp_path, txn_app_id="")
    mark = tmp_path / "decided"
    with job.started(job.arguments(SHORT), f"commit.decided=wait:{mark}") as driver:
        job.await_mark(mark, driver, "commit.decided")
        job.stay_away_until_nothing_is_open()
        mark.unlink()
        assert driver.wait(DEADLINE_S) == 0, job.said()[-3000:]
    assert "rows of 4 transactions that had been aborted after the decision were copied from the log" in job.said()
    assert_every_row_once(job)


def test_first_line_of_the_sink_names_code_and_rows(job: Job, tmp_path: Path) -> None:
    """The commit fails behind its decision, and Spark's abort finishes the batch: what a user sees on the console, line by line."""
    assert job.run_once(f"commit.decided=raise:{tmp_path / 'failed'}") != 0
    assert_every_row_once(job)
    assert_nothing_open(job._cluster.bootstrap_servers, [job._topic])
    lines = job.said().splitlines()
    first = next(line for line in lines if "KAFKA_EOS" in line or "kafka_eos_sink" in line)
    assert first.startswith("[KAFKA_EOS.DECIDED_NOT_FINISHED] all rows of version 1 of write id 'kafka-eos/app/")
    assert "are written and visible" in first
    # Spark rethrows the error of the commit as it was before the abort, behind a line of its own.
    assert lines.index(first) < next(at for at, line in enumerate(lines) if line.startswith("Traceback"))
    assert any("Failed to commit or abort Python data source write" in line for line in lines)
