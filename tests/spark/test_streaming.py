"""Streaming queries that nobody kills: triggers, restarts, checkpoints that changed, sources and plans of every kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, delete_topic, read_committed
from tests.spark.jobs.stream_rows import LINES, add_files, writer_of
from tests.spark.printed_commands import run_printed
from tests.spark.streams import Stream

CodeOf = Callable[[str], str]


@pytest.fixture
def stream(kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(kafka, spark, tmp_path)


def test_each_line_is_visible_once_over_restarts_in_one_session(
    any_kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(any_kafka, spark, tmp_path, files=3)
    stream.run()
    stream.assert_every_line_once(3)
    stream.run()  # no new data: nothing happens
    add_files(stream.source, 3, 2)
    stream.run()
    stream.assert_every_line_once(5)
    for partition in range(3):
        keys: dict[bytes | None, list[int]] = {}
        for record in read_committed(stream.servers, stream.topic):
            if record.partition == partition:
                keys.setdefault(record.key, []).append(int(record.value or b"") // LINES)
        assert all(batches == sorted(batches) for batches in keys.values())


@pytest.mark.parametrize("trigger", [{"once": True}, {"processingTime": "0 seconds"}, {"availableNow": True}])
def test_triggers(stream: Stream, trigger: dict[str, object]) -> None:
    query = stream.writer().trigger(**trigger).start()
    if "processingTime" in trigger:
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()
    assert query.exception() is None
    stream.assert_every_line_once(2)  # "once" takes all there is in one batch, whatever the source's limit


def test_a_stateful_query_behind_a_shuffle(stream: Stream) -> None:
    counts = (
        stream.frame()
        .selectExpr("cast(value as int) % 10 as digit", "timestamp_seconds(0) as at")
        .dropDuplicates(["digit"])
        .selectExpr("cast(digit as string) value")
    )
    stream.run(counts)
    assert stream.numbers() == Counter(range(10))
    add_files(stream.source, 2, 1)
    stream.run(counts)  # empty for the sink: all digits were seen
    assert stream.numbers() == Counter(range(10))
    assert_nothing_open(stream.servers)


def test_rerun_of_a_committed_batch_is_skipped_whatever_it_has(stream: Stream) -> None:
    """Spark's own commit is lost. The re-run has other partitions, and another topic, which takes the next batch."""
    stream.run()
    stream.forget_commit(1)
    other = create_topic(stream.servers)
    add_files(stream.source, 2, 1)
    stream.run(stream.frame().repartition(7), topic=other)
    stream.assert_every_line_once(2)
    assert len(read_committed(stream.servers, other)) == LINES


def test_empty_batches_and_empty_partitions(stream: Stream) -> None:
    some = stream.frame().where(f"cast(value as int) < 10 or cast(value as int) >= {2 * LINES}")
    stream.run(some)  # the second batch is empty, and most partitions of the first
    assert stream.numbers() == Counter(range(10))
    add_files(stream.source, 2, 1)
    stream.run(some)
    assert stream.numbers() == Counter(range(10)) + Counter(range(2 * LINES, 3 * LINES))
    assert_nothing_open(stream.servers)


def test_empty_batches_closing_windows_leave_no_version_gap(stream: Stream) -> None:
    """They have no data, and a gap in the versions would be refused."""
    lines = stream.frame().selectExpr("timestamp_seconds(cast(value as int)) at").withWatermark("at", "1 second")
    counts = lines.groupBy(expr("window(at, '10 seconds')")).count().selectExpr("cast(count as string) value")
    for files in (2, 3):
        stream.run(counts)
        newest = max(int(file.name) for file in (stream.checkpoint / "commits").iterdir() if file.name.isdecimal())
        assert newest >= files
        assert stream.decision().version == newest
        add_files(stream.source, files, 1)


def test_rolled_back_checkpoint_is_rejected_until_user_decides(stream: Stream, code_of: CodeOf) -> None:
    add_files(stream.source, 2, 1)
    stream.run()
    stream.roll_back_to(1)
    stream.forget_commit(1)
    text = stream.fails()
    assert code_of(text) == "CHECKPOINT_ROLLED_BACK"
    assert "onCheckpointRollback" in text
    stream.assert_every_line_once(3)
    # Batch 1 is skipped. Spark plans batch 2 anew, and nobody can know whether it holds the rows that batch 2 held.
    text = stream.fails(onCheckpointRollback="skip")
    assert code_of(text) == "DIFFERENT_BATCH"
    answer = ["--write-id", stream.write_id(), "--version", "2", "--as", "committed"]
    assert main(["resolve", "--yes", "--bootstrap-servers", stream.servers, *answer]) == 0
    add_files(stream.source, 3, 1)
    stream.run()
    stream.assert_every_line_once(4)


