"""What attempts leave open that Spark kills at the wrong moment, a batch write ends by itself."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from kafka_eos_sink.commit.transactional_id import task_transactional_id
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import failpoints, session
from kafka_eos_sink.spark.spark_boundary import SinkMessage
from kafka_eos_sink.spark.writer import KafkaEosBatchWriter
from kafka_testing import assert_nothing_open, create_topic, open_transaction, read_committed

SCHEMA = StructType([StructField("value", BinaryType())])
KILLED_SLOT = 5
OPTIONS: dict[str, dict[str, str]] = {"named": {"txnAppId": "app", "txnVersion": "1"}, "random": {}}


class Write:
    """A batch write of one task, as Spark's processes drive it."""

    def __init__(self, kafka: EmbeddedKafka, topic: str, options: dict[str, str]) -> None:
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic, **options}
        self.writer: KafkaEosBatchWriter = pickle.loads(pickle.dumps(KafkaEosBatchWriter(options, SCHEMA)))
        self.settings = self.writer._planned_settings()
        assert self.writer._plan is not None
        value = pa.array([b"0"])
        rows = Rows(topic=topic, partition=None, columns=RecordColumns(key=value, value=value))
        task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
        self.messages = [SinkMessage(session.write_task(self.settings, self.writer._plan, task, iter([rows])))]


def open_at(
    point: str, kafka: EmbeddedKafka, write: Write, topic: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], bool]:
    """Open a transaction of another attempt at a point of the write; nobody will end it: its worker was killed."""
    opened = []

    def reached(name: str) -> None:
        if name == point and not opened:
            attempt = task_transactional_id(write.settings.write.id, 0, KILLED_SLOT)
            opened.append(open_transaction(kafka.bootstrap_servers, attempt, topic, partitions=1))

    monkeypatch.setattr(failpoints, "reached", reached)
    return lambda: bool(opened)


@pytest.mark.parametrize("options", OPTIONS)
def test_batch_commit_ends_the_transaction_of_a_killed_attempt(
    any_kafka: EmbeddedKafka, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    write = Write(any_kafka, topic, OPTIONS[options])
    opened = open_at("commit.decided", any_kafka, write, topic, monkeypatch)
    write.writer.commit(write.messages)
    assert opened()
    assert_nothing_open(any_kafka.bootstrap_servers, [topic], of=write.settings.write.id)
    assert [record.value for record in read_committed(any_kafka.bootstrap_servers, topic)] == [b"0"]


def test_batch_abort_ends_the_transaction_of_a_killed_attempt(
    any_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    write = Write(any_kafka, topic, OPTIONS["named"])
    opened = open_at("plan.finished", any_kafka, write, topic, monkeypatch)
    write.writer.abort(write.messages)
    assert opened()
    assert_nothing_open(any_kafka.bootstrap_servers, [topic], of=write.settings.write.id)
    assert read_committed(any_kafka.bootstrap_servers, topic) == []
