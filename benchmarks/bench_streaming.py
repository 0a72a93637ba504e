"""The latency of micro-batches and of small batch writes.

Compares kafka-eos with Spark's Kafka sink and with a writer that drops its rows.

    python -m benchmarks.bench_streaming [--tasks 8] [--rows 8000] [--batches 40] [--rounds 3] [--timeline requests.png]

Each round runs one query per sink over the same source. The first round and the first micro-batches of each query do not count.
Then the sinks write batches of one row per task, in turns.
Prints median, 95 % and 99 % of the duration of a micro-batch (``triggerExecution``). The driver's part of kafka-eos is plan and
commit (check, decide, end, verify), timed where Spark calls them. The rest of the difference is the tasks' requests, and the
broker, which shares the cores with them. ``--timeline`` runs one more query, and draws the requests of its median micro-batch.
``make bench`` measures the same (`bench_against_spark`).
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from benchmarks.contenders import BUILT_IN, FLOOR, KAFKA_EOS, NO_HISTORY, Contender
from benchmarks.discard import DISCARD_FORMAT, DiscardDataSource
from benchmarks.report import BATCH_WRITE, Latency, latency_table
from benchmarks.timed import TIMED_FORMAT, TimedDataSource, driver_ms, spans_of
from benchmarks.timeline import Timeline, draw_timeline, timeline_of
from benchmarks.topics import make_topic
from benchmarks.turns import turns
from kafka_eos_sink.cli.console import output_console
from kafka_eos_sink.demo.quiet_spark import in_one_sentence, quiet_spark, spark_folder
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.distribution import resolve_coordinates
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["WARM_UP", "MicroBatches", "measure_batch_writes", "measure_latency", "measure_timeline"]

WARM_UP = 5
PARTITIONS = 8
_FORMATS = {FLOOR: DISCARD_FORMAT, KAFKA_EOS: TIMED_FORMAT, BUILT_IN: "kafka"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatches:
    """The load: per sink, ``rounds`` queries of ``batches`` micro-batches.

    One query before them warms up. The first `WARM_UP` micro-batches of each query do not count. Of batch writes, there are ``batches``
    per sink after `WARM_UP`.
    """

    rows: int = 400
    tasks: int = 4
    batches: int = 40
    rounds: int = 3

    @property
    def name(self) -> str:
        return f"a micro-batch of {self.rows:,} rows in {self.tasks} tasks"


def progress_of(frame: DataFrame, name: str, options: dict[str, str], count: int) -> list[dict[str, Any]]:
    """Run ``count`` micro-batches; return Spark's progress of each after the warm-up."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format(name).options(**options).option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            # The query has no end of its own: stop it once it has ended the last batch that counts.
            while (progress := query.lastProgress) is None or progress["batchId"] < count - 1:
                if (failure := query.exception()) is not None:
                    raise in_one_sentence(failure)
                time.sleep(0.05)
            found = [json.loads(each.json) if not isinstance(each, dict) else each for each in query.recentProgress]
        finally:
            query.stop()
    return [each for each in found if WARM_UP <= each["batchId"] < count]


def trigger_ms(progress: dict[str, Any]) -> float:
    """Return the duration of a micro-batch."""
    return float(progress["durationMs"]["triggerExecution"])


def micro_batches(spark: SparkSession, load: MicroBatches) -> DataFrame:
    """Return a stream of micro-batches without an end."""
    # Enough for those that end while this process is not scheduled.
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", load.batches + 100)
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", load.rows)
    return reader.option("numPartitions", load.tasks).load().selectExpr("cast(value as string) value")


