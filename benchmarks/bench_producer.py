"""The producer alone: one process writes Arrow batches in one transaction per run.

    python -m benchmarks.bench_producer [--rows N] [--value-bytes B] [--partitions P] [--batch-size B] [--runs R]

A run lasts from the first row to the acknowledgement of the last. The processor time is this process's alone, without
the broker on the same cores. Every run must commit as many records as rows.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import pyarrow as pa
import typer

from benchmarks.topics import DEADLINE_MS, create_topic
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.transactions_admin import EndTransaction
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import DEFAULT_BATCH_SIZE, ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime.executor import end_txn_version
from kafka_eos_sink.runtime.part_producer import begin

ARROW_ROWS = 10_000
"""Spark's default number of rows in a batch (``spark.sql.execution.arrow.maxRecordsPerBatch``)."""
DISTINCT_BATCHES = 20
WORDS = (b"alpha", b"bravo", b"charlie", b"delta", b"echo", b"foxtrot", b"golf", b"hotel", b"india", b"juliett")


def arrow_batches(value_bytes: int, *, keyed: bool) -> list[RecordColumns]:
    """Make rows of text that compress like log lines (lz4: to a third)."""
    rng = np.random.default_rng(7)
    made = []
    for batch in range(DISTINCT_BATCHES):
        first = batch * ARROW_ROWS
        picks = rng.integers(0, len(WORDS), (ARROW_ROWS, value_bytes // 5 + 1))
        values = [
            (b"%d " % (first + row) + b" ".join(WORDS[word] for word in picks[row]))[:value_bytes]
            for row in range(ARROW_ROWS)
        ]
        keys = pa.array([b"customer-%07d" % n for n in rng.integers(0, 1_000_000, ARROW_ROWS)], pa.binary())
        value = pa.array(values, pa.binary())
        made.append(RecordColumns(value=value, key=keys if keyed else None, headers=None, timestamp=None))
    return made


def run(
    client: NetworkClient, config: ProducerConfig, topic: str, batches: list[RecordColumns], rows: int
) -> tuple[float, float]:
    """Write one transaction; return records/s, and CPU seconds per million records."""
    admin, name, deadline_ms = Admin(client), "bench-producer", client.clock() + DEADLINE_MS
    version = admin.transaction_version(deadline_ms)
    # The same id in each run: the producer takes it over, as a restarted one does.
    producer_id, epoch = admin.init_producer_id(name, 300_000, deadline_ms)
    identity = ProducerIdentity(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, transaction_version=version
    )
    producer = begin(client, config, identity)
    started, processor = time.perf_counter(), time.process_time()
    for number in range(rows // ARROW_ROWS):
        producer.write(Rows(topic=topic, partition=None, columns=batches[number % len(batches)]))
    producer.flush()
    elapsed, processor = time.perf_counter() - started, time.process_time() - processor
    written = sum(acknowledged.record_count for acknowledged in producer.acknowledged.values())
    end = EndTransaction(
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=epoch,
        committed=True,
        version=end_txn_version(producer.prepare()),
    )
    producer.close()
    (result,) = admin.end_transactions([end], client.clock() + DEADLINE_MS)
    if written != rows or result.error_code != 0:
        # A run that lost records would look fast.
        raise AssertionError(
            f"{written} of {rows} records acknowledged, EndTxn returned error code {result.error_code}"
        )
    return rows / elapsed, processor / rows * 1e6


def main(
    rows: int = 1_000_000,
    value_bytes: int = 100,
    partitions: int = 8,
    batch_size: int = DEFAULT_BATCH_SIZE,
    runs: int = 5,
) -> None:
    """Measure the producer alone, with and without keys and compression."""
    rows = rows // ARROW_ROWS * ARROW_ROWS
    with (
        EmbeddedKafka(heap="1g", tuned_for="throughput") as kafka,
        NetworkClient(ClientConfig(bootstrap_servers=parse_bootstrap_servers(kafka.bootstrap_servers))) as client,
    ):
        for keyed in (True, False):
            batches = arrow_batches(value_bytes, keyed=keyed)
            for codec in ("none", "lz4"):
                topic = f"bench-{codec}-{'keyed' if keyed else 'keyless'}"
                create_topic(Admin(client), topic, partitions)
                config = ProducerConfig(compression=codec, batch_size=batch_size)
                run(client, config, topic, batches, rows)  # warms up both sides
                results = [run(client, config, topic, batches, rows) for _ in range(runs)]
                speeds = [speed / 1e6 for speed, _ in results]
                print(
                    f"{codec:>5} {'keyed' if keyed else 'no key':>7}  {statistics.median(speeds):5.2f} "
                    f"({min(speeds):.2f} to {max(speeds):.2f}) million records/s, "
                    f"{statistics.median(cpu for _, cpu in results):.2f} CPU s per million",
                    flush=True,
                )


if __name__ == "__main__":
    typer.run(main)
