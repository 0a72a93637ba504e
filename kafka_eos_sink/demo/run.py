"""The demo's course: one write while a task and its commit die, one beside it, and the count of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.demo.flights import failing_once, flight_records, sent_records, write_flights, write_to_kafka
from kafka_eos_sink.demo.quiet_spark import quiet_spark, run_watched
from kafka_eos_sink.demo.report import DemoWrite
from kafka_eos_sink.demo.step_progress import Step, Steps
from kafka_eos_sink.demo.topic_census import compare, read_topic
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.distribution import resolve, resolve_coordinates
from kafka_eos_sink.embedded.download_progress import shown_progress
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS
from kafka_eos_sink.runtime import failpoints
from kafka_eos_sink.runtime.commit_history import CommittedWrite, read_commit_history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Demo", "DemoRun"]

_SPARK_PARTITIONS = 8
_KAFKA_PARTITIONS = 6
_TOPIC = "flights"
_COMPARED_TOPIC = "flights_at_least_once"
_TXN_APP_ID = "flights-demo"
_DEADLINE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """What came out of it; `problems` says what is not as it should be."""

    exactly_once: DemoWrite
    at_least_once: DemoWrite
    commits: tuple[CommittedWrite, ...]
    first_save: str
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "exactly_once": asdict(self.exactly_once),
            "at_least_once": asdict(self.at_least_once),
            "commits": [commit.as_json() for commit in self.commits],
            "first_save": self.first_save,
            "problems": list(self.problems),
        }


class Demo:
    """The demo's steps in their order."""

    def __init__(self, steps: Steps, folder: Path, rows: int, kafka_version: str) -> None:
        self._steps = steps
        self._folder = folder
        self._rows = rows
        self._kafka_version = kafka_version
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
                first_save = self._write_until_the_commit_dies(spark, records, servers)
                self._write_again(spark, records, servers)
                other = self._write_at_least_once(spark, records, servers, built_in=bool(jars))
            exactly_once = self._count("exactly-once", "kafka-eos", _TOPIC, sent, servers)
            at_least_once = self._count("at-least-once", other, _COMPARED_TOPIC, sent, servers)
            with connected(servers) as admin:
                commits = read_commit_history(admin, timeout_ms=_DEADLINE_MS)
                left_open = admin.list_transactions(deadline_ms=admin.client.clock() + _DEADLINE_MS)
        problems = list(_problems(exactly_once, at_least_once))
        for flag, what in (
            (self._task_killed, "no task was killed while it wrote"),
            (self._commit_killed, "no commit was killed between two EndTxn"),
            (self._task_failed, "no task of the at-least-once write failed"),
        ):
            if not flag.exists():
                problems.append(f"the demo did not happen as planned: {what}")
        if left_open:
            names = ", ".join(entry.transactional_id for entry in left_open)
            problems.append(f"transactions were left open: {names}")
        if not any(commit.state == "finished" and commit.rows == sum(sent.values()) for commit in commits):
            problems.append("the commit log does not show the write as finished")
        return DemoRun(
            exactly_once=exactly_once,
            at_least_once=at_least_once,
            commits=commits,
            first_save=first_save,
            problems=tuple(problems),
        )

    def _built_in_sink(self) -> list[Path]:
        """The jars of Spark's own Kafka sink; without them the comparison uses our own at-least-once mode."""
        try:
            with shown_progress() as progress:
                return resolve_coordinates(KAFKA_SOURCE_JARS, progress=progress)
        except KafkaEosError as failure:
            self._steps.console.print(f"[yellow]Spark's built-in Kafka sink cannot be had[/] ({failure.message})")
            return []

    @contextmanager
    def _kafka(self) -> Iterator[EmbeddedKafka]:
        with shown_progress() as progress:
            resolve(self._kafka_version, progress=progress)
        kafka = EmbeddedKafka(version=self._kafka_version, tuned_for="throughput", heap="768m")
        with self._steps.step(f"Apache Kafka {self._kafka_version}") as step:
            kafka.start()
            step.note = f"a broker at {kafka.bootstrap_servers}"
        try:
            with connected(kafka.bootstrap_servers) as admin:
                for topic in (_TOPIC, _COMPARED_TOPIC):
                    admin.create_topic(topic, _KAFKA_PARTITIONS, 1, {}, admin.client.clock() + _DEADLINE_MS)
            yield kafka
        finally:
            kafka.stop()

    @contextmanager
    def _spark(self, jars: list[Path]) -> Iterator[SparkSession]:
        dying = f"task.writing=kill:{self._task_killed};commit.between_ends=kill:{self._commit_killed}"
        settings = {
            "spark.sql.shuffle.partitions": str(_SPARK_PARTITIONS),
            # About two batches a task, so that half-way is after the first.
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(self._rows_per_batch),
        }
        with ExitStack() as opened:
            with self._steps.step("Apache Spark") as step:
                spark = opened.enter_context(
                    quiet_spark(
                        "kafka-eos demo",
                        folder=self._folder,
                        master="local[2,4]",
                        jars=jars,
                        settings=settings,
                        environment={failpoints.VARIABLE: dying},
                    )
                )
                step.note = f"{spark.version}, local[2], a failed task is tried up to 4 times"
            yield spark

    def _records(self, spark: SparkSession) -> tuple[DataFrame, Counter[bytes]]:
        with self._steps.step("The flights") as step:
            file = self._folder / "flights.parquet"
            rows = write_flights(file, self._rows)
            records = flight_records(spark, file, _SPARK_PARTITIONS)
            sent = sent_records(records)
            step.note = f"{rows:,} rows as JSON in {_SPARK_PARTITIONS} Spark partitions, keyed by carrier and flight"
        return records, sent

    def _write_until_the_commit_dies(self, spark: SparkSession, records: DataFrame, servers: str) -> str:
        """Returns how save() failed, or "" where it did not."""
        with self._steps.step("Exactly once, killing a task, then the commit") as step:
            try:
                run_watched(spark, lambda: self._write_exactly_once(records, servers), _tasks(step))
            except KafkaEosError as error:
                if not self._commit_killed.exists():
                    raise
                step.note = "a task died half-way, the commit between two EndTxn: save() failed"
                return error.message
        return ""

    def _write_again(self, spark: SparkSession, records: DataFrame, servers: str) -> None:
        with self._steps.step("Exactly once, the same again") as step:
            run_watched(spark, lambda: self._write_exactly_once(records, servers), _tasks(step))
            step.note = "same txnAppId and txnVersion: finished, nothing written twice"

    def _write_exactly_once(self, records: DataFrame, servers: str) -> None:
        # A small buffer, so that most of a batch of rows is in Kafka when the next one comes and the task is killed.
        buffer = max(65_536, self._rows_per_batch * 100)
        early = {"kafka.linger.ms": "0", "kafka.batch.size": "32768", "kafka.buffer.memory": str(buffer)}
        write_to_kafka(records, "kafka-eos", servers, _TOPIC, txnAppId=_TXN_APP_ID, txnVersion="1", **early)

    def _write_at_least_once(self, spark: SparkSession, records: DataFrame, servers: str, *, built_in: bool) -> str:
        """Returns the name of the sink that was taken."""
        failing = failing_once(records, self._task_failed)
        sink = "Spark's sink" if built_in else "kafka-eos"
        with self._steps.step("At least once, failing a task") as step:
            if built_in:
                run_watched(spark, lambda: write_to_kafka(failing, "kafka", servers, _COMPARED_TOPIC), _tasks(step))
            else:
                options = {"delivery.guarantee": "at-least-once"}
                run_watched(
                    spark,
                    lambda: write_to_kafka(failing, "kafka-eos", servers, _COMPARED_TOPIC, **options),
                    _tasks(step),
                )
            step.note = f"{sink}; a task failed half-way and was repeated"
        return sink

    def _count(self, name: str, sink: str, topic: str, sent: Counter[bytes], servers: str) -> DemoWrite:
        with self._steps.step(f"Reading {topic}") as step:
            total = sum(sent.values())
            visible = read_topic(
                servers, topic, "read_committed", lambda count: step.update(count, total, "read_committed")
            )
            raw = read_topic(
                servers, topic, "read_uncommitted", lambda count: step.update(count, total, "read_uncommitted")
            )
            step.note = f"{sum(visible.values()):,} records are visible to confluent-kafka under read_committed"
        return DemoWrite(name=name, sink=sink, topic=topic, census=compare(sent, visible), in_log=sum(raw.values()))


def _problems(exactly_once: DemoWrite, at_least_once: DemoWrite) -> Iterator[str]:
    census = exactly_once.census
    if not census.exactly_once:
        yield (
            f"the exactly-once write is not: {census.sent:,} sent, {census.visible:,} visible, {census.duplicates:,} "
            f"duplicates, {census.missing:,} missing, {census.unknown:,} unknown"
        )
    if exactly_once.in_log <= census.sent:
        yield "the killed task left nothing in the log, so that nothing was proven"
    if at_least_once.census.missing:
        yield f"the at-least-once write lost {at_least_once.census.missing:,} records"
    if not at_least_once.census.duplicates:
        yield "the at-least-once write shows no duplicates, so that there is nothing to compare with"


def _tasks(step: Step) -> Any:
    def look(done: int, total: int, failed: int) -> None:
        step.update(done, total, f"{failed} failed" if failed else "")

    return look
