"""Multisets of records, compared in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kafka_eos_sink.errors import SchemaError
from kafka_eos_sink.jobs.record_comparison import ORDER, SOURCE_PARTITION, Comparison, compare, compared_columns

KEY_VALUE = ("key", "value")
FOUND = "key BINARY, value BINARY, partition INT, offset BIGINT"


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def topic(spark: SparkSession, *records: tuple[str | None, str | None]) -> DataFrame:
    """Records of partition 0, from offset 0 on."""
    rows = [(encoded(key), encoded(value), 0, offset) for offset, (key, value) in enumerate(records)]
    return spark.createDataFrame(rows, FOUND)


def source(spark: SparkSession, *records: tuple[str | None, str | None]) -> DataFrame:
    return spark.createDataFrame(list(records), "key STRING, value STRING")


def counts(comparison: Comparison) -> tuple[int, ...]:
    return (comparison.expected, comparison.found, comparison.missing, comparison.duplicated, comparison.unexpected)


def test_equal_multisets_in_any_order(spark: SparkSession) -> None:
    records = [("a", "1"), ("a", "1"), (None, "2"), ("b", None), (None, None)]
    found = compare(source(spark, *records), topic(spark, *reversed(records)), KEY_VALUE)
    assert counts(found) == (5, 5, 0, 0, 0)
    assert found.equal
    assert found.differences == ()


def test_each_difference_is_counted_once_and_has_its_place(spark: SparkSession) -> None:
    expected = source(spark, ("a", "1"), ("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), (None, "5"))
    found = compare(
        expected,
        # One of two gone, b twice more, c altered, d gone, null for "", one from elsewhere twice.
        topic(spark, ("a", "1"), ("b", "2"), ("b", "2"), ("c", "x"), ("b", "2"), ("", "5"), ("e", "6"), ("e", "6")),
        KEY_VALUE,
    )
    assert counts(found) == (6, 8, 4, 2, 4)
    assert not found.equal
    assert [
        (each.kind, each.record["key"], each.record["value"], each.expected, each.found, each.first, each.last)
        for each in found.differences
    ] == [
        ("missing", None, b"5", 1, 0, None, None),
        ("missing", b"c", b"3", 1, 0, None, None),
        ("missing", b"d", b"4", 1, 0, None, None),
        ("missing", b"a", b"1", 2, 1, (0, 0), (0, 0)),
        ("duplicated", b"b", b"2", 1, 3, (0, 1), (0, 4)),
        ("unexpected", b"c", b"x", 0, 1, (0, 3), (0, 3)),
        ("unexpected", b"", b"5", 0, 1, (0, 5), (0, 5)),
        ("unexpected", b"e", b"6", 0, 2, (0, 6), (0, 7)),
    ]


def test_headers_and_timestamps_match_across_representations(spark: SparkSession) -> None:
    at = datetime(2026, 11, 21, 18, 0, 0, 123_456, UTC)
    kept = datetime(2026, 11, 21, 18, 0, 0, 123_000, UTC)
    headers = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, timestamp TIMESTAMP"
    sent = [("1", [("h", b"1"), ("h", None)], at), ("2", [], at), ("3", None, at)]
    expected = spark.createDataFrame(sent, f"value STRING, {headers}")
    there = [(None, b"1", [("h", b"1"), ("h", None)], kept), (None, b"2", None, kept), (None, b"3", [], kept)]

    def found(*rows: tuple[object, ...]) -> DataFrame:
        return spark.createDataFrame(
            [(*row, 0, offset) for offset, row in enumerate(rows)],
            f"key BINARY, value BINARY, {headers}, partition INT, offset BIGINT",
        )

    compared = compared_columns(expected, None)
    assert compared == ("key", "value", "headers", "timestamp")
    assert compare(expected, found(*there), compared).equal
    in_another_order = (None, b"1", [("h", None), ("h", b"1")], kept)
    assert counts(compare(expected, found(in_another_order, *there[1:]), compared)) == (3, 3, 1, 0, 1)
    assert compare(expected, found(in_another_order, *there[1:]), KEY_VALUE).equal


def test_a_column_that_is_not_expected_cannot_be_compared(spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match=r"INVALID_COLUMNS\] .* no column headers, partition to compare"):
        compared_columns(source(spark), ("value", "headers", "partition"))


def ordered(spark: SparkSession, *records: tuple[str, str, int]) -> DataFrame:
    return spark.createDataFrame(list(records), f"key STRING, value STRING, {ORDER} INT")


def disorder(expected: DataFrame, found: DataFrame) -> tuple[int | None, Sequence[int]]:
    comparison = compare(expected, found, KEY_VALUE)
    offsets = [each.first[1] for each in comparison.differences if each.kind == "out of order" and each.first]
    return comparison.out_of_order, offsets


def test_the_order_of_each_key(spark: SparkSession) -> None:
    expected = ordered(spark, ("a", "1", 1), ("b", "2", 2), ("a", "3", 3), ("b", "4", 4), ("a", "5", 5))
    assert disorder(expected, topic(spark, ("b", "2"), ("b", "4"), ("a", "1"), ("a", "3"), ("a", "5"))) == (0, [])
    assert disorder(expected, topic(spark, ("b", "4"), ("a", "3"), ("a", "1"), ("b", "2"), ("a", "5"))) == (2, [2, 3])


def test_equal_and_keyless_records_may_have_any_order(spark: SparkSession) -> None:
    expected = ordered(spark, ("a", "1", 1), ("a", "2", 2), ("a", "1", 3))
    assert disorder(expected, topic(spark, ("a", "1"), ("a", "2"), ("a", "1"))) == (0, [])
    assert disorder(expected, topic(spark, ("a", "1"), ("a", "1"), ("a", "2"))) == (1, [2])
    keyless = ordered(spark, ("a", "1", 1), ("a", "2", 2)).withColumn("key", f.lit(None).cast("string"))
    assert disorder(keyless, topic(spark, (None, "2"), (None, "1"))) == (0, [])


def test_partitions_have_no_order_between_them(spark: SparkSession) -> None:
    expected = ordered(spark, ("a", "1", 1), ("a", "2", 2))
    one_each = topic(spark, ("a", "2"), ("a", "1")).withColumn("partition", f.col("offset").cast("int"))
    assert disorder(expected, one_each) == (0, [])
    backwards = topic(spark, ("a", "2"), ("a", "1"))
    assert disorder(expected, backwards) == (1, [1])
    assert disorder(expected.withColumn(SOURCE_PARTITION, f.col("value")), backwards) == (0, [])


def test_equal_records_of_several_partitions_have_no_order(spark: SparkSession) -> None:
    """Partition 0 of the source holds a, x and partition 1 holds x, b: x b a x keeps both orders."""
    expected = ordered(spark, ("k", "a", 1), ("k", "x", 2), ("k", "x", 1), ("k", "b", 2), ("k", "c", 3))
    expected = expected.withColumn(SOURCE_PARTITION, f.when(f.col("value").isin("b", "c"), 1).otherwise(0))
    either = f.when((f.col("value") == "x") & (f.col(ORDER) == 1), 1).otherwise(f.col(SOURCE_PARTITION))
    expected = expected.withColumn(SOURCE_PARTITION, either)
    kept = topic(spark, ("k", "x"), ("k", "b"), ("k", "a"), ("k", "x"), ("k", "c"))
    assert disorder(expected, kept) == (0, [])
    assert disorder(expected, topic(spark, ("k", "x"), ("k", "c"), ("k", "a"), ("k", "x"), ("k", "b"))) == (1, [4])
    # One record in two partitions of the topic: the one at offset 0 of partition 1 may be the first or the second expected one.
    twice = ordered(spark, ("k", "x", 1), ("k", "a", 2), ("k", "x", 3))
    apart = topic(spark, ("k", "x"), ("k", "a"), ("k", "x")).withColumn(
        "partition", f.when(f.col("offset") == 0, 1).otherwise(0)
    )
    assert disorder(twice, apart) == (0, [])
