"""A streaming query dies at each step of the protocol, and another driver goes on with its checkpoint: every row once, nothing open."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dead_writes import POINTS
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open
from tests.spark.jobs.stream_rows import LINES, add_files
from tests.spark.streams import SHORT, StreamJob


@pytest.fixture
def job(spark_environment: dict[str, str], kafka: EmbeddedKafka, tmp_path: Path) -> StreamJob:
    return StreamJob(spark_environment, kafka, tmp_path)


@pytest.mark.timeout(1200)
def test_drivers_die_one_after_the_other_at_every_step(
    spark_environment: dict[str, str],
    kafka: EmbeddedKafka,
    kafka_tv0: EmbeddedKafka,
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    """Each takes over from the one before, finishes or repeats its batch, goes on, and dies at the next step.

    In both versions at once, since a driver that starts leaves half of two cores idle.
    """

    def deaths(cluster: EmbeddedKafka) -> StreamJob:
        folder = tmp_path / str(cluster.transaction_version)
        folder.mkdir()
        job = StreamJob(spark_environment, cluster, folder)
        add_files(job.source, 0, len(POINTS) + 1)
        for point in POINTS:
            job.die_at(point, job.arguments())
            assert max(Counter(job.lines()).values(), default=1) == 1, f"after a death at {point}"
        return job

    with ThreadPoolExecutor() as both:
        jobs = list(both.map(deaths, (kafka, kafka_tv0)))
    for job in jobs:
        job.run_here(spark)
        job.assert_every_line_once(len(POINTS) + 1)


def test_timed_out_batch_is_restored_when_its_source_changed(job: StreamJob, spark: SparkSession) -> None:
    """The query continues by itself, with the rows that were decided; its first file now has other lines, and fewer."""
    add_files(job.source, 0, 2)
    job.die_at("commit.between_ends", job.arguments(SHORT))
    assert_nothing_open(job.servers, patience_s=150)  # the coordinator has aborted the rest
    assert len(job.lines()) < LINES
    (job.source / "000000.txt").write_text("7777777\n" * 10)
    job.run_here(spark)
    job.assert_every_line_once(2)


def test_of_two_drivers_on_one_checkpoint_the_older_is_fenced(job: StreamJob, spark: SparkSession) -> None:
    add_files(job.source, 0, 2)
    mark = job.log.parent / "waiting"
    with job.started(job.arguments(), f"commit.before_decision=wait:{mark}") as older:
        job.await_mark(mark, older, "commit.before_decision")
        job.run_here(spark)
        mark.unlink()
        older.wait(300)
    assert "[KAFKA_EOS.FENCED]" in job.said()
    assert "another run has replaced this run of write id" in job.said()
    job.assert_every_line_once(2)


def test_commit_failing_after_decision_is_finished_by_abort(
    job: StreamJob, spark: SparkSession, tmp_path: Path
) -> None:
    add_files(job.source, 0, 2)
    assert job.run(job.arguments(), f"commit.decided=raise:{tmp_path / 'once'}") != 0
    assert "[KAFKA_EOS.DECIDED_NOT_FINISHED]" in job.said()
    job.assert_every_line_once(1)  # Spark has called abort, which found the decision
    job.run_here(spark)
    job.assert_every_line_once(2)


def test_query_failing_before_any_task_ends_leaves_nothing_open(job: StreamJob, spark: SparkSession) -> None:
    """Abort gets no message then, and so no plan."""
    add_files(job.source, 0, 1)
    with pytest.raises(Exception, match=r"KAFKA_EOS\.RECORD_TOO_LARGE"):
        job.run_here(spark, "if(value % 100 = 50, repeat('x', 2000000), value)")
    assert job.lines() == []
    assert_nothing_open(job.servers)
    job.run_here(spark)
    job.assert_every_line_once(1)
