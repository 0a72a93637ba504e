"""The command line and the report of verify_exactly_once.py, without Spark."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from kafka_eos_sink.jobs.record_comparison import Comparison, Difference
from kafka_eos_sink.jobs.submit_job import JobFailed
from kafka_eos_sink.jobs.topic_frame import Offsets, TopicFrame
from spark_jobs import verify_exactly_once
from spark_jobs.verify_exactly_once import arguments, report, shown, source_options, table

TOPIC = ("--bootstrap-servers", "a:1", "--topic", "t")


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        arguments(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("verify_exactly_once.py: error: ")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((*TOPIC,), "one of the arguments --from-topic --files is required"),
        (("--bootstrap-servers", "a:1", "--files", "f"), "the following arguments are required: --topic"),
        ((*TOPIC, "--files", "f", "--from-properties", "p"), "--from-properties belongs to --from-topic"),
        ((*TOPIC, "--from-topic", "s", "--format", "json"), "--format belongs to --files"),
        ((*TOPIC, "--from-topic", "s", "--read-option", "a=b"), "--read-option belongs to --files"),
        ((*TOPIC, "--files", "f", "--compare", "value,offset"),
         "argument --compare: 'offset' is not among key, value, headers, timestamp, partition"),
        ((*TOPIC, "--files", "f", "--order-by", "id DESC nulls last"),
         "--order-by is an ascending expression, without ASC or DESC: for a descending number negate it: --order-by=-id"),
        ((*TOPIC, "--files", "f", "--compare", "value", "--order-by", "id"),
         "--order-by compares the order per key: add key to --compare"),
        ((*TOPIC, "--files", "f", "--show", "-1"), "--show -1: must be 0 or more"),
        ((*TOPIC, "--files", "f", "--sql", "SELECT 1", "--select", "a"),
         "--sql and --select exclude each other"),
    ],
)  # fmt: skip
def test_wrong_usage(argv: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, *argv) == said


def test_compared_columns_are_deduplicated() -> None:
    given = arguments((*TOPIC, "--files", "f", "g", "--compare", "value, key,value"))
    assert (given.compare, given.files, given.format) == (("value", "key"), ["f", "g"], "parquet")


def test_the_cluster_of_the_source(tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": "a:1", "kafka.client.id": "x"}
    assert source_options(arguments((*TOPIC, "--from-topic", "s")), options) == options
    given = arguments((*TOPIC, "--from-topic", "s", "--from-bootstrap-servers", "b:1"))
    assert source_options(given, options) == {"kafka.bootstrap.servers": "b:1"}
    file = tmp_path / "client.properties"
    file.write_text("client.id=y\n", "utf-8")
    given = arguments((*TOPIC, "--from-topic", "s", "--from-properties", str(file)))
    assert source_options(given, options) == {"kafka.bootstrap.servers": "a:1", "kafka.client.id": "y"}
    in_file = {"kafka.properties.file": str(file)}
    assert source_options(arguments((*TOPIC, "--from-topic", "s")), in_file) == in_file


def test_values_are_shown_as_text_if_possible_and_truncated() -> None:
    assert shown(bytearray("grün", "utf-8")) == "grün"
    assert shown(b"\xff\x00") == "0xff00"
    assert shown(b"x" * 1_000) == "x" * 80 + "... (1,000 bytes)"
    assert shown(None) is None
    assert shown([{"key": "h", "value": b"1"}, {"key": "i", "value": None}]) == {"h": "1", "i": None}


def test_report_names_partitions_and_blocked_records() -> None:
    given = arguments((*TOPIC, "--files", "f"))
    offsets = (
        Offsets(partition=0, first=0, last_stable=7, high_watermark=7),
        Offsets(partition=1, first=0, last_stable=5, high_watermark=17),
    )
    topic = TopicFrame(frame=None, reader="somebody", offsets=offsets)  # type: ignore[arg-type]
    found = Comparison(
        expected=1_000,
        found=1_001,
        missing=1,
        duplicated=2,
        unexpected=0,
        out_of_order=3,
        differences=(
            Difference(
                kind="duplicated",
                record={"key": bytearray(b"k"), "value": None},
                expected=1,
                found=3,
                first=(0, 4),
                last=(1, 2),
            ),
            Difference(kind="missing", record={"key": None, "value": b"v"}, expected=1, found=0, first=None, last=None),
        ),
    )
    as_json = report(given, topic, ("key", "value"), found)
    assert as_json["exactly_once"] is False
    assert as_json["held_back"] == {"1": 12}
    assert as_json["differences"][0] == {
        "kind": "duplicated",
        "record": {"key": "k", "value": None},
        "expected": 1,
        "found": 3,
        "first": {"partition": 0, "offset": 4},
        "last": {"partition": 1, "offset": 2},
    }
    assert list(table(as_json)) == [
        "topic t under read_committed, read by somebody; compared: key, value",
        "  expected               1,000",
        "  found                  1,001",
        "  missing                    1",
        "  duplicated                 2",
        "  unexpected                 0",
        "  out of order               3",
        "  12 offsets of partition 1 are not visible yet: an open transaction blocks them",
        "  duplicated: key 'k', value None; expected 1, found 3, at partition 0 offset 4 and partition 1 offset 2",
        "  missing: key None, value 'v'; expected 1, found 0",
    ]


def test_only_counts_of_zero_are_exactly_once() -> None:
    right = {"expected": 2, "found": 2, "missing": 0, "duplicated": 0, "unexpected": 0}
    assert Comparison(**right).equal
    assert Comparison(**right, out_of_order=0).equal
    assert not Comparison(**right, out_of_order=1).equal
    for name in ("missing", "duplicated", "unexpected"):
        assert not Comparison(**{**right, name: 1}).equal


def test_a_column_that_never_names_the_topic_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SELECT *, Spark's Kafka source adds the name of its own topic, and an empty topic would seem to be right."""
    nothing = Comparison(expected=0, found=0, missing=0, duplicated=0, unexpected=0)
    monkeypatch.setattr("pyspark.sql.SparkSession", MagicMock())
    topic = TopicFrame(frame=MagicMock(), reader="somebody", offsets=())
    monkeypatch.setattr(verify_exactly_once, "topic_frame", lambda *_: topic)
    monkeypatch.setattr(verify_exactly_once, "expected_records", lambda *_: MagicMock(columns=["value", "topic"]))
    monkeypatch.setattr(verify_exactly_once, "compare", lambda *_, **__: nothing)
    with pytest.raises(JobFailed, match="no record of the source has topic t in its column topic"):
        verify_exactly_once.run(arguments((*TOPIC, "--from-topic", "s", "--sql", "SELECT * FROM source")))
