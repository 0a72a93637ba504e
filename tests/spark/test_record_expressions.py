"""The columns of records that the arguments of the jobs ask for."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafka_eos_sink.jobs.record_expressions import KAFKA_COLUMNS, add_record_arguments, check_record_arguments, records


def given(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_record_arguments(parser)
    found = parser.parse_args(argv)
    check_record_arguments(parser, found)
    return found


def made(rows: DataFrame, *argv: str, **options: Any) -> tuple[dict[str, str], list[tuple[Any, ...]]]:
    found = records(rows, given(*argv), **options)
    return dict(found.dtypes), [tuple(row) for row in found.collect()]


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql(
        "SELECT * FROM VALUES (1, 'x', array(1, 2), named_struct('b', 1), X'00FF'), (2, NULL, NULL, NULL, NULL) "
        "AS t(id, `a b`, list, nested, bytes)"
    ).coalesce(1)


def test_without_expressions_the_value_is_the_row_as_json(rows: DataFrame) -> None:
    types, found = made(rows)
    assert types == {"value": "string"}
    assert [json.loads(value) for (value,) in found] == [
        {"id": 1, "a b": "x", "list": [1, 2], "nested": {"b": 1}, "bytes": "AP8="},
        {"id": 2},
    ]


def test_non_text_keys_and_values_are_cast_to_text(rows: DataFrame) -> None:
    types, found = made(rows, "--key", "id", "--value", "nested", "--where", "id < 2")
    assert types == {"value": "string", "key": "string"}
    assert found == [('{"b":1}', "1")]
    assert made(rows, "--value", "list", "--key", "bytes")[1] == [("[1,2]", bytearray(b"\x00\xff")), (None, None)]
    assert made(rows, "--value", "`a b`", "--where", "id = 1") == ({"value": "string"}, [("x",)])


def test_headers_and_timestamps_are_taken_as_they_are(rows: DataFrame) -> None:
    header = "array(named_struct('key', 'h', 'value', CAST('1' AS BINARY)))"
    types, _ = made(rows, "--value", "id", "--headers", header, "--timestamp", "timestamp_millis(id)")
    assert types == {"value": "string", "headers": "array<struct<key:string,value:binary>>", "timestamp": "timestamp"}


def test_selected_columns(rows: DataFrame) -> None:
    types, found = made(
        rows, "--select", "id AS value", "--select", "concat('t', id) AS topic", "--select", "0 AS partition", "--where", "id = 2"
    )  # fmt: skip
    assert types == {"value": "string", "topic": "string", "partition": "int"}
    assert found == [("2", "t2", 0)]


def test_a_whole_query(rows: DataFrame) -> None:
    types, found = made(rows, "--sql", "SELECT sum(id) AS value, nested AS key FROM source GROUP BY nested ORDER BY 1")
    assert types == {"value": "string", "key": "string"}
    assert found == [("1", '{"b":1}'), ("2", None)]


def test_kafka_record_is_unchanged_except_selected_columns(spark: SparkSession) -> None:
    kafka = spark.sql(
        "SELECT X'01' AS key, X'02' AS value, 's' AS topic, 3 AS partition, 7L AS offset, timestamp_millis(5) AS timestamp, "
        "array(named_struct('key', 'h', 'value', X'03')) AS headers"
    )
    types, found = made(kafka, defaults=KAFKA_COLUMNS)
    assert list(types) == ["value", "key", "headers", "timestamp"]
    assert found[0][:2] == (bytearray(b"\x02"), bytearray(b"\x01"))
    types, found = made(kafka, "--key", "offset", defaults=KAFKA_COLUMNS)
    assert found[0][:2] == (bytearray(b"\x02"), "7")


def test_a_column_beside_is_made_of_the_source_or_of_the_query(rows: DataFrame) -> None:
    assert made(rows, "--value", "`a b`", beside={"n": "id * 10"})[1] == [("x", 10), (None, 20)]
    assert made(rows, "--select", "`a b` AS value", beside={"n": "id"})[1] == [("x", 1), (None, 2)]
    query = ("--sql", "SELECT `a b` AS value, id + 1 AS next FROM source")
    assert made(rows, *query, beside={"n": "next"})[1] == [("x", 2, 2), (None, 3, 3)]
