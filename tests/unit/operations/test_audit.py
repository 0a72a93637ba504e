"""What an audit concludes from the rows that are found."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafka_eos_sink.commit.values import OffsetRange
from kafka_eos_sink.operations.audit import BLOCKED, REMOVED, BatchAudit, PartitionCount, _rows, _visible
from kafka_eos_sink.protocol.record_batch import encode_rows, seal
from kafka_eos_sink.runtime.batch_record import BatchRecord

RECORD = BatchRecord(write_id="w", query_id="batch", version=3, finished_ms=0, rows=100, transactions=2)
PART = PartitionCount(topic="orders", partition=0, first_offset=10, last_offset=110)


def audit_of(*counts: tuple[int, int], rows: int = 100) -> BatchAudit:
    """A batch with so many found rows and hidden offsets per partition."""
    parts = (
        replace(PART, partition=at, found=found, hidden=hidden, reason=REMOVED if hidden else None)
        for at, (found, hidden) in enumerate(counts)
    )
    return BatchAudit(record=replace(RECORD, rows=rows), partitions=tuple(parts))


@pytest.mark.parametrize(
    ("counts", "missing", "not_readable", "result"),
    [
        ([(60, 0), (40, 0)], 0, 0, "complete"),
        ([(60, 0), (39, 0)], 1, 0, "missing"),
        ([(60, 0), (41, 0)], 0, 0, "too many"),
        ([(60, 0), (0, 40)], 0, 40, "not readable"),
        # A marker or another writer's row may be among the hidden offsets.
        ([(60, 0), (0, 50)], 0, 40, "not readable"),
        ([(60, 0), (0, 30)], 10, 30, "missing"),
        # Hidden offsets excuse no surplus.
        ([(90, 0), (20, 5)], 0, 0, "too many"),
        ([(90, 0), (10, 5)], 0, 0, "complete"),
        ([], 100, 0, "missing"),
    ],
)
def test_result_counts_hidden_offsets_for_missing_rows(
    counts: list[tuple[int, int]], missing: int, not_readable: int, result: str
) -> None:
    found = audit_of(*counts)
    assert (found.missing, found.not_readable, found.result) == (missing, not_readable, result)
    assert found.is_as_decided is (result in ("complete", "not readable"))


@pytest.mark.parametrize(
    ("start", "stable", "end", "hidden", "reason"),
    [
        (0, 200, 200, 0, None),
        (10, 111, 111, 0, None),
        (15, 200, 200, 5, REMOVED),
        (150, 200, 200, 101, REMOVED),
        (0, 100, 200, 11, BLOCKED),
        (0, 5, 200, 101, BLOCKED),
        (15, 100, 200, 16, f"{REMOVED}; {BLOCKED}"),
        # A log that ends before the range has lost records.
        (0, 100, 100, 0, None),
        (0, 100, 105, 5, BLOCKED),
    ],
)
def test_offsets_before_start_or_behind_open_transaction_hide(
    start: int, stable: int, end: int, hidden: int, reason: str | None
) -> None:
    found = _visible(PART, start, stable, end)
    assert (found.hidden, found.reason) == (hidden, reason)


def test_rows_outside_a_transaction_do_not_count() -> None:
    """A program with Write on the topic may use any producer id there, to hide that rows are missing."""
    block, log = encode_rows([(b"key", b"value", ())], 1), b""
    for offset, transactional in enumerate((True, False)):
        header, records = seal(block, producer_id=7, producer_epoch=2, base_sequence=0, transactional=transactional)
        log += offset.to_bytes(8, "big") + bytes(header[8:]) + bytes(records)
    fetched = SimpleNamespace(error_code=0, records=log, aborted_transactions=())
    admin = SimpleNamespace(client=SimpleNamespace(clock=lambda: 0), fetch=lambda *_, **__: fetched)
    part = OffsetRange(topic="orders", partition=0, first_offset=0, last_offset=1)
    assert _rows(cast(Any, admin), part, {(7, 2)}, 0, 2) == 1
