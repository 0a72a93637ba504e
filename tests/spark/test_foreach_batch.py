"""Writes in a `foreachBatch` function: a re-run skips them, and a second one with the same pair and topic is an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from kafka_eos_sink import activate_session, for_each_batch
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import create_topic, read_committed
from tests.spark.jobs.stream_rows import LINES, add_files
from tests.spark.streams import Stream

SCRIPT = Path(__file__).parent / "jobs" / "foreach_batch.py"
Function = Callable[[DataFrame, int], None]


@pytest.fixture
def stream(kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(kafka, spark, tmp_path, files=1)


def save(
    stream: Stream, rows: DataFrame, version: int, *, column: bool = False, app: str = "app", **options: str
) -> None:
    writer = (rows.withColumn("topic", lit(stream.topic)) if column else rows).write.format("kafka-eos").mode("append")
    if not column:
        writer = writer.option("topic", stream.topic)
    writer = writer.option("kafka.bootstrap.servers", stream.servers)
    writer.option("txnAppId", app).option("txnVersion", version).options(**options).save()


def run(stream: Stream, function: Function) -> None:
    writer = stream.frame().writeStream.foreachBatch(function).trigger(availableNow=True)
    writer.option("checkpointLocation", str(stream.checkpoint)).start().awaitTermination()


def keys(stream: Stream) -> Counter[bytes | None]:
    return Counter(record.key for record in read_committed(stream.servers, stream.topic))


@pytest.mark.parametrize("column", [False, True], ids=["option topic", "column topic"])
def test_second_write_of_a_call_is_an_error_in_each_run(stream: Stream, column: bool) -> None:
    fails = True

    def one_write(batch: DataFrame, version: int) -> None:
        save(stream, batch.withColumn("key", lit("first")), version, column=column)
        if fails:
            raise RuntimeError("the first run fails behind its write")

    def two_writes(batch: DataFrame, version: int) -> None:
        save(stream, batch.withColumn("key", lit("first")), version, column=column)
        save(stream, batch.withColumn("key", lit("second")), version, column=column)

    def two_apps(batch: DataFrame, version: int) -> None:
        save(stream, batch.withColumn("key", lit("first")), version, column=column)
        save(stream, batch.withColumn("key", lit("second")), version, column=column, app="other")

    with pytest.raises(Exception, match="the first run fails"):
        run(stream, one_write)
    fails = False
    run(stream, one_write)  # the same rows in another call: skipped
    assert keys(stream) == {b"first": LINES}

    add_files(stream.source, 1, 1)
    for _ in range(2):  # in the second run the first write is skipped, too
        with pytest.raises(Exception, match=r"DIFFERENT_BATCH\] version 1 .*Leave the first write"):
            run(stream, two_writes)
        assert keys(stream) == {b"first": 2 * LINES}
    run(stream, two_apps)
    assert keys(stream) == {b"first": 2 * LINES, b"second": LINES}


def test_query_with_another_checkpoint_is_refused(stream: Stream) -> None:
    """Its batch ids start at 0 again, with other rows, so a skip would drop them without a word."""
    run(stream, lambda batch, version: save(stream, batch, version))
    shutil.rmtree(stream.checkpoint)
    add_files(stream.source, 1, 2)
    for _ in range(2):
        with pytest.raises(
            Exception, match=r"DIFFERENT_QUERY\] this run wrote nothing: streaming query .* has decided version 0 "
        ):
            run(stream, lambda batch, version: save(stream, batch, version))
        stream.assert_every_line_once(1)
    with pytest.raises(Exception, match=r"DIFFERENT_QUERY\] .*this is a batch job"):
        save(stream, stream.spark.createDataFrame([("1",)], "value string"), 1)
    run(stream, lambda batch, version: save(stream, batch, version, app="new"))
    assert stream.numbers() == Counter(range(3 * LINES)) + Counter(range(LINES))


def test_second_write_in_a_bare_thread_is_an_error_with_the_helper(stream: Stream) -> None:
    """Spark shows the tasks of such a thread no call, so without the options of `for_each_batch` the write would be skipped."""
    raised: list[Exception] = []

    def two_writes(batch: DataFrame, version: int, txn: Callable[[str], dict[str, str]]) -> None:
        def write(key: str) -> None:
            activate_session(stream.spark)
            rows = (
                batch.withColumn("key", lit(key)).write.format("kafka-eos").mode("append").option("topic", stream.topic)
            )
            try:
                rows.option("kafka.bootstrap.servers", stream.servers).options(**txn("app")).save()
            except Exception as error:
                raised.append(error)

        for key in ("first", "second"):
            thread = threading.Thread(target=write, args=(key,))
            thread.start()
            thread.join()

    writer = for_each_batch(stream.frame().writeStream.trigger(availableNow=True), two_writes, str(stream.checkpoint))
    writer.start().awaitTermination()
    assert keys(stream) == {b"first": LINES}
    assert ["DIFFERENT_BATCH" in str(each) for each in raised] == [True]


def test_write_without_id_logs_one_warning_on_the_driver(
    spark_environment: dict[str, str], kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    topics = [create_topic(kafka.bootstrap_servers, partitions=1) for _ in range(2)]
    add_files(tmp_path / "source", 0, 3)

    def log_of(topic: str, *options: str) -> str:
        done = subprocess.run(
            [
                sys.executable,
                str(SCRIPT),
                kafka.bootstrap_servers,
                topic,
                str(tmp_path / "source"),
                str(tmp_path / topic),
                *options,
            ],
            env={**os.environ, **spark_environment},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert len(read_committed(kafka.bootstrap_servers, topic)) == 3 * LINES
        return done.stderr

    warned = log_of(topics[0])
    assert warned.count("kafka-eos: a write in a foreachBatch function has no txnAppId") == 1  # of three batches
    assert '.option("txnVersion", batch_id)' in warned
    assert "foreachBatch" not in log_of(topics[1], "txnAppId=app")
