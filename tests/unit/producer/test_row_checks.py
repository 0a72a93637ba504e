from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kafka_eos_sink.errors import InvalidRowError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.dead_letters import AT_ONCE, dead_letters
from kafka_eos_sink.producer.partitioner import TopicPartitions
from kafka_eos_sink.producer.row_checks import checked_rows
from kafka_eos_sink.producer.rows import BadRows, NumberedRows, Rows, concat_rows
from kafka_eos_sink.producer.topic_directory import TopicProblem
from kafka_eos_sink.protocol.record_columns import (
    HEADERS_TYPE,
    RecordColumns,
    header_bytes,
    headers_array,
    record_sizes,
)

REASONS = {f"kafka-eos.{name}" for name in ("reason", "topic", "partition", "row")}
NAMELESS: dict[str, Any] = {"key": None, "value": b"1"}


class Topics:
    """Topic ``t`` has two partitions, and three once looked at again; all others are unknown."""

    def __init__(self) -> None:
        self.looked_again = 0
        self.at_once: list[int] = []

    def resolve(self, names: list[str]) -> dict[str, Any]:
        self.at_once.append(len(names))
        unknown = TopicProblem(code="UNKNOWN_TOPIC", reason="is not known")
        return {name: topic(2) if name == "t" else unknown for name in names}

    def refreshed(self, name: str) -> TopicPartitions:
        self.looked_again += 1
        return topic(3)


def topic(count: int) -> TopicPartitions:
    return TopicPartitions(topic="t", count=count, available=np.arange(count, dtype=np.int32))


def rows(
    values: list[bytes | None],
    topics: Any = "t",
    partitions: list[int | None] | None = None,
    headers: list[list[dict[str, Any]] | None] | None = None,
    timestamps: list[int | None] | None = None,
) -> Rows:
    return Rows(
        topic=topics if isinstance(topics, str) else pa.array(topics, pa.string()),
        partition=None if partitions is None else pa.array(partitions, pa.int32()),
        columns=RecordColumns(
            value=pa.array(values, pa.binary()),
            headers=None if headers is None else pa.array(headers, HEADERS_TYPE),
            timestamp=None if timestamps is None else pa.array(timestamps, pa.int64()),
        ),
    )


def numbered(given: Rows, first: int = 0) -> NumberedRows:
    numbers = np.arange(first, first + given.num_rows)
    return NumberedRows(topic=given.topic, partition=given.partition, columns=given.columns, row_numbers=numbers)


def check(given: Rows, topics: Topics | None = None, **settings: Any) -> tuple[Any, Any]:
    directory: Any = topics or Topics()
    return checked_rows(numbered(given, 1_000), directory, ProducerConfig(**settings))


def letters_of(bad: list[BadRows], config: ProducerConfig) -> NumberedRows:
    """All letters in one piece."""
    pieces = list(dead_letters(bad, dataclasses.replace(config, dead_letter_topic="letters")))
    columns = RecordColumns.concat([piece.columns for piece in pieces])
    numbers = np.concatenate([piece.row_numbers for piece in pieces])
    return NumberedRows(topic="letters", partition=None, columns=columns, row_numbers=numbers)


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (rows([b"secret", b"b"], ["t", None]), "NULL_TOPIC", "row 1001 of the task (no topic)"),
        (rows([b"secret", b"b"], ["t", "x"]), "UNKNOWN_TOPIC", "row 1001 of the task (topic x)"),
        (rows([b"a", b"secret" * 99], "t"), "RECORD_TOO_LARGE", "row 1001 of the task (topic t)"),
        (rows([b"a", b"secret"], "t", [None, 3]), "NO_SUCH_PARTITION", "row 1001 of the task (topic t, partition 3)"),
        (rows([b"a", b"secret"], "t", [0, -1]), "NO_SUCH_PARTITION", "(topic t, partition -1)"),
        (rows([b"a", b"secret"], timestamps=[None, -1]), "INVALID_TIMESTAMP", "row 1001 of the task (topic t)"),
        (rows([b"a", b"secret"], headers=[None, [NAMELESS]]), "INVALID_HEADER", "row 1001 of the task (topic t)"),
    ],
)
def test_invalid_row_is_named_without_its_payload(given: Rows, code: str, words: str) -> None:
    with pytest.raises(InvalidRowError) as raised:
        check(given, max_request_size=300)
    assert raised.value.code == code
    assert words in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_partition_added_since_is_found_before_it_is_refused() -> None:
    topics = Topics()
    (good,), bad = check(rows([b"a", b"b"], "t", [2, 0]), topics)
    assert (good.topic.count, bad, topics.looked_again) == (3, [], 1)


