"""A program of Spark Connect, which has no JVM: batch, repeat, threads, stream, and what its user reads after an error.

connect_client.py BOOTSTRAP FOLDER TOPIC_OF_BATCH TOPIC_OF_THREADS TOPIC_OF_PARTITIONS TOPIC_OF_STREAM

``SPARK_REMOTE`` names the server. The last line of the output holds the errors by name, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from kafka_eos_sink import activate_session, partition_for_topic

ROWS = 1_000


def error_of(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:
        return str(error)
    return "no error"


def main(bootstrap: str, folder: str, batch: str, threads: str, partitions: str, stream: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    rows = spark.range(0, ROWS, 1, 2).selectExpr("cast(id as string) key", "cast(id as string) value")
    servers = {"kafka.bootstrap.servers": bootstrap}

    def write(frame: DataFrame, topic: str, **options: str) -> None:
        frame.write.format("kafka-eos").options(**servers, topic=topic, **options).mode("append").save()

    for _ in range(2):
        write(rows, batch, txnAppId="connect", txnVersion="1")

    def in_thread(number: int) -> None:
        activate_session(spark)
        write(rows, threads, txnAppId=f"thread-{number}", txnVersion="1")

    running = [threading.Thread(target=in_thread, args=(number,)) for number in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()

    write(partition_for_topic(rows, partitions, servers), partitions, txnAppId="placed", txnVersion="1")

    rows.select("value").write.text(f"{folder}/source")

    def run_stream(topic: str, checkpoint: str, **options: str) -> None:
        lines = spark.readStream.format("text").load(f"{folder}/source")
        writer = lines.writeStream.format("kafka-eos").options(**servers, topic=topic, **options)
        query = writer.option("checkpointLocation", f"{folder}/{checkpoint}").trigger(availableNow=True).start()
        query.awaitTermination()

    for _ in range(2):
        run_stream(stream, "checkpoint")

    soon = {"kafka.max.block.ms": "2000"}
    errors = {
        "option": error_of(lambda: write(rows, batch, txnapid="x")),
        "columns": error_of(lambda: write(rows.select("key"), batch)),
        "duplicate": error_of(lambda: write(rows.selectExpr("value", "1 AS id", "2 AS id"), batch)),
        "header": error_of(
            lambda: write(rows.selectExpr("value", "map(CAST(X'FF' AS STRING), 'v') AS headers"), batch)
        ),
        "plan": error_of(lambda: write(rows.select("value"), batch, txnAppId="connect", txnVersion="1")),
        "task": error_of(lambda: write(rows, "no-such-topic", **soon)),
        "stream": error_of(lambda: run_stream("no-such-topic", "broken", **soon)),
    }
    spark.stop()
    print(json.dumps(errors))


if __name__ == "__main__":
    main(*sys.argv[1:])
