"""The checkpoint of a query: its id, and the source offsets of a batch."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path

import pytest

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.runtime.at_least_once import RowsWritten
from kafka_eos_sink.settings.options import read_options
from kafka_eos_sink.spark import stream_writer
from kafka_eos_sink.spark.checkpoint import Checkpoint
from kafka_eos_sink.spark.spark_boundary import SinkMessage

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1795285827037,"conf":{}}'


def checkpoint(folder: Path, *sources: str, log_format: str = "v1") -> Checkpoint:
    """With the offsets of batches 8, 9 and 10, of which 9 is committed."""
    (folder / "metadata").write_text('{"id":"3d7b7b58-db54-4ae4-b9ec-ebccb0b829b8"}')
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    for batch in (8, 9, 10):
        (folder / "offsets" / str(batch)).write_text("\n".join((log_format, SETTINGS, *sources)))
        (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    (folder / "commits" / "9").write_text("v1\n{}")
    return Checkpoint(str(folder))


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_query_id_is_read_from_any_path_form(tmp_path: Path, prefix: str) -> None:
    checkpoint(tmp_path)
    found = Checkpoint(f"{prefix}{tmp_path}/")
    assert found.query_id() == "3d7b7b58-db54-4ae4-b9ec-ebccb0b829b8"
    assert found.newest_batch() == 10


@pytest.mark.parametrize("prefix", ["", "file:", "file://", "file://localhost"])
def test_a_path_is_meant_as_it_is_written_as_spark_means_it(tmp_path: Path, prefix: str) -> None:
    for name, query in (("a b%20c+é?#", "this"), ("a b c+é?#", "other")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metadata").write_text(f'{{"id":"{query}"}}')
    assert Checkpoint(f"{prefix}{tmp_path}/a b%20c+é?#").query_id() == "this"


@pytest.mark.parametrize("content", ["", "{}", '{"id":""}', '{"id":7}', "[]"])
def test_foreign_metadata_holds_no_query_id(tmp_path: Path, content: str) -> None:
    (tmp_path / "metadata").write_text(content)
    with pytest.raises((ValueError, KeyError, TypeError)):
        Checkpoint(str(tmp_path)).query_id()


KAFKA_START = b'\0v1\n{"in":{"0":3,"1":0}}'


def start_of(folder: Path, source: int | str, content: bytes) -> None:
    (folder / "sources" / str(source)).mkdir(parents=True)
    (folder / "sources" / str(source) / "0").write_bytes(content)


def test_first_offsets_are_where_each_kafka_source_began(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, '{"in":{"0":9,"1":8,"2":7}}', "17", "-", '{"other":{"0":2}}')
    start_of(tmp_path, 0, KAFKA_START)
    start_of(tmp_path, 3, b'v1\n{"other":{"0":1}}')
    # Partition 2 was created between the start and the end of the batch.
    begins = {("in", 0): 3, ("in", 1): 0, ("in", 2): -2}, {("other", 0): 1}
    assert found.first_offsets(found.offsets(8)) == begins


def test_format_2_names_each_source(tmp_path: Path) -> None:
    """Spark 4.2 and newer; without names the sources have numbers, in any order."""
    lines = 'views:{"in":{"0":9}}', "rate_1:17", "quiet:-", '1:{"other":{"0":2,"1":5}}'
    found = checkpoint(tmp_path, *lines, log_format="v2")
    offsets = found.offsets(8)
    assert offsets.sources == {"views": '{"in":{"0":9}}', "rate_1": "17", "quiet": "-", "1": '{"other":{"0":2,"1":5}}'}
    assert offsets.of_kafka() == (("in", 0, 9), ("other", 0, 2), ("other", 1, 5))
    start_of(tmp_path, "views", b'\0v1\n{"in":{"0":3}}')
    start_of(tmp_path, "1", b'\0v1\n{"other":{"0":1}}')
    assert found.first_offsets(offsets) == ({("in", 0): 3}, {("other", 0): 1, ("other", 1): -2})


@pytest.mark.parametrize("content", [None, b"", b"\0v2\n{}", b"\0v1\n17", b"\0v1\n[]", b"\xff"], ids=repr)
def test_foreign_start_of_a_kafka_source_raises_a_read_error(tmp_path: Path, content: bytes | None) -> None:
    found = checkpoint(tmp_path, '{"in":{"0":9}}')
    if content is not None:
        start_of(tmp_path, 0, content)
    with pytest.raises((OSError, ValueError)):
        found.first_offsets(found.offsets(8))


def test_the_hash_is_that_of_the_whole_file(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, "17").offsets(10)
    assert found.sha256 == hashlib.sha256((tmp_path / "offsets" / "10").read_bytes()).hexdigest()
    assert (found.version, found.sources) == (10, {"0": "17"})


def test_offsets_cover_all_kafka_sources_and_no_others(tmp_path: Path) -> None:
    orders, payments = json.dumps({"orders": {"0": 17, "10": 3}}), json.dumps({"payments": {"2": 5}})
    found = checkpoint(tmp_path, orders, '{"logOffset":4}', "-", payments, "1234").offsets(10)
    assert found.of_kafka() == (("orders", 0, 17), ("orders", 10, 3), ("payments", 2, 5))


def test_a_topic_that_two_sources_read_has_one_offset_or_none(tmp_path: Path) -> None:
    same = '{"orders":{"0":17}}'
    assert checkpoint(tmp_path, same, same).offsets(10).of_kafka() == (("orders", 0, 17),)
    (tmp_path / "offsets" / "11").write_text("\n".join(("v1", SETTINGS, same, '{"orders":{"0":18}}')))
    with pytest.raises(ConfigurationError, match=r"SOURCE_OFFSETS.*orders-0.*different offsets"):
        Checkpoint(str(tmp_path)).offsets(11).of_kafka()


def test_a_query_without_kafka_sources_has_no_offsets_to_commit(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"SOURCE_OFFSETS.*reads from none"):
        checkpoint(tmp_path, '{"logOffset":4}').offsets(10).of_kafka()


def test_offsets_in_a_format_that_is_not_known_are_not_guessed(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, '{"orders":{"0":17}}', log_format="v3").offsets(10)
    text = r"SOURCE_OFFSETS.*format 'v3'.*reads only v1 and v2; remove the option source.offsets.group"
    with pytest.raises(ConfigurationError, match=text):
        found.of_kafka()


def test_a_file_that_is_none_of_sparks_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "offsets" / "11").write_text("hello\nworld\n")
    with pytest.raises(ValueError, match="not what Spark writes"):
        Checkpoint(str(tmp_path)).offsets(11)


def test_offsets_come_from_a_task_else_from_the_checkpoint(tmp_path: Path) -> None:
    """A commit on a distant file system would otherwise start a JVM; a planner may have seen another batch."""
    checkpoint(tmp_path, '{"orders":{"0":17}}')
    options = read_options(
        {
            "kafka.bootstrap.servers": "localhost:9092",
            "checkpointLocation": str(tmp_path),
            "source.offsets.group": "g",
        },
        streaming=True,
    )
    rows = RowsWritten(rows=0)
    messages = [None, SinkMessage(rows), pickle.loads(pickle.dumps(SinkMessage(rows, (("orders", 0, 5),))))]
    assert stream_writer._kafka_offsets(options, 8, messages) == (("orders", 0, 5),)
    assert stream_writer._kafka_offsets(options, 8, messages[:2]) == (("orders", 0, 17),)
