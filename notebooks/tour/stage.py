"""Kafka, a Spark cluster, and the failures of the tour."""

from __future__ import annotations

import os
import secrets
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

import kafka_eos_sink
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.transactional_id import batch_write_id
from kafka_eos_sink.demo.flights import write_to_kafka
from kafka_eos_sink.demo.quiet_spark import end_jvm, in_one_sentence, quiet_spark, spark_folder
from kafka_eos_sink.demo.topic_census import Census, compare, count_records, read_topic
from kafka_eos_sink.embedded import EmbeddedKafka
from kafka_eos_sink.embedded.distribution import resolve_coordinates
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS
from kafka_eos_sink.runtime import failpoints
from kafka_eos_sink.runtime.batch_record import DEFAULT_HISTORY_TOPIC, BatchRecord
from kafka_eos_sink.runtime.history_reading import read_history
from kafka_eos_sink.runtime.stopwatch import PHASES
from tour.kafka_log import LoggedBatch, OffsetSampler, read_batch
from tour.orders import (
    EOS,
    NAMES,
    PIECES,
    ROWS_PER_TASK,
    SINKS,
    SPARKS,
    TASKS,
    Task,
    one_waits_for_its_killer,
    orders,
    rows_of,
    topic_of,
    unharmed,
    worker_dies,
    write,
)
from tour.visible_rows import VisibleRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pd.set_option("display.max_colwidth", None)  # pandas cuts text at 50 characters, and so the notes of the history

