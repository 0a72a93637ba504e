"""Writes the lines of text files in a foreachBatch function, a file a batch; with txnAppId=NAME each batch once.

foreach_batch.py BOOTSTRAP TOPIC SOURCE CHECKPOINT [OPTION=VALUE ...]
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession


def main(bootstrap: str, topic: str, source: str, checkpoint: str, *options: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic} | dict(each.split("=", 1) for each in options)

    def write(batch: DataFrame, batch_id: int) -> None:
        version = {"txnVersion": str(batch_id)} if "txnAppId" in given else {}
        batch.write.format("kafka-eos").options(**given, **version).mode("append").save()

    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(source)
    query = lines.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
