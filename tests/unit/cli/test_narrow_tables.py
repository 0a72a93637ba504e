"""The tables of `history` and `audit` on a terminal of 80 columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from cluster_views import batch, letters
from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.audit import audit_table
from kafka_eos_sink.cli.history import history_table
from kafka_eos_sink.operations.audit import BLOCKED, BatchAudit, PartitionCount

ROWS, FIRST, LAST = 4_000_000, 1_128_666, 5_461_613
APPLICATION, METADATA = "app-20261125042517-0001", "ticket 7 " * 40
RECORD = batch(
    rows=ROWS,
    written_bytes=426_239_606,
    transactions=12,
    application_id=APPLICATION,
    user_metadata=METADATA,
    dead_letters=letters(RECORD_TOO_LARGE=12_345, NO_SUCH_PARTITION=678, UNKNOWN_TOPIC=9),
)


def on_80_columns(table: Table, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    out = io.StringIO()
    terminal = Console(width=80, color_system=None, file=out, force_terminal=True)
    monkeypatch.setattr(console, "output_console", lambda *, stderr=False: terminal)
    console.show(table)
    return out.getvalue().splitlines()


def test_history_splits_no_number_or_id(monkeypatch: pytest.MonkeyPatch) -> None:
    heading, first, *more = on_80_columns(history_table([RECORD]), monkeypatch)
    assert {"transactions", "application"} <= set(heading.split())
    assert {"4,000,000", "426,239,606", APPLICATION} <= set(first.split())
    assert more, "long metadata takes more lines, not a wider table"
    assert "dead letters: RECORD_TOO_LARGE 12,345, " in first
    assert "UNKNOWN_TOPIC 9" in more[0]
    assert len(heading) < 200


def test_audit_splits_no_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    part = PartitionCount(
        topic="orders", partition=0, first_offset=FIRST, last_offset=LAST, found=ROWS, hidden=3, reason=BLOCKED
    )
    audit = BatchAudit(record=RECORD, partitions=(part,))
    heading, total, partition, *dead = on_80_columns(audit_table([audit]), monkeypatch)
    assert {"topic-partition", "result"} <= set(heading.split())
    assert len(heading) < 140
    assert "complete" in total
    assert " ".join(" ".join(dead).split()).endswith(
        "13,032 of these rows are dead letters: RECORD_TOO_LARGE 12,345, NO_SUCH_PARTITION 678, UNKNOWN_TOPIC 9"
    )
    assert {"orders-0", f"{FIRST}..{LAST}", "4,000,000"} <= set(partition.split())


def test_table_in_a_pipe_has_no_trailing_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    console.show(history_table([RECORD, batch(rows=1)]))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 3
    assert [line for line in lines if line != line.rstrip()] == []
