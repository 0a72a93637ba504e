"""A query of Spark Connect whose `foreachBatch` function writes by `for_each_batch`.

connect_foreach_batch.py BOOTSTRAP FOLDER TOPIC

Runs a batch, a second one with two writes of one name, and a new checkpoint. The last line holds the errors by name, as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from kafka_eos_sink import for_each_batch

ROWS = 100
Txn = Callable[[str], dict[str, str]]


def main(bootstrap: str, folder: str, topic: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    servers = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    source, checkpoint = f"{folder}/source", f"{folder}/checkpoint"

    def once(batch: DataFrame, batch_id: int, txn: Txn) -> None:
        batch.write.format("kafka-eos").options(**servers, **txn("app")).mode("append").save()

    def twice(batch: DataFrame, batch_id: int, txn: Txn) -> None:
        for _ in range(2):
            batch.write.format("kafka-eos").options(**servers, **txn("app")).mode("append").save()

    def run(function: Callable[[DataFrame, int, Txn], None]) -> str:
        lines = spark.readStream.format("text").load(source)
        writer = for_each_batch(lines.writeStream.trigger(availableNow=True), function, checkpoint)
        for _ in range(20):
            try:
                writer.start().awaitTermination()
            except Exception as error:
                # Spark gives the function's process ten seconds to import its modules; a busy machine needs more. No batch has begun then.
                if "failed to connect back" not in str(error):
                    return str(error)
            else:
                return "no error"
        return "the process of the function did not start"

    def add(first: int) -> None:
        spark.range(first, first + ROWS, 1, 1).selectExpr("cast(id as string)").write.mode("append").text(source)

    found = {}
    add(0)
    found["first"] = run(once)
    add(ROWS)
    found["second write"] = run(twice)
    found["rerun"] = run(once)
    shutil.rmtree(checkpoint)
    found["new checkpoint"] = run(once)
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
