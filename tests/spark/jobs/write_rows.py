"""Writes numbered rows to a topic under a txnAppId; a process of its own, so that a test can kill it whole.

write_rows.py BOOTSTRAP TOPIC ROWS SPARK_PARTITIONS TXN_APP_ID TXN_VERSION [OPTION=VALUE ...]

With an empty TXN_APP_ID the write has none.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession


def rows_to_write(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    return spark.range(0, rows, 1, partitions).selectExpr(
        "cast(id % 100 as string) key", "concat(spark_partition_id(), ':', id) value"
    )


def writer_of(frame: DataFrame, bootstrap: str, topic: str, app_id: str, version: str) -> DataFrameWriter:
    writer = (
        frame.write.format("kafka-eos")
        .mode("append")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
    )
    return writer.option("txnAppId", app_id).option("txnVersion", version) if app_id else writer


def main(bootstrap: str, topic: str, rows: str, partitions: str, app_id: str, version: str, *options: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    writer = writer_of(rows_to_write(spark, int(rows), int(partitions)), bootstrap, topic, app_id, version)
    for option in options:
        name, _, value = option.partition("=")
        writer = writer.option(name, value)
    writer.save()
    print("saved", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
