"""Checkpoints that only a class of Hadoop opens: on HDFS, behind a mount of viewfs, and at a path that is the default file system's."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from tests.spark.hadoop_cluster import HadoopCluster
from tests.spark.jobs.stream_rows import add_files
from tests.spark.streams import Stream, StreamJob, lag
from tests.spark.test_lost_checkpoint import Copying

CodeOf = Callable[[str], str]


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopCluster]:
    with HadoopCluster.started(tmp_path_factory.mktemp("hdfs")) as started:
        yield started


class OnHdfs(Stream):
    """A stream with its checkpoint on HDFS, which the test changes by the driver's own JVM."""

    def place(self, hdfs: HadoopCluster) -> None:
        self.checkpoint: Any = f"{hdfs.url}/checkpoints/of {self.topic}"  # a path with a blank is no URI
        java = self.spark._jvm.org.apache.hadoop.fs
        self._path = lambda name: java.Path(f"{self.checkpoint}/{name}")
        self._files = self._path("").getFileSystem(self.spark._jsc.hadoopConfiguration())

    def read(self, name: str) -> str:
        stream = self._files.open(self._path(name))
        text = bytes(stream.readAllBytes()).decode()
        stream.close()
        return text

    def replace(self, name: str, text: str) -> None:
        stream = self._files.create(self._path(name), True)
        stream.write(text.encode())
        stream.close()

    def remove(self, name: str) -> None:
        assert self._files.delete(self._path(name), True)

    def write_id(self) -> str:
        return f"kafka-eos-{json.loads(self.read('metadata'))['id']}"


class CopyingOnHdfs(OnHdfs, Copying):
    """With the offsets of its Kafka source in a group."""


@pytest.fixture
def stream(hdfs: HadoopCluster, kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path) -> OnHdfs:
    made = OnHdfs(kafka, spark, tmp_path)
    made.place(hdfs)
    return made


def test_query_on_hdfs_writes_once_over_restarts(stream: OnHdfs) -> None:
    stream.run()
    add_files(stream.source, 2, 1)
    stream.run()
    stream.assert_every_line_once(3)
    assert stream.decision().version == 2
    stream.remove("commits/2")  # as if the driver had died before Spark wrote it
    stream.run()
    stream.assert_every_line_once(3)


def test_rolled_back_checkpoint_on_hdfs_is_rejected(stream: OnHdfs, code_of: CodeOf) -> None:
    add_files(stream.source, 2, 1)
    stream.run()
    stream.remove("commits/2")
    written = stream.read("offsets/2")
    stream.replace("offsets/2", written.replace('"batchTimestampMs":', '"batchTimestampMs":1'))
    assert code_of(stream.fails()) == "DIFFERENT_BATCH"
    stream.remove("offsets/2")
    stream.remove("commits/1")
    assert code_of(stream.fails()) == "CHECKPOINT_ROLLED_BACK"
    stream.assert_every_line_once(3)


def test_group_gets_the_offsets_of_a_checkpoint_on_hdfs(
    hdfs: HadoopCluster, kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, code_of: CodeOf
) -> None:
    query = CopyingOnHdfs(kafka, spark, tmp_path)
    query.place(hdfs)
    query.send(40)
    query.copy()
    query.assert_every_row_once()
    assert lag(query.servers, query.group, query.input) == 0
    query.remove("")
    assert code_of(query.is_refused()) == "CHECKPOINT_LOST"


@pytest.mark.parametrize("place", ["default", "viewfs"])
def test_checkpoint_of_the_drivers_settings_survives_a_killed_driver(
    place: str,
    hdfs: HadoopCluster,
    kafka: EmbeddedKafka,
    spark_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """Only the driver's command line says where the checkpoint is."""
    settings, checkpoint = {
        "default": ({"spark.hadoop.fs.defaultFS": hdfs.url}, f"/{place}/{tmp_path.name}"),
        "viewfs": (
            {"spark.hadoop.fs.viewfs.mounttable.all.link./mounted": f"{hdfs.url}/"},
            f"viewfs://all/mounted/{tmp_path.name}",
        ),
    }[place]
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environment = {**spark_environment, "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"])}
    job = StreamJob(environment, kafka, tmp_path)
    add_files(job.source, 0, 2)
    arguments = [job.servers, job.topic, f"file:{job.source}", checkpoint]
    job.die_at("commit.decided", arguments)
    assert job.run(arguments) == 0, job.said()[-3000:]
    job.assert_every_line_once(2)
