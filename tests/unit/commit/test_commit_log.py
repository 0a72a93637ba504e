"""The records of the commit log and the view that reads them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import log_records
from kafka_eos_sink.commit.log_records import decision_records
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.steps import LogRecord, Marker, MarkerType, ReadRecord
from kafka_eos_sink.commit.values import DeadLetters, Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.commit.versions import VersionRange, Versions
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity

W, Q = "payments/orders", "batch"
DRIVER = ProducerIdentity(transactional_id=f"{W}.driver", producer_id=7, producer_epoch=3, transaction_version=2)
NEXT = replace(DRIVER, producer_epoch=4)


def prepared(partition: int) -> PreparedTransaction:
    identity = ProducerIdentity(
        transactional_id=f"{W}.{partition}.0", producer_id=100 + partition, producer_epoch=0, transaction_version=2
    )
    offsets = (OffsetRange(topic="orders", partition=partition % 3, first_offset=10, last_offset=19),)
    return PreparedTransaction(
        partition=partition,
        identity=identity,
        part_offset=5 + partition,
        rows=10,
        offsets=offsets,
    )


def decision(version: int = 4, parts: int = 2, nonce: str = "n1", driver: ProducerIdentity = DRIVER) -> Decision:
    return Decision(
        write_id=W,
        query_id=Q,
        version=version,
        nonce=nonce,
        driver=driver,
        topic="orders",
        schema="value string",
        offsets_hash=None,
        transactions=tuple(prepared(partition) for partition in range(parts)),
    )


def read(record: LogRecord, offset: int, identity: ProducerIdentity | None) -> ReadRecord:
    return ReadRecord(
        offset=offset,
        producer_id=-1 if identity is None else identity.producer_id,
        producer_epoch=-1 if identity is None else identity.producer_epoch,
        transactional=identity is not None,
        key=record.key,
        value=record.value,
    )


def marker(offset: int, producer_id: int, epoch: int, kind: MarkerType = MarkerType.COMMIT) -> Marker:
    return Marker(offset=offset, producer_id=producer_id, producer_epoch=epoch, type=kind)


def view_of(*entries: ReadRecord | Marker) -> LogView:
    view = LogView(W)
    view.feed(entries, entries[-1].offset + 1, 0)
    return view


def test_large_decision_is_split_into_records_and_reassembled() -> None:
    large = decision(parts=3_000)
    records = decision_records(large)
    assert len(records) > 1
    assert all(len(record.value or b"") < 1_000_000 for record in records)
    entries = [read(record, 20 + i, DRIVER) for i, record in enumerate(records)]
    found = view_of(*entries, marker(20 + len(records), 7, 4)).query(Q).newest
    assert found is not None
    assert found.decision == large


def test_missing_piece_of_a_decision_raises_corrupt() -> None:
    records = decision_records(decision(parts=3_000))
    view = view_of(read(records[0], 20, DRIVER), marker(21, 7, 4))
    with pytest.raises(WriteRefusedError, match=r"\[KAFKA_EOS.COMMIT_LOG_CORRUPT\] piece 2"):
        assert view.query(Q).newest


def test_a_tombstone_forgets_the_decision() -> None:
    (record,) = decision_records(decision())
    view = view_of(
        read(record, 20, DRIVER),
        marker(21, 7, 4),
        read(LogRecord(record.key, None), 22, replace(DRIVER, producer_epoch=4)),
        marker(23, 7, 5),
    )
    assert view.query(Q).newest is None


@pytest.mark.parametrize("version", [0, log_records.FORMAT_VERSION + 1])
def test_decision_of_another_format_is_refused(version: int) -> None:
    (record,) = decision_records(decision())
    other = LogRecord(record.key, json.dumps({"format": version}).encode())
    view = view_of(read(record, 3, DRIVER), marker(4, 7, 4), read(other, 5, NEXT), marker(6, 7, 5))
    with pytest.raises(WriteRefusedError, match=r"COMMIT_LOG_FORMAT.*offset 5.*upgrade"):
        assert view.query(Q).newest


@pytest.mark.parametrize("kind", ["barrier", "done", "part"])
def test_other_records_of_a_newer_format_prove_nothing(kind: str) -> None:
    """A newer driver planned or finished something. Its decision alone says what, and stops this version of the sink."""
    records = {
        "barrier": log_records.barrier_record(W, "n"),
        "done": log_records.done_record(decision(), 1_000),
        "part": log_records.part_record(W, Q, 0, 4, 7),
    }
    newer = LogRecord(records[kind].key, json.dumps({"format": log_records.FORMAT_VERSION + 1}).encode())
    (record,) = decision_records(decision())
    view = view_of(
        read(record, 3, DRIVER), marker(4, 7, 4), read(newer, 5, prepared(0).identity if kind == "part" else None)
    )
    found = view.query(Q).newest
    assert found is not None
    assert not view.query(Q).has_done_record(found.decision)


STORED = LogRecord(
    b'["decision","payments/orders","batch",0]',
    b'{"format":2,"nonce":"n1","transaction_version":2,"number":0,"count":1,"body":"{'
    rb"\"write_id\":\"payments/orders\",\"query_id\":\"batch\",\"version\":4,\"nonce\":\"n1\","
    rb"\"driver\":{\"transactional_id\":\"payments/orders.driver\",\"producer_id\":7,\"producer_epoch\":3,\"transaction_version\":2},"
    rb"\"topic\":\"orders\",\"schema\":\"value string\",\"offsets_hash\":null,\"transactions\":[{\"partition\":0,"
    rb"\"identity\":{\"transactional_id\":\"payments/orders.0.0\",\"producer_id\":100,\"producer_epoch\":0,\"transaction_version\":2},"
    rb'\"part_offset\":5,\"rows\":10,\"offsets\":[[\"orders\",0,10,19]],\"proven\":false}],\"resolution\":null,\"foreach_call\":null}"}',
)
"""A decision as the first version with format 2 wrote it: all versions up to its own count as written."""
LATER = (
    rb"\"proven\":false,\"ended\":null,\"written_bytes\":100,"
    rb"\"dead_letters\":[{\"topic\":\"dead\",\"code\":\"NULL_TOPIC\",\"rows\":3}]"
)
STORED_NOW = LogRecord(
    STORED.key,
    (STORED.value or b"")
    .replace(b'"format":2', b'"format":3')
    .replace(rb"10,19]", rb"10,19,10]")
    .replace(rb"\"proven\":false", LATER)[:-3]
    + rb",\"foreach_query\":\"\",\"versions\":{\"ranges\":[[2,2],[4,6]],\"floor\":1},\"application_id\":\"app\","
    + rb'\"user_metadata\":null}"}',
)


def test_stored_decision_of_format_2_stays_readable_and_written() -> None:
    """Drivers of two versions share a commit log, and its records are older than the package."""
    found = view_of(read(STORED, 20, DRIVER), marker(21, 7, 4)).query(Q).newest
    assert found is not None
    assert found.decision == decision(parts=1)
    assert found.decision.written_versions == Versions.up_to(4)


def _fields(record: LogRecord) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(record.value or b"")
    return value | {"body": json.loads(value["body"])}


def test_stored_decision_has_the_fields_of_now() -> None:
    """An older driver refuses it, because it knows no rows of a range."""
    versions = Versions((VersionRange(2, 2), VersionRange(4, 6)), floor=1)
    now = replace(decision(parts=1), foreach_query="", versions=versions, application_id="app")
    letters = (DeadLetters(topic="dead", code="NULL_TOPIC", rows=3),)
    (entry,) = now.transactions
    offsets = tuple(replace(part, rows=10) for part in entry.offsets)
    now = replace(now, transactions=(replace(entry, written_bytes=100, dead_letters=letters, offsets=offsets),))
    (record,) = decision_records(now)
    assert (record.key, _fields(record)) == (STORED_NOW.key, _fields(STORED_NOW))
    found = view_of(read(STORED_NOW, 20, DRIVER), marker(21, 7, 4)).query(Q).newest
    assert found is not None
    assert found.decision == now


def test_decision_of_format_1_is_read_without_its_digests() -> None:
    """A driver of the version before may have decided it and died, and this one finishes it."""
    (record,) = decision_records(decision())
    fields = json.loads(record.value or b"")
    body = json.loads(fields["body"])
    for number, entry in enumerate(body["transactions"]):
        entry["digest"] = None if number else f"{2**127:032x}"
    old = json.dumps(fields | {"format": 1, "body": json.dumps(body)}).encode()
    found = view_of(read(LogRecord(record.key, old), 20, DRIVER), marker(21, 7, 4)).query(Q).newest
    assert found is not None
    assert found.decision == decision()


def test_records_fetched_twice_count_once() -> None:
    (record,) = decision_records(decision())
    entry = read(record, 20, DRIVER)
    view = LogView(W)
    view.feed((entry,), 21, 0)
    view.feed((entry, marker(21, 7, 4)), 22, 0)
    assert view.query(Q).newest is not None
    assert view.query(Q).undecided == []


C, A, E = MarkerType.COMMIT, MarkerType.ABORT, MarkerType.EMPTY


def test_different_writes_never_share_a_key() -> None:
    keys = {
        log_records.log_key("decision", "a", "b", 0),
        log_records.log_key("decision", "a/b", "", 0),
        log_records.log_key("part", "a", "b", 0),
        log_records.log_key("part", "a", "b,0", 0),
        log_records.log_key("decision", 'a","b', "", 0),
        log_records.log_key("done", "a", "b"),
        log_records.log_key("barrier", "a"),
    }
    assert len(keys) == 7


def test_tombstones_name_every_key_of_the_write() -> None:
    keys = [record.key for record in log_records.tombstones(decision(parts=2))]
    assert keys == [
        log_records.log_key("part", W, Q, 0),
        log_records.log_key("part", W, Q, 1),
        log_records.log_key("decision", W, Q, 0),
        log_records.log_key("barrier", W),
    ]


OTHER = replace(DRIVER, producer_id=8)


def test_decision_without_a_marker_below_the_newest_one_is_not_undecided() -> None:
    """It counts for nothing, and a driver that wrote it again would take the newest one's place."""
    (first,), (second,) = decision_records(decision(3)), decision_records(decision(4, driver=OTHER))
    below = [read(first, 0, DRIVER), read(second, 1, OTHER), marker(2, OTHER.producer_id, OTHER.producer_epoch + 1)]
    assert view_of(*below).query(Q).undecided == []
    above = [read(second, 0, OTHER), marker(1, OTHER.producer_id, OTHER.producer_epoch + 1), read(first, 2, DRIVER)]
    assert [record.offset for record in view_of(*above).query(Q).undecided] == [2]


