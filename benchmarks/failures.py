"""What readers see after the same failure of each sink.

A task raises after its last row. In the first run only its first attempt raises, and Spark runs the task again. In the second one
every attempt raises, the job fails, and runs again without the failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cells import BASE
from benchmarks.contenders import Contender
from benchmarks.topics import DEADLINE_MS, make_topic
from kafka_eos_sink.errors import KafkaEosError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ATTEMPTS", "Failures", "measure_failures"]

ATTEMPTS = 2
"""How often Spark runs a task that fails."""
TASKS = 4
ROWS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Visible records per written row: 1 is exactly once, more are duplicates.

    Attributes:
        retried: One task failed, and its second attempt succeeded.
        run_again: The job failed for one task, and its second run succeeded.
    """

    contender: Contender
    retried: float
    run_again: float


def measure_failures(
    spark: SparkSession,
    servers: str,
    folder: Path,
    contenders: Sequence[Contender],
    update: Callable[[int, int, str], None],
) -> list[Failures]:
    """Let tasks of every sink fail, in a Spark with `ATTEMPTS` per task.

    Args:
        folder: For files by which the tasks of a run know of each other.
        update: Called before each sink with the number of sinks done, of all sinks, and the name.
    """
    cell, found = replace(BASE, codec="none", keyed=False), []
    writing = [each for each in contenders if each.writes_to_kafka]
    for done, contender in enumerate(writing):
        update(done, len(writing), contender.name)
        share = []
        for runs in (1, 2):
            topic = make_topic(servers, f"bench-failures-{done}-{runs}", TASKS)
            files = folder / topic
            files.mkdir()
            if runs == 1:
                contender.write(_rows(spark, files, attempts_that_fail=1), cell, servers, topic)
            else:
                try:
                    contender.write(_rows(spark, files, attempts_that_fail=ATTEMPTS), cell, servers, topic)
                except Exception:
                    contender.write(_rows(spark, files, attempts_that_fail=0), cell, servers, topic)
                else:
                    raise KafkaEosError("BENCH_FAILED", f"{contender.name} ignored the failure of a task")
            share.append(_visible(spark, servers, topic) / ROWS)
        found.append(Failures(contender=contender, retried=share[0], run_again=share[1]))
    return found


def _rows(spark: SparkSession, files: Path, attempts_that_fail: int) -> DataFrame:
    def fail_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        task = context.partitionId()
        (files / str(task)).touch()
        if task == TASKS - 1 and context.attemptNumber() < attempts_that_fail:
            # Fail after the rows of the other tasks, as a failure late in a job does.
            deadline = time.monotonic() + DEADLINE_MS / 1_000
            while len(list(files.iterdir())) < TASKS and time.monotonic() < deadline:
                time.sleep(0.05)
            raise RuntimeError("this task fails")

    frame = spark.range(0, ROWS, 1, TASKS).selectExpr("cast(cast(id as string) as binary) value")
    return frame.mapInArrow(fail_last, frame.schema)


def _visible(spark: SparkSession, servers: str, topic: str) -> int:
    """Return how many records readers see, once they see every row."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    values = reader.option("kafka.isolation.level", "read_committed").load().select("value")
    deadline = time.monotonic() + DEADLINE_MS / 1_000
    # Other clients return before the markers are written.
    while len(set(found := [bytes(row.value) for row in values.collect()])) < ROWS:
        if time.monotonic() > deadline:
            raise KafkaEosError("BENCH_FAILED", f"{topic} lacks rows")
    return len(found)
