"""Compare a topic's records with the expected ones, as multisets, in Spark.

Spark groups the records by all compared columns, so that only counts and a few examples reach the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any, Literal

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from kafka_eos_sink.errors import SchemaError

COLUMNS = ("key", "value", "headers", "timestamp", "partition")
"""The columns that can be compared."""

ORDER = "source_order"
SOURCE_PARTITION = "source_partition"
"""Columns of the expected side for the order of keys."""

_HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"

Kind = Literal["missing", "duplicated", "unexpected", "out of order"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A differing record, its expected and found numbers, and its (partition, offset).

    ``record`` holds the compared columns. A record out of order was expected before its predecessor.
    """

    kind: Kind
    record: dict[str, Any]
    expected: int
    found: int
    first: tuple[int, int] | None
    last: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Numbers of records; an altered record is both missing and unexpected.

    ``out_of_order`` is None if the order was not compared.
    """

    expected: int
    found: int
    missing: int
    duplicated: int
    unexpected: int
    out_of_order: int | None = None
    differences: tuple[Difference, ...] = field(default=(), repr=False)

    @property
    def equal(self) -> bool:
        return not (self.missing or self.duplicated or self.unexpected or self.out_of_order)


def compared_columns(expected: DataFrame, requested: Sequence[str] | None) -> tuple[str, ...]:
    """Return the requested columns; by default key, value, headers and timestamp.

    Raises:
        SchemaError: INVALID_COLUMNS if the expected records lack a requested column.
    """
    # Without a column key, every key is null, so the key is always comparable.
    there = set(expected.columns) | {"key"}
    default = ("key", "value", *(name for name in ("headers", "timestamp") if name in there))
    columns = default if requested is None else tuple(requested)
    missing = [name for name in columns if name not in there]
    if missing:
        raise SchemaError(
            "INVALID_COLUMNS",
            f"the expected records have no column {', '.join(missing)} to compare; they have {', '.join(expected.columns)}",
        )
    return columns


def compare(expected: DataFrame, found: DataFrame, columns: Sequence[str], *, examples: int = 5) -> Comparison:
    """Compare expected records with the records of a topic.

    Args:
        expected: A column ``ORDER`` requires the records of each key in this order within each partition of the topic.
            With a column ``SOURCE_PARTITION``, the order holds only between records with equal values in it.
        found: The records with their ``partition`` and ``offset``.
        columns: The columns to compare.
        examples: How many differences of each kind to return.
    """
    position = f.struct(f.col("partition").cast("int").alias("partition"), f.col("offset").alias("offset"))
    nowhere = f.lit(None).cast("struct<partition: int, offset: bigint>")

    def counted(frame: DataFrame, side: str, where: Column) -> DataFrame:
        counts = (f.lit(int(side == name)).alias(name) for name in ("expected", "found"))
        return frame.select(*_comparable(frame, columns), *counts, where.alias("position"))

    # Not exceptAll: one aggregation gives all counts in one pass, and Spark groups null keys together, which a join does not.
    tallied = (
        counted(expected, "expected", nowhere)
        .unionByName(counted(found, "found", position))
        .groupBy(*columns)
        .agg(
            f.sum("expected").alias("expected"),
            f.sum("found").alias("found"),
            f.min("position").alias("first"),
            f.max("position").alias("last"),
        )
    )
    surplus = f.col("found") - f.col("expected")
    kinds: dict[Kind, Column] = {
        "missing": surplus < 0,
        "duplicated": (surplus > 0) & (f.col("expected") > 0),
        "unexpected": (surplus > 0) & (f.col("expected") == 0),
    }
    sums = {"expected": f.col("expected"), "found": f.col("found")} | {
        kind: f.when(is_kind, f.abs(surplus)) for kind, is_kind in kinds.items()
    }
    (totals,) = tallied.agg(*(f.coalesce(f.sum(each), f.lit(0)).alias(name) for name, each in sums.items())).collect()
    differences = [
        _difference(kind, row, columns)
        for kind, is_kind in kinds.items()
        if totals[kind] and examples
        for row in tallied.where(is_kind).orderBy("first", *columns).limit(examples).collect()
    ]
    out_of_order = None
    if ORDER in expected.columns:
        out_of_order, disordered = _out_of_order(expected, found, columns, examples)
        differences += disordered
    return Comparison(**totals.asDict(), out_of_order=out_of_order, differences=tuple(differences))


def _comparable(frame: DataFrame, columns: Sequence[str]) -> list[Column]:
    """Convert each column to one type, so that the two sides compare equal."""

    def comparable(name: str) -> Column:
        if name not in frame.columns:
            return f.lit(None).cast("binary")
        column = f.col(name)
        match name:
            # Kafka keeps timestamps in ms, Spark in µs.
            case "headers":
                # Spark's Kafka source has null for no headers, others an empty array. The sink also writes maps.
                entries = f.map_entries(column) if frame.schema[name].dataType.typeName() == "map" else column
                return f.when(f.size(column) > 0, entries.cast(_HEADERS))
            case "timestamp":
                return f.unix_millis(column)
            case "partition":
                return column.cast("int")
            case _:
                return column.cast("binary")

    return [comparable(name).alias(name) for name in columns]


def _out_of_order(
    expected: DataFrame, found: DataFrame, columns: Sequence[str], examples: int
) -> tuple[int, list[Difference]]:
    """Count the records after a record of the same key that is later in the source."""
    # Equal records are interchangeable: pair the first of them in the topic with the first expected one, and so on. Nothing tells
    # which partition of the source each came from, so the check excludes equal records of several partitions of the source or the topic.
    same_record = Window.partitionBy(*columns)

    def numbered(records: DataFrame, partition: Column, order: str) -> DataFrame:
        number = f.row_number().over(same_record.orderBy(order))
        first, last = f.min(partition).over(same_record), f.max(partition).over(same_record)
        return records.select("*", number.alias("number"), (first == last).alias("one_partition")).where(
            "one_partition"
        )

    source = [SOURCE_PARTITION] if SOURCE_PARTITION in expected.columns else []
    of_source = f.struct(f.lit(0), *source)
    ordered = numbered(expected.select(*_comparable(expected, columns), ORDER, *source), of_source, ORDER)
    place = [f.col("partition").alias("topic_partition"), f.col("offset").alias("topic_offset")]
    of_topic = f.col("topic_partition")
    placed = numbered(found.select(*_comparable(found, columns), *place), of_topic, "topic_offset")
    # Null-safe: plain equality drops every record with a null key or no headers from the join.
    same = [f.col(f"expected.{name}").eqNullSafe(f.col(f"found.{name}")) for name in (*columns, "number")]
    paired = (
        ordered.alias("expected")
        .join(placed.alias("found"), reduce(and_, same))
        .select("found.*", *(f"expected.{name}" for name in (ORDER, *source)))
    )
    # Kafka orders records within one partition only.
    of_a_key = Window.partitionBy("key", "topic_partition", *source).orderBy("topic_offset")
    disordered = (
        paired.where(f.col("key").isNotNull())
        .withColumn("before", f.lag(ORDER).over(of_a_key))
        .where(f.col("before") > f.col(ORDER))
    )
    number = disordered.count()
    rows = disordered.orderBy("topic_partition", "topic_offset").limit(examples).collect() if number else []
    differences = []
    for row in rows:
        place_of_row = (row["topic_partition"], row["topic_offset"])
        record = {name: row[name] for name in columns}
        differences.append(Difference("out of order", record, 1, 1, place_of_row, place_of_row))
    return number, differences


def _difference(kind: Kind, row: Row, columns: Sequence[str]) -> Difference:
    def place(position: Row | None) -> tuple[int, int] | None:
        return None if position is None else (position["partition"], position["offset"])

    record = {name: row[name] for name in columns}
    return Difference(kind, record, row["expected"], row["found"], place(row["first"]), place(row["last"]))
