"""Executors that are overtaken, lost or told to stop while they write: every row once, and nothing left open.

One application with two executors for all cases and both transaction versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed, wait_until
from tests.spark.executor_cluster import DEADLINE_S, ExecutorCluster
from tests.spark.jobs.stream_rows import LINES, add_files

VERSIONS = ["kafka", "kafka_tv0"]
ROWS, PARTITIONS = 4_000, 4


@pytest.fixture(scope="module")
def application(
    spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ExecutorCluster]:
    with ExecutorCluster.started(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(application: ExecutorCluster) -> Iterator[ExecutorCluster]:
    """Two executors, all gates open, no speculation."""
    application.await_executors()
    application.ask("speculate", on=False)
    yield application
    application.open_all()
    application.ask("stop_all")


@pytest.fixture(params=VERSIONS)
def sampled_kafka(request: pytest.FixtureRequest) -> EmbeddedKafka:
    found: EmbeddedKafka = request.getfixturevalue(request.param)
    return found


class Query:
    """A streaming query of the application, over files of numbered lines."""

    def __init__(self, cluster: ExecutorCluster, kafka: EmbeddedKafka, folder: Path) -> None:
        self._cluster, self._servers, self._folder = cluster, kafka.bootstrap_servers, folder
        self._topic = create_topic(self._servers, partitions=3)
        self._files = 0

    def add_file(self) -> None:
        add_files(self._folder / "source", self._files, 1)
        self._files += 1

    def start(self, *, shuffled: bool = False) -> None:
        where = {"servers": self._servers, "topic": self._topic, "folder": str(self._folder)}
        self._cluster.ask("start_stream", name=self._topic, shuffled=shuffled, **where)

    def stop(self) -> None:
        self._cluster.ask("stop_stream", name=self._topic)

    def error(self) -> str | None:
        found: str | None = self._cluster.ask("stream_error", name=self._topic)
        return found

    def await_batch(self) -> None:
        """Until Spark has noted the batch of the newest file as done."""

        def is_done() -> bool:
            assert (error := self.error()) is None, error
            return (self._folder / "checkpoint" / "commits" / str(self._files - 1)).exists()

        wait_until(is_done, "the batch done", patience_s=DEADLINE_S)

    def lines(self) -> Counter[int]:
        return Counter(int(record.value or b"") for record in read_committed(self._servers, self._topic))

    def assert_nothing_open(self) -> None:
        assert_nothing_open(self._servers)

    def assert_every_line_once(self) -> None:
        assert self.lines() == Counter(range(self._files * LINES))
        assert_nothing_open(self._servers)


class BatchWrite:
    """A batch write of the application, without txnAppId: nobody comes back for it."""

    def __init__(self, cluster: ExecutorCluster, kafka: EmbeddedKafka) -> None:
        self._cluster, self._servers = cluster, kafka.bootstrap_servers
        self.topic = create_topic(self._servers, partitions=3)

    def start(self, *, shuffled: bool = False) -> None:
        where = {"servers": self._servers, "topic": self.topic, "rows": ROWS, "partitions": PARTITIONS}
        self._cluster.ask("start_batch", name=self.topic, shuffled=shuffled, **where)

    def error(self) -> str | None:
        """Once the write has ended."""
        found: str | None = self._cluster.ask("batch_error", name=self.topic)
        return found

    def ids(self) -> Counter[int]:
        records = read_committed(self._servers, self.topic)
        return Counter(int((record.value or b"").decode().split(":")[1]) for record in records)

    def assert_nothing_open(self) -> None:
        assert_nothing_open(self._servers)

    def assert_every_row_once(self) -> None:
        assert self.ids() == Counter(range(ROWS))
        assert_nothing_open(self._servers)


def test_losing_attempt_is_ended_while_query_waits_for_data(
    cluster: ExecutorCluster, any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    query = Query(cluster, any_kafka, tmp_path)
    query.add_file()
    query.start()
    query.await_batch()
    cluster.ask("speculate", on=True)
    cluster.close("task.flushed")
    query.add_file()
    cluster.await_caught("task.flushed")  # its rows are in the topic, in an open transaction
    query.await_batch()
    query.assert_every_line_once()
    cluster.open("task.flushed")
    query.stop()


@pytest.mark.feature("standalone cluster")
def test_executors_killed_at_each_task_step_cause_no_duplicates(
    cluster: ExecutorCluster, any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    query = Query(cluster, any_kafka, tmp_path)
    cluster.close("task.writing", "task.prepared")
    query.add_file()
    query.start()
    cluster.await_caught("task.writing", "task.prepared")
    cluster.close("commit.before_decision")
    cluster.kill_executors(*cluster.executors())
    cluster.await_caught("commit.before_decision")
    cluster.kill_executors(*cluster.executors())  # all tasks have handed over, nothing is decided
    cluster.open("commit.before_decision")
    query.await_batch()
    query.assert_every_line_once()
    query.stop()


def test_micro_batch_with_lost_shuffle_files_is_visible_once(
    cluster: ExecutorCluster, sampled_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Two of four tasks of the stage are at work then; it is run again, beside what is left of its first attempt."""
    query = Query(cluster, sampled_kafka, tmp_path)
    said = len(cluster.said())
    cluster.close("task.writing", "task.prepared")
    query.add_file()
    query.start(shuffled=True)
    cluster.await_caught("task.writing", "task.prepared")
    cluster.lose_shuffle_files()
    cluster.open("task.prepared")
    query.await_batch()
    assert "FetchFailed(" in cluster.said()[said:]
    cluster.open("task.writing")
    query.assert_every_line_once()
    query.stop()


