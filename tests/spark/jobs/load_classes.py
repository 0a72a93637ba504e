"""Touches what the tests' jobs use of Spark, so that a JVM that archives its classes at its end has them all (see quick_start.py)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


class DiscardWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class Discard(DataSource):
    """Reads its rows and throws them away."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return DiscardWriter()


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.dataSource.register(Discard)
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "source")
        source.mkdir()
        (source / "lines.txt").write_text("1\n2\n")
        frame = spark.readStream.format("text").load(str(source)).selectExpr("cast(value as int) % 2 key", "value")
        writer = frame.writeStream.format("discard").option("checkpointLocation", str(Path(name, "checkpoint")))
        writer.trigger(availableNow=True).start().awaitTermination()
        spark.read.text(str(source)).repartition(2).mapInArrow(lambda batches: batches, "value STRING").collect()
    spark.stop()


if __name__ == "__main__":
    main()
