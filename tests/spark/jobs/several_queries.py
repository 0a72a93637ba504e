"""What a query of `stream_several.py` reads and writes, for the driver that dies and for the one that goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tests.spark.jobs.stream_rows import rows_to_stream

Shape = Literal["lines", "one partition", "shuffled", "shuffled in another order", "topic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """`source` is a folder of files, or the topic of the shape "topic"."""

    servers: str
    topic: str
    source: str
    checkpoint: str
    shape: Shape = "lines"
    options: dict[str, str] = field(default_factory=dict)
    stop_mark: str = ""


def frame_of(
    spark: SparkSession, query: Query, shape: Shape | None = None, *, per_batch: int | None = None
) -> DataFrame:
    """The rows as `shape` brings them, or the query's own: key and value. `per_batch` is for a topic."""
    shape = shape or query.shape
    if shape == "topic":
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", query.servers)
        source = source.option("kafka.isolation.level", "read_committed").option("startingOffsets", "earliest")
        source = source if per_batch is None else source.option("maxOffsetsPerTrigger", per_batch)
        return source.option("subscribe", query.source).load().selectExpr("key", "value")
    lines = rows_to_stream(spark, query.source)
    if shape == "one partition":
        return lines.coalesce(1)
    if shape == "shuffled in another order":
        lines = lines.mapInArrow(backwards, lines.schema)
    return lines if shape == "lines" else lines.repartition(3, "key")


def backwards(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows of a partition, the last one first."""
    found = list(batches)
    table = pa.Table.from_batches(found, found[0].schema if found else pa.schema([]))
    yield from table.take(pa.array(range(table.num_rows - 1, -1, -1), pa.int64())).to_batches()


def held_while_there(file: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows come once the file is removed."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while Path(file).exists():
            time.sleep(0.02)
        yield from batches

    return hold
