"""Every error begins with its stable code where the caller of ``save()`` sees it, and holds no secret."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import types as t
from pyspark.sql.streaming import DataStreamWriter

from documents import spark_errors
from kafka_eos_sink import KafkaEosDataSource
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.pump import monotonic_ms
from kafka_eos_sink.commit.transactional_id import batch_write_id, driver_transactional_id
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.spark import writer as writer_module
from kafka_eos_sink.spark.writer import KafkaEosBatchWriter
from kafka_testing import assert_nothing_open, create_topic, read_committed
from tests.model.scripted_cluster import ScriptedCluster

CodeOf = Callable[[str], str]
VALUE = t.StructType([t.StructField("value", t.StringType())])
# Nothing listens on port 1 of the loopback.
UNREACHABLE = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders", "kafka.max.block.ms": "1000"}


def caught(action: Callable[[], Any]) -> str:
    """The text of what `action` raises."""
    with pytest.raises(Exception) as raised:
        action()
    return str(raised.value)


def save(frame: DataFrame, mode: str = "append", **options: str) -> Callable[[], None]:
    return lambda: frame.write.format("kafka-eos").options(**options).mode(mode).save()


@pytest.mark.parametrize(
    ("write", "code"),
    [
        (lambda spark: save(spark.sql("SELECT 'a' AS value"), "overwrite", **UNREACHABLE), "OVERWRITE_NOT_SUPPORTED"),
        (lambda spark: lambda: writer_of(spark).save("/tmp/orders"), "INVALID_OPTIONS"),
        (lambda spark: spark.read.format("kafka-eos").load, "READ_NOT_SUPPORTED"),
        (lambda spark: save(spark.sql("SELECT 'a' AS value"), **UNREACHABLE), "BROKER_UNREACHABLE"),
    ],
    ids=["overwrite", "path", "read", "plan"],
)
def test_use_that_kafka_has_no_meaning_for_is_refused(
    spark: SparkSession, code_of: CodeOf, write: Callable[[SparkSession], Callable[[], Any]], code: str
) -> None:
    text = caught(write(spark))
    assert code_of(text) == code
    assert "Could not serialize" not in text


def writer_of(spark: SparkSession) -> DataFrameWriter:
    return spark.sql("SELECT 'a' AS value").write.format("kafka-eos").options(**UNREACHABLE).mode("append")


@pytest.mark.parametrize(
    ("options", "safety"),
    [
        ({}, "Rows visible: no. Safe to run again: yes."),
        ({"txnAppId": "app", "txnVersion": "1"}, "Rows visible: no. Safe to run again: yes."),
        (
            {"delivery.guarantee": "at-least-once"},
            "Rows visible: maybe. Safe to run again: no, it would write rows twice. This write has delivery.guarantee=at-least-once: ",
        ),
    ],
    ids=["without txnAppId", "with txnAppId", "at-least-once"],
)
def test_an_error_of_a_task_reaches_the_caller(
    spark: SparkSession, code_of: CodeOf, kafka: EmbeddedKafka, options: dict[str, str], safety: str
) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    frame = spark.sql("SELECT 'hunter2' AS value, CAST(1 AS INT) AS partition")
    where = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}
    text = caught(save(frame, **where, **options))
    assert code_of(text) == "NO_SUCH_PARTITION"
    assert safety in text
    assert "hunter2" not in text
    assert_nothing_open(kafka.bootstrap_servers, [topic])


def test_an_error_of_the_commit_reaches_the_caller(spark: SparkSession, code_of: CodeOf, kafka: EmbeddedKafka) -> None:
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1)
    app_id = f"app-{uuid.uuid4().hex[:8]}"
    driver = driver_transactional_id(batch_write_id(None, app_id, topic))

    def another_driver_takes_over(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if TaskContext.get().partitionId() == 1:
            with NetworkClient(ClientConfig(bootstrap_servers=parse_bootstrap_servers(servers))) as client:
                Admin(client).init_producer_id(driver, 60_000, deadline_ms=monotonic_ms() + 30_000)

    frame = spark.range(0, 10, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    overtaken = frame.mapInArrow(another_driver_takes_over, frame.schema)
    options = {"kafka.bootstrap.servers": servers, "topic": topic, "txnAppId": app_id, "txnVersion": "1"}
    text = caught(save(overtaken, **options))
    assert code_of(text) == "FENCED"
    assert "Rows visible: maybe. Safe to run again: only with the same txnAppId and txnVersion." in text
    assert read_committed(servers, topic) == []
    # Whoever comes next under this name ends what was left and writes.
    save(frame, **options)()
    assert sorted(record.value or b"" for record in read_committed(servers, topic)) == [b"%d" % i for i in range(10)]
    assert_nothing_open(servers, [topic])


def test_writer_repr_and_pickle_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD_OF_KAFKA", "hunter2")
    options = UNREACHABLE | {
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": "${env:PASSWORD_OF_KAFKA}",
        "kafka.ssl.key.password": "hunter3",
    }
    monkeypatch.setattr(writer_module.session, "plan", lambda settings: None)
    writer = KafkaEosDataSource(options).writer(VALUE, overwrite=False)
    assert "hunter" not in repr(writer)
    assert "${env:PASSWORD_OF_KAFKA}" in repr(writer)
    assert b"hunter2" not in pickle.dumps(writer)


def test_the_plan_is_made_once_however_often_spark_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []

    def plan(settings: Any) -> str:
        planned.append(settings.write.id)
        return f"the plan of {settings.write.id}"

    monkeypatch.setattr(writer_module.session, "plan", plan)
    writer = KafkaEosDataSource(dict(UNREACHABLE)).writer(VALUE, overwrite=False)
    assert planned == []
    serializer = CloudPickleSerializer()
    copies = [serializer.loads(serializer.dumps(writer)) for _ in range(2)]
    assert len(planned) == 1
    for copy in copies:
        assert isinstance(copy, KafkaEosBatchWriter)
        assert copy._plan == f"the plan of {planned[0]}"
        assert copy._planned_settings().write.id == planned[0]
        assert copy._planned_settings().write.is_random
        pickle.dumps(copy)
    assert len(planned) == 1


def test_a_plan_that_failed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []

    def plan(settings: Any) -> str:
        planned.append(settings.write.id)
        if len(planned) == 1:
            raise BrokerUnavailableError("BROKER_UNREACHABLE", "not now")
        return "planned"

    monkeypatch.setattr(writer_module.session, "plan", plan)
    writer = KafkaEosDataSource(dict(UNREACHABLE)).writer(VALUE, overwrite=False)
    serializer = CloudPickleSerializer()
    with pytest.raises(pickle.PickleError, match=r"^\[KAFKA_EOS\.BROKER_UNREACHABLE\] not now\. Rows visible: no"):
        serializer.dumps(writer)
    assert serializer.loads(serializer.dumps(writer))._plan == "planned"


@pytest.mark.parametrize(
    ("options", "write_id", "version"),
    [
        ({"txnAppId": "daily", "txnVersion": "7", "topic": " orders "}, "kafka-eos/daily/orders", 7),
        ({"txnappid": "a/b", "txnversion": "0", "transactional.id.prefix": "50%"}, "50%25/a%2Fb/orders", 0),
    ],
)
def test_the_write_id_follows_from_the_options(
    options: dict[str, str], write_id: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module.session, "plan", lambda settings: "planned")
    writer = KafkaEosDataSource(UNREACHABLE | options).writer(VALUE, overwrite=False)
    settings = pickle.loads(pickle.dumps(writer))._planned_settings()
    assert (settings.write.id, settings.batch.version, settings.write.is_random) == (write_id, version, False)
    assert (settings.batch.query_id, settings.batch.topic, settings.batch.offsets_hash) == ("batch", "orders", None)


def test_an_abort_raises_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def abort(*arguments: object) -> None:
        raise BrokerUnavailableError("BROKER_UNREACHABLE", "not now")

    monkeypatch.setattr(writer_module.session, "plan", lambda settings: ScriptedCluster().plan())
    monkeypatch.setattr(writer_module.session, "abort", abort)
    writer = KafkaEosDataSource(dict(UNREACHABLE)).writer(VALUE, overwrite=False)
    pickle.dumps(writer)
    writer.abort([None])
    assert "[KAFKA_EOS.BROKER_UNREACHABLE] not now" in caplog.text


def of_spark(spark: SparkSession, checkpoint: str) -> dict[str, Callable[[], Any]]:
    """What raises each error of Spark that has a heading in docs/errors.md."""
    rows = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    stream = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")

    def batch() -> DataFrameWriter:
        return rows.write.format("kafka-eos").options(**UNREACHABLE)

    def query() -> DataStreamWriter:
        return stream.writeStream.format("kafka-eos").options(**UNREACHABLE)

    def update() -> DataStreamWriter:
        return query().option("checkpointLocation", checkpoint).outputMode("update")

    return {
        "UNSUPPORTED_DATA_SOURCE_SAVE_MODE": batch().save,
        "DATA_SOURCE_NOT_FOUND": query().format("kafka-oes").start,
        "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST": lambda: run(update().trigger(realTime="5 seconds")),
        "does not support Update mode": lambda: run(update().trigger(once=True)),
        "partitioning or clustering columns do not match": batch().partitionBy("value").mode("append").save,
        "checkpointLocation must be specified": query().start,
    }


def run(writer: DataStreamWriter) -> None:
    writer.start().awaitTermination()


@pytest.mark.parametrize("heading", spark_errors())
def test_error_of_spark_is_explained(
    spark: SparkSession, heading: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = caught(of_spark(spark, str(tmp_path))[heading])
    capsys.readouterr()
    assert main(["explain", text]) == 0
    assert capsys.readouterr().out.startswith(f"{heading}\nRows visible: no.")
