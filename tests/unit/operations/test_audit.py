"""What an audit concludes from the rows that are found, and its report as a web page."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafka_eos_sink.cli.audit_page import page
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
def test_verdict_counts_hidden_offsets_for_missing_rows(
    counts: list[tuple[int, int]], missing: int, not_readable: int, result: str
) -> None:
    found = audit_of(*counts)
    assert (found.missing, found.not_readable, found.result) == (missing, not_readable, result)
    assert found.is_as_decided is (result in ("complete", "not readable"))


def test_batch_without_rows_is_complete() -> None:
    assert audit_of(rows=0).result == "complete"


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


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = "<script>alert(1)</script>\"'&{title}\x1b[31m\n"


def test_page_escapes_every_text_from_kafka() -> None:
    named = audit_of((60, 40))
    named = replace(named, partitions=(replace(named.partitions[0], topic=HOSTILE, reason=HOSTILE),))
    plain, hostile = Elements(page("w", [audit_of((60, 40))])), Elements(page(HOSTILE, [named]))
    assert [tag for tag, _ in hostile.found] == [tag for tag, _ in plain.found]
    assert hostile.text.count("<script>alert(1)</script>\"'&{title}") == 5  # title, heading, chart, partition, reason
    assert "\x1b" not in hostile.text


def test_page_loads_nothing_from_elsewhere() -> None:
    text = page("w", [audit_of((60, 40))])
    elements = Elements(text).found
    assert {tag for tag, _ in elements}.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert not any({"src", "href", "srcset"} & attributes.keys() for _, attributes in elements)
    assert "url(" not in text
    assert "@import" not in text


def bars(text: str) -> list[tuple[str, float]]:
    return [(each["class"], float(each["width"])) for tag, each in Elements(text).found if tag == "rect"]


def test_chart_has_decided_beside_found_rows() -> None:
    (decided, all_rows), (found, half), *parts = bars(page("w", [audit_of((20, 0), (30, 0))]))
    assert (decided, found) == ("decided", "found")
    assert half == pytest.approx(all_rows / 2, abs=0.1)
    # A batch that stands alone also shows its partitions.
    assert [kind for kind, _ in parts] == ["found", "found"]
    assert len(bars(page("w", [audit_of((20, 0)), audit_of((0, 0), rows=0)]))) == 4
    assert bars(page("w", [audit_of(rows=0)])) == [("decided", 0), ("found", 0)]
