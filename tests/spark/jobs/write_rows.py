"""Writes numbered rows to a topic under a txnAppId; a process of its own, so that a test can kill it whole.

write_rows.py BOOTSTRAP TOPIC ROWS SPARK_PARTITIONS TXN_APP_ID TXN_VERSION [OPTION=VALUE ...]
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


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
    frame = spark.range(0, int(rows), 1, int(partitions)).selectExpr(
        "cast(id % 100 as string) key", "cast(concat(spark_partition_id(), ':', id) as string) value"
    )
    writer = (
        frame.write.format("kafka-eos")
        .mode("append")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("txnAppId", app_id)
        .option("txnVersion", version)
    )
    for option in options:
        name, _, value = option.partition("=")
        writer = writer.option(name, value)
    writer.save()
    print("saved", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