@pytest.mark.feature("standalone cluster")
def test_batch_with_lost_executor_and_shuffle_is_visible_once(
    cluster: ExecutorCluster, sampled_kafka: EmbeddedKafka
) -> None:
    write = BatchWrite(cluster, sampled_kafka)
    said = len(cluster.said())
    cluster.close("task.writing", "task.prepared")
    write.start(shuffled=True)
    cluster.await_caught("task.writing", "task.prepared")
    cluster.kill_executors(cluster.executor_at("task.prepared"))
    assert write.error() is None
    assert "FetchFailed(" in cluster.said()[said:]
    write.assert_every_row_once()
    cluster.kill_executors(*cluster.executors())


def test_a_batch_write_that_is_cancelled_leaves_nothing_open(
    cluster: ExecutorCluster, sampled_kafka: EmbeddedKafka
) -> None:
    write = BatchWrite(cluster, sampled_kafka)
    cluster.close("task.writing", "task.prepared")
    write.start()
    cluster.await_caught("task.writing", "task.prepared")
    cluster.ask("cancel", group=write.topic)
    assert "cancelled" in str(write.error())
    write.assert_nothing_open()
    assert write.ids() == Counter()
    cluster.kill_executors(*cluster.executors())


def test_cancelled_query_leaves_nothing_open_and_resumes(
    cluster: ExecutorCluster, sampled_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    query = Query(cluster, sampled_kafka, tmp_path)
    query.add_file()
    cluster.close("task.writing", "task.prepared")
    query.start()
    cluster.await_caught("task.writing", "task.prepared")
    cluster.ask("cancel", group=None)
    wait_until(query.error, "the failure of the query", patience_s=DEADLINE_S)
    assert "cancelled" in str(query.error())
    query.assert_nothing_open()
    cluster.kill_executors(*cluster.executors())
    cluster.open("task.writing", "task.prepared")

    # A worker that nobody ends goes on when the query has stopped, and finds that it is overtaken.
    cluster.close("task.may_write", "task.prepared")
    query.start()
    cluster.await_caught("task.may_write", "task.prepared")
    query.stop()
    cluster.open("task.prepared")
    cluster.close("task.flushed")
    cluster.open("task.may_write")
    cluster.await_caught("task.flushed")
    cluster.open("task.flushed")
    query.assert_nothing_open()
    assert query.lines() == Counter()
    query.start()
    query.await_batch()
    query.assert_every_line_once()
    query.stop()
