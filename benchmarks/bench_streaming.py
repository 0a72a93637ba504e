"""What exactly-once costs a micro-batch: kafka-eos beside a Python Arrow writer that does nothing, in one Spark.

    PYTHONPATH=.:tests python benchmarks/bench_streaming.py [--tasks 8] [--batches 40] [--rounds 3]

Each round runs both queries one after the other over the same source, so many rows a batch in so many tasks, back to back. Prints the
median duration of a micro-batch (`triggerExecution`) of each after its first batches, and the difference; of the latter, what the driver
does: plan and commit (check, decide, end, verify), timed where Spark calls them. The rest is the tasks' own requests, and
the broker, which shares the cores with them here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kafka_eos_sink import KafkaEosDataSource
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.spark.stream_writer import KafkaEosStreamWriter
from kafka_testing import create_topic

WARM_UP = 5


class TimedWriter(KafkaEosStreamWriter):
    """Notes how long its plan and its commit took, in ms, a line each."""

    def __init__(self, options: Mapping[str, str], schema: StructType, notes: str) -> None:
        super().__init__(options, schema)
        self._notes = notes

    def __getstate__(self) -> dict[str, Any]:
        planned = self._planned
        began = time.perf_counter()
        state = super().__getstate__()
        if not planned:  # Spark pickles it twice and plans once
            self._note("plan", began)
        return state

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        began = time.perf_counter()
        super().commit(messages, batchId)
        self._note("commit", began)

    def _note(self, what: str, began: float) -> None:
        with open(self._notes, "a") as notes:
            notes.write(f"{what} {(time.perf_counter() - began) * 1_000}\n")


class Timed(KafkaEosDataSource):
    @classmethod
    def name(cls) -> str:
        return "kafka-eos-timed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TimedWriter:  # noqa: N802
        options = dict(self.options)
        return TimedWriter(options, schema, options.pop("notes"))


class Discard(DataSource):
    """Reads its rows and throws them away."""

    @classmethod
    def name(cls) -> str:
        return "discard-stream"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        class Writer(DataSourceStreamArrowWriter):
            def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
                for _ in iterator:
                    pass
                return WriterCommitMessage()

            def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
                pass

            def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
                pass

        return Writer()


def batches(frame: DataFrame, name: str, options: dict[str, str], count: int) -> list[float]:
    """Milliseconds of each micro-batch after the first ones."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format(name).options(**options).option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            while (progress := query.lastProgress) is None or progress["batchId"] < count:
                if query.exception() is not None:
                    raise RuntimeError(str(query.exception()))
                time.sleep(0.05)
            found = [json.loads(each.json) if not isinstance(each, dict) else each for each in query.recentProgress]
        finally:
            query.stop()
    return [float(each["durationMs"]["triggerExecution"]) for each in found if each["batchId"] >= WARM_UP]


def driver_ms(notes: str) -> list[float]:
    """Plan and commit together, of each micro-batch after the first ones."""
    lines = [line.split() for line in notes.splitlines()]
    plans, commits = ([float(ms) for what, ms in lines if what == wanted] for wanted in ("plan", "commit"))
    return [plan + commit for plan, commit in zip(plans, commits, strict=False)][WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--rows", type=int, default=8_000, help="rows of a micro-batch")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with EmbeddedKafka() as cluster:
        topic = create_topic(cluster.bootstrap_servers, partitions=8)
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.streaming.numRecentProgressUpdates", str(given.batches + 10))
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        spark.dataSource.register(Discard)
        spark.dataSource.register(Timed)
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", given.rows)
        frame = source.option("numPartitions", given.tasks).load().selectExpr("cast(value as string) value")
        options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic}
        times: dict[str, list[float]] = {"discard-stream": [], "kafka-eos-timed": []}
        driver: list[float] = []
        for _ in range(given.rounds):
            times["discard-stream"] += batches(frame, "discard-stream", {}, given.batches)
            with tempfile.NamedTemporaryFile("r") as notes:
                times["kafka-eos-timed"] += batches(
                    frame, "kafka-eos-timed", {**options, "notes": notes.name}, given.batches
                )
                driver += driver_ms(notes.read())
        spark.stop()
    medians = {name: statistics.median(each) for name, each in times.items()}
    print(f"{given.rows} rows in {given.tasks} tasks, {len(driver)} micro-batches each, median ms:")
    for name, median in medians.items():
        print(f"  {name:<16} {median:8.0f}")
    print(f"  difference       {medians['kafka-eos-timed'] - medians['discard-stream']:8.0f}")
    print(f"  plan and commit  {statistics.median(driver):8.0f}")


if __name__ == "__main__":
    main()
