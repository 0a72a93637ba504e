"""Versions of one txnAppId, in any order."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import (
    assert_nothing_open,
    create_topic,
    read_committed,
    read_uncommitted,
    unique_topic,
)
from tests.spark.killable_job import KillableJob

JOB = Path(__file__).parent / "jobs" / "write_rows.py"
ROWS = 100


class Nightly:
    """A batch job whose rows name their version, with a commit log and a history of its own."""

    def __init__(self, spark: SparkSession, cluster: EmbeddedKafka) -> None:
        self._spark, self.servers = spark, cluster.bootstrap_servers
        self.topic, self.log, self.history = create_topic(self.servers), unique_topic("log"), unique_topic("history")

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

    def assert_written(self, *values: str) -> None:
        """Each of these versions, as often as it stands here, whole."""
        found = Counter((record.value or b"").decode() for record in read_committed(self.servers, self.topic))
        assert found == {value: times * ROWS for value, times in Counter(values).items()}
        assert_nothing_open(self.servers, [self.topic, self.log])


@pytest.mark.feature("versions in any order")
def test_versions_are_written_once_in_any_order(
    spark: SparkSession,
    any_kafka: EmbeddedKafka,
    spark_environment: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = Nightly(spark, any_kafka)
    for version in (7, 3, 9, 3, 7):
        job.write(version)
    job.assert_written("nightly 7", "nightly 3", "nightly 9")
    # Only the newest decision's schema is compared.
    job.write(3, columns="value")
    job.write(8)
    assert "[KAFKA_EOS.DIFFERENT_BATCH]" in job.is_refused(8, columns="value")
    job.assert_written("nightly 7", "nightly 3", "nightly 9", "nightly 8")

    # In a driver of its own, whose log a user reads.
    again = KillableJob(JOB, spark_environment, tmp_path)
    options = [f"commit.log.topic={job.log}", f"history.topic={job.history}", "onCheckpointRollback=rewrite"]
    assert again.run([job.servers, job.topic, "10", "2", "nightly", "3", *options]) == 0, again.said()
    said = again.said()
    write_id = f"kafka-eos/nightly/{job.topic}"
    assert f"version 3 of write id '{write_id}' counts as written; this run wrote nothing" in said
    assert "onCheckpointRollback=rewrite has no effect on a batch job" in said
    job.assert_written("nightly 7", "nightly 3", "nightly 9", "nightly 8")
    named = re.search(r"kafka-eos (history --write-id .*)", said)
    assert named is not None, said
    capsys.readouterr()
    assert main([*shlex.split(named[1]), "--history-topic", job.history]) == 0
    assert spark.sparkContext.applicationId in capsys.readouterr().out
