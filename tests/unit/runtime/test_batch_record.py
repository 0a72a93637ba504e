"""The figures of a batch: its phases, the line of the log, and the record of the history."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from documents import ROOT, read
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_records import barrier_record, done_record
from kafka_eos_sink.commit.steps import Step
from kafka_eos_sink.commit.values import (
    DeadLetters,
    Decision,
    OffsetRange,
    PreparedTransaction,
    TaskIdentity,
    TaskMessage,
)
from kafka_eos_sink.runtime import batch_record, stopwatch
from kafka_eos_sink.runtime.batch_record import (
    BatchRecord,
    dead_letter_warning,
    parse_record,
    record_of,
    record_of_commit,
)
from kafka_eos_sink.runtime.stopwatch import Stopwatch
from tests.model.scripted_cluster import BATCH, written

_, (MESSAGE,) = written()
PLAN = replace(MESSAGE.plan, started_ms=1_000, transaction_timeout_ms=60_000, plan_ms=11, attempts_ended=2)
DRIVER = replace(PLAN.driver, producer_epoch=2)


def part(first: int, last: int) -> OffsetRange:
    return OffsetRange(topic="t", partition=0, first_offset=first, last_offset=last)


def entry(partition: int, *offsets: OffsetRange) -> PreparedTransaction:
    identity = replace(DRIVER, transactional_id=f"w.{partition}.0", producer_id=10 + partition)
    return PreparedTransaction(
        partition=partition, identity=identity, part_offset=5, rows=100, offsets=offsets, written_bytes=1_000
    )


DECISION = Decision(
    write_id="w",
    query_id="batch",
    version=3,
    nonce="n",
    driver=DRIVER,
    topic="t",
    schema="",
    offsets_hash=None,
    transactions=(entry(0, part(0, 99)), entry(1, part(101, 200))),
    application_id="app-1",
)


def message(partition: int, write_ms: int) -> TaskMessage:
    task = TaskIdentity(partition=partition, attempt_number=0, task_attempt_id=partition)
    return replace(MESSAGE, plan=PLAN, batch=replace(BATCH, version=3), task=task, write_ms=write_ms)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Seconds of the stopwatch, and of the wall."""
    found = SimpleNamespace(s=0.0)
    fake = SimpleNamespace(perf_counter=lambda: found.s, time_ns=lambda: round(1_000 * (1 + found.s)) * 1_000_000)
    monkeypatch.setattr(stopwatch, "time", fake)
    monkeypatch.setattr(batch_record, "time", fake)
    return found


def watched(clock: SimpleNamespace, *taken: tuple[float, Step[Any], Any]) -> Stopwatch:
    watch = Stopwatch()
    for seconds, step, result in taken:
        clock.s += seconds
        watch.saw(step, result)
    return watch


END = steps.EndTransactions((steps.End(identity=DRIVER, commit=True),))
COMMIT: tuple[tuple[float, Step[Any], Any], ...] = (
    (9.0, steps.Reached("commit.check"), None),
    (0.1, steps.Now(), 0),
    (0.0, steps.Reached("commit.before_decision"), None),
    (0.2, END, ()),
    (0.1, steps.Reached("commit.decided"), None),
    (0.4, END, ()),
    (0.5, steps.Now(), 0),
    (0.1, steps.Reached("commit.finished"), None),
    (7.0, steps.Append((done_record(DECISION, 1),)), 8),
)


def test_phases_are_measured_between_the_points(clock: SimpleNamespace) -> None:
    watch = watched(clock, *COMMIT)
    assert [watch.ms(phase) for phase in ("check", "decide", "end", "verify")] == [100, 300, 400, 600]
    # The last EndTxn returned 9.8 s after a plan that began at 1 s of the wall clock.
    record = record_of_commit(DECISION, PLAN, [message(0, 20), message(1, 30)], watch, 1)
    assert (record.headroom_ms, record.attempts_aborted) == (60_000 - 9_800, 3)
    assert (record.rows, record.transactions, record.written_bytes) == (200, 2, 2_000)
    assert (record.plan_ms, record.write_ms, record.application_id) == (11, 30, "app-1")
    assert record.offsets == (part(0, 200),)
    assert record.producers == ((10, 2), (11, 2))


def test_copies_count_as_time_of_the_proofs(clock: SimpleNamespace) -> None:
    written = steps.WrittenRows(rows=1, offsets=())
    copied = (steps.Copied(written=written, part_offset=1), steps.Gone("deleted"))
    copying: tuple[tuple[float, Step[Any], Any], ...] = (
        (0.3, steps.CopyRecords(()), copied),
        (0.1, steps.Reached("commit.before_decision"), None),
    )
    watch = watched(clock, *COMMIT[:6], *copying, *COMMIT[7:])
    assert [watch.ms(phase) for phase in ("check", "decide", "end", "verify")] == [100, 300, 400, 500]
    assert (watch.transactions_copied, watch.finished) == (1, {"batch": 1})


