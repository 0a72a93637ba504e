"""How many rows or bytes Spark should put into an Arrow batch for a Python writer.

    python -m benchmarks.bench_hand_over [--megabytes 100] [--rounds 5] [--sizes 20,100,1000,10000]

A writer that drops its rows, and kafka-eos with lz4, write the same rows over Unix sockets, with one limit of an Arrow batch after the
other, in turns. Prints for each size of a row and each limit the number of batches, the rows per second relative to Spark's default, and
the largest memory of a Python worker.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.cells import Cell
from benchmarks.contenders import FLOOR, KAFKA_EOS, Contender
from benchmarks.discard import DiscardDataSource
from benchmarks.peak_memory import PeakMemory, PeakWatch
from benchmarks.topics import make_topic
from benchmarks.turns import turns
from kafka_eos_sink.demo.quiet_spark import quiet_spark, spark_folder
from kafka_eos_sink.embedded.cluster import EmbeddedKafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, BYTES = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"
DEFAULT = {ROWS: "10000", BYTES: "67108864"}
"""Spark 4.3's."""
LIMITS = [
    DEFAULT,
    *(DEFAULT | {ROWS: rows} for rows in ("1000", "3000", "30000", "100000")),
    *({ROWS: "0", BYTES: size} for size in ("262144", "1048576", "4194304", "16777216")),
]
_WARM_UP = 2


@dataclass(slots=True)
class Run:
    """One sink with one limit, and its rounds."""

    sink: Contender
    limit: dict[str, str]
    seconds: list[float] = field(default_factory=list)
    memory: PeakMemory | None = None

    def measure(self, spark: SparkSession, records: DataFrame, cell: Cell, servers: str, topic: str) -> None:
        limit_batches(spark, self.limit)
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        peaks = PeakWatch(gateway.proc.pid)
        began = time.perf_counter()
        self.sink.write(records, cell, servers, topic)
        self.seconds.append(time.perf_counter() - began)
        if (found := peaks.read()) is not None:
            self.memory = found.or_larger(self.memory)


def limit_name(limit: dict[str, str]) -> str:
    if limit == DEFAULT:
        return "Spark's default"
    return f"{int(limit[BYTES]) >> 10:,} KiB" if limit[ROWS] == "0" else f"{int(limit[ROWS]):,} rows"


def limit_batches(spark: SparkSession, limit: dict[str, str]) -> None:
    for name, value in limit.items():
        spark.conf.set(name, value)


def batches_of(spark: SparkSession, records: DataFrame, limit: dict[str, str]) -> int:
    """Return into how many Arrow batches Spark cuts the rows."""
    limit_batches(spark, limit)
    return records.mapInArrow(lambda batches: (each.slice(0, 1) for each in batches), records.schema).count()


def measure_size(spark: SparkSession, folder: Path, servers: str, cell: Cell, rounds: int) -> None:
    """Print the table of rows of one size."""
    records = cell.records(spark, folder)
    topic = make_topic(servers, f"bench-{cell.value_bytes}", cell.partitions)
    runs = [Run(sink, limit) for sink in (FLOOR, KAFKA_EOS) for limit in LIMITS]
    for _, run in turns(runs, _WARM_UP + rounds):
        run.measure(spark, records, cell, servers, topic)
    print(f"\n{cell.rows:,} rows: {cell.name}, median of {rounds}")
    print(f"  {'an Arrow batch':18}{'batches':>9}{'rows dropped':>14}{'kafka-eos':>11}{'MB of a worker':>16}")
    for at, limit in enumerate(LIMITS):
        dropped, ours = runs[at], runs[len(LIMITS) + at]
        ratios = [
            statistics.median(first.seconds[_WARM_UP:]) / statistics.median(run.seconds[_WARM_UP:])
            for first, run in ((runs[0], dropped), (runs[len(LIMITS)], ours))
        ]
        memory = "" if ours.memory is None else f"{ours.memory.python:.0f}"
        count = batches_of(spark, records, limit)
        print(f"  {limit_name(limit):18}{count:9,}{ratios[0]:14.2f}{ratios[1]:11.2f}{memory:>16}", flush=True)


def main(
    megabytes: int = 100,
    rounds: int = 5,
    sizes: Annotated[str, typer.Option(help="Bytes of a value, separated by commas.")] = "20,100,1000,10000",
) -> None:
    """Measure rows of each size with each limit."""
    with (
        EmbeddedKafka(tuned_for="throughput", heap="1g") as kafka,
        spark_folder("kafka-eos-bench-", print) as folder,
        quiet_spark("local[2]", folder, [], {"spark.driver.memory": "2g"}, {}) as spark,
    ):
        spark.dataSource.register(DiscardDataSource)
        for size in map(int, sizes.split(",")):
            cell = Cell(value_bytes=size, megabytes=megabytes)
            measure_size(spark, folder, kafka.bootstrap_servers, cell, rounds)


if __name__ == "__main__":
    typer.run(main)