def test_rows_of_several_topics_keep_their_order_and_numbers() -> None:
    class Both(Topics):
        def resolve(self, names: list[str]) -> dict[str, Any]:
            return {name: TopicPartitions(topic=name, count=1, available=np.zeros(1, np.int32)) for name in names}

    good, _ = check(rows([b"1", b"2", b"3", b"4"], ["u", "t", "u", "t"]), Both())
    assert {group.topic.topic: group.rows.columns.value.to_pylist() for group in good} == {
        "u": [b"1", b"3"],
        "t": [b"2", b"4"],
    }
    assert {group.topic.topic: group.rows.row_numbers.tolist() for group in good} == {
        "u": [1000, 1002],
        "t": [1001, 1003],
    }


def test_text_that_is_not_utf8_stops_no_dead_letter() -> None:
    """Spark makes such strings with CAST(X'FF' AS STRING)."""
    columns = RecordColumns(
        value=pa.array([b"good", b"bad"]), headers=headers_array([[], [(b"\xff", b"1")]]), timestamp=pa.array([5, 5])
    )
    topics = pa.array([b"t", b"\xffx"], pa.binary()).view(pa.string())
    (good,), (bad,) = check(Rows(topic=topics, partition=None, columns=columns), dead_letter_topic="dlq")
    assert good.rows.columns.value.to_pylist() == [b"good"]
    assert (bad.code, bad.topic) == ("UNKNOWN_TOPIC", "\ufffdx")
    letters = letters_of([bad], ProducerConfig())
    assert header_bytes(letters.columns.headers, 0)[0] == ("\ufffd".encode(), b"1")  # a letter stops no consumer


@pytest.mark.parametrize("key", [b"\xff", b"kafka-eos.\xff", b"cut \xc3", b"\xed\xa0\x80"])
def test_header_key_not_in_utf8_makes_a_readable_dead_letter(key: bytes) -> None:
    given = Rows(
        topic="t",
        partition=None,
        columns=RecordColumns(
            value=pa.array([b"good", b"bad"]),
            headers=headers_array([[("ключ".encode(), b"\xff")], [(b"h", b"1"), (key, b"secret")]]),
        ),
    )
    with pytest.raises(
        InvalidRowError, match=r"row 1001 of the task \(topic t\) has a header whose key is not UTF-8"
    ) as raised:
        check(given)
    assert raised.value.code == "INVALID_HEADER"
    assert "secret" not in str(raised.value)
    (good,), (bad,) = check(given, dead_letter_topic="dlq")
    assert header_bytes(good.rows.columns.headers, 0) == [("ключ".encode(), b"\xff")]
    letter = dict(header_bytes(letters_of([bad], ProducerConfig()).columns.headers, 0))
    assert letter[b"kafka-eos.error"] == b"INVALID_HEADER"
    assert letter[b"h"] == b"1"
    readable = {name.decode(): content for name, content in letter.items()}
    assert readable.get(key.decode(errors="replace")) == (None if key.startswith(b"kafka-eos.") else b"secret")


