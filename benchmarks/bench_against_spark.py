"""Measure this sink, Spark's own, other clients, and a writer that drops its rows.

One Spark application, four parts: rows per second, latency of micro-batches, recovery of lost transactions, and what readers see
after failures.

    make bench BENCH="--contenders all --rounds 7"

The same without make: ``python -m benchmarks.bench_against_spark``; ``--help`` lists the options.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from benchmarks.bench_copy import measure_recovery
from benchmarks.bench_streaming import (
    WARM_UP,
    MicroBatches,
    measure_batch_writes,
    measure_latency,
    measure_timeline,
)
from benchmarks.cells import KINDS, Cell, full_grid, small_grid
from benchmarks.contenders import EQUAL, EQUAL_SETTINGS, Contender, contenders_of
from benchmarks.cpu_seconds import CpuSeconds, cpu_seconds, total_cpu_seconds
from benchmarks.discard import DiscardDataSource
from benchmarks.failures import ATTEMPTS, Failures, measure_failures
from benchmarks.peak_memory import PeakMemory, PeakWatch
from benchmarks.report import (
    Latency,
    Measured,
    Recovery,
    as_json,
    bench_table,
    draw_chart,
    failures_json,
    failures_table,
    latency_json,
    latency_table,
    recovery_json,
    recovery_table,
)
from benchmarks.timeline import Timeline, draw_timeline
from benchmarks.topics import DEADLINE_MS, create_topic
from benchmarks.turns import turns
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
    from pyspark.sql import SparkSession

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_WIDTH = 140
_PARTS = ("throughput", "latency", "recovery", "failures")
_RECOVERY_ROUNDS = 3
"""At most: the topics of recoveries keep all their records, because retention would delete what is to be copied."""
_BROKER_PROPERTIES = {"log.retention.check.interval.ms": "5000", "log.initial.task.delay.ms": "5000"}
_TOPIC_CONFIGURATION = {
    # Old rounds are deleted, so that any number of rounds fits the disk.
    "segment.bytes": str(64 << 20),
    "retention.bytes": str(64 << 20),
    "file.delete.delay.ms": "1000",
}


def _known(names: Sequence[str]) -> Callable[[str], str]:
    def checked(text: str) -> str:
        unknown = [name for name in text.split(",") if name not in names]
        if unknown:
            raise typer.BadParameter(f"{', '.join(unknown)} is unknown; choose from {', '.join(names)}")
        return text

    return checked


def _known_contenders(text: str) -> str:
    try:
        contenders_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def bench(
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds.")] = 5,
    warm_up: Annotated[int, typer.Option(min=1, help="Rounds before them: the JVM compiles for several.")] = 5,
    megabytes: Annotated[int, typer.Option(min=1, help="Keys and values per write.")] = 116,
    codecs: Annotated[
        str, typer.Option(help="Comma-separated compression types.", callback=_known(_CODECS))
    ] = "lz4,none",
    kinds: Annotated[str, typer.Option(help="Comma-separated kinds of values.", callback=_known(KINDS))] = ",".join(
        KINDS
    ),
    partitions: Annotated[int, typer.Option(min=1, help="Tasks, and partitions of each topic.")] = 4,
    contenders: Annotated[
        str, typer.Option(help="usual, all, or names separated by commas.", callback=_known_contenders)
    ] = "usual",
    parts: Annotated[
        str, typer.Option(help="What is measured, separated by commas.", callback=_known(_PARTS))
    ] = ",".join(_PARTS),
    batches: Annotated[
        int, typer.Option(min=WARM_UP + 1, help=f"Micro-batches per query, of which the first {WARM_UP} do not count.")
    ] = 25,
    full: Annotated[bool, typer.Option("--full", help="Other sizes, codecs, partitions and tasks as well.")] = False,
    chart: Annotated[Path | None, typer.Option(help="Write a chart to this PNG.")] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Write a time line of the requests of a micro-batch to this PNG.")
    ] = None,
    kafka_version: Annotated[str, typer.Option(help="The Apache Kafka to run.")] = DEFAULT_KAFKA_VERSION,
    print_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Measure kafka-eos, Spark's own Kafka sink and a writer that drops its rows.

    All write the same rows, computed while they are written, from one Spark application to one embedded broker, in turns. The cell sets
    the compression; otherwise each sink has its own defaults. Spark's sink writes once more at equal settings: with the batch size and the
    linger of kafka-eos. Spark talks to its Python workers over Unix sockets, from Spark 4.1 on. The other parts are the latency of small
    micro-batches and batch writes, the recovery of lost transactions, and the records that readers see after a task or a job failed.
    """
    chosen = parts.split(",")
    if chart is not None and chosen == ["recovery"]:
        raise typer.BadParameter("--chart draws no recovery; add another part to --parts")
    if timeline is not None and "latency" not in chosen:
        raise typer.BadParameter("--timeline is part of latency; add it to --parts")
    console = output_console(stderr=print_json)
    steps = Steps(console)
    with shown_progress() as progress:
        jars = resolve_coordinates(KAFKA_SOURCE_JARS, progress=progress)
        resolve(kafka_version, progress=progress)
    cells = full_grid(megabytes) if full else small_grid(codecs.split(","), megabytes, partitions, kinds.split(","))
    kafka = EmbeddedKafka(version=kafka_version, tuned_for="throughput", heap="1g", properties=_BROKER_PROPERTIES)
    with steps.step(f"Apache Kafka {kafka_version}"):
        kafka.start()
    found, load = _Results(), MicroBatches(batches=batches, rounds=rounds)
    try:
        with (
            spark_folder("kafka-eos-bench-", console.print) as folder,
            quiet_spark(f"local[2, {ATTEMPTS}]", folder, jars, {"spark.driver.memory": "2g"}, {}) as spark,
            connected(kafka.bootstrap_servers) as admin,
        ):
            spark_version = spark.version
            if "throughput" in chosen:
                course = _Course(spark, folder, admin, kafka)
                found.measured = course.throughput(cells, contenders_of(contenders), warm_up, rounds, steps)
            if "latency" in chosen:
                with steps.step(f"micro-batches of {load.rows} rows in {load.tasks} tasks") as step:
                    found.latency = measure_latency(spark, kafka.bootstrap_servers, folder, load, step.update)
                with steps.step(f"batch writes of a row in each of {load.tasks} tasks") as step:
                    found.latency += measure_batch_writes(spark, kafka.bootstrap_servers, load, step.update)
                if timeline is not None:
                    with steps.step(f"the requests of {load.name}"):
                        found.timeline = measure_timeline(spark, kafka.bootstrap_servers, folder, load)
            if "failures" in chosen:
                with steps.step("a task and a job that fail") as step:
                    found.failures = measure_failures(
                        spark, kafka.bootstrap_servers, folder, contenders_of(contenders), step.update
                    )
            if "recovery" in chosen:
                with steps.step(f"recovery of {megabytes} MB") as step:
                    times = min(rounds, _RECOVERY_ROUNDS)
                    found.recovery = measure_recovery(kafka.bootstrap_servers, megabytes, times, step.update)
    finally:
        kafka.stop()
    cpus = os.cpu_count() or 1
    if print_json:
        setup = {"kafka_version": kafka_version, "spark_version": spark_version, "cpus": cpus}
        sockets = {"unix_sockets": _has_unix_sockets(spark_version)}
        typer.echo(json.dumps({**setup, **sockets, **found.as_json(cpus)}, indent=2))
    method = (
        f"median of {rounds} rounds after {warm_up} to warm up, {megabytes} MB each, Spark {spark_version} local[2], "
        f"Kafka {kafka_version} on the same {cpus} cores, {'Unix sockets' if _has_unix_sockets(spark_version) else 'TCP'} to Python"
    )
    if any(each.contender == EQUAL for each in found.measured):
        method += f"; equal settings: {', '.join(f'{name}={value}' for name, value in EQUAL_SETTINGS.items())}"
    if chart is not None:
        draw_chart(found.measured, found.latency, found.failures, chart, method)
    if timeline is not None and found.timeline is not None:
        draw_timeline(found.timeline, timeline, f"{load.name}, Spark {spark_version} local[2], Kafka {kafka_version}")
    found.show(console)
    console.print(f"[dim]{method}[/]")


