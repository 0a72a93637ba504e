"""Streaming queries of the tests: files of numbered lines, a topic and a checkpoint, in the session of the tests or in drivers that die."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.log_access import read_to_end
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.values import Decision, log_partition_of
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.runtime.executor import Executor
from kafka_testing import assert_nothing_open, create_topic, read_committed
from tests.spark.jobs.stream_rows import LINES, add_files, rows_to_stream, writer_of
from tests.spark.killable_job import KillableJob

SCRIPT = Path(__file__).parent / "jobs" / "stream_rows.py"
SHORT = "kafka.transaction.timeout.ms=30000"


def write_id_of(checkpoint: Path) -> str:
    """Of a query without transactional.id.prefix."""
    return f"kafka-eos-{json.loads((checkpoint / 'metadata').read_text())['id']}"


def newest_decision(servers: str, write_id: str) -> Decision:
    """The newest one of a write id that has had one query."""
    view = LogView(write_id)
    with connected(servers) as admin:
        where = "__kafka_eos_commits", log_partition_of(write_id)
        Executor(admin, where, ProducerConfig()).run(read_to_end(view))
    (query,) = view.queries("decision")
    found = query.newest
    assert found is not None
    return found.decision


class Stream:
    """A folder of files, a topic and a checkpoint."""

    def __init__(self, cluster: EmbeddedKafka, spark: SparkSession, folder: Path, files: int = 2) -> None:
        self.servers, self.spark = cluster.bootstrap_servers, spark
        self.topic = create_topic(self.servers, partitions=3)
        self.source, self.checkpoint = folder / "source", folder / "checkpoint"
        add_files(self.source, 0, files)

    def frame(self) -> DataFrame:
        return rows_to_stream(self.spark, str(self.source))

    def writer(self, frame: DataFrame | None = None, **options: str) -> DataStreamWriter:
        return writer_of(
            self.frame() if frame is None else frame, self.servers, self.topic, str(self.checkpoint), options
        )

    def run(self, frame: DataFrame | None = None, **options: str) -> StreamingQuery:
        query = self.writer(frame, **options).start()
        query.awaitTermination()
        return query

    def fails(self, frame: DataFrame | None = None, **options: str) -> str:
        """What the user is told."""
        with pytest.raises(Exception) as caught:
            self.run(frame, **options)
        return str(caught.value)

    def write_id(self) -> str:
        return write_id_of(self.checkpoint)

    def decision(self) -> Decision:
        """The newest one in the commit log."""
        return newest_decision(self.servers, self.write_id())

    def numbers(self) -> Counter[int]:
        return Counter(int(record.value or b"") for record in read_committed(self.servers, self.topic))

    def assert_every_line_once(self, files: int) -> None:
        assert self.numbers() == Counter(range(files * LINES))
        assert_nothing_open(self.servers)

    def assert_nothing_of_it_is_open(self) -> None:
        """Where other writes of the cluster have open transactions, and may."""
        assert_nothing_open(self.servers, [self.topic], of=f"{self.write_id()}.")

    def forget_commit(self, batch: int) -> None:
        """As if the driver had died before Spark wrote its own commit log."""
        (self.checkpoint / "commits" / str(batch)).unlink()
        (self.checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)

    def roll_back_to(self, batch: int) -> None:
        """As a restored backup: Spark knows nothing of later batches."""
        for folder in ("offsets", "commits", "sources/0"):
            for file in (self.checkpoint / folder).iterdir():
                if int(file.name.strip(".").removesuffix(".crc").split(".")[0]) > batch:
                    file.unlink()


class StreamJob(KillableJob):
    """A query over a folder of files, in a process of its own or in the session of the tests, with one checkpoint."""

    def __init__(self, environment: dict[str, str], cluster: EmbeddedKafka, folder: Path) -> None:
        super().__init__(SCRIPT, environment, folder)
        self.servers = cluster.bootstrap_servers
        self.topic = create_topic(self.servers, partitions=3)
        self.source, self.checkpoint = folder / "source", folder / "checkpoint"

    def arguments(self, *options: str) -> list[str]:
        return [self.servers, self.topic, str(self.source), str(self.checkpoint), *options]

    def run_here(self, spark: SparkSession, value: str = "value", **options: str) -> None:
        """To the end of the source, by a driver that lives; `value` is what it makes of the lines."""
        frame = rows_to_stream(spark, str(self.source)).withColumn("value", expr(value))
        query = writer_of(frame, self.servers, self.topic, str(self.checkpoint), options).start()
        query.awaitTermination()

    def decision(self) -> Decision:
        """The newest one in the commit log."""
        return newest_decision(self.servers, write_id_of(self.checkpoint))

    def lines(self) -> list[str]:
        return [(record.value or b"").decode() for record in read_committed(self.servers, self.topic)]

    def assert_every_line_once(self, files: int) -> None:
        assert Counter(int(line) for line in self.lines()) == Counter(range(files * LINES))
        assert_nothing_open(self.servers)


def produce(servers: str, topic: str, records: Iterable[tuple[str | None, str]], *, end: str | None = None) -> Any:
    """Writes with librdkafka; `end` commit or abort makes one transaction of it, "open" leaves it so."""
    # The timeout is longer than a job may take on a busy machine.
    transactional = {"transactional.id": f"test-{uuid.uuid4()}", "transaction.timeout.ms": 600_000}
    producer = confluent_kafka.Producer({"bootstrap.servers": servers} | (transactional if end else {}))
    if end:
        producer.init_transactions(60)
        producer.begin_transaction()
    for key, value in records:
        producer.produce(topic, value, key, headers=[("from", topic)])
    assert producer.flush(60) == 0
    if end in ("commit", "abort"):
        (producer.commit_transaction if end == "commit" else producer.abort_transaction)(60)
    return producer


def lag(servers: str, group: str, topic: str) -> int:
    """Of all partitions, as an admin client that is not ours sees it under read_committed."""
    admin = AdminClient({"bootstrap.servers": servers})
    request = confluent_kafka.ConsumerGroupTopicPartitions(group)
    committed = admin.list_consumer_group_offsets([request])[group].result().topic_partitions
    latest = {part: confluent_kafka.admin.OffsetSpec.latest() for part in committed}
    level = confluent_kafka.IsolationLevel.READ_COMMITTED
    ends = {part: end.result().offset for part, end in admin.list_offsets(latest, isolation_level=level).items()}
    assert {part.topic for part in committed} == {topic}
    return sum(ends[part] - part.offset for part in committed)


def committed_offsets(servers: str, group: str) -> dict[tuple[str, int], int]:
    """(topic, partition) -> the offset of a consumer group, as an admin client that is not ours sees it."""
    admin = AdminClient({"bootstrap.servers": servers})  # one that is forgotten never answers
    request = confluent_kafka.ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([request], require_stable=True)[group].result()
    return {(each.topic, each.partition): each.offset for each in found.topic_partitions}
