"""A checkpoint that continues under another sink, or whose metadata was replaced."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from tests.spark.jobs.stream_rows import add_files
from tests.spark.printed_commands import run_printed
from tests.spark.streams import Stream

CodeOf = Callable[[str], str]


@pytest.fixture
def stream(kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(kafka, spark, tmp_path)


def run_with_sparks_sink(stream: Stream) -> None:
    """The same query and checkpoint, written by the sink that Spark brings."""
    writer = stream.frame().writeStream.format("kafka").option("kafka.bootstrap.servers", stream.servers)
    writer = writer.option("topic", stream.topic).option("checkpointLocation", str(stream.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_query_moves_between_spark_sink_and_ours_exactly_once(stream: Stream, code_of: CodeOf) -> None:
    """Every row once over all changes, since each comes after a batch that Spark has noted as done.

    That is all that is promised: what Spark's sink writes in between is its own affair, at least once, and nobody looks at it again.
    """
    run_with_sparks_sink(stream)
    add_files(stream.source, 2, 1)
    text = stream.fails()
    assert code_of(text) == "COMMIT_LOG_LOST"
    assert "this run wrote nothing of batch 2: the commit log has no batch of query" in text
    assert "This query wrote with another sink until now" in text
    assert "--version 1 --as committed" in text
    stream.assert_every_line_once(2)
    run_printed(text, "resolve")
    stream.run()
    stream.assert_every_line_once(3)

    add_files(stream.source, 3, 2)
    run_with_sparks_sink(stream)
    stream.assert_every_line_once(5)

    add_files(stream.source, 5, 1)
    text = stream.fails()  # batch 5 after batch 2 of ours: an older commit log would look the same
    assert code_of(text) == "COMMIT_LOG_LOST"
    assert "ends at batch 2" in text
    assert "--version 4 --as committed" in text
    run_printed(text, "resolve")
    stream.run()
    stream.assert_every_line_once(6)
    assert (stream.decision().version, stream.decision().resolution) == (5, None)


def test_query_with_replaced_metadata_writes_on_once_it_is_restored(stream: Stream, code_of: CodeOf) -> None:
    """Spark 4.3 rejects a checkpoint without the file, so people write one; older ones do. The commit log has no batch of the new id."""
    stream.run()
    add_files(stream.source, 2, 1)
    metadata, checksum = stream.checkpoint / "metadata", stream.checkpoint / ".metadata.crc"
    before = metadata.read_text()
    checksum.unlink()
    metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
    text = stream.fails()
    assert code_of(text) == "COMMIT_LOG_LOST"
    assert "the file metadata of its checkpoint was lost or replaced" in text
    assert "If metadata was lost or replaced, restore it" in text
    stream.assert_every_line_once(2)
    metadata.write_text(before)
    stream.run()
    stream.assert_every_line_once(3)
