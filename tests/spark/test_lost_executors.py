"""Executors that are killed while they write: every row once, and nothing left open.

One application with two executors for all cases and both transaction versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_eos_sink.cli.embedded_kafka import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed
from tests.spark.executor_cluster import ExecutorCluster, wait_until
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

    def start(self) -> None:
        where = {"servers": self._servers, "topic": self._topic, "folder": str(self._folder)}
        self._cluster.ask("start_stream", name=self._topic, **where)

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

        wait_until(is_done, "the batch done")

    def lines(self) -> Counter[int]:
        return Counter(int(record.value or b"") for record in read_committed(self._servers, self._topic))

    def assert_every_line_once(self) -> None:
        assert self.lines() == Counter(range(self._files * LINES))
        assert_nothing_open(self._servers)


def test_executors_are_killed_while_their_tasks_write_when_they_have_prepared_and_when_they_are_done(
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