def _has_unix_sockets(spark_version: str) -> bool:
    """Return whether this Spark has Unix sockets; an older one ignores the setting."""
    major, minor = spark_version.split(".")[:2]
    return (int(major), int(minor)) >= (4, 1)


@dataclass(slots=True)
class _Results:
    """What was measured. A part that was not chosen is empty."""

    measured: list[Measured] = field(default_factory=list)
    latency: list[Latency] = field(default_factory=list)
    timeline: Timeline | None = None
    recovery: Recovery | None = None
    failures: list[Failures] = field(default_factory=list)

    def as_json(self, cpus: int) -> dict[str, Any]:
        return {
            "results": as_json(self.measured, cpus),
            "latency": latency_json(self.latency),
            "failures": failures_json(self.failures),
            "recovery": None if self.recovery is None else recovery_json(self.recovery),
        }

    def show(self, console: Console) -> None:
        # A narrow terminal wraps the lines; rich would cut their figures.
        console.width = max(console.width, _WIDTH)
        for table in (
            bench_table(self.measured) if self.measured else None,
            failures_table(self.failures) if self.failures else None,
            latency_table(self.latency) if self.latency else None,
            None if self.recovery is None else recovery_table(self.recovery),
        ):
            if table is not None:
                console.print()
                console.print(table)