def test_record_outside_a_transaction_is_no_decision() -> None:
    """The sink writes decisions in transactions only, so another program wrote it: nobody must finish or repeat it."""
    (record,) = decision_records(decision())
    query = view_of(read(record, 0, None)).query(Q)
    assert query.undecided == []
    assert [each.offset for each in query.foreign] == [0]


def test_piece_of_an_aborted_transaction_does_not_complete_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below version 2 a driver's transactions have one epoch."""
    monkeypatch.setattr(log_records, "MAX_RECORD_BYTES", 400)
    driver = replace(DRIVER, transaction_version=0)
    first, *others = decision_records(decision(parts=4, driver=driver))
    assert others
    ends = driver.producer_id, driver.producer_epoch
    entries: list[ReadRecord | Marker] = [read(each, at, driver) for at, each in enumerate(others)]
    entries += [marker(50, *ends, MarkerType.ABORT), read(first, 51, driver), marker(52, *ends)]
    with pytest.raises(WriteRefusedError, match="COMMIT_LOG_CORRUPT"):
        _ = view_of(*entries).query(Q).newest


def test_chunk_that_begins_earlier_changes_nothing() -> None:
    """A Fetch returns the whole batch that holds its offset."""
    (record,) = decision_records(decision())
    entry = read(record, 0, DRIVER)
    view = view_of(entry)
    view.feed([entry], 1, 0)
    view.feed([], 0, 0)
    assert view.next_offset == 1
    assert len(view.query(Q).undecided) == 1
