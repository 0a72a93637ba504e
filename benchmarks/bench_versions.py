"""Measure what the versions in a decision cost plan and commit.

    python -m benchmarks.bench_versions

Prints, for a set of versions: the bytes of the decision in the commit log, the milliseconds in which the commit adds a version and encodes
the decision, those in which a plan parses it and admits a batch, and the bytes of the plan that Spark sends to each task.
"""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable
from typing import Any

import typer

from kafka_eos_sink.commit.admission import admit, decided_versions
from kafka_eos_sink.commit.log_records import decision_records
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.steps import Marker, MarkerType, ReadRecord
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, batch_write_id
from kafka_eos_sink.commit.values import (
    DEFAULT_TOPIC,
    BatchIdentity,
    Decision,
    DecisionStatus,
    Plan,
    SettledDecision,
    Write,
)
from kafka_eos_sink.commit.versions import MOST_RANGES, Versions
from kafka_eos_sink.protocol.identity import ProducerIdentity

WRITE = Write(batch_write_id(None, "nightly-orders", "orders"), DEFAULT_TOPIC)
DRIVER = ProducerIdentity(transactional_id=WRITE.driver_id, producer_id=1, producer_epoch=0, transaction_version=2)
TOPIC, SCHEMA = "orders", "key string, value string"


def decision_of(versions: Versions) -> Decision:
    return Decision(
        write_id=WRITE.id,
        query_id=BATCH_QUERY_ID,
        version=versions.ranges[-1].last,
        nonce="n" * 32,
        driver=DRIVER,
        topic=TOPIC,
        schema=SCHEMA,
        offsets_hash=None,
        transactions=(),
        foreach_query="",
        versions=versions,
    )


def plan_of(decision: Decision) -> Plan:
    return Plan(
        write=WRITE,
        nonce="m" * 32,
        driver=DRIVER,
        started_ms=0,
        transaction_timeout_ms=900_000,
        log_offset=0,
        decisions=(SettledDecision(decision=decision, status=DecisionStatus.FINISHED),),
    )


def parsed(decision: Decision) -> Decision:
    """Read the decision as a plan reads it from the commit log."""
    driver = {"producer_id": DRIVER.producer_id, "producer_epoch": DRIVER.producer_epoch}
    records = decision_records(decision)
    view = LogView(WRITE.id)
    view.feed(
        [
            *(
                ReadRecord(offset=offset, transactional=True, key=each.key, value=each.value, **driver)
                for offset, each in enumerate(records)
            ),
            Marker(offset=len(records), producer_id=1, producer_epoch=1, type=MarkerType.COMMIT),
        ],
        len(records) + 1,
        0,
    )
    found = view.query(BATCH_QUERY_ID).newest
    assert found is not None
    return found.decision


def milliseconds(action: Callable[[], Any], rounds: int) -> float:
    """Return the median time of an action."""
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def measure(name: str, versions: Versions, rounds: int) -> None:
    decision = decision_of(versions)
    assert parsed(decision) == decision
    plan = plan_of(decision)
    batch = BatchIdentity(
        query_id=BATCH_QUERY_ID,
        version=decision.version + 1,
        topic=TOPIC,
        schema=SCHEMA,
        offsets_hash=None,
        foreach_query="",
    )

    def commit() -> None:
        grown = decided_versions(plan, batch)
        assert grown is not None
        decision_records(decision_of(grown))

    size = sum(len(each.value or b"") for each in decision_records(decision))
    times = {
        "commit": milliseconds(commit, rounds),
        "parse": milliseconds(lambda: parsed(decision), rounds),
        "admit": milliseconds(lambda: admit(plan, batch), rounds),
    }
    shown = ", ".join(f"{what} {took:6.2f} ms" for what, took in times.items())
    print(f"{name:26} decision {size:7,} bytes, {shown}, plan {len(pickle.dumps(plan)):7,} bytes")


def main(consecutive: int = 100_000, rounds: int = 51) -> None:
    """Measure one version, many in a row, and the most ranges."""
    row = Versions()
    for version in range(consecutive):
        row = row.adding(version)
    scattered = Versions()
    # Corrections: versions of ten digits, none of which follows another.
    for day in range(2 * MOST_RANGES):
        scattered = scattered.adding(2026_0000_02 + 100 * day)
    measure("1 version", Versions().adding(0), rounds)
    measure(f"{consecutive:,} versions in a row", row, rounds)
    measure(f"{len(scattered.ranges):,} ranges", scattered, rounds)


if __name__ == "__main__":
    typer.run(main)
