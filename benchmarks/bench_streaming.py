"""The cost of exactly-once per micro-batch, beside a writer that discards rows.

    python -m benchmarks.bench_streaming [--tasks 8] [--rows 8000] [--batches 40] [--rounds 3]

Each round runs both queries one after the other over the same source. Prints the median duration of a micro-batch
(``triggerExecution``) of each query after its first batches, and the difference. The driver's part of the difference is
plan and commit (check, decide, end, verify), timed where Spark calls them. The rest is the tasks' requests, and the
broker, which shares the cores with them.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from pyspark.sql import DataFrame
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from benchmarks.discard import DISCARD_FORMAT, DiscardDataSource
from benchmarks.topics import make_topic
from kafka_eos_sink import KafkaEosDataSource
from kafka_eos_sink.demo.quiet_spark import quiet_spark, spark_folder
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.spark.stream_writer import KafkaEosStreamWriter

WARM_UP = 5
TIMED_FORMAT = "kafka-eos-timed"


class TimedWriter(KafkaEosStreamWriter):
    """Appends the milliseconds of its plans and commits to a file, one per line."""

    def __init__(self, options: Mapping[str, str], schema: StructType, notes: str) -> None:
        super().__init__(options, schema)
        self._notes = notes

    def __getstate__(self) -> dict[str, Any]:
        planned = self._planned
        began = time.perf_counter()
        state = super().__getstate__()
        if not planned:  # Spark pickles the writer twice, and the first pickle plans
            self._note("plan", began)
        return state

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        began = time.perf_counter()
        super().commit(messages, batchId)
        self._note("commit", began)

    def _note(self, what: str, began: float) -> None:
        # A file, because Spark copies the writer and calls the copies.
        with open(self._notes, "a") as notes:
            notes.write(f"{what} {(time.perf_counter() - began) * 1_000}\n")


class Timed(KafkaEosDataSource):
    @classmethod
    def name(cls) -> str:
        return TIMED_FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> TimedWriter:  # noqa: N802
        options = dict(self.options)
        return TimedWriter(options, schema, options.pop("notes"))


def durations(frame: DataFrame, name: str, options: dict[str, str], count: int) -> list[float]:
    """Run ``count`` micro-batches; return the milliseconds of each after the warm-up."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format(name).options(**options).option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            # The query has no end of its own: stop it once it has progressed past the last batch that counts.
            while (progress := query.lastProgress) is None or progress["batchId"] < count:
                if query.exception() is not None:
                    raise RuntimeError(str(query.exception()))
                time.sleep(0.05)
            found = [json.loads(each.json) if not isinstance(each, dict) else each for each in query.recentProgress]
        finally:
            query.stop()
    return [float(each["durationMs"]["triggerExecution"]) for each in found if each["batchId"] >= WARM_UP]


def driver_ms(notes: str) -> list[float]:
    """Return the milliseconds of plan and commit per micro-batch after the warm-up."""
    lines = [line.split() for line in notes.splitlines()]
    plans, commits = ([float(ms) for what, ms in lines if what == wanted] for wanted in ("plan", "commit"))
    return [plan + commit for plan, commit in zip(plans, commits, strict=False)][WARM_UP:]


def main(tasks: int = 8, rows: int = 8_000, batches: int = 40, rounds: int = 3) -> None:
    """Measure micro-batches of ``rows`` rows in ``tasks`` tasks."""
    times: dict[str, list[float]] = {DISCARD_FORMAT: [], TIMED_FORMAT: []}
    driver: list[float] = []
    settings = {"spark.sql.streaming.numRecentProgressUpdates": str(batches + 10)}
    with (
        EmbeddedKafka() as kafka,
        spark_folder("kafka-eos-bench-", print) as folder,
        quiet_spark("local[2]", folder, [], settings, {}) as spark,
    ):
        topic = make_topic(kafka.bootstrap_servers, "bench", partitions=8)
        spark.dataSource.register(DiscardDataSource)
        spark.dataSource.register(Timed)
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", tasks)
        frame = source.load().selectExpr("cast(value as string) value")
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}
        for round_number in range(rounds):
            notes = folder / f"notes-{round_number}"
            times[DISCARD_FORMAT] += durations(frame, DISCARD_FORMAT, {}, batches)
            times[TIMED_FORMAT] += durations(frame, TIMED_FORMAT, {**options, "notes": str(notes)}, batches)
            driver += driver_ms(notes.read_text())
    discard, timed = (statistics.median(times[name]) for name in (DISCARD_FORMAT, TIMED_FORMAT))
    print(f"{rows} rows in {tasks} tasks, {len(driver)} micro-batches each, median ms:")
    print(f"  rows discarded   {discard:8.0f}")
    print(f"  kafka-eos        {timed:8.0f}")
    print(f"  difference       {timed - discard:8.0f}")
    print(f"  plan and commit  {statistics.median(driver):8.0f}")


if __name__ == "__main__":
    typer.run(main)
