"""The cost of a commit without Spark, in micro-batches and of many transactions.

    python -m benchmarks.bench_commit [--tasks 8] [--batches 40] [--many 1000] [--transaction-version 2] [--grid]

Writes batches one after the other in one process, as a streaming query does, and prints the median milliseconds of each
step. Then prints the seconds that one commit of ``--many`` prepared transactions takes. With ``--grid`` prints instead seconds and
requests of plan and commit for 10 to 10,000 tasks, but at most ``--many``, that each write to 1, 10 and 100 partitions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import typer

from benchmarks.topics import make_topic
from kafka_eos_sink.client import connection
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.commit.values import DEFAULT_TOPIC, BatchIdentity, TaskIdentity, Write
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import failpoints, session
from kafka_eos_sink.runtime.write_settings import WriteSettings

ROWS = 100
WARM_UP = 5
PARTITIONS = 8
TASKS = (10, 100, 1_000, 3_000, 10_000)
MOST_MARKERS = 150_000
"""Of a batch in the grid: more would measure the broker's disk."""


def settings(servers: str, topic: str, write_id: str, version: int) -> WriteSettings:
    return WriteSettings(
        batch=BatchIdentity(
            query_id="bench",
            version=version,
            streaming=True,
            topic=topic,
            schema="value binary",
            offsets_hash=f"hash-{version}",
        ),
        write=Write(write_id, DEFAULT_TOPIC),
        client=ClientConfig(bootstrap_servers=parse_bootstrap_servers(servers)),
        producer=ProducerConfig(),
    )


def rows(topic: str, partitions: int = 0) -> Iterator[Rows]:
    """Yield some rows, or one for each of so many partitions."""
    value = pa.array([b"x" * 100] * (partitions or ROWS))
    where = pa.array(range(partitions), type=pa.int32()) if partitions else None
    yield Rows(topic=topic, partition=where, columns=RecordColumns(value=value))


@contextmanager
def marks() -> Iterator[dict[str, float]]:
    """Yield the time at which the code reached each named point of the protocol."""
    reached: dict[str, float] = {}
    original = failpoints.reached

    def note(point: str) -> None:
        reached[point] = time.perf_counter()
        original(point)

    failpoints.reached = note
    try:
        yield reached
    finally:
        failpoints.reached = original


@contextmanager
def counted_requests() -> Iterator[list[str]]:
    """Collect the names of this process's requests, except connections' handshakes."""
    found: list[str] = []
    original = connection.Connection.send

    def send(self: connection.Connection, request: Any, **how: Any) -> connection.PendingRequest:
        found.append(type(request).__name__)
        return original(self, request, **how)

    connection.Connection.send = send  # type: ignore[method-assign]
    try:
        yield found
    finally:
        connection.Connection.send = original  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Seconds of each step of one batch, and the numbers of requests."""

    seconds: dict[str, float]
    requests: int
    """Of plan and commit."""
    task_requests: int


def batch(servers: str, topic: str, write_id: str, version: int, tasks: int, partitions: int = 0) -> Batch:
    """Write one batch and measure it."""
    with counted_requests() as sent:
        return _batch(sent, settings(servers, topic, write_id, version), tasks, partitions)


def _batch(sent: list[str], given: WriteSettings, tasks: int, partitions: int) -> Batch:
    began = time.perf_counter()
    plan = session.plan(given)
    planned, sent_by_plan = time.perf_counter(), len(sent)
    # One task after the other: Spark's tasks run on other machines, so their sum is no part of the commit.
    messages = [
        session.write_task(
            given,
            plan,
            TaskIdentity(partition=task, attempt_number=0, task_attempt_id=given.batch.version * tasks + task),
            rows(given.batch.topic or "", partitions),
        )
        for task in range(tasks)
    ]
    written, sent_by_tasks = time.perf_counter(), len(sent) - sent_by_plan
    # The failpoints mark the boundary between decision and ends inside one call of commit.
    with marks() as reached:
        session.commit(given, plan, messages)
    ended = time.perf_counter()
    seconds = {
        "plan": planned - began,
        "a task": (written - planned) / tasks,
        "check and decide": reached["commit.decided"] - written,
        "end and prove": ended - reached["commit.decided"],
        "commit": ended - written,
        "plan + commit": planned - began + ended - written,
    }
    return Batch(seconds=seconds, requests=len(sent) - sent_by_tasks, task_requests=sent_by_tasks)


def measure_grid(servers: str, most_tasks: int) -> None:
    """Print seconds and requests of the third batch of each size.

    Also prints the microseconds per transaction and per marker.
    """
    for partitions in (1, 10, 100):
        topic = make_topic(servers, f"bench-{partitions}", partitions)
        for tasks in (each for each in TASKS if each <= most_tasks and each * partitions <= MOST_MARKERS):
            name = f"bench-{partitions}-{tasks}"
            found = [batch(servers, topic, name, version, tasks, partitions) for version in range(3)][-1]
            seconds, markers = found.seconds["plan + commit"], tasks * (partitions + 1)
            print(
                f"{tasks:5} tasks, {partitions:3} partitions: {seconds:7.3f} s, {found.requests:6,} requests, {markers:7,} markers, "
                f"{1e6 * seconds / tasks:7.0f} us per transaction, {1e6 * seconds / markers:6.0f} us per marker; "
                f"{found.task_requests / tasks:5.1f} requests per task",
                flush=True,
            )


def main(
    tasks: int = 8, batches: int = 40, many: int = 1_000, transaction_version: int = 2, grid: bool = False
) -> None:
    """Measure the driver's part of a commit without Spark."""
    with EmbeddedKafka(transaction_version=transaction_version) as kafka:
        servers = kafka.bootstrap_servers
        if grid:
            measure_grid(servers, many)
            return
        topic = make_topic(servers, "bench", PARTITIONS)
        # The first batches load code and create the internal topics.
        warm = [batch(servers, topic, "bench", version, tasks) for version in range(batches)][WARM_UP:]
        print(f"{tasks} tasks, {len(warm)} batches, transaction.version {transaction_version}: median ms (largest)")
        for name in warm[0].seconds:
            times = [1_000 * each.seconds[name] for each in warm]
            print(f"  {name:<18} {statistics.median(times):8.1f}  ({max(times):.1f})")
        found = batch(servers, topic, "bench-many", 0, many).seconds
        print(f"{many} transactions: check and decide {found['check and decide']:.2f} s, ", end="")
        print(f"end and prove {found['end and prove']:.2f} s")


if __name__ == "__main__":
    typer.run(main)
