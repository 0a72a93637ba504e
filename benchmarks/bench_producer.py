"""Measure the write path without Spark: tasks in one process, one after the other.

    python -m benchmarks.bench_producer [--rows N] [--tasks T] [--value-bytes B] [--partitions P] [--runs R] [--batch-size B]
    python -m benchmarks.bench_producer --codecs lz4 --kinds text --bootstrap-servers localhost:9092

Each run plans, writes and commits one batch. All figures belong to its tasks, and are medians of the runs:

CPU s/M     processor time of this process per million rows, without brokers; the smallest of the runs
copied      bytes that `write_counts` saw copied, per byte sent
calls/MB    system calls on sockets and the selector, per megabyte sent
faults      minor page faults, and voluntary context switches, of all tasks
... ms      milliseconds per task in which the task waited for the brokers: before it may write rows, for memory, for the
            acknowledgements of the last rows, and after them

Every run must commit as many records as rows.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import typer

from benchmarks.bench_commit import settings
from benchmarks.topics import make_topic
from benchmarks.write_counts import BEFORE, LAST, PHASES, Counter, Counts, counting
from kafka_eos_sink.commit.values import TaskIdentity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import DEFAULT_BATCH_SIZE, ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import session

ARROW_ROWS = 10_000
"""Spark's default number of rows in a batch (``spark.sql.execution.arrow.maxRecordsPerBatch``)."""
DISTINCT_BATCHES = 20
WORDS = (b"alpha", b"bravo", b"charlie", b"delta", b"echo", b"foxtrot", b"golf", b"hotel", b"india", b"juliett")


def arrow_batches(kind: str, value_bytes: int, *, keyed: bool) -> list[RecordColumns]:
    """Make rows of ``text`` like log lines (lz4: to a third), or ``runs`` of a letter."""
    rng = np.random.default_rng(7)
    made = []
    for batch in range(DISTINCT_BATCHES):
        numbers = range(batch * ARROW_ROWS, (batch + 1) * ARROW_ROWS)
        if kind == "text":
            picks = rng.integers(0, len(WORDS), (ARROW_ROWS, value_bytes // 5 + 1))
            rest = [b" ".join(WORDS[word] for word in row) for row in picks]
        else:
            rest = [bytes([97 + number % 26]) * value_bytes for number in numbers]
        values = [(b"%d " % number + text)[:value_bytes] for number, text in zip(numbers, rest, strict=True)]
        keys = pa.array([b"customer-%07d" % n for n in rng.integers(0, 1_000_000, ARROW_ROWS)], pa.binary())
        made.append(RecordColumns(value=pa.array(values, pa.binary()), key=keys if keyed else None))
    return made


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What each run writes, and where."""

    servers: str
    topic: str
    config: ProducerConfig
    batches: list[RecordColumns]
    rows: int
    """Of one task."""
    tasks: int


def run(write: Write, counter: Counter) -> tuple[float, Counts]:
    """Write and commit one batch; return the seconds and the counts of its tasks."""
    given = settings(write.servers, write.topic, f"bench-{uuid.uuid4()}", 0)
    given = dataclasses.replace(given, producer=write.config)
    plan = session.plan(given)
    messages = []
    counter.start()

    def rows() -> Iterator[Rows]:
        for number in range(write.rows // ARROW_ROWS):
            yield Rows(topic=write.topic, partition=None, columns=write.batches[number % len(write.batches)])
        counter.counts.phase = LAST

    began = time.perf_counter()
    for task in range(write.tasks):
        counter.counts.phase = BEFORE
        identity = TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task)
        messages.append(session.write_task(given, plan, identity, rows()))
    seconds, counts = time.perf_counter() - began, counter.stop()
    session.commit(given, plan, messages)
    written = sum(message.prepared.rows for message in messages if message.prepared is not None)
    if written != write.rows * write.tasks:
        # A run that lost records would look fast.
        raise AssertionError(f"{written} of {write.rows * write.tasks} records committed")
    return seconds, counts


COLUMNS = ("M rows/s", "CPU s/M", "copied", "calls/MB", "faults", "switches", *(f"{phase} ms" for phase in PHASES))


def figures(write: Write, found: list[tuple[float, Counts]]) -> list[str]:
    """Return a cell's figures by column."""
    rows = write.rows * write.tasks / 1e6

    def median(figure: Callable[[Counts], float]) -> float:
        return statistics.median(figure(counts) for _, counts in found)

    blocked = [1_000 * median(lambda counts, of=phase: counts.blocked[of] / write.tasks) for phase in PHASES]  # type: ignore[misc]
    return [
        f"{rows / statistics.median(seconds for seconds, _ in found):.2f}",
        f"{min(counts.cpu_seconds for _, counts in found) / rows:.3f}",
        f"{median(lambda counts: counts.copied / counts.sent):.2f}",
        f"{median(lambda counts: counts.calls / counts.sent * 1e6):.1f}",
        f"{median(lambda counts: counts.minor_faults):.0f}",
        f"{median(lambda counts: counts.voluntary_switches):.0f}",
        *(f"{ms:.1f}" for ms in blocked),
    ]


def line(cell: str, values: Iterable[str]) -> str:
    return cell.ljust(16) + "  ".join(value.rjust(len(name)) for name, value in zip(COLUMNS, values, strict=True))


def main(
    rows: int = 1_000_000,
    tasks: int = 4,
    value_bytes: int = 100,
    partitions: int = 4,
    runs: int = 5,
    batch_size: int = DEFAULT_BATCH_SIZE,
    codecs: str = "none,lz4",
    kinds: str = "runs,text",
    bootstrap_servers: str = "",
) -> None:
    """Count what a write costs, with and without keys and compression."""
    own = nullcontext() if bootstrap_servers else EmbeddedKafka(heap="1g", tuned_for="throughput")
    with counting() as counter, own as kafka:
        servers = bootstrap_servers if kafka is None else kafka.bootstrap_servers
        print(line("", COLUMNS))
        for kind in kinds.split(","):
            for keyed in (True, False):
                batches = arrow_batches(kind, value_bytes, keyed=keyed)
                for codec in codecs.split(","):
                    config = ProducerConfig(compression=codec, batch_size=batch_size)
                    topic = make_topic(servers, f"bench-{uuid.uuid4().hex[:8]}", partitions)
                    each = rows // tasks // ARROW_ROWS * ARROW_ROWS
                    write = Write(servers=servers, topic=topic, config=config, batches=batches, rows=each, tasks=tasks)
                    run(write, counter)  # warms up both sides
                    found = [run(write, counter) for _ in range(runs)]
                    print(line(f"{kind}{' keys' * keyed} {codec}", figures(write, found)), flush=True)


if __name__ == "__main__":
    typer.run(main)
