"""The demo: a write with kills, a write without transactions, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.write_states import CommittedWrite
from kafka_eos_sink.demo.flights import failing_once, flight_records, sent_records, write_flights, write_to_kafka
from kafka_eos_sink.demo.quiet_spark import quiet_spark, run_watched
from kafka_eos_sink.demo.report import DemoWrite
from kafka_eos_sink.demo.step_progress import Steps
from kafka_eos_sink.demo.topic_census import compare, read_topic
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.distribution import resolve, resolve_coordinates
from kafka_eos_sink.embedded.download_progress import shown_progress
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS
from kafka_eos_sink.operations.write_status import CommitLogWatch
from kafka_eos_sink.runtime import failpoints

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SPARK_PARTITIONS = 8
_KAFKA_PARTITIONS = 6
_TOPIC = "flights"
_COMPARED_TOPIC = "flights_at_least_once"
_DEADLINE_MS = 60_000


@dataclass(frozen=True, slots=True)
class DemoRun:
    """The demo's result; ``first_save`` is the error of the killed write."""

    exactly_once: DemoWrite
    at_least_once: DemoWrite
    writes: tuple[CommittedWrite, ...]
    first_save: str
    problems: tuple[str, ...]


class Demo:
    """The demo's steps in their order."""

    def __init__(self, steps: Steps, folder: Path, rows: int, kafka_version: str) -> None:
        self._steps = steps
        self._folder = folder
        self._rows = rows
        self._kafka_version = kafka_version
        # Two batches per task, so that "half-way" is after the first batch.
        self._rows_per_batch = max(1, rows // _SPARK_PARTITIONS // 2)
        self._task_killed = folder / "task-killed"
        self._commit_killed = folder / "commit-killed"
        self._task_failed = folder / "task-failed"

    def run(self) -> DemoRun:
        jars = self._built_in_sink()
        with self._kafka() as kafka:
            servers = kafka.bootstrap_servers
            with self._spark(jars) as spark:
                records, sent = self._records(spark)
                first_save = self._write_with_kills(spark, records, servers)
                with self._steps.step("Exactly once, running the same write again") as step:
                    run_watched(spark, lambda: self._write_exactly_once(records, servers), step.update)
                    step.note = "same txnAppId and txnVersion: the commit is finished, no row is written twice"
                other = self._write_at_least_once(spark, records, servers, built_in=bool(jars))
            exactly_once = self._count("exactly-once", "kafka-eos", _TOPIC, sent, servers)
            at_least_once = self._count("at-least-once", other, _COMPARED_TOPIC, sent, servers)
            with connected(servers) as admin:
                writes = CommitLogWatch(admin, timeout_ms=_DEADLINE_MS).writes()
                left_open = admin.list_transactions(deadline_ms=admin.client.clock() + _DEADLINE_MS)
        problems = list(self._problems(exactly_once, at_least_once))
        if left_open:
            problems.append(f"open transactions remain: {', '.join(entry.transactional_id for entry in left_open)}")
        if not any(write.state == "finished" and write.rows == sent.total() for write in writes):
            problems.append("the commit log does not show the write as finished")
        return DemoRun(exactly_once, at_least_once, writes, first_save, tuple(problems))

    def _built_in_sink(self) -> list[Path]:
        """Return the jars of Spark's own Kafka sink, none if they cannot be downloaded."""
        # Without them the demo compares with this sink's at-least-once mode.
        try:
            with shown_progress() as progress:
                return resolve_coordinates(KAFKA_SOURCE_JARS, progress=progress)
        except KafkaEosError as failure:
            self._steps.console.print(f"[yellow]Spark's built-in Kafka sink is not available[/] ({failure.message})")
            return []

    @contextmanager
    def _kafka(self) -> Iterator[EmbeddedKafka]:
        with shown_progress() as progress:
            resolve(self._kafka_version, progress=progress)
        kafka = EmbeddedKafka(version=self._kafka_version, tuned_for="throughput", heap="768m")
        with ExitStack() as stack:
            with self._steps.step(f"Apache Kafka {self._kafka_version}") as step:
                stack.enter_context(kafka)
                step.note = f"a broker at {kafka.bootstrap_servers}"
            with connected(kafka.bootstrap_servers) as admin:
                for topic in (_TOPIC, _COMPARED_TOPIC):
                    admin.create_topic(topic, _KAFKA_PARTITIONS, 1, {}, admin.client.clock() + _DEADLINE_MS)
            yield kafka

    @contextmanager
    def _spark(self, jars: list[Path]) -> Iterator[SparkSession]:
        # The failpoints kill once: the first task and the first commit that create the files.
        kills = f"task.writing=kill:{self._task_killed};commit.between_ends=kill:{self._commit_killed}"
        settings = {
            "spark.sql.shuffle.partitions": str(_SPARK_PARTITIONS),
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(self._rows_per_batch),
        }
        with ExitStack() as stack:
            # The step ends when Spark has started; Spark stops when the caller leaves the context.
            with self._steps.step("Apache Spark") as step:
                session = quiet_spark("local[2,4]", self._folder, jars, settings, {failpoints.VARIABLE: kills})
                spark = stack.enter_context(session)
                step.note = f"{spark.version}, local[2], up to 4 attempts per task"
            yield spark

    def _records(self, spark: SparkSession) -> tuple[DataFrame, Counter[bytes]]:
        with self._steps.step("The flights") as step:
            file = self._folder / "flights.parquet"
            rows = write_flights(file, self._rows)
            records = flight_records(spark, file, _SPARK_PARTITIONS)
            sent = sent_records(records)
            step.note = f"{rows:,} rows as JSON in {_SPARK_PARTITIONS} Spark partitions, keyed by carrier and flight"
        return records, sent

    def _write_with_kills(self, spark: SparkSession, records: DataFrame, servers: str) -> str:
        """Write while a task and the commit are killed; return the error of ``save()``."""
        with self._steps.step("Exactly once, killing a task, then the commit") as step:
            try:
                run_watched(spark, lambda: self._write_exactly_once(records, servers), step.update)
            except KafkaEosError as error:
                if not self._commit_killed.exists():
                    raise
                step.note = "killed a task half-way, and the commit between two EndTxn: save() failed"
                return error.message
        return ""

    def _write_exactly_once(self, records: DataFrame, servers: str) -> None:
        # A small buffer, so that most of a batch of rows is in Kafka when the task is killed before its next batch.
        buffer = max(65_536, self._rows_per_batch * 100)
        early = {"kafka.linger.ms": "0", "kafka.batch.size": "32768", "kafka.buffer.memory": str(buffer)}
        write_to_kafka(records, "kafka-eos", servers, _TOPIC, txnAppId="flights-demo", txnVersion="1", **early)

    def _write_at_least_once(self, spark: SparkSession, records: DataFrame, servers: str, *, built_in: bool) -> str:
        """Write without transactions while a task fails; return the name of the sink."""
        failing = failing_once(records, self._task_failed)
        sink, data_source = ("Spark's sink", "kafka") if built_in else ("kafka-eos", "kafka-eos")
        options = {} if built_in else {"delivery.guarantee": "at-least-once"}

        def write() -> None:
            write_to_kafka(failing, data_source, servers, _COMPARED_TOPIC, **options)

        with self._steps.step("At least once, failing a task") as step:
            run_watched(spark, write, step.update)
            step.note = f"{sink}; a task failed half-way and Spark retried it"
        return sink

    def _count(self, name: str, sink: str, topic: str, sent: Counter[bytes], servers: str) -> DemoWrite:
        with self._steps.step(f"Reading {topic}") as step:

            def read(isolation: Literal["read_committed", "read_uncommitted"]) -> Counter[bytes]:
                return read_topic(servers, topic, isolation, lambda done: step.update(done, sent.total(), isolation))

            visible, raw = read("read_committed"), read("read_uncommitted")
            step.note = f"{visible.total():,} records are visible to confluent-kafka under read_committed"
        return DemoWrite(name=name, sink=sink, topic=topic, census=compare(sent, visible), in_log=raw.total())

    def _problems(self, exactly_once: DemoWrite, at_least_once: DemoWrite) -> Iterator[str]:
        # A demo without failures proves nothing, so check the failures as well as the result.
        census, other = exactly_once.census, at_least_once.census
        planned = "the demo did not run as planned"
        for is_wrong, problem in (
            (
                not census.exactly_once,
                f"the exactly-once write is wrong: {census.sent:,} sent, {census.visible:,} visible, "
                f"{census.duplicates:,} duplicates, {census.missing:,} missing, {census.unknown:,} unknown",
            ),
            (
                exactly_once.in_log <= census.sent,
                "the killed task left no records in the log, so the demo proves nothing",
            ),
            (other.missing, f"the at-least-once write lost {other.missing:,} records"),
            (not other.duplicates, "the at-least-once write has no duplicates, so the demo compares with nothing"),
            (not self._task_killed.exists(), f"{planned}: no task was killed during its write"),
            (not self._commit_killed.exists(), f"{planned}: no commit was killed between two EndTxn"),
            (not self._task_failed.exists(), f"{planned}: no task of the at-least-once write failed"),
        ):
            if is_wrong:
                yield problem
