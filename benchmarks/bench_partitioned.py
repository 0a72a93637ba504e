"""What ``partition_for_topic`` saves a write of many tasks to many partitions.

    python -m benchmarks.bench_partitioned [--tasks 32] [--partitions 32] [--rows 500000] [--rounds 5]

A write with it and a write without it run in turn over the same rows, in one application. Prints the median seconds of each, and the
markers in the topic: one for each partition of each transaction.
"""

from __future__ import annotations

import statistics
import time

import typer
from confluent_kafka import Consumer, TopicPartition

from benchmarks.topics import make_topic
from kafka_eos_sink import partition_for_topic
from kafka_eos_sink.demo.quiet_spark import quiet_spark, spark_folder
from kafka_eos_sink.embedded.cluster import EmbeddedKafka

VALUE = 'concat(\'{"order":\', id, \',"customer":"\', sha2(string(id), 256), \'","status":"shipped"}\')'


def markers(servers: str, topic: str, partitions: int, rows: int) -> int:
    """The offsets of the topic that no row has."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench"})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=30)[1] for each in range(partitions)]
    consumer.close()
    return sum(ends) - rows


def main(tasks: int = 32, partitions: int = 32, rows: int = 500_000, rounds: int = 5) -> None:
    """Measure a batch write of ``rows`` rows in ``tasks`` tasks."""
    seconds: dict[str, list[float]] = {"as it is": [], "partition_for_topic": []}
    pairs: dict[str, int] = {}
    with (
        EmbeddedKafka() as kafka,
        spark_folder("kafka-eos-bench-", print) as folder,
        quiet_spark("local[2]", folder, [], {}, {}) as spark,
    ):
        servers = kafka.bootstrap_servers
        frame = spark.range(0, rows, 1, tasks).selectExpr("string(id % 5000) AS key", f"{VALUE} AS value")
        # In turns, so that a slow phase of the machine hits both. The first turn warms up.
        for turn in range(rounds + 1):
            for name, taken in seconds.items():
                topic = make_topic(servers, f"bench-{turn}-{len(name)}", partitions)
                given = {"kafka.bootstrap.servers": servers, "topic": topic, "kafka.compression.type": "lz4"}
                began = time.perf_counter()
                df = frame if name == "as it is" else partition_for_topic(frame, topic, given)
                df.write.format("kafka-eos").options(**given).mode("append").save()
                if turn:
                    taken.append(time.perf_counter() - began)
                pairs[name] = markers(servers, topic, partitions, rows)
    print(f"{rows} rows from {tasks} tasks to {partitions} partitions, median of {rounds}:")
    for name, taken in seconds.items():
        print(f"  {name:20}{statistics.median(taken):6.2f} s {pairs[name]:6} markers")
    before, after = (statistics.median(taken) for taken in seconds.values())
    print(f"  rows per second: {before / after:.2f} times as many with partition_for_topic")


if __name__ == "__main__":
    typer.run(main)
