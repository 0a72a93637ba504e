"""What a view of the commit log believes of records that somebody else wrote under the sink's keys."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import log_records
from kafka_eos_sink.commit.log_records import (
    decision_records,
    done_record,
    parse_key,
    parse_value,
    part_record,
)
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.steps import LogRecord, Marker, MarkerType, ReadRecord
from kafka_eos_sink.commit.values import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.logs import forget
from kafka_eos_sink.protocol.identity import ProducerIdentity

W, Q = "payments/orders", "batch"
DRIVER = ProducerIdentity(transactional_id=f"{W}.driver", producer_id=7, producer_epoch=3, transaction_version=2)
FORGER = ProducerIdentity(transactional_id="forger", producer_id=666, producer_epoch=0, transaction_version=2)
TASK = ProducerIdentity(transactional_id=f"{W}.0.3", producer_id=100, producer_epoch=0, transaction_version=2)


@pytest.fixture(autouse=True)
def no_warning_was_given() -> None:
    forget()


def decision(version: int = 4, driver: ProducerIdentity = DRIVER) -> Decision:
    offsets = (OffsetRange(topic="orders", partition=0, first_offset=10, last_offset=19),)
    prepared = PreparedTransaction(partition=0, identity=TASK, part_offset=5, rows=10, offsets=offsets)
    return Decision(
        write_id=W,
        query_id=Q,
        version=version,
        nonce="n1",
        driver=driver,
        topic="orders",
        schema="value string",
        offsets_hash=None,
        transactions=(prepared,),
    )


class Log:
    """Entries in the order of their offsets."""

    def __init__(self) -> None:
        self.entries: list[ReadRecord | Marker] = []

    @property
    def end(self) -> int:
        return len(self.entries)

    def write(self, record: LogRecord, producer: ProducerIdentity | None = None) -> int:
        """A record; in a transaction that is committed at once if a producer is given."""
        producer_id, epoch = (-1, -1) if producer is None else (producer.producer_id, producer.producer_epoch)
        offset = self.end
        self.entries.append(
            ReadRecord(
                offset=offset,
                producer_id=producer_id,
                producer_epoch=epoch,
                transactional=producer is not None,
                key=record.key,
                value=record.value,
            )
        )
        if producer is not None:
            marker = Marker(offset=self.end, producer_id=producer_id, producer_epoch=epoch + 1, type=MarkerType.COMMIT)
            self.entries.append(marker)
        return offset

    def read(self, write_id: str | None = W) -> LogView:
        view = LogView(write_id)
        view.feed(self.entries, self.end, 0)
        return view


def written(record: LogRecord, **changes: Any) -> LogRecord:
    """The record with other fields in its value."""
    return LogRecord(record.key, json.dumps(json.loads(record.value or b"") | changes).encode())


def with_body(record: LogRecord, change: Callable[[dict[str, Any]], object]) -> LogRecord:
    body = json.loads(json.loads(record.value or b"")["body"])
    change(body)
    return written(record, body=json.dumps(body))


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "another write id": lambda body: body.update(write_id="payments/orders.v2"),
    "another query id": lambda body: body.update(query_id="5f1c"),
    "the genuine driver": lambda body: body["driver"].update(producer_id=7, producer_epoch=3),
    "another epoch of its driver": lambda body: body["driver"].update(producer_epoch=1),
    "another driver's id": lambda body: body["driver"].update(transactional_id="payments/orders.v2.driver"),
    "somebody's transaction": lambda body: body["transactions"][0]["identity"].update(transactional_id="payments-tx-1"),
    "another writer's transaction": lambda body: body["transactions"][0]["identity"].update(
        transactional_id="payments/orders.v2.0.0"
    ),
    "its own driver as a part": lambda body: body["transactions"][0]["identity"].update(transactional_id=f"{W}.driver"),
    "a part of another partition": lambda body: body["transactions"][0].update(partition=1),
    "a number that is a truth value": lambda body: body.update(version=True),
    "a number that fits into no request": lambda body: body["transactions"][0]["identity"].update(producer_id=2**63),
    "an epoch that fits into no request": lambda body: body["transactions"][0]["identity"].update(producer_epoch=2**15),
    "a partition that fits into no request": lambda body: body["transactions"][0].update(offsets=[["t", 2**31, 0, 1]]),
    "a topic name that no topic has": lambda body: body["transactions"][0].update(offsets=[["t" * 250, 0, 0, 1]]),
    "a topic name on two lines": lambda body: body["transactions"][0].update(offsets=[["t\nERROR", 0, 0, 1]]),
    "text that is not Unicode": lambda body: body.update(schema="\ud800"),
    "an object for a number": lambda body: body.update(version={}),
    "a list for text": lambda body: body.update(schema=[]),
    "a list for text or nothing": lambda body: body.update(topic=[]),
    "an object for the transactions": lambda body: body.update(transactions={}),
    "half a range": lambda body: body["transactions"][0].update(offsets=[["t", 0, 1]]),
    "no transactions": lambda body: body.pop("transactions"),
    "text for transactions": lambda body: body.update(transactions="none"),
    "a nonce of unknown copies": lambda body: body.update(nonce="n1~x"),
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
def test_forged_decision_counts_for_nothing(
    forged: Callable[[dict[str, Any]], object], caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    genuine = decision()
    (record,) = decision_records(genuine)
    log.write(record, DRIVER)
    (false,) = decision_records(decision(5, replace(DRIVER, producer_id=666, producer_epoch=0)))
    log.write(with_body(false, forged), FORGER)
    query = log.read().query(Q)
    assert query.newest is not None
    assert query.newest.decision == genuine
    assert [each.offset for each in query.foreign] == [2]
    assert (query.undecided, len(query.of_plan("n1"))) == ([], 1)
    (warning,) = caplog.records
    assert "at offset 2 that its driver did not write" in warning.getMessage()


def test_forged_decisions_are_ignored_in_one_pass_and_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    genuine = decision()
    (record,) = decision_records(genuine)
    log.write(record, DRIVER)
    for number in range(6_000):
        log.write(record, replace(FORGER, producer_id=1_000 + number))
    query = log.read().query(Q)
    began = time.process_time()
    assert query.newest is not None
    assert query.newest.decision == genuine
    assert len(query.foreign) == 6_000
    assert time.process_time() - began < 6
    assert len(caplog.records) == 1


def test_forged_decisions_in_pieces_are_ignored_in_one_pass() -> None:
    """A log of 1 MB, whose decisions all named the same pieces, kept `kafka-eos metrics` busy for an hour."""
    log = Log()
    genuine = decision()
    (record,) = decision_records(genuine)
    log.write(record, DRIVER)
    numbers = [*range(1, 5_000), *[0] * 5_000]
    for number in numbers:
        key = log_records.log_key("decision", W, Q, number)
        log.entries.append(
            ReadRecord(
                offset=log.end,
                producer_id=666,
                producer_epoch=0,
                transactional=True,
                key=key,
                value=written(record, nonce="n", count=5_000, body="x").value,
            )
        )
    log.entries.append(Marker(offset=log.end, producer_id=666, producer_epoch=1, type=MarkerType.COMMIT))
    query = log.read().query(Q)
    began = time.process_time()
    assert query.newest is not None
    assert query.newest.decision == genuine
    assert len(query.foreign) == 5_000
    assert time.process_time() - began < 20


def test_forged_piece_does_not_complete_a_decision() -> None:
    records = decision_records(replace(decision(), schema="s" * 600_000))
    assert len(records) == 2
    log = Log()
    log.write(records[0], DRIVER)
    log.write(records[1], FORGER)
    with pytest.raises(WriteRefusedError, match=r"COMMIT_LOG_CORRUPT\] piece 2 of 2"):
        assert log.read().query(Q).newest


VALUES = [
    b"",
    b"\xff",
    b"[]",
    b"{}",
    b"null",
    b'"x"',
    b'{"format":"2"}',
    b'{"format":2}',
    b"[" * 100_000,
    b'{"format":2,"nonce":1,"version":"x","attempt":null,"finished_ms":1e999,"count":1,"body":"{}"}',
    b'{"format":' + b"9" * 5_000 + b"}",
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize("kind", ["barrier", "part", "done", "decision"])
def test_foreign_value_under_our_key_hides_nothing(kind: str, value: bytes) -> None:
    log, genuine = Log(), decision()
    (record,) = decision_records(genuine)
    log.write(record, DRIVER)
    done = done_record(genuine, 1_000)
    log.write(done)
    keys = {
        "barrier": log_records.log_key("barrier", W),
        "part": log_records.log_key("part", W, Q, 0),
        "done": done.key,
        "decision": record.key,
    }
    log.write(LogRecord(keys[kind], value), FORGER)
    log.write(LogRecord(keys[kind], value))
    view = log.read()
    found = view.query(Q).newest
    assert found is not None
    assert view.query(Q).state_of(found.decision).is_settled
    assert sum(len(query.foreign) for query in view.queries("foreign")) == 2


KEYS = [
    b"[" * 2_000,
    b'["barrier", "w"]',
    b'["barrier","w",1]',
    b'["part","w","batch",true]',
    b'["part","w","batch",-1]',
    b'["part","w","batch",1.0]',
    b'["part","w","batch",2147483648]',
    b'["part","w","batch",' + b"9" * 5_000 + b"]",
    b'["done","\\ud800","batch"]',
    b'["done","w"]',
    b'["done",["w"],"batch"]',
    b'["done","w","a\\n[KAFKA_EOS.X] b"]',
    b'["part","w","a\\u001b[2J",0]',
    b'["decision","w","batch",0]\n',
    b"\xff\xfe",
    b"",
]


@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
def test_key_that_the_sink_never_writes_is_ignored(key: bytes) -> None:
    assert parse_key(key) is None


@pytest.mark.parametrize(
    ("write_id", "key"),
    [
        (W, b"[" + b"1," * 400_000 + b"1]"),
        (None, b"[" + b"1," * 400_000 + b"1]"),
        (W, part_record("another", Q, 0, 4, 7).key),
        (None, b'["part","' + b"x" * 400_000 + b'","q",1]'),
    ],
    ids=["an array", "an array, all writes", "another write's", "too long, all writes"],
)
def test_keys_of_others_cost_a_reader_no_parsing(
    monkeypatch: pytest.MonkeyPatch, write_id: str | None, key: bytes
) -> None:
    """They compress to a few bytes. A small log of them delayed every plan in its partition by minutes."""

    def parse(text: bytes) -> None:
        raise AssertionError(f"{len(text)} bytes of another program's were parsed")

    monkeypatch.setattr(log_records.json, "loads", parse)
    view = LogView(write_id)
    view.feed([ReadRecord(offset=0, producer_id=1, producer_epoch=0, transactional=False, key=key, value=b"{}")], 1, 0)
    assert view.queries("part", "foreign") == ()


def test_done_record_of_many_partitions_fits_a_readers_limit() -> None:
    offsets = tuple(
        OffsetRange(topic="orders", partition=each, first_offset=2**40, last_offset=2**40) for each in range(30_000)
    )
    wide = replace(decision(), transactions=(replace(decision().transactions[0], offsets=offsets),))
    record = done_record(wide, 1_000)
    assert len(record.value or b"") < log_records.MAX_RECORD_BYTES
    key = parse_key(record.key)
    assert key is not None
    assert (parse_value(key, record.value or b"") or {})["nonce"] == "n1"


def test_forged_decision_is_not_what_a_planner_keeps() -> None:
    log = Log()
    genuine = decision()
    (record,) = decision_records(genuine)
    log.write(record, DRIVER)
    (false,) = decision_records(replace(genuine, version=5))
    log.write(false, FORGER)
    view = log.read()
    assert view.query(Q).newest is not None
    view.forget_superseded()
    found = view.query(Q).newest
    assert found is not None
    assert found.decision == genuine
