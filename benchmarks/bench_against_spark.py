"""Measures this sink, Spark's own and none at all, in one Spark application.

    make bench BENCH="--rows 1000000 --rounds 5"

The same without make: ``python -m benchmarks.bench_against_spark``; ``--help`` lists the options.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.cpu_seconds import CpuSeconds, cpu_seconds, total_cpu_seconds
from benchmarks.discard import DISCARD_FORMAT, DiscardDataSource
from benchmarks.report import BUILT_IN, DISCARD, KAFKA_EOS, Measured, as_json, bench_table
from benchmarks.topics import DEADLINE_MS, create_topic
from kafka_eos_sink.cli.console import output_console
from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.demo.quiet_spark import in_one_sentence, quiet_spark, spark_folder
from kafka_eos_sink.demo.step_progress import Steps
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.distribution import DEFAULT_KAFKA_VERSION, resolve, resolve_coordinates
from kafka_eos_sink.embedded.download_progress import shown_progress
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_CUSTOMERS = 100_000
_VALUE_BYTES = 100
_BROKER_PROPERTIES = {"log.retention.check.interval.ms": "5000", "log.initial.task.delay.ms": "5000"}
_TOPIC_CONFIGURATION = {
    # Old rounds are deleted, so that any number of rounds fits the disk.
    "segment.bytes": str(64 << 20),
    "retention.bytes": str(64 << 20),
    "file.delete.delay.ms": "1000",
}


def _known_codecs(text: str) -> str:
    unknown = [codec for codec in text.split(",") if codec not in _CODECS]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)} is unknown; choose from {', '.join(_CODECS)}")
    return text


def bench(
    rows: Annotated[int, typer.Option(min=1_000, help="Rows per write: keys of 16 bytes, values of 100.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds, after one to warm up.")] = 5,
    codecs: Annotated[
        str, typer.Option(help="Comma-separated compression types.", callback=_known_codecs)
    ] = "lz4,none",
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the data in Spark and of each topic.")] = 4,
    kafka_version: Annotated[str, typer.Option(help="The Apache Kafka to run.")] = DEFAULT_KAFKA_VERSION,
    print_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Measure kafka-eos, Spark's own Kafka sink and a writer that discards its rows.

    All three write the same cached rows from one Spark application to one embedded broker, in turns. Their settings are
    the defaults except for the compression.
    """
    console = output_console(stderr=print_json)
    steps = Steps(console)
    with shown_progress() as progress:
        jars = resolve_coordinates(KAFKA_SOURCE_JARS, progress=progress)
        resolve(kafka_version, progress=progress)
    kafka = EmbeddedKafka(version=kafka_version, tuned_for="throughput", heap="1g", properties=_BROKER_PROPERTIES)
    with steps.step(f"Apache Kafka {kafka_version}"):
        kafka.start()
    try:
        with (
            spark_folder("kafka-eos-bench-", console.print) as folder,
            quiet_spark("local[2]", folder, jars, {"spark.driver.memory": "2g"}, {}) as spark,
            connected(kafka.bootstrap_servers) as admin,
        ):
            spark_version = spark.version
            with steps.step("Rows") as step:
                records = cached_records(spark, rows, partitions)
                step.note = f"{rows:,} in {partitions} cached partitions"
            course = _Course(records, rows, partitions, admin, kafka)
            measured = _measure(course, codecs.split(","), rounds, steps)
    finally:
        kafka.stop()
    if print_json:
        versions = {"kafka_version": kafka_version, "spark_version": spark_version}
        machine = {"cpus": os.cpu_count(), "partitions": partitions}
        typer.echo(json.dumps({**versions, **machine, "results": as_json(measured)}, indent=2))
    console.print()
    console.print(bench_table(measured))
    console.print(
        f"[dim]{rows:,} rows of 16 + {_VALUE_BYTES} bytes, median of {rounds} rounds, Spark {spark_version} local[2], "
        f"Kafka {kafka_version} on the same {os.cpu_count()} cores[/]"
    )


