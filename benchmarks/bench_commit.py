"""What a commit costs, without Spark: the driver's part of a micro-batch, and the end of very many transactions.

    PYTHONPATH=.:tests python benchmarks/bench_commit.py [--tasks 8] [--batches 40] [--many 1000]

Prints the median milliseconds of plan, check to decision, and ends with their proofs, for batches of so many tasks one after the other in
one process, as a streaming query has them; then the seconds that the commit of very many prepared transactions takes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import failpoints, session
from kafka_testing import create_topic, unique_topic

ROWS = 100


def settings(servers: str, topic: str, write_id: str, version: int) -> session.WriteSettings:
    return session.WriteSettings(
        write_id=write_id,
        query_id="bench",
        version=version,
        random_write_id=False,
        streaming=True,
        topic=topic,
        schema="value binary",
        offsets_hash=f"hash-{version}",
        on_checkpoint_rollback="fail",
        commit_log_topic="__kafka_eos_commits",
        client=ClientConfig(bootstrap_servers=parse_bootstrap_servers(servers)),
        producer=ProducerConfig(),
    )


def rows(topic: str) -> Iterator[Rows]:
    value = pa.array([b"x" * 100] * ROWS)
    yield Rows(topic=topic, partition=None, columns=RecordColumns(value=value))


@contextmanager
def marks() -> Iterator[dict[str, float]]:
    """When each named point of the protocol was reached."""
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


def batch(servers: str, topic: str, write_id: str, version: int, tasks: int) -> dict[str, float]:
    """Seconds of each step."""
    given = settings(servers, topic, write_id, version)
    began = time.perf_counter()
    plan = session.plan(given)
    planned = time.perf_counter()
    messages = [
        session.write_task(
            given,
            plan,
            session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=version * tasks + task),
            rows(topic),
        )
        for task in range(tasks)
    ]
    written = time.perf_counter()
    with marks() as reached:
        session.commit(given, plan, messages)
    ended = time.perf_counter()
    return {
        "plan": planned - began,
        "a task": (written - planned) / tasks,
        "check and decide": reached["commit.decided"] - written,
        "end and prove": ended - reached["commit.decided"],
        "commit": ended - written,
        "plan + commit": planned - began + ended - written,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--many", type=int, default=1_000)
    parser.add_argument("--transaction-version", type=int, choices=(0, 1, 2), default=2)
    given = parser.parse_args()
    with EmbeddedKafka(transaction_version=given.transaction_version) as cluster:
        servers = cluster.bootstrap_servers
        topic, write_id = create_topic(servers, partitions=8), unique_topic("bench")
        measured = [batch(servers, topic, write_id, version, given.tasks) for version in range(given.batches)]
        warm = measured[5:]
        print(
            f"{given.tasks} tasks, {len(warm)} batches, transaction.version {given.transaction_version}: median ms (largest)"
        )
        for name in warm[0]:
            times = [1_000 * each[name] for each in warm]
            print(f"  {name:<18} {statistics.median(times):8.1f}  ({max(times):.1f})")
        many = batch(servers, topic, unique_topic("bench"), 0, given.many)
        print(
            f"{given.many} transactions: check and decide {many['check and decide']:.2f} s, end and prove {many['end and prove']:.2f} s"
        )


if __name__ == "__main__":
    main()
