"""A streaming query dies at each step of the protocol, and another driver goes on with its checkpoint: every row once, nothing open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dead_writes import POINTS
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open
from tests.spark.jobs.stream_rows import LINES, add_files
from tests.spark.streams import SHORT, StreamJob, write_id_of


@pytest.fixture
def job(spark_environment: dict[str, str], kafka: EmbeddedKafka, tmp_path: Path) -> StreamJob:
    return StreamJob(spark_environment, kafka, tmp_path)


@pytest.fixture
def any_job(spark_environment: dict[str, str], any_kafka: EmbeddedKafka, tmp_path: Path) -> StreamJob:
    return StreamJob(spark_environment, any_kafka, tmp_path)


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


def other_rows(source: Path) -> None:
    """The first file has other lines, and fewer."""
    (source / "000000.txt").write_text("7777777\n" * 10)


def no_rows(source: Path) -> None:
    """The first file is gone, as after the source's retention."""
    (source / "000000.txt").unlink()


@pytest.mark.parametrize("change", [other_rows, no_rows])
@pytest.mark.parametrize("point", ["commit.decided", "commit.between_ends"])
def test_timed_out_batch_is_restored_when_its_source_changed(
    any_job: StreamJob, spark: SparkSession, point: str, change: Callable[[Path], None]
) -> None:
    """The query goes on by itself, with the rows that were decided."""
    add_files(any_job.source, 0, 2)
    any_job.die_at(point, any_job.arguments(SHORT))
    assert_nothing_open(any_job.servers, patience_s=150)  # the coordinator has aborted the rest
    assert len(any_job.lines()) < LINES
    change(any_job.source)
    any_job.run_here(spark)
    any_job.assert_every_line_once(2)


def test_recover_restores_timed_out_batch_and_query_skips_it(job: StreamJob, spark: SparkSession) -> None:
    add_files(job.source, 0, 2)
    job.die_at("commit.between_ends", job.arguments(SHORT))
    assert_nothing_open(job.servers, patience_s=150)
    assert (
        main(["recover", "--yes", "--bootstrap-servers", job.servers, "--write-id", write_id_of(job.checkpoint)]) == 0
    )
    job.assert_every_line_once(1)
    job.run_here(spark)
    job.assert_every_line_once(2)


@pytest.mark.feature("fenced producers")
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


@pytest.mark.parametrize(
    ("point", "action"), [("task.writing", "kill"), ("task.prepared", "kill"), ("task.flushed", "raise")]
)
def test_a_worker_dies_and_spark_runs_its_task_again(job: StreamJob, tmp_path: Path, point: str, action: str) -> None:
    add_files(job.source, 0, 2)
    assert job.run(job.arguments(), f"{point}={action}:{tmp_path / 'once'}") == 0, job.said()[-3000:]
    assert (tmp_path / "once").exists()
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
