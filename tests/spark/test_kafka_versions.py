"""Spark jobs on every Kafka that is supported: killed and recovered, while the cluster is upgraded, and where a broker leaves out a marker.

`make faults` runs these. Without Spark `make test` has, in tests/broker, writes killed at every step on Kafka 4.2 with
`transaction.version` 0 and 2 and at one step on 3.9, 4.3 and 4.4, and the feature raised at some steps, of one broker. The other
steps, `transaction.version` 1, and a broker that leaves out a marker are for `make faults` without Spark, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_eos_sink.commit.log_records import parse_key, parse_value
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import READERS, assert_nothing_open, create_topic, read_committed, wait_until
from tests.broker.transaction_versions import set_transaction_version
from tests.faults.three_nodes import QUICK_ELECTIONS, leader, leaderless_everywhere
from tests.spark.jobs.stream_rows import LINES, add_files
from tests.spark.jobs.write_rows import rows_to_write
from tests.spark.jobs.write_rows import writer_of as batch_writer_of
from tests.spark.killable_job import KillableJob
from tests.spark.streams import Stream, StreamJob

BATCH_SCRIPT = Path(__file__).parent / "jobs" / "write_rows.py"
RELEASES = [("3.9.2", None), ("4.2.2", 0), ("4.2.2", 1), ("4.2.2", 2), ("4.3.1", None), ("4.4.0", None)]
SPARK_PARTITIONS = 3
KILLS = ("task.prepared", "commit.between_ends")


@pytest.fixture(scope="module", params=RELEASES, ids=str)
def release(request: pytest.FixtureRequest) -> Iterator[EmbeddedKafka]:
    version, transaction_version = request.param
    with EmbeddedKafka(version=version, transaction_version=transaction_version) as cluster:
        yield cluster


def test_a_batch_write_that_is_killed_is_finished_by_the_next(
    spark_environment: dict[str, str], release: EmbeddedKafka, tmp_path: Path, spark: SparkSession
) -> None:
    servers = release.bootstrap_servers
    topic = create_topic(servers, partitions=3)
    job = KillableJob(BATCH_SCRIPT, spark_environment, tmp_path)
    for point in KILLS:
        job.die_at(point, [servers, topic, str(LINES), str(SPARK_PARTITIONS), "versions", "7"])
    for _ in range(2):
        batch_writer_of(rows_to_write(spark, LINES, SPARK_PARTITIONS), servers, topic, "versions", "7").save()
        for reader in READERS:
            records = read_committed(servers, topic, reader=reader)
            numbers = Counter(int((record.value or b"").partition(b":")[2]) for record in records)
            assert numbers == Counter(range(LINES))
    assert_nothing_open(servers)


def test_killed_stream_resumes_with_each_line_once(
    spark_environment: dict[str, str], release: EmbeddedKafka, tmp_path: Path, spark: SparkSession
) -> None:
    job = StreamJob(spark_environment, release, tmp_path)
    add_files(job.source, 0, len(KILLS) + 1)
    for point in KILLS:
        job.die_at(point, job.arguments())
    job.run_here(spark)
    job.assert_every_line_once(len(KILLS) + 1)


def test_a_query_runs_on_while_transaction_version_is_raised(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody restarts it: the planner learns of the feature within seconds, and tasks go by the plan.

    Each of the three brokers takes the new version up when it learns of it itself, so for a moment they may disagree.
    """
    with EmbeddedKafka(brokers=3, transaction_version=0, heap="256m", properties=QUICK_ELECTIONS) as cluster:
        stream = Stream(cluster, spark, tmp_path, files=3)
        query = stream.writer().trigger(processingTime="0 seconds").start()
        files = 3
        try:
            query.processAllAvailable()
            assert transaction_versions(cluster) == {0}
            set_transaction_version(cluster, 2)
            while 2 not in transaction_versions(cluster):
                assert files < 100, "the query does not take the new version up"
                add_files(stream.source, files, 1)
                files += 1
                query.processAllAvailable()
        finally:
            query.stop()
        stream.assert_every_line_once(files)
        add_files(stream.source, files, 1)
        stream.run()
        stream.assert_every_line_once(files + 1)


def transaction_versions(cluster: EmbeddedKafka) -> set[int]:
    """Under which the transactions of all decisions were written that the commit log still shows."""
    records = read_committed(cluster.bootstrap_servers, "__kafka_eos_commits")
    found = [(parse_key(record.key or b""), record.value) for record in records if record.value is not None]
    values = [parse_value(key, value) for key, value in found if key is not None]
    return {value["transaction_version"] for value in values if value is not None and "transaction_version" in value}


@pytest.mark.parametrize("kafka_version", ["4.3.1", "4.4.0"])
def test_missing_marker_of_killed_leader_heals_in_the_next_run(
    spark_environment: dict[str, str],
    tmp_path: Path,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    kafka_version: str,
) -> None:
    """KAFKA-20734: the node that leads a partition is killed between the decision and the end of its transactions."""
    with EmbeddedKafka(brokers=3, version=kafka_version, heap="256m", properties=QUICK_ELECTIONS) as three:
        servers = three.bootstrap_servers
        job = StreamJob(spark_environment, three, tmp_path)
        job.topic = create_topic(servers, partitions=3, replication_factor=1)
        add_files(job.source, 0, 2)
        mark = tmp_path / "decided"
        options = ("kafka.delivery.timeout.ms=30000", "kafka.request.timeout.ms=10000")
        with job.started(job.arguments(*options), f"commit.decided=wait:{mark}") as driver:
            job.await_mark(mark, driver, "commit.decided")
            node = leader(three, job.topic, 0)
            three.kill(node)
            wait_until(lambda: leaderless_everywhere(three, job.topic, 0), "a partition without a leader")
            mark.unlink()
            assert driver.wait(400) != 0
        assert "[KAFKA_EOS.DECIDED_NOT_FINISHED]" in job.said()
        three.start_node(node)
        wait_until(lambda: leader(three, job.topic, 0) == node, "the leader that was killed")
        assert len(job.lines()) < LINES
        # The next run discards what hangs, and copies its rows.
        job.run_here(spark, **dict(option.split("=") for option in options))
        job.assert_every_line_once(2)
        job.run_here(spark)
        job.assert_every_line_once(2)