@pytest.mark.parametrize(("batches", "way_out"), [(0, "recover"), (2, "resolve [^;]* --version 1")])
def test_deleted_commit_log_is_refused_until_the_user_decides(
    stream: Stream, code_of: CodeOf, batches: int, way_out: str
) -> None:
    """After a first batch that failed, and between two batches."""
    log = {"commit.log.topic": f"{stream.topic}-log"}
    if batches:
        stream.run(**log)
    else:
        stream.fails(stream.frame().selectExpr("cast(raise_error('no row') as string) value"), **log)
    add_files(stream.source, 2, 1)
    delete_topic(stream.servers, log["commit.log.topic"])
    for _ in range(2):  # the second run finds a commit log
        text = stream.fails(**log)
        assert code_of(text) == "COMMIT_LOG_LOST"
        stream.assert_every_line_once(batches)
    run_printed(text, way_out)
    stream.run(**log)
    stream.assert_every_line_once(3)


def test_unknown_checkpoint_location_requires_a_prefix(stream: Stream, code_of: CodeOf, tmp_path: Path) -> None:
    setting = "spark.sql.streaming.checkpointLocation"
    stream.spark.conf.set(setting, str(tmp_path / "elsewhere"))
    try:

        def run(**options: str) -> None:
            writer = stream.frame().writeStream.format("kafka-eos").trigger(availableNow=True)
            writer = writer.option("kafka.bootstrap.servers", stream.servers).option("topic", stream.topic)
            writer.queryName("told").options(**options).start().awaitTermination()

        with pytest.raises(Exception) as caught:
            run()
        assert code_of(str(caught.value)) == "CHECKPOINT_NOT_READABLE"
        assert "transactional.id.prefix" in str(caught.value)
        run(**{"transactional.id.prefix": stream.topic})
        stream.assert_every_line_once(2)
        add_files(stream.source, 2, 1)
        with pytest.raises(Exception, match=r"CHECKPOINT_NOT_READABLE.*source\.offsets\.group"):
            run(**{"transactional.id.prefix": stream.topic, "source.offsets.group": "g"})
    finally:
        stream.spark.conf.unset(setting)


def test_the_continuous_trigger_is_refused(spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    rate = spark.readStream.format("rate").option("rowsPerSecond", 100).load().selectExpr("cast(value as string) value")
    writer = writer_of(rate, kafka.bootstrap_servers, topic, str(tmp_path / "checkpoint"))
    query = writer.trigger(continuous="1 second").start()
    try:
        with pytest.raises(Exception, match=r"KAFKA_EOS\.CONTINUOUS_TRIGGER\].*micro-batch trigger"):
            query.awaitTermination(120)
    finally:
        query.stop()
    assert read_committed(kafka.bootstrap_servers, topic) == []


@pytest.mark.parametrize(
    ("column", "code", "guarantee"),
    [
        ("1L AS timestamp", "INVALID_COLUMNS", "exactly-once"),
        ("struct(1 AS a, 2 AS a) AS s", "INVALID_COLUMNS", "at-least-once"),
        ("map(CAST(X'FF' AS STRING), 'v') AS headers", "INVALID_HEADER", "exactly-once"),
    ],
)
def test_wrong_column_of_a_stream_is_refused(
    stream: Stream, code_of: CodeOf, column: str, code: str, guarantee: str
) -> None:
    text = stream.fails(stream.frame().selectExpr("value", column), **{"delivery.guarantee": guarantee})
    assert code_of(text) == code
    assert read_committed(stream.servers, stream.topic) == []
    assert_nothing_open(stream.servers)


def test_at_least_once_streams_without_transactions(stream: Stream) -> None:
    stream.run(**{"delivery.guarantee": "at-least-once"})
    stream.assert_every_line_once(2)


def test_query_stopped_in_mid_batch_leaves_nothing_open(stream: Stream) -> None:
    slow = stream.frame().where("java_method('java.lang.Thread', 'sleep', 20L) is null")
    query = stream.writer(slow).start()
    while not query.status["isTriggerActive"] or not any((stream.checkpoint / "offsets").glob("0")):
        assert query.isActive
    query.stop()
    assert_nothing_open(stream.servers)
    stream.run()
    stream.assert_every_line_once(2)