def cached_records(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    """Cache rows of a key (16 bytes) and a value (100 bytes, JSON of an order)."""
    from pyspark.sql import functions as f

    # A hash of the row's number, so that neighbours do not compress unrealistically well.
    mixed = f.md5(f.col("id").cast("string"))
    customer = f.lpad(f.pmod(f.hash("id"), f.lit(_CUSTOMERS)).cast("string"), 7, "0")
    order = f.concat(
        f.lit('{"order":"'),
        f.substring(mixed, 1, 16),
        f.lit('","amount":'),
        f.pmod(f.hash("id", f.lit(1)), f.lit(100_000)).cast("string"),
        f.lit(',"currency":"EUR","status":"shipped","items":'),
        f.pmod(f.hash("id", f.lit(2)), f.lit(20)).cast("string"),
        f.lit("}"),
    )
    records = (
        spark.range(0, rows, 1, partitions)
        .select(
            f.concat(f.lit("customer-"), customer).cast("binary").alias("key"),
            f.rpad(order, _VALUE_BYTES, " ").cast("binary").alias("value"),
        )
        .persist()
    )
    records.count()
    return records


@dataclass(frozen=True, slots=True)
class _Course:
    """Rows, topics and broker of the benchmark."""

    records: DataFrame
    rows: int
    partitions: int
    admin: Admin
    kafka: EmbeddedKafka

    def cpu_seconds(self) -> CpuSeconds | None:
        gateway: Any = self.records.sparkSession.sparkContext._gateway
        jvm = gateway.proc.pid
        return cpu_seconds(jvm, self.kafka.pids.values())

    def create_topic(self, contender: str, codec: str) -> None:
        if contender != DISCARD:
            create_topic(self.admin, _topic(contender, codec), self.partitions, _TOPIC_CONFIGURATION)

    def run(self, contender: str, codec: str) -> float:
        """Return the seconds of one ``save()``.

        Raises:
            KafkaEosError: ``BENCH_FAILED`` if not all rows are visible afterwards.
        """
        topic = _topic(contender, codec)
        # Counted before and after each run, because a topic serves all rounds.
        before = 0 if contender == DISCARD else self._visible(topic)
        writer = self.records.write.mode("append")
        if contender == DISCARD:
            writer = writer.format(DISCARD_FORMAT).option("rows", str(self.rows))
        else:
            writer = (
                writer.format("kafka-eos" if contender == KAFKA_EOS else "kafka")
                .option("kafka.bootstrap.servers", self.kafka.bootstrap_servers)
                .option("kafka.compression.type", codec)
                .option("topic", topic)
            )
        started = time.perf_counter()
        try:
            writer.save()
        except Exception as error:
            raise in_one_sentence(error) from None
        seconds = time.perf_counter() - started
        if contender != DISCARD:
            # Each transaction's marker takes an offset per task and partition, and two if a slow broker got a retry.
            added = self._visible(topic) - before
            most = self.rows + (2 * self.partitions**2 if contender == KAFKA_EOS else 0)
            if not self.rows <= added <= most:
                raise KafkaEosError(
                    "BENCH_FAILED", f"{contender} added {added:,} records to {topic!r} instead of {self.rows:,}"
                )
        return seconds

    def _visible(self, topic: str) -> int:
        """Return the sum of the last stable offsets of all partitions."""
        where = [(topic, partition) for partition in range(self.partitions)]
        deadline = self.admin.client.clock() + DEADLINE_MS
        return sum(self.admin.list_offsets(where, deadline, isolation="read_committed").values())


def _topic(contender: str, codec: str) -> str:
    return f"bench-{'eos' if contender == KAFKA_EOS else 'spark'}-{codec}"


def _measure(course: _Course, codecs: Sequence[str], rounds: int, steps: Steps) -> list[Measured]:
    course.records.sparkSession.dataSource.register(DiscardDataSource)
    runs = [(codec, contender) for codec in codecs for contender in (KAFKA_EOS, BUILT_IN, DISCARD)]
    # Before the first run: no contender pays for the creation of a topic.
    for codec, contender in runs:
        course.create_topic(contender, codec)
    seconds: dict[tuple[str, str], list[float]] = {run: [] for run in runs}
    cpu: dict[tuple[str, str], list[CpuSeconds]] = {run: [] for run in runs}
    with steps.step("Writing") as step:
        total = len(runs) * (rounds + 1)
        for done, (round_number, (codec, contender)) in enumerate(_turns(runs, rounds)):
            what = f"round {round_number} of {rounds}" if round_number else "warm-up"
            step.update(done, total, f"{what}: {contender}, {codec}")
            # CPU time includes workers that Spark keeps between the writes: take the difference.
            before = course.cpu_seconds()
            took = course.run(contender, codec)
            after = course.cpu_seconds()
            if round_number:
                seconds[(codec, contender)].append(took)
                if before is not None and after is not None:
                    cpu[(codec, contender)].append(after - before)
        step.note = f"{rounds} rounds"
    return [
        Measured(
            contender=contender,
            codec=codec,
            rows=course.rows,
            seconds=tuple(seconds[(codec, contender)]),
            cpu=total_cpu_seconds(cpu[(codec, contender)]),
        )
        for codec, contender in runs
    ]


def _turns(runs: Sequence[tuple[str, str]], rounds: int) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield every run once per round; round 0 warms up."""
    # Each round begins with another run, because the first run of a round may be slower.
    for round_number in range(rounds + 1):
        start = round_number % len(runs)
        order: Iterable[tuple[str, str]] = (*runs[start:], *runs[:start])
        for run in order:
            yield round_number, run


if __name__ == "__main__":
    typer.run(bench)
