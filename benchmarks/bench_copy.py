"""How fast lost transactions are copied from the log.

    python -m benchmarks.bench_copy [--megabytes 200] [--rounds 3] [--transaction-version 2]

Writes a transaction of incompressible records in lz4 batches, aborts it, and copies it as recovery does. Prints the megabytes
per second of log, and how much of a core the copying process used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pyarrow as pa
import typer

from benchmarks.topics import make_topic
from kafka_eos_sink.client.admin import Admin, lease_admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.prepared_transaction import OffsetRange
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime.record_copier import RecordCopier, written_by

ROW_BYTES = 1_000
SLAB_ROWS = 8_000
PARTITIONS = 4
DEADLINE_MS = 60_000


def rows(topic: str, megabytes: int) -> Iterator[Rows]:
    for _ in range(megabytes * 1_000_000 // (ROW_BYTES * SLAB_ROWS)):
        data = os.urandom(ROW_BYTES * SLAB_ROWS)
        value = pa.array([data[at : at + ROW_BYTES] for at in range(0, len(data), ROW_BYTES)])
        yield Rows(topic=topic, partition=None, columns=RecordColumns(value=value))


def identity(admin: Admin, name: str, version: int) -> ProducerIdentity:
    producer_id, epoch = admin.init_producer_id(name, 300_000, admin.client.clock() + DEADLINE_MS)
    return ProducerIdentity(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, transaction_version=version
    )


def aborted(
    admin: Admin, config: ProducerConfig, topic: str, megabytes: int, version: int
) -> tuple[ProducerIdentity, tuple[OffsetRange, ...]]:
    """Write a transaction and abort it; return its identity and where its records lie."""
    lost = identity(admin, "bench.0.0", version)
    producer = Producer(admin.client, config, transactional_id=lost.transactional_id, transaction_version=version)
    producer.init(lost.producer_id, lost.producer_epoch)
    producer.begin()
    for each in rows(topic, megabytes):
        producer.write(each)
    written = written_by(producer)
    producer.abort(admin.client.clock() + DEADLINE_MS)
    return lost, written.offsets


def main(megabytes: int = 200, rounds: int = 3, transaction_version: int = 2) -> None:
    with EmbeddedKafka(transaction_version=transaction_version) as kafka:
        topic = make_topic(kafka.bootstrap_servers, "bench", PARTITIONS)
        log = make_topic(kafka.bootstrap_servers, "bench-log", 1)
        client = ClientConfig(bootstrap_servers=parse_bootstrap_servers(kafka.bootstrap_servers))
        config = ProducerConfig(compression="lz4")
        with lease_admin(client) as admin:
            lost, ranges = aborted(admin, config, topic, megabytes, transaction_version)
            copier = RecordCopier(admin, (log, 0), config)
            for number in range(rounds):
                to = identity(admin, f"bench.0.{number + 1}", transaction_version)
                began, used = time.perf_counter(), time.process_time()
                part = steps.LogRecord(b"part", b"{}")
                (copied,) = copier.copy(steps.CopyRecords((steps.Copy(to, lost, ranges, part),)))
                assert isinstance(copied, steps.Copied)
                seconds = time.perf_counter() - began
                print(
                    f"{copied.written.rows:,} rows, {megabytes} MB in {seconds:.2f} s: {megabytes / seconds:.0f} MB/s, "
                    f"{(time.process_time() - used) / seconds:.0%} of a core"
                )


if __name__ == "__main__":
    typer.run(main)
