"""Executors that are overtaken or lost while they write: every row once, and nothing left open.

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

    def await_every_line_once(self) -> None:
        """Wait until Spark has noted the batch of the newest file as done."""

        def is_done() -> bool:
            error = self._cluster.ask("stream_error", name=self._topic)
            assert error is None, error
            return (self._folder / "checkpoint" / "commits" / str(self._files - 1)).exists()

        wait_until(is_done, "the batch done", patience_s=DEADLINE_S)
        found = Counter(int(record.value or b"") for record in read_committed(self._servers, self._topic))
        assert found == Counter(range(self._files * LINES))
        assert_nothing_open(self._servers)


@pytest.fixture
def query(cluster: ExecutorCluster, any_kafka: EmbeddedKafka, tmp_path: Path) -> Query:
    query = Query(cluster, any_kafka, tmp_path)
    query.add_file()
    return query


def test_losing_attempt_is_ended_while_query_waits_for_data(cluster: ExecutorCluster, query: Query) -> None:
    query.start()
    query.await_every_line_once()
    cluster.ask("speculate", on=True)
    cluster.close("task.flushed")
    query.add_file()
    cluster.await_caught("task.flushed")  # its rows are in the topic, in an open transaction
    query.await_every_line_once()


def test_executors_killed_at_each_task_step_cause_no_duplicates(cluster: ExecutorCluster, query: Query) -> None:
    cluster.close("task.writing", "task.prepared")
    query.start()
    cluster.await_caught("task.writing", "task.prepared")
    cluster.close("commit.before_decision")
    cluster.kill_executors(*cluster.executors())
    cluster.await_caught("commit.before_decision")
    cluster.kill_executors(*cluster.executors())  # all tasks have handed over, nothing is decided
    cluster.open("commit.before_decision")
    query.await_every_line_once()


def test_stage_that_lost_its_shuffle_runs_again_and_is_visible_once(cluster: ExecutorCluster, query: Query) -> None:
    """Two of four tasks of the stage are at work then; it is run again, beside what is left of its first attempt."""
    said = len(cluster.said())
    cluster.close("task.writing", "task.prepared")
    query.start(shuffled=True)
    cluster.await_caught("task.writing", "task.prepared")
    cluster.kill_executors(cluster.executor_at("task.prepared"))
    query.await_every_line_once()
    assert "FetchFailed(" in cluster.said()[said:]
