"""A streaming query in its own process, which writes files of orders with kafka-eos, one file in each batch, to be killed.

python -m tour.stream_job SERVERS TOPIC FOLDER FAILPOINTS
"""

from __future__ import annotations

import sys
from pathlib import Path

from kafka_eos_sink.demo.quiet_spark import quiet_spark
from kafka_eos_sink.runtime import failpoints


def main(servers: str, topic: str, folder: str, fail: str) -> None:
    of_spark = Path(folder) / "spark"
    of_spark.mkdir(exist_ok=True)
    with quiet_spark("local[2]", of_spark, (), {}, {failpoints.VARIABLE: fail}) as spark:
        rows = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{folder}/orders").repartition(2)
        query = (
            rows.writeStream.format("kafka-eos")
            .option("kafka.bootstrap.servers", servers)
            .option("topic", topic)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
