"""Streams the lines of text files to a topic, a file a batch; a process of its own, so that a test can kill it whole.

stream_rows.py BOOTSTRAP TOPIC SOURCE CHECKPOINT [OPTION=VALUE ...]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

LINES = 1_000
BEGAN_S = int(time.time()) - 3_600
PARTITION_BYTES = 2_048
"""Small enough that the lines of one file come in several Spark partitions."""


def add_files(source: Path, first: int, count: int, width: int = 7) -> None:
    """Files with numbered lines; file n holds the numbers from n * LINES on."""
    source.mkdir(exist_ok=True)
    for number in range(first, first + count):
        lines = (f"{line:0{width}d}" for line in range(number * LINES, (number + 1) * LINES))
        hidden = source / f".{number}"  # Spark takes no file that is still being written
        hidden.write_text("\n".join(lines) + "\n")
        os.utime(hidden, (BEGAN_S + number, BEGAN_S + number))  # Spark takes files by their age
        hidden.rename(source / f"{number:06d}.txt")


def rows_to_stream(spark: SparkSession, source: str) -> DataFrame:
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(PARTITION_BYTES))
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(source)
    return lines.selectExpr("cast(cast(value as int) % 100 as string) key", "value")


def writer_of(
    frame: DataFrame, bootstrap: str, topic: str, checkpoint: str, options: dict[str, str] | None = None
) -> DataStreamWriter:
    return (
        frame.writeStream.format("kafka-eos")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .options(**(options or {}))
        .trigger(availableNow=True)
    )


def main(bootstrap: str, topic: str, source: str, checkpoint: str, *options: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    given = dict(option.split("=", 1) for option in options)
    query = writer_of(rows_to_stream(spark, source), bootstrap, topic, checkpoint, given).start()
    query.awaitTermination()
    print("ended", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
