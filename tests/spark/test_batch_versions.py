"""Versions of one txnAppId, in any order, and a batch job whose commit log was deleted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import (
    assert_nothing_open,
    create_topic,
    delete_topic,
    read_committed,
    read_uncommitted,
    unique_topic,
)
from tests.spark.killable_job import KillableJob, descendants
from tests.spark.printed_commands import printed_command, run_printed

JOB = Path(__file__).parent / "jobs" / "write_rows.py"
ROWS = 100


class Nightly:
    """A batch job whose rows name their version, with a commit log and a history of its own."""

    def __init__(self, spark: SparkSession, cluster: EmbeddedKafka, *, with_history: bool = True) -> None:
        self._spark, self.servers = spark, cluster.bootstrap_servers
        self.topic, self.log = create_topic(self.servers), unique_topic("log")
        self.history = unique_topic("history") if with_history else ""

    def write(self, version: int, app: str = "nightly", columns: str = "key, value", **options: str) -> None:
        rows = self._spark.range(0, ROWS, 1, 2).selectExpr("string(id) key", f"'{app} {version}' value")
        writer = rows.selectExpr(*columns.split(", ")).write.format("kafka-eos").mode("append")
        writer = writer.option("kafka.bootstrap.servers", self.servers).option("topic", self.topic)
        writer = writer.option("commit.log.topic", self.log).option("history.topic", self.history)
        writer.option("txnAppId", app).option("txnVersion", version).options(**options).save()

    def is_refused(self, version: int, app: str = "nightly", columns: str = "key, value") -> str:
        """What the user reads; no row was sent."""
        before = read_uncommitted(self.servers, self.topic)
        with pytest.raises(Exception) as caught:
            self.write(version, app, columns)
        assert read_uncommitted(self.servers, self.topic) == before
        return str(caught.value)

    def lose_log(self, version: int) -> str:
        """What the user reads of a version once the commit log is deleted."""
        delete_topic(self.servers, self.log)
        text = self.is_refused(version)
        assert "[KAFKA_EOS.COMMIT_LOG_LOST]" in text
        return text

    def assert_written(self, *values: str) -> None:
        """Each of these versions, as often as it stands here, whole."""
        found = Counter((record.value or b"").decode() for record in read_committed(self.servers, self.topic))
        assert found == {value: times * ROWS for value, times in Counter(values).items()}
        assert_nothing_open(self.servers, [self.topic, self.log])


def test_versions_are_written_once_in_any_order(spark: SparkSession, any_kafka: EmbeddedKafka) -> None:
    job = Nightly(spark, any_kafka)
    for version in (7, 3, 9, 3, 7):
        job.write(version)
    job.assert_written("nightly 7", "nightly 3", "nightly 9")
    # Only the newest decision's schema is compared.
    job.write(3, columns="value")
    job.write(8)
    assert "[KAFKA_EOS.DIFFERENT_BATCH]" in job.is_refused(8, columns="value")
    job.assert_written("nightly 7", "nightly 3", "nightly 9", "nightly 8")


def test_driver_of_a_written_version_says_so_and_names_its_history(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    spark_environment: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = Nightly(spark, kafka)
    job.write(3)
    job.write(8)
    again = KillableJob(JOB, spark_environment, tmp_path)
    options = [f"commit.log.topic={job.log}", f"history.topic={job.history}", "onCheckpointRollback=rewrite"]
    assert again.run([job.servers, job.topic, "10", "2", "nightly", "3", *options]) == 0, again.said()
    said = again.said()
    write_id = f"kafka-eos/nightly/{job.topic}"
    # A newer version is in the commit log, which has the rows of the newest one only.
    assert f"version 3 of write id '{write_id}' is already written, so this run wrote nothing of it. To see" in said
    assert "onCheckpointRollback=rewrite has no effect on a batch job" in said
    job.assert_written("nightly 3", "nightly 8")
    capsys.readouterr()
    assert main([*printed_command(said, "history --write-id"), "--history-topic", job.history]) == 0
    assert spark.sparkContext.applicationId in capsys.readouterr().out


def test_skipped_version_ends_no_worker(spark: SparkSession, kafka: EmbeddedKafka) -> None:
    def workers() -> set[int]:
        found = descendants(spark._jvm.java.lang.ProcessHandle.current().pid())
        return {pid for pid in found if b"pyspark.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()}

    job = Nightly(spark, kafka)
    job.write(1)
    before = workers()
    for version in (1, 1, 1, 2):  # a new worker for each partition takes ten times as long as the write
        job.write(version)
    assert workers() <= before
    job.assert_written("nightly 1", "nightly 2")


@pytest.mark.parametrize("with_history", [True, False], ids=["history", "no history"])
def test_lost_commit_log_is_refused_until_the_user_decides(
    spark: SparkSession, any_kafka: EmbeddedKafka, with_history: bool
) -> None:
    job = Nightly(spark, any_kafka, with_history=with_history)
    job.write(7)
    for text in (job.lose_log(7), job.is_refused(8)):  # by now there is a commit log again
        assert "Rows visible: maybe. Safe to run again: no, it fails again until you act." in text
        assert "its coordinator knows its driver" in text
        assert ("the history shows version 7 (finished 20" in text) == with_history
        assert ("--version 7 --as committed" in text) == with_history
        assert ("--version N --as committed" in text) != with_history
    job.assert_written("nightly 7")
    run_printed(text.replace("--version N", "--version 7"), "resolve")
    for version in (7, 6, 8):
        job.write(version)
    job.assert_written("nightly 7", "nightly 8")

    run_printed(job.lose_log(8), "recover")
    for version in (8, 8, 9):
        job.write(version)
    job.assert_written("nightly 7", "nightly 8", "nightly 8", "nightly 9")


def test_version_recorded_after_a_lost_log_covers_all_below(spark: SparkSession, any_kafka: EmbeddedKafka) -> None:
    job = Nightly(spark, any_kafka)
    job.write(5)
    text = job.lose_log(5)
    assert "write the rows of lower versions that the topic lacks with a new txnVersion" in text
    run_printed(text, "resolve")
    for version in (3, 5, 6, 301, 3):  # 301 has the rows of version 3
        job.write(version)
    job.assert_written("nightly 5", "nightly 6", "nightly 301")
