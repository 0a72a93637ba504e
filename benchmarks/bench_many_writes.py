"""Measure the operator's commands on a commit log with many write ids.

    python -m benchmarks.bench_many_writes [--writes 10000] [--tasks 4] [--apps 100] [--unfinished 20] [--transaction-version 2]

Writes what so many nightly batches leave behind, by the sink's own records and transactions: a barrier, the part records, a decision and a
done record of each write id, the markers, a record in the history, and the transactional ids at their coordinators. Only the rows in the
data topic are missing. Some writes are decided and not finished. Then prints seconds and peak memory of each command, in a process of its
own. With ``--bootstrap-servers`` it uses this cluster, and ``--no-fill`` measures what stands there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

import typer

from benchmarks.topics import DEADLINE_MS
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.log_access import append_in_transaction, write_done
from kafka_eos_sink.commit.log_records import barrier_record, decision_records, part_record
from kafka_eos_sink.commit.steps import Append, End, EndTransactions, InitProducerId, Procedure
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, batch_write_id
from kafka_eos_sink.commit.transactions import DRIVER_TRANSACTION_TIMEOUT_MS
from kafka_eos_sink.commit.values import DEFAULT_TOPIC, Decision, OffsetRange, PreparedTransaction, Write
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.runtime import history
from kafka_eos_sink.runtime.batch_record import DEFAULT_HISTORY_TOPIC, record_of
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.topics import ensure_commit_log

TOPIC = "orders"
PARTITIONS = 12
"""Of the data topic: each task has rows in all of them."""
ROWS = 1_000
TASK_TIMEOUT_MS = 900_000
FILLERS = 2
"""Processes that write the log."""
VERSION = 20261126


def write_of(number: int, apps: int) -> Write:
    """Return a nightly write: each job has a `txnAppId` for each day."""
    return Write(batch_write_id(None, f"job-{number % apps:03}.day-{number // apps:04}", TOPIC), DEFAULT_TOPIC)


def night(write: Write, tasks: int, *, finish: bool) -> Procedure[Decision]:
    """Write what one batch leaves in the commit log and at the coordinators."""
    nonce = uuid4().hex
    driver = yield from InitProducerId(write.driver_id, DRIVER_TRANSACTION_TIMEOUT_MS)
    yield from Append((barrier_record(write.id, nonce),))
    prepared = []
    for task in range(tasks):
        identity = yield from InitProducerId(write.task_id(task, 0), TASK_TIMEOUT_MS)
        part = part_record(write.id, BATCH_QUERY_ID, task, VERSION, task)
        appended = yield from append_in_transaction(identity, (part,), 0)
        first = task * ROWS
        offsets = tuple(
            OffsetRange(topic=TOPIC, partition=each, first_offset=first, last_offset=first + ROWS // PARTITIONS)
            for each in range(PARTITIONS)
        )
        prepared.append(
            PreparedTransaction(
                partition=task,
                identity=identity,
                part_offset=appended.offset,
                rows=ROWS,
                written_bytes=50_000,
                offsets=offsets,
            )
        )
    decision = Decision(
        write_id=write.id,
        query_id=BATCH_QUERY_ID,
        version=VERSION,
        nonce=nonce,
        driver=driver,
        topic=TOPIC,
        schema="value binary",
        offsets_hash=None,
        transactions=tuple(prepared),
    )
    yield from append_in_transaction(driver, decision_records(decision), 0)
    yield from EndTransactions((End(identity=driver, commit=True),))
    if finish:
        yield from EndTransactions(tuple(End(identity=each.identity, commit=True) for each in prepared))
        yield from write_done(decision)
    return decision


def fill(servers: str, tasks: int, apps: int, unfinished: int, numbers: Sequence[int]) -> None:
    with connected(servers) as admin:
        executors = {
            where: Executor(admin, where, ProducerConfig(delivery_timeout_ms=DEADLINE_MS))
            for where in {write_of(number, apps).commit_log for number in numbers}
        }
        for number in numbers:
            write, finish = write_of(number, apps), number >= unfinished
            decision = executors[write.commit_log].run(night(write, tasks, finish=finish))
            if finish:
                now_ms = time.time_ns() // 1_000_000
                figures = dict.fromkeys((f"{phase}_ms" for phase in ("plan", "write", "check", "decide", "end")), 100)
                record = record_of(decision, now_ms, headroom_ms=800_000, **figures)
                history.write(admin, DEFAULT_HISTORY_TOPIC, record)


def fill_all(servers: str, writes: int, tasks: int, apps: int, unfinished: int) -> None:
    with connected(servers) as admin:
        ensure_commit_log(admin, DEFAULT_TOPIC, admin.client.clock() + DEADLINE_MS)
    began = time.perf_counter()
    chunks = [range(first, min(writes, first + 100)) for first in range(0, writes, 100)]
    with ProcessPoolExecutor(FILLERS) as pool:
        for done, _ in enumerate(pool.map(partial(fill, servers, tasks, apps, unfinished), chunks), 1):
            print(f"\r{min(writes, done * 100):,} write ids, {time.perf_counter() - began:.0f} s", end="", flush=True)
    print()


def measured(servers: str, *arguments: str) -> None:
    """Run a command and print its wall time, CPU time, peak memory and output size."""
    command = [sys.executable, "-m", "kafka_eos_sink.cli.main", *arguments, "--bootstrap-servers", servers]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    took, lines = time.perf_counter() - began, len(output.splitlines())
    print(
        f"kafka-eos {' '.join(arguments):60} {took:6.2f} s, {used.ru_utime + used.ru_stime:6.2f} s of CPU, "
        f"{used.ru_maxrss / 1024:5.0f} MB, {lines:7,} lines, exit status {os.waitstatus_to_exitcode(status)}",
        flush=True,
    )


@contextmanager
def exporter(servers: str) -> Iterator[tuple[str, int]]:
    """Yield the URL and the process id of an exporter."""
    command = [sys.executable, "-m", "kafka_eos_sink.cli.main", "metrics", "--port", "0", "--interval", "1"]
    process = subprocess.Popen(
        [*command, "--bootstrap-servers", servers], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def measure_scrapes(servers: str) -> None:
    """Print how long the first view and later scrapes take, and what a scrape holds."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    began = time.perf_counter()
    with exporter(servers) as (url, process_id):
        text = ""
        while "kafka_eos_up 1.0" not in text:
            with direct.open(url, timeout=60) as response:
                text = response.read().decode()
            time.sleep(0.1)
        first_view_s = time.perf_counter() - began
        took = []
        for _ in range(10):
            began = time.perf_counter()
            with direct.open(url, timeout=60) as response:
                text = response.read().decode()
            took.append(time.perf_counter() - began)
            time.sleep(0.5)
        with open(f"/proc/{process_id}/status") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    series = [line for line in text.splitlines() if not line.startswith("#")]
    views = [line.split()[1] for line in series if line.startswith("kafka_eos_view_duration_seconds")]
    print(
        f"kafka-eos metrics: first view after {first_view_s:.1f} s, a later one {float(views[0]):.2f} s; a scrape {min(took):.2f} to "
        f"{max(took):.2f} s, {len(series):,} series, {len(text):,} bytes; peak {peak / 1024:.0f} MB"
    )


def measure(servers: str) -> None:
    for arguments in (
        ["status"],
        ["status", "--json"],
        ["status", "--prefix", "kafka-eos/job-007"],
        ["status", "--write-id", write_of(77, 100).id],
    ):
        measured(servers, *arguments)
    measure_scrapes(servers)


def main(
    writes: int = 10_000,
    tasks: int = 4,
    apps: int = 100,
    unfinished: int = 20,
    transaction_version: int = 2,
    bootstrap_servers: str = "",
    to_fill: bool = typer.Option(True, "--fill/--no-fill"),
) -> None:
    """Measure status, forget and metrics with many write ids."""
    if bootstrap_servers:
        if to_fill:
            fill_all(bootstrap_servers, writes, tasks, apps, unfinished)
        measure(bootstrap_servers)
        return
    with EmbeddedKafka(transaction_version=transaction_version) as kafka:
        fill_all(kafka.bootstrap_servers, writes, tasks, apps, unfinished)
        measure(kafka.bootstrap_servers)


if __name__ == "__main__":
    typer.run(main)
