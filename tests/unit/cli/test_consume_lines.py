"""How `kafka-eos consume` shows a record, which any producer of the topic may have written."""

from __future__ import annotations

import json

import pytest

from kafka_eos_sink.cli.consume import record_json, record_line
from kafka_eos_sink.protocol.record_reader import Header, Record


def record(key: bytes | None, value: bytes | None, *headers: Header) -> Record:
    return Record(offset=7, timestamp=1_000, key=key, value=value, headers=headers)


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, "null"),
        (b"", ""),
        ("zürich".encode(), "zürich"),
        (b"a\tb\nc", "a b c"),
        (b"\x00\xff\xfe", "\N{REPLACEMENT CHARACTER}\\xff\\xfe"),
        (b"\x1b]0;owned\x07", "\N{REPLACEMENT CHARACTER}]0;owned\N{REPLACEMENT CHARACTER}"),
        ("\u202e\x9b2J".encode(), "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}2J"),
    ],
)
def test_line_holds_partition_offset_key_value_safely(content: bytes | None, shown: str) -> None:
    assert record_line(3, record(content, b"v")) == f"3\t7\t{shown}\tv"
    assert record_line(3, record(b"k", content)) == f"3\t7\tk\t{shown}"


def test_json_line_is_one_object_with_base64_where_not_utf8() -> None:
    found = record(b"\xff", b"a\nb\x1b", ("source", b"\xfe"), ("none", None), ("text", b"t"))
    (line,) = record_json("orders", 3, found).splitlines()
    assert "\x1b" not in line
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_000,
        "key_base64": "/w==",
        "value": "a\nb\x1b",
        "headers": [
            {"key": "source", "value_base64": "/g=="},
            {"key": "none", "value": None},
            {"key": "text", "value": "t"},
        ],
    }
