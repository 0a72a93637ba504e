"""The rows of the tour, and the two sinks that write them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_eos_sink.demo.flights import write_to_kafka

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

EOS, SPARKS = "kafka-eos", "kafka"
"""The data sources: this project's, and Spark's own."""
SINKS = (EOS, SPARKS)
NAMES = {EOS: "kafka-eos", SPARKS: "Spark's own sink"}
TASKS, ROWS_PER_TASK = 6, 1_000
PIECES = 10
"""Arrow batches of a task."""
_ROW_BYTES = 1_000
_PAUSE_S = 0.06
"""Behind each piece, so that there is a write to watch."""
_HANG_S = 60.0
_SEND_EARLY = {"kafka.linger.ms": "0", "kafka.batch.size": "16384", "kafka.compression.type": "none"}

Pieces = Iterator["pa.RecordBatch"]
Task = Callable[[Pieces], Pieces]
"""What each task does with its rows on their way to the sink."""


def topic_of(sink: str, name: str = "orders") -> str:
    return f"{name}-{sink}"


def orders(
    spark: SparkSession, version: int, task: Task | None = None, tasks: int = TASKS, rows_per_task: int = ROWS_PER_TASK
) -> DataFrame:
    """Return a batch of orders: the same rows each time.

    Args:
        task: What happens to the tasks; None for nothing.
    """
    named = spark.range(0, tasks * rows_per_task, 1, tasks).selectExpr(
        "CAST(CONCAT('customer ', id % 100) AS BINARY) AS key",
        f"CAST(RPAD(CONCAT('batch {version}, order ', id, ' '), {_ROW_BYTES}, '.') AS BINARY) AS value",
    )
    return named if task is None else named.mapInArrow(task, named.schema)


def rows_of(version: int, tasks: int = TASKS) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of the rows of a batch, made without Spark."""
    for number in range(tasks * ROWS_PER_TASK):
        yield b"customer %d" % (number % 100), (b"batch %d, order %d " % (version, number)).ljust(_ROW_BYTES, b".")


def version_of(value: bytes | None) -> int:
    """Return the batch that an order belongs to."""
    return int((value or b"").removeprefix(b"batch ").partition(b",")[0])


def write(frame: DataFrame, sink: str, servers: str, topic: str, version: int, **options: str) -> None:
    """Write a batch through one of the sinks, under the same version each time."""
    if sink == EOS:
        options |= {"txnAppId": "orders", "txnVersion": str(version)}
    write_to_kafka(frame, sink, servers, topic, **_SEND_EARLY, **options)


# ---- what happens to tasks


def unharmed() -> Task:
    """Return tasks to which nothing happens."""
    return _then(lambda piece: None)


def one_waits_for_its_killer(mark: Path) -> Task:
    """Return tasks of which one writes its executor's process id into ``mark`` half-way, and waits for the end."""

    def wait(piece: int) -> None:
        if piece == PIECES // 2 and _partition() == 0 and _is_first(mark):
            # The parent of a worker is Spark's daemon, and the parent of that is the executor.
            mark.write_text(f"{_parent_of(os.getppid())}\n")
            time.sleep(_HANG_S)

    return _then(wait)


def one_is_slow(mark: Path) -> Task:
    """Return tasks of which one hangs half-way, until Spark has run a copy of it and kills it."""

    def hang(piece: int) -> None:
        if piece == PIECES // 2 and _partition() == 1 and _is_first(mark):
            time.sleep(_HANG_S)

    return _then(hang)


def worker_dies(mark: Path, after: int) -> Task:
    """Return tasks of which one kills its own Python process with SIGKILL behind so many pieces."""

    def kill_self(piece: int) -> None:
        if piece == after and _partition() == 0 and _is_first(mark):
            os.kill(os.getpid(), signal.SIGKILL)

    return _then(kill_self)


def _then(happens: Callable[[int], None]) -> Task:
    """Return tasks that pause behind each piece and call ``happens`` with its number, from 1 on."""

    def pass_on(pieces: Pieces) -> Pieces:
        for number, piece in enumerate(pieces, 1):
            yield piece
            # The generator resumes when the sink wants more: this piece is on its way to Kafka.
            time.sleep(_PAUSE_S)
            happens(number)

    return pass_on


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "called in a task"
    return int(context.partitionId())


def _is_first(mark: Path) -> bool:
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _parent_of(pid: int) -> int:
    """Return the parent of a process, by Linux or by `ps`."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        return int(stat.read_text().rpartition(")")[2].split()[1])
    return int(subprocess.check_output(["ps", "-o", "ppid=", "-p", str(pid)]))
