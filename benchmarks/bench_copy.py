"""Measure copies of lost transactions from the log, and a whole recovery.

    python -m benchmarks.bench_copy [--megabytes 200] [--rounds 3] [--transaction-version 2]

All records are incompressible, in lz4 batches. The copy alone: writes a transaction, aborts it, and copies it as recovery does. The
recovery: decides a batch of four tasks, aborts its transactions after the decision, and recovers it as ``kafka-eos recover`` does.
Prints seconds, megabytes per second, and how much of a core this process used. ``make bench`` measures the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import typer

from benchmarks.bench_commit import settings
from benchmarks.report import Recovery, Timing, recovery_table
from benchmarks.topics import DEADLINE_MS, make_topic
from kafka_eos_sink.cli.console import output_console
from kafka_eos_sink.client.admin import Admin, lease_admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.values import OffsetRange, TaskIdentity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import DecisionPendingError, KafkaEosError
from kafka_eos_sink.operations import operator
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import failpoints, session
from kafka_eos_sink.runtime.data_proofs import DataTopics
from kafka_eos_sink.runtime.part_producer import flush_and_prove
from kafka_eos_sink.runtime.record_copier import RecordCopier
from kafka_eos_sink.runtime.write_settings import WriteSettings

__all__ = ["measure_recovery"]

ROW_BYTES = 1_000
SLAB_ROWS = 8_000
PARTITIONS = 4
TASKS = 4
CONFIG = ProducerConfig(compression="lz4")


def rows(topic: str, count: int) -> Iterator[Rows]:
    for first in range(0, count, SLAB_ROWS):
        data = os.urandom(ROW_BYTES * min(SLAB_ROWS, count - first))
        value = pa.array([data[at : at + ROW_BYTES] for at in range(0, len(data), ROW_BYTES)])
        yield Rows(topic=topic, partition=None, columns=RecordColumns(value=value))


def identity(admin: Admin, name: str, version: int) -> ProducerIdentity:
    producer_id, epoch = admin.init_producer_id(name, 300_000, admin.client.clock() + DEADLINE_MS)
    return ProducerIdentity(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, transaction_version=version
    )


def aborted(
    admin: Admin, topic: str, megabytes: int, version: int
) -> tuple[ProducerIdentity, tuple[OffsetRange, ...], int]:
    """Write a transaction and abort it; return its identity, ranges and row count."""
    lost = identity(admin, "bench.0.0", version)
    producer = Producer(admin, CONFIG, transactional_id=lost.transactional_id, transaction_version=version)
    producer.init(lost.producer_id, lost.producer_epoch)
    producer.begin()
    for each in rows(topic, megabytes * 1_000_000 // ROW_BYTES):
        producer.write(each)
    written = flush_and_prove(producer)
    producer.abort(admin.client.clock() + DEADLINE_MS)
    return lost, written.offsets, written.rows


def measure_copies(
    servers: str, megabytes: int, rounds: int, update: Callable[[int, int, str], None]
) -> tuple[Timing, ...]:
    """Copy one aborted transaction ``rounds`` times, each into another transaction."""
    topic = make_topic(servers, "bench-copy", PARTITIONS)
    log = make_topic(servers, "bench-copy-log", 1)
    found = []
    with lease_admin(ClientConfig(bootstrap_servers=parse_bootstrap_servers(servers))) as admin:
        version = admin.transaction_version(admin.client.clock() + DEADLINE_MS)
        lost, ranges, count = aborted(admin, topic, megabytes, version)
        topics = DataTopics(admin, timeout_ms=CONFIG.delivery_timeout_ms, max_block_ms=CONFIG.max_block_ms)
        copier = RecordCopier(topics, (log, 0), CONFIG)
        for number in range(rounds):
            update(number, rounds, f"copy {number + 1} of {rounds}")
            to = identity(admin, f"bench.0.{number + 1}", version)
            copy = steps.CopyRecords((steps.Copy(to, lost, ranges, steps.LogRecord(b"part", b"{}")),))
            began, used = time.perf_counter(), time.process_time()
            (copied,) = copier.copy(copy)
            found.append(Timing(time.perf_counter() - began, time.process_time() - used))
            if not isinstance(copied, steps.Copied) or copied.written.rows != count:
                raise KafkaEosError("BENCH_FAILED", f"the copy of {count:,} records of {topic!r} is {copied}")
    return tuple(found)


def lose_decided_batch(given: WriteSettings, topic: str, megabytes: int) -> None:
    """Decide a batch as a driver that then dies, and abort its transactions."""
    plan = session.plan(given)
    count = megabytes * 1_000_000 // (ROW_BYTES * TASKS)
    messages = [
        session.write_task(
            given, plan, TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task), rows(topic, count)
        )
        for task in range(TASKS)
    ]
    os.environ[failpoints.VARIABLE] = "commit.decided=raise"
    try:
        session.commit(given, plan, messages)
    except DecisionPendingError as stopped:
        # The failpoint stops the commit after its decision.
        if "FAILPOINT" not in stopped.message:
            raise
    finally:
        del os.environ[failpoints.VARIABLE]
    with lease_admin(given.client) as admin:
        for message in messages:
            if message.prepared is not None:
                # Aborts the open transaction, as the timeout would, and returns once its markers are written.
                identity(admin, message.prepared.identity.transactional_id, plan.driver.transaction_version)


def measure_recoveries(
    servers: str, megabytes: int, rounds: int, update: Callable[[int, int, str], None]
) -> tuple[Timing, ...]:
    """Recover a lost batch of a new write id in each round.

    The process connects again each time, as the command would.
    """
    topic = make_topic(servers, "bench-recovery", PARTITIONS)
    found = []
    for number in range(rounds):
        update(number, rounds, f"recovery {number + 1} of {rounds}")
        given = settings(servers, topic, f"bench-recovery-{number}", 0)
        lose_decided_batch(given, topic, megabytes)
        where = operator.OperatorSettings(
            write_id=given.write.id, commit_log_topic=given.write.log_topic, client=given.client
        )
        began, used = time.perf_counter(), time.process_time()
        recovered = operator.recover(where)
        found.append(Timing(time.perf_counter() - began, time.process_time() - used))
        if [each.query_id for each in recovered.versions if each.finished_now] != [given.batch.query_id]:
            raise KafkaEosError("BENCH_FAILED", f"the recovery of {given.write.id} finished no decision")
    return tuple(found)


def measure_recovery(
    servers: str, megabytes: int, rounds: int, update: Callable[[int, int, str], None] = lambda *_: None
) -> Recovery:
    """Measure copies, and recoveries of the same size.

    Args:
        update: Called before each round with the number of rounds done, of all rounds, and the words for the progress line.
    """
    return Recovery(
        megabytes=megabytes,
        copies=measure_copies(servers, megabytes, rounds, update),
        recoveries=measure_recoveries(servers, megabytes, rounds, update),
    )


def main(megabytes: int = 200, rounds: int = 3, transaction_version: int = 2) -> None:
    """Measure copies and recoveries on a broker of their own."""
    with EmbeddedKafka(transaction_version=transaction_version) as kafka:
        found = measure_recovery(kafka.bootstrap_servers, megabytes, rounds)
    output_console().print(recovery_table(found))


if __name__ == "__main__":
    typer.run(main)