STEPS = (
    "plan.fenced",
    "plan.read",
    "plan.finished",
    "task.initialised",
    "task.may_write",
    "task.writing",
    "task.flushed",
    "task.prepared",
    "commit.check",
    "commit.before_decision",
    "commit.decision_written",
    "commit.decided",
    "commit.between_ends",
    "commit.finished",
)
"""The named steps of a write, in their order (`kafka_eos_sink/runtime/failpoints.py`)."""
_PARTITIONS = 3
_HOSTS = ("127.0.0.1", "127.0.0.2")
"""Of the workers: Spark never starts a second copy of a task on the host of the first."""
_ARROW_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    _ARROW_ROWS: str(ROWS_PER_TASK // PIECES),
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
}
_DEADLINE_S = 120.0
_KILL_TASKS = 2
"""Of the batches in which a process is killed at a named step."""
STREAM = "order-stream"
STREAM_BATCHES, STREAM_ROWS = 9, 1_000
"""One file is one batch of so many rows."""
_STREAM_KILLS = ("task.writing", "commit.decided", "commit.between_ends")
_SPEED_RUNS, _SPEED_ROWS, _SMALL_RUNS, _SMALL_ROWS = 3, 200_000, 11, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What a consumer sees of a batch after a failure."""

    failure: str
    sink: str
    sent: int
    visible: int
    duplicates: int
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A process that was killed at a step of a write, and the rows that this lost or doubled.

    ``save_failed``: Spark reported an error, and the same batch was written again.
    """

    sink: str
    step: str
    save_failed: bool
    doubled: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Medians of one sink: rows per second of a large batch, milliseconds of a small one."""

    sink: str
    rows_per_second: float
    small_ms: float


class Stage:
    """A Kafka, and a Spark application on two executors of one core each. `start` makes one, `close` ends it."""

    def __init__(self, release: ExitStack, kafka: EmbeddedKafka, spark: SparkSession, folder: Path) -> None:
        self._release, self._kafka, self._folder = release, kafka, folder
        self.spark = spark
        self.servers = kafka.bootstrap_servers
        self.counts: list[Count] = []
        for topic in (
            *(topic_of(sink, name) for name in ("orders", "kills", "speed") for sink in SINKS),
            STREAM,
            "first-orders",
        ):
            with connected(self.servers) as admin:
                admin.create_topic(topic, _PARTITIONS, 1, {}, admin.client.clock() + 60_000)
        self.speculate(False)

    def __repr__(self) -> str:
        executors = f"{len(_HOSTS)} executors of one core"
        return f"Apache Kafka {self._kafka.version} and Apache Spark {self.spark.version} with {executors}"

    def close(self) -> str:
        self._release.close()
        return "Spark and Kafka have ended, and their files are removed."

    # ---- writing

    def write(self, version: int, sink: str = EOS, happens: Callable[[Path], Task] | None = None) -> None:
        """Write a batch of orders; raises the error of ``save()`` in one sentence.

        Args:
            happens: What happens to the tasks, once for each sink and batch; None for nothing.
        """
        task = unharmed() if happens is None else happens(self._folder / f"happened-{version}-{sink}")
        self._save(orders(self.spark, version, task), version, sink, topic_of(sink))

    def write_and_kill_executor(self, version: int, sink: str) -> None:
        """Write a batch, and kill an executor with SIGKILL when half of its task's rows are on their way and some are in the log."""
        mark = self._folder / f"executor-{version}-{sink}"
        killer = threading.Thread(target=self._kill, args=(mark, version, topic_of(sink)), daemon=True)
        killer.start()
        self.write(version, sink, lambda _: one_waits_for_its_killer(mark))
        killer.join()

    def _kill(self, mark: Path, version: int, topic: str) -> None:
        of_the_task = count_records(rows_of(version, tasks=1))
        _wait(lambda: mark.exists() and mark.read_text().endswith("\n"), "a task half-way")
        _wait(
            lambda: of_the_task & read_topic(self.servers, topic, "read_uncommitted", lambda _: None), "rows in the log"
        )
        os.kill(int(mark.read_text()), signal.SIGKILL)

    def _save(self, frame: DataFrame, version: int, sink: str, topic: str) -> None:
        try:
            write(frame, sink, self.servers, topic, version)
        except Exception as error:
            raise in_one_sentence(error) from None

    def speculate(self, on: bool) -> None:
        """Switch second copies of slow tasks on or off; Spark asks for each stage."""
        context: Any = self.spark.sparkContext
        context._jsc.sc().conf().set("spark.speculation", str(on).lower())

    def run_job_and_kill_it(self, version: int, **options: str) -> None:
        """Write a batch with both sinks in a job of its own; kill it when kafka-eos has decided and committed nothing yet."""
        folder = self._folder / f"job-{version}"
        folder.mkdir()
        mark = folder / "decided"
        given = [f"{name}={value}" for name, value in options.items()]
        with (folder / "job.log").open("ab") as log:
            job = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tour.nightly_job",
                    self.servers,
                    str(folder),
                    str(version),
                    f"commit.decided=hang:{mark}",
                    *given,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": _python_path()},
                start_new_session=True,
            )
        try:
            _wait(lambda: job.poll() is not None or (mark.exists() and mark.read_text()), "the decision")
            if not mark.exists():
                raise RuntimeError(f"the job ended before its decision: {_end_of(folder)}")
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            # Spark puts Python workers into a group of their own.
            with suppress(OSError, ValueError):
                os.kill(int(mark.read_text()), signal.SIGKILL)
            job.wait()

    def let_transactions_time_out(self) -> float:
        """Wait until Kafka has aborted all open transactions; return for how many seconds."""
        began = time.monotonic()
        with connected(self.servers) as admin:
            _wait(lambda: not admin.list_transactions(deadline_ms=admin.client.clock() + 60_000), "the timeout")
        return time.monotonic() - began

    def run_stream_and_kill_it(self) -> VisibleRows:
        """Run a streaming query until all files are written, and kill its processes at three steps meanwhile."""
        folder = self._folder / "stream"
        (folder / "orders").mkdir(parents=True)
        for number in range(STREAM_BATCHES):
            lines = (f"order {number * STREAM_ROWS + row}\n" for row in range(STREAM_ROWS))
            (folder / "orders" / f"{number}.txt").write_text("".join(lines))
        with VisibleRows(self.servers, STREAM) as watched:
            for batches, step in enumerate(_STREAM_KILLS, 1):
                self._run_stream(folder, watched, 2 * batches * STREAM_ROWS, step)
            self._run_stream(folder, watched)
        return watched

    def _run_stream(self, folder: Path, watched: VisibleRows, rows: int = 0, step: str = "") -> None:
        """Run the query; if a step is given, kill it there as soon as so many rows are visible."""
        mark = folder / f"killed-{step}"
        mark.touch()
        command = [sys.executable, "-m", "tour.stream_job", self.servers, STREAM, str(folder)]
        with (folder / "job.log").open("ab") as log:
            job = subprocess.Popen(
                [*command, f"{step}=hang:{mark}" if step else ""],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": _python_path()},
                start_new_session=True,
            )
        try:
            if step:
                _wait(lambda: job.poll() is not None or watched.samples[STREAM][-1][1] >= rows, "rows of the stream")
                mark.unlink()
                _wait(lambda: job.poll() is not None or (mark.exists() and mark.read_text()), f"the step {step}")
            else:
                job.wait(_DEADLINE_S)
            if (job.poll() is None) != bool(step) or job.returncode:
                raise RuntimeError(
                    f"the stream ended too early or too late: {(folder / 'job.log').read_text()[-1_000:]}"
                )
        finally:
            with suppress(OSError):
                os.killpg(job.pid, signal.SIGKILL)
            with suppress(OSError, ValueError):
                os.kill(int(mark.read_text()), signal.SIGKILL)
            job.wait()
        if step:
            watched.mark(f"killed at {step}")

    def distinct_of_the_stream(self) -> int:
        """Return how many different rows of the stream are visible; raises an error unless each row is visible once."""
        seen = read_topic(self.servers, STREAM, "read_committed", lambda _: None)
        sent = count_records((None, b"order %d" % row) for row in range(STREAM_BATCHES * STREAM_ROWS))
        census = compare(sent, seen)
        if seen != sent:
            raise RuntimeError(f"the stream is not exactly once: {census}")
        return len(seen)

    def kill_at_each_step(self) -> list[Kill]:
        """Kill the process that performs a step of kafka-eos, for each of `STEPS`; write the batch again if Spark did not."""
        topic = topic_of(EOS, "kills")
        failed = [self._kill_at(step, version, topic) for version, step in enumerate(STEPS, 1)]
        return self._kills(EOS, topic, STEPS, failed)

    def _kill_at(self, step: str, version: int, topic: str) -> bool:
        """Return whether ``save()`` failed, and the batch was written again."""
        frame, killed = orders(self.spark, version, tasks=_KILL_TASKS), self._folder / step
        killed.unlink()
        failed = False
        try:
            self._save(frame, version, EOS, topic)
        except KafkaEosError:
            failed = True
            self._save(frame, version, EOS, topic)
        if not killed.exists():
            raise RuntimeError(f"no process has reached {step}")
        return failed

    def kill_tasks_of_sparks_sink(self, shares: Sequence[float]) -> list[Kill]:
        """Kill a task of Spark's own sink after each of these shares of its rows; Spark runs the task again."""
        topic = topic_of(SPARKS, "kills")
        for version, share in enumerate(shares, 1):
            task = worker_dies(self._folder / f"killed-{version}", round(share * PIECES))
            self._save(orders(self.spark, version, task, tasks=_KILL_TASKS), version, SPARKS, topic)
        return self._kills(SPARKS, topic, [f"{share:.0%} of its rows" for share in shares], [False] * len(shares))

    def _kills(self, sink: str, topic: str, steps: Sequence[str], failed: Sequence[bool]) -> list[Kill]:
        found = self._censuses(topic, range(1, len(steps) + 1), _KILL_TASKS)
        return [
            Kill(sink=NAMES[sink], step=step, save_failed=save_failed, doubled=census.duplicates, lost=census.missing)
            for step, save_failed, census in zip(steps, failed, found, strict=True)
        ]

    # ---- watching and counting

    def sampled_offsets(self) -> OffsetSampler:
        """Return what lists the offsets of kafka-eos' topic while its block runs."""
        return OffsetSampler(self.servers, topic_of(EOS))

    def logged(self, version: int) -> LoggedBatch:
        """Return the transactions of a batch of kafka-eos, as Kafka's logs have them."""
        return read_batch(self.servers, topic_of(EOS), WRITE_ID, version)

    def _censuses(self, topic: str, versions: Iterable[int], tasks: int = TASKS) -> list[Census]:
        """Compare the rows of batches with those that a `read_committed` consumer of another library sees."""
        seen = read_topic(self.servers, topic, "read_committed", lambda _: None)
        sent = [count_records(rows_of(version, tasks)) for version in versions]
        return [compare(each, Counter({row: seen[row] for row in each if seen[row]})) for each in sent]

    def count(self, failure: str, version: int) -> str:
        """Count a batch behind both sinks, keep the counts, and return them in a line for each sink."""
        for sink in SINKS:
            (found,) = self._censuses(topic_of(sink), [version])
            self.counts.append(
                Count(
                    failure=failure,
                    sink=NAMES[sink],
                    sent=found.sent,
                    visible=found.visible,
                    duplicates=found.duplicates,
                    missing=found.missing,
                )
            )
        return "\n".join(
            f"{each.sink}: {each.sent:,} rows sent, {each.visible:,} visible" for each in self.counts[-len(SINKS) :]
        )

    def visible(self, version: int) -> int:
        """Return how many rows of a batch of kafka-eos a `read_committed` consumer sees."""
        return self._censuses(topic_of(EOS), [version])[0].visible

    def watched(self) -> VisibleRows:
        """Return what follows the orders of both sinks while its block runs."""
        return VisibleRows(self.servers, *map(topic_of, SINKS))

    def command(self, *words: str) -> str:
        """Return a command of `kafka-eos` as a terminal shows it, with what it prints."""
        ran = subprocess.run(
            [sys.executable, "-m", "kafka_eos_sink.cli.main", *words],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": _python_path(),
                "KAFKA_EOS_BOOTSTRAP_SERVERS": self.servers,
                "FORCE_COLOR": "",  # which a notebook sets
                "COLUMNS": "110",
            },
            check=False,
        )
        shown = f"{ran.stdout}{ran.stderr}".replace(f" --bootstrap-servers {self.servers}", "")
        return f"$ kafka-eos {' '.join(words)}\n{shown}".rstrip()

    def speeds(self) -> list[Speed]:
        """Write large and small batches with each sink in turn, without failures, and take the medians."""
        self.spark.conf.set(_ARROW_ROWS, "10000")
        seconds: dict[tuple[str, int], list[float]] = {}
        runs = [(_SPEED_ROWS, _SPEED_RUNS), (_SMALL_ROWS, _SMALL_RUNS)]
        for rows, times in runs:
            frame = orders(self.spark, 0, tasks=2, rows_per_task=rows // 2)
            for number in range(times + 1):
                for sink in SINKS:
                    began = time.monotonic()
                    of_eos = {"txnAppId": "speed", "txnVersion": f"{rows}{number:02}"} if sink == EOS else {}
                    write_to_kafka(frame, sink, self.servers, topic_of(sink, "speed"), **of_eos)
                    if number:  # the first one warms up
                        seconds.setdefault((sink, rows), []).append(time.monotonic() - began)
        self.spark.conf.set(_ARROW_ROWS, _SETTINGS[_ARROW_ROWS])
        median = {of: statistics.median(each) for of, each in seconds.items()}
        return [
            Speed(
                sink=NAMES[sink],
                rows_per_second=_SPEED_ROWS / median[sink, _SPEED_ROWS],
                small_ms=1000 * median[sink, _SMALL_ROWS],
            )
            for sink in SINKS
        ]

    def history(self) -> pd.DataFrame:
        """Return what kafka-eos has recorded of each batch of orders, the oldest first."""
        with connected(self.servers) as admin:
            found = read_history(admin, DEFAULT_HISTORY_TOPIC, WRITE_ID, limit=100, timeout_ms=60_000)
        return pd.DataFrame(map(_history_row, reversed(found))).set_index("version").rename_axis(None)


def _history_row(record: BatchRecord) -> dict[str, object]:
    def shown(figure: int | None) -> str:
        return "" if figure is None else f"{figure:,}"

    figures = record.figures()
    notes = [
        f"{record.attempts_aborted} attempt aborted" if record.attempts_aborted else "",
        f"finished by {record.recovered_by}" if record.recovered_by else "",
        f"{record.transactions_copied} transactions copied" if record.transactions_copied else "",
    ]
    return {
        "version": f"version\N{NO-BREAK SPACE}{record.version}",
        "rows": shown(record.rows),
        "transactions": shown(record.transactions),
        **{f"{phase} ms": shown(figures[f"{phase}_ms"]) for phase in PHASES},
        "what happened": ", ".join(filter(None, notes)),
    }


WRITE_ID = batch_write_id(None, "orders", topic_of(EOS))
"""Of the batches of orders, as `kafka-eos history --write-id` takes it."""


def start() -> Stage:
    """Start Kafka and Spark. They end with this process, or by `Stage.close`."""
    with ExitStack() as release:
        folder = release.enter_context(spark_folder("kafka-eos-tour-", lambda _: None))
        properties = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
        kafka = release.enter_context(EmbeddedKafka(properties=properties))
        # Each step has its file, and only the first process that creates it is killed: a step is armed by removing its file.
        for step in STEPS:
            (folder / step).touch()
        environment = {
            failpoints.VARIABLE: ";".join(f"{step}=kill:{folder / step}" for step in STEPS),
            "PYTHONPATH": _python_path(),
        }
        secret = secrets.token_hex(32)
        url = release.enter_context(_spark_cluster(folder, secret))
        jars = resolve_coordinates(KAFKA_SOURCE_JARS)
        spark = release.enter_context(quiet_spark(url, folder, jars, _SETTINGS, environment, secret))
        _await_executors(spark)
        return Stage(release.pop_all(), kafka, spark, folder)


@contextmanager
def _spark_cluster(folder: Path, secret: str) -> Iterator[str]:
    """Run Spark's master and a worker for each host in a JVM of their own; yields the master's URL.

    The executors are processes below it, and can be killed. Only who knows the secret can submit an application.
    """
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # or the pages of master and workers show on all interfaces
    with (folder / "cluster.log").open("ab") as log:
        popen = {"stdout": log, "stderr": subprocess.STDOUT}
        gateway: Any = launch_gateway(SparkConf(loadDefaults=False), popen_kwargs=popen)  # type: ignore[no-untyped-call]
    try:
        jvm = gateway.jvm
        deploy, none = jvm.org.apache.spark.deploy, jvm.scala.Option.empty()
        conf = jvm.org.apache.spark.SparkConf(False)
        conf.set("spark.authenticate", "true")
        conf.set("spark.authenticate.secret", secret)
        conf.set("spark.master.rest.enabled", "false")  # a second way in, which knows no secret
        conf.set("spark.local.dir", str(folder))
        conf.set("spark.deploy.maxExecutorRetries", "-1")
        url = deploy.master.Master.startRpcEnvAndEndpoint(_HOSTS[0], 0, 0, conf)._1().address().toSparkURL()
        urls = gateway.new_array(jvm.java.lang.String, 1)
        urls[0] = url
        for number, host in enumerate(_HOSTS, 1):
            deploy.worker.Worker.startRpcEnvAndEndpoint(
                host, 0, 0, 1, 1_024, urls, str(folder), jvm.scala.Option.apply(number), conf, none
            )
        yield str(url)
    finally:
        end_jvm(gateway)


def _await_executors(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    tracker = context._jsc.sc().statusTracker()
    _wait(lambda: len(tracker.getExecutorInfos()) > len(_HOSTS), "executors")  # the driver counts as one


def _python_path() -> str:
    """Return where workers find this package and kafka_eos_sink."""
    return os.pathsep.join(str(Path(file).parents[1]) for file in (__file__, kafka_eos_sink.__file__))


def _wait(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"waited {_DEADLINE_S:g} s for {what}")
        time.sleep(0.05)


def _end_of(folder: Path) -> str:
    return "\n".join((folder / name).read_text()[-1_000:] for name in ("job.log", "spark.log"))