def test_each_bad_row_is_one_dead_letter_that_kafka_can_store() -> None:
    named = {"key": "h", "value": b"2"}
    given = rows(
        [b"good", b"old", b"nameless", b"both", b"no topic"],
        ["t", "t", "t", "t", None],
        [0, 9, 0, 0, 0],
        [[named], None, [NAMELESS, named], [NAMELESS], [NAMELESS]],
        [5, -1, 5, -2, -3],
    )
    (good,), bad = check(given, dead_letter_topic="dlq")
    assert good.rows.columns.value.to_pylist() == [b"good"]
    letters = letters_of(bad, ProducerConfig())
    assert letters.columns.timestamp is None
    found = {
        value: [(header["key"], header["value"]) for header in row if header["key"] not in REASONS]
        for value, row in zip(letters.columns.value.to_pylist(), letters.columns.headers.to_pylist(), strict=True)
    }
    assert found == {
        b"old": [("kafka-eos.error", b"INVALID_TIMESTAMP"), ("kafka-eos.timestamp", b"-1")],
        b"nameless": [("h", b"2"), ("kafka-eos.error", b"INVALID_HEADER"), ("kafka-eos.timestamp", b"5")],
        b"both": [("kafka-eos.error", b"INVALID_TIMESTAMP"), ("kafka-eos.timestamp", b"-2")],
        b"no topic": [("kafka-eos.error", b"NULL_TOPIC"), ("kafka-eos.timestamp", b"-3")],
    }


@pytest.mark.parametrize("part", ["value", "key", "header"])
def test_too_large_dead_letter_loses_value_and_headers(part: str) -> None:
    """Rows with another fault are never compared with the largest record, and the reasons take space, too."""
    large = b"x" * 1_048_400
    value, key, header = (large if part == name else b"small" for name in ("value", "key", "header"))
    given = rows([value], [None], headers=[[{"key": "h", "value": header}]])
    given = dataclasses.replace(given, columns=dataclasses.replace(given.columns, key=pa.array([key], pa.binary())))
    _, bad = check(given, dead_letter_topic="dlq")
    letters = letters_of(bad, ProducerConfig())
    assert record_sizes(letters.columns)[0] < 1_000
    assert letters.columns.key.to_pylist() == [None if part == "key" else b"small"]
    headers = {each["key"]: each["value"] for each in letters.columns.headers.to_pylist()[0]}
    assert headers["kafka-eos.error"] == b"NULL_TOPIC"
    assert headers["kafka-eos.value.bytes"] == str(len(value)).encode()


def test_letters_of_a_large_batch_are_made_piece_by_piece() -> None:
    """A broker may reject a hundred thousand rows of one batch, with a reason that names many of them."""
    count = 2 * AT_ONCE + 1
    bad = BadRows("RECORD_REFUSED", "no key; " * 1_000, numbered(rows([b"1"] * count, partitions=[0] * count)))
    pieces = list(dead_letters([bad], ProducerConfig(dead_letter_topic="letters")))
    assert [len(piece.row_numbers) for piece in pieces] == [AT_ONCE, AT_ONCE, 1]
    assert np.array_equal(~np.concatenate([piece.row_numbers for piece in pieces]), np.arange(count))
    assert int(record_sizes(pieces[0].columns).max()) < 1_300


def test_a_row_exactly_as_large_as_allowed_is_taken() -> None:
    given = rows([b"x" * 100])
    limit = int(record_sizes(given.columns)[0]) + 61
    assert len(check(given, max_request_size=limit)[0]) == 1
    with pytest.raises(InvalidRowError):
        check(given, max_request_size=limit - 1)


def test_rows_of_different_shapes_are_joined() -> None:
    joined = concat_rows([rows([b"a"], "t"), rows([b"b"], "t", [1]), rows([b"c"], ["u"])])
    assert joined.topic.to_pylist() == ["t", "t", "u"]
    assert joined.partition.to_pylist() == [None, 1, None]
    assert joined.columns.value.to_pylist() == [b"a", b"b", b"c"]
    same = concat_rows([rows([b"a"]), rows([b"b"])])
    assert same.topic == "t"
    assert same.partition is None