@dataclass(slots=True)
class _Course:
    """The application, the broker, and the runs of the cell under measurement."""

    spark: SparkSession
    folder: Path
    admin: Admin
    kafka: EmbeddedKafka
    current: list[_Run] = field(default_factory=list)
    topics: int = 0
    """How many cells have their topics."""

    def throughput(
        self, cells: Sequence[Cell], contenders: Sequence[Contender], warm_up: int, rounds: int, steps: Steps
    ) -> list[Measured]:
        """Measure the cells one after the other, the contenders of each in turns."""
        self.spark.dataSource.register(DiscardDataSource)
        measured: list[Measured] = []
        for cell in cells:
            with steps.step(cell.name) as step:
                runs = _turns(self.runs(cell, contenders), warm_up, rounds)
                for done, (what, run) in enumerate(runs):
                    step.update(done, (warm_up + rounds) * len(self.current), what)
                    run.measure(self, warm=done < warm_up * len(self.current))
                step.note = f"{cell.rows:,} rows"
            measured += [run.measured() for run in self.current]
        return measured

    def runs(self, cell: Cell, contenders: Sequence[Contender]) -> list[_Run]:
        """Create the topics of a cell, before its first run: no contender pays for them."""
        self.topics += 1
        self.current = [_Run(cell, each, f"bench-{self.topics}-{at}") for at, each in enumerate(contenders)]
        for run in self.current:
            if run.contender.writes_to_kafka:
                create_topic(self.admin, run.topic, cell.partitions, _TOPIC_CONFIGURATION)
        return self.current

    @property
    def spark_pid(self) -> int:
        gateway: Any = self.spark.sparkContext._gateway
        pid: int = gateway.proc.pid
        return pid

    def cpu_seconds(self) -> CpuSeconds | None:
        return cpu_seconds(self.spark_pid, self.kafka.pids.values())

    def visible(self, topic: str, partitions: int) -> int:
        """Return the sum of the last stable offsets of all partitions."""
        where = [(topic, partition) for partition in range(partitions)]
        deadline = self.admin.client.clock() + DEADLINE_MS
        return sum(self.admin.list_offsets(where, deadline, isolation="read_committed").values())


@dataclass(slots=True)
class _Run:
    """One contender in one cell, and its rounds."""

    cell: Cell
    contender: Contender
    topic: str
    seconds: list[float] = field(default_factory=list)
    cpu: list[CpuSeconds] = field(default_factory=list)
    memory: PeakMemory | None = None

    @property
    def rows(self) -> int:
        return round(self.cell.rows * self.contender.share)

    def measure(self, course: _Course, *, warm: bool) -> None:
        """Write once; a round to warm up does not count.

        Raises:
            KafkaEosError: ``BENCH_FAILED`` if not all rows are visible afterwards.
        """
        records = self.cell.records(course.spark, course.folder)
        records = records if self.contender.share == 1 else records.limit(self.rows).repartition(self.cell.tasks)
        # Counted before and after each run, because a topic serves all rounds.
        before = course.visible(self.topic, self.cell.partitions) if self.contender.writes_to_kafka else 0
        peaks = PeakWatch(course.spark_pid)
        # CPU time includes workers that Spark keeps between the writes: take the difference.
        cpu_before = course.cpu_seconds()
        started = time.perf_counter()
        try:
            self.contender.write(records, self.cell, course.kafka.bootstrap_servers, self.topic)
        except Exception as error:
            raise in_one_sentence(error) from None
        seconds = time.perf_counter() - started
        cpu_after, memory = course.cpu_seconds(), peaks.read()
        if self.contender.writes_to_kafka:
            # Each transaction's marker takes an offset per task and partition, and two if a slow broker got a retry.
            deadline = time.monotonic() + DEADLINE_MS / 1_000
            added = 0
            # Other clients return before the markers are written.
            while added < self.rows and time.monotonic() < deadline:
                added = course.visible(self.topic, self.cell.partitions) - before
            if not self.rows <= added <= self.rows + 2 * self.cell.tasks * self.cell.partitions:
                raise KafkaEosError(
                    "BENCH_FAILED",
                    f"{self.contender.name} added {added:,} records to {self.topic!r} instead of {self.rows:,}",
                )
        if not warm:
            self.seconds.append(seconds)
            if cpu_before is not None and cpu_after is not None:
                self.cpu.append(cpu_after - cpu_before)
            if memory is not None:
                self.memory = memory.or_larger(self.memory)

    def measured(self) -> Measured:
        return Measured(
            contender=self.contender,
            cell=self.cell,
            rows=self.rows,
            seconds=tuple(self.seconds),
            cpu=total_cpu_seconds(self.cpu),
            memory=self.memory,
        )


def _turns(runs: Sequence[_Run], warm_up: int, rounds: int) -> Iterator[tuple[str, _Run]]:
    """Yield every run once per round, with the words for the progress line."""
    for number, run in turns(runs, warm_up + rounds):
        what = f"round {number - warm_up + 1} of {rounds}" if number >= warm_up else "warm-up"
        yield f"{what}: {run.contender.name}", run


if __name__ == "__main__":
    typer.run(bench)