def test_only_an_appended_done_record_finishes_a_query(clock: SimpleNamespace) -> None:
    done = steps.Append((done_record(DECISION, 1),))
    assert watched(clock, (0.0, done, None)).finished == {}
    assert watched(clock, (0.0, steps.Append((barrier_record("w", "n"),)), 4)).finished == {}
    assert watched(clock, (0.0, done, 4)).finished == {"batch": 0}


def test_headroom_is_unknown_without_a_timeout(clock: SimpleNamespace) -> None:
    watch = watched(clock, *COMMIT)
    forever = replace(PLAN, transaction_timeout_ms=2**31 - 1)
    assert record_of_commit(DECISION, forever, [], watch, 0).headroom_ms is None
    assert record_of_commit(DECISION, replace(PLAN, transaction_timeout_ms=1), [], watch, 0).headroom_ms == 0


def test_record_survives_json(clock: SimpleNamespace) -> None:
    record = record_of_commit(DECISION, PLAN, [message(0, 20)], watched(clock, *COMMIT), 0)
    letters = (DeadLetters(topic="dead", code="NULL_TOPIC", rows=3),)
    record = replace(record, user_metadata="ticket 7 \N{SNOWMAN}", dead_letters=letters)
    assert ": 200 rows; 3 dead letters; 2000 bytes; " in record.line()
    assert parse_record(b"w", record.encoded()) == record
    assert parse_record(b"w", record.encoded(), with_ranges=False) == replace(record, offsets=(), producers=())
    assert json.loads(record.encoded())["format"] == 1


def test_dead_letters_of_all_tasks_are_summed() -> None:
    def counted(of: PreparedTransaction, **counts: int) -> PreparedTransaction:
        return replace(
            of, dead_letters=tuple(DeadLetters(topic="d", code=code, rows=rows) for code, rows in counts.items())
        )

    one, two = DECISION.transactions
    decision = replace(DECISION, transactions=(counted(one, A=1, B=2), counted(two, A=4)))
    assert record_of(decision, 1).dead_letters == counted(one, A=5, B=2).dead_letters
    assert record_of(replace(decision, transactions=(counted(one), counted(two))), 1).dead_letters == ()
    assert record_of(replace(decision, transactions=(counted(one, A=1), two)), 1).dead_letters is None


def test_page_shows_the_warning_of_dead_letters() -> None:
    found = tuple(
        DeadLetters(topic="orders-dead-letters", code=code, rows=rows)
        for code, rows in (("RECORD_TOO_LARGE", 10), ("NO_SUCH_PARTITION", 2))
    )
    client = ClientConfig(bootstrap_servers=parse_bootstrap_servers("localhost:9092"))
    of = "version 20261121 of write id 'kafka-eos/nightly-orders/orders'"
    shown = [" ".join(block.text.split()) for block in read(ROOT / "docs" / "records.md").blocks]
    assert dead_letter_warning(found, 400, of, client) in shown


def test_warning_of_dead_letters_shows_no_control_characters() -> None:
    """Other programs write the commit log, from which a recovery takes it."""
    client = ClientConfig(bootstrap_servers=parse_bootstrap_servers("localhost:9092"))
    letters = DeadLetters(topic="dead", code="A\n\x1b[31m", rows=1)
    assert dead_letter_warning([letters], 1, "version 1", client).isprintable()


HOSTILE: dict[str, dict[str, Any]] = {
    "format": {"format": 2},
    "format of a bool": {"format": True},
    "rows": {"rows": "many"},
    "negative rows": {"rows": -2},
    "huge": {"rows": 10**400},
    "negative phase": {"write_ms": -1},
    "negative bytes": {"written_bytes": -1},
    "huge headroom": {"headroom_ms": 10**400},
    "negative dead letters": {"dead_letters": [{"topic": "d", "code": "A", "rows": -1}]},
    "bool": {"rows": True},
    "time": {"finished_ms": 10**18},
    "negative time": {"finished_ms": -1},
    "offsets": {"offsets": [[1, 2]]},
    "producers": {"producers": 7},
    "dead letters": {"dead_letters": [{"topic": "d", "code": "A", "rows": "many"}]},
    "dead letters of no topic": {"dead_letters": [{"topic": "\x1b[31m", "code": "A", "rows": 1}]},
    "surrogate": {"user_metadata": "\ud800"},
    "other write": {"write_id": "v"},
}


@pytest.mark.parametrize("changed", HOSTILE.values(), ids=HOSTILE)
def test_record_of_another_program_is_skipped(changed: dict[str, Any]) -> None:
    record = BatchRecord(write_id="w", query_id="q", version=1, finished_ms=0, rows=1, transactions=1)
    assert parse_record(b"w", json.dumps(record.as_json()).encode()) == record
    assert parse_record(b"w", json.dumps(record.as_json() | changed).encode()) is None


@pytest.mark.parametrize("value", [None, b"", b"[]", b"7", b"{}", b"\xff", b"[" * 100_000, b'{"format": 1}'])
def test_value_that_is_no_record_is_skipped(value: bytes | None) -> None:
    assert parse_record(b"w", value) is None
