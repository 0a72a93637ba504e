"""Pieces of what `kafka-eos top` and `kafka-eos metrics` read from Kafka, for their tests.

Importable from every test as ``cluster_views`` (pytest's ``pythonpath`` names the folder).
"""

from __future__ import annotations

import re
from pathlib import Path

from kafka_eos_sink.commit.values import DeadLetters
from kafka_eos_sink.commit.write_states import CommittedWrite, WriteState
from kafka_eos_sink.operations.cluster_view import BlockedPartition
from kafka_eos_sink.protocol.messages import TransactionState
from kafka_eos_sink.runtime.batch_record import BatchRecord

NOW = 1_700_000_060_000
EVIL = "evil\x1b]0;owned\x07\x9b2J\u202e\nline"


def transaction(transactional_id: str = "w.0.3", started_ms: int = NOW - 60_000, **given: object) -> TransactionState:
    fields: dict[str, object] = {
        "error_code": 0,
        "transactional_id": transactional_id,
        "transaction_state": "Ongoing",
        "producer_id": 7,
        "producer_epoch": 2,
        "transaction_timeout_ms": 900_000,
        "transaction_start_time_ms": started_ms,
        "topics": (
            TransactionState.Topic(topic="orders", partitions=(2, 0)),
            TransactionState.Topic(topic="log", partitions=(5,)),
        ),
    }
    return TransactionState(**(fields | given))  # type: ignore[arg-type]


def write(write_id: str = "w", version: int = 3, state: WriteState = "finished", **given: object) -> CommittedWrite:
    fields: dict[str, object] = {"query_id": "batch", "rows": 1000, "finished_ms": NOW - 5_000}
    return CommittedWrite(write_id=write_id, version=version, state=state, **(fields | given))  # type: ignore[arg-type]


def batch(version: int = 3, rows: int = 1000, write_ms: int | None = 200, **given: object) -> BatchRecord:
    fields: dict[str, object] = {"write_id": "w", "query_id": "batch", "finished_ms": version, "transactions": 1}
    return BatchRecord(version=version, rows=rows, write_ms=write_ms, **(fields | given))  # type: ignore[arg-type]


def letters(**counts: int) -> tuple[DeadLetters, ...]:
    return tuple(DeadLetters(topic="dead", code=code, rows=rows) for code, rows in counts.items())


def blocked(*blocked_by: str, **given: object) -> BlockedPartition:
    fields: dict[str, object] = {"topic": "orders", "partition": 0, "hidden_offsets": 40, "since_ms": NOW}
    return BlockedPartition(blocked_by=blocked_by, **(fields | given))  # type: ignore[arg-type]


def documented_metrics() -> dict[str, tuple[str, set[str]]]:
    """The type and the labels of each metric in the table of docs/metrics.md."""
    text = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `(kafka_eos_\w+)` \| (\w+) \| ([^|]*)\|", text, re.MULTILINE)
    return {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in rows}