def measure_latency(
    spark: SparkSession, servers: str, folder: Path, load: MicroBatches, update: Callable[[int, int, str], None]
) -> list[Latency]:
    """Measure the micro-batches of the three sinks in turns.

    Args:
        folder: For files with the driver's times.
        update: Called before each query with the number of queries done, of all queries, and the words for the progress line.
    """
    for source in (DiscardDataSource, TimedDataSource):
        spark.dataSource.register(source)
    frame = micro_batches(spark, load)
    options: dict[Contender, dict[str, str]] = {FLOOR: {}}
    for at, sink in enumerate((KAFKA_EOS, BUILT_IN)):
        topic = make_topic(servers, f"bench-latency-{at}", PARTITIONS)
        options[sink] = {"kafka.bootstrap.servers": servers, "topic": topic}
    ms: dict[Contender, list[float]] = {sink: [] for sink in _FORMATS}
    driver: list[float] = []
    for done, (number, sink) in enumerate(turns(list(_FORMATS), load.rounds + 1)):
        what = f"round {number} of {load.rounds}" if number else "warm-up"
        update(done, (load.rounds + 1) * len(_FORMATS), f"{what}: {sink.name}")
        notes = folder / f"notes-{number}"
        own = {"notes": str(notes), "requests": "false"} if sink is KAFKA_EOS else {}
        found = progress_of(frame, _FORMATS[sink], {**options[sink], **own}, load.batches)
        if number:
            ms[sink] += map(trigger_ms, found)
            driver += driver_ms(spans_of(notes.read_text()))[WARM_UP : load.batches] if own else []
    return [
        Latency(
            contender=sink,
            rows=load.rows,
            tasks=load.tasks,
            ms=tuple(ms[sink]),
            driver_ms=tuple(driver) if sink is KAFKA_EOS else (),
        )
        for sink in _FORMATS
    ]


def measure_timeline(spark: SparkSession, servers: str, folder: Path, load: MicroBatches) -> Timeline:
    """Run one query of kafka-eos, and return the time line of its median micro-batch."""
    spark.dataSource.register(TimedDataSource)
    notes = folder / "notes-timeline"
    options = {"notes": str(notes), "requests": "true", "kafka.bootstrap.servers": servers}
    options["topic"] = make_topic(servers, "bench-timeline", PARTITIONS)
    found = progress_of(micro_batches(spark, load), TIMED_FORMAT, options, load.batches)
    return timeline_of(sorted(found, key=trigger_ms)[len(found) // 2], spans_of(notes.read_text()))


def measure_batch_writes(
    spark: SparkSession, servers: str, load: MicroBatches, update: Callable[[int, int, str], None]
) -> list[Latency]:
    """Measure batch writes of one row per task, in turns.

    The first `WARM_UP` writes of each sink do not count.

    Args:
        update: As for `measure_latency`.
    """
    spark.dataSource.register(DiscardDataSource)
    frame = spark.range(0, load.tasks, 1, load.tasks).selectExpr("cast(id as string) value")
    kafka = {"kafka.bootstrap.servers": servers, "topic": make_topic(servers, "bench-batch-writes", load.tasks)}
    sinks: dict[Contender, tuple[str, dict[str, str]]] = {
        FLOOR: (DISCARD_FORMAT, {"rows": str(load.tasks)}),
        KAFKA_EOS: ("kafka-eos", kafka),
        NO_HISTORY: ("kafka-eos", {**kafka, "history.topic": ""}),
        BUILT_IN: ("kafka", kafka),
    }
    ms: dict[Contender, list[float]] = {sink: [] for sink in sinks}
    writes = WARM_UP + load.batches
    for done, (number, sink) in enumerate(turns(list(sinks), writes)):
        update(done, writes * len(sinks), f"batch write {number + 1} of {writes}: {sink.name}")
        name, options = sinks[sink]
        began = time.perf_counter()
        try:
            frame.write.format(name).mode("append").options(**options).save()
        except Exception as error:
            raise in_one_sentence(error) from None
        if number >= WARM_UP:
            ms[sink].append((time.perf_counter() - began) * 1_000)
    return [
        Latency(kind=BATCH_WRITE, contender=sink, rows=load.tasks, tasks=load.tasks, ms=tuple(ms[sink])) for sink in ms
    ]


def main(tasks: int = 8, rows: int = 8_000, batches: int = 40, rounds: int = 3, timeline: Path | None = None) -> None:
    """Measure micro-batches of ``rows`` rows in ``tasks`` tasks."""
    load = MicroBatches(rows=rows, tasks=tasks, batches=batches, rounds=rounds)
    with (
        EmbeddedKafka() as kafka,
        spark_folder("kafka-eos-bench-", print) as folder,
        quiet_spark("local[2]", folder, resolve_coordinates(KAFKA_SOURCE_JARS), {}, {}) as spark,
    ):
        servers = kafka.bootstrap_servers
        found = measure_latency(spark, servers, folder, load, lambda _done, _total, what: print(what))
        found += measure_batch_writes(spark, servers, load, lambda _done, _total, what: print(what))
        if timeline is not None:
            draw_timeline(measure_timeline(spark, servers, folder, load), timeline, load.name)
    output_console().print(latency_table(found))


if __name__ == "__main__":
    typer.run(main)
