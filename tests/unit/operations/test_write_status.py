"""The commit log in words, from the records that the sink writes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafka_eos_sink.commit.log_records import barrier_record, decision_records, done_record, part_record
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.steps import LogChunk, LogRecord, Marker, MarkerType, Procedure, ReadLog, ReadRecord
from kafka_eos_sink.commit.values import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.commit.write_states import CommittedWrite, writes_in
from kafka_eos_sink.operations import write_status
from kafka_eos_sink.operations.write_status import CommitLogWatch
from kafka_eos_sink.protocol.identity import ProducerIdentity

W = "kafka-eos/app/orders"
Q = "batch"
DRIVER = 900


class Log:
    """A partition of the commit log under construction."""

    def __init__(self) -> None:
        self.entries: list[ReadRecord | Marker] = []

    @property
    def end(self) -> int:
        return len(self.entries)

    def append(self, record: LogRecord, producer_id: int = -1, epoch: int = 0) -> int:
        self.entries.append(
            ReadRecord(
                offset=self.end,
                producer_id=producer_id,
                producer_epoch=epoch,
                transactional=producer_id >= 0,
                key=record.key,
                value=record.value,
            )
        )
        return self.end - 1

    def end_transaction(self, producer_id: int, epoch: int = 1, kind: MarkerType = MarkerType.COMMIT) -> None:
        self.entries.append(Marker(offset=self.end, producer_id=producer_id, producer_epoch=epoch, type=kind))

    def prepare(self, partition: int, version: int = 3, rows: int = 10) -> PreparedTransaction:
        producer_id = 100 + partition
        offset = self.append(part_record(W, Q, partition, version, 7), producer_id)
        return PreparedTransaction(
            partition=partition,
            identity=identity(f"{W}.{partition}.0", producer_id),
            part_offset=offset,
            rows=rows,
            offsets=(
                OffsetRange(topic="orders", partition=0, first_offset=partition * 100, last_offset=partition * 100 + 9),
            ),
        )

    def decide(self, *prepared: PreparedTransaction, version: int = 3, nonce: str = "n") -> Decision:
        decision = Decision(
            write_id=W,
            query_id=Q,
            version=version,
            nonce=nonce,
            driver=identity(f"{W}.driver", DRIVER),
            topic="orders",
            schema="",
            offsets_hash=None,
            transactions=prepared,
        )
        for record in decision_records(decision):
            self.append(record, DRIVER)
        return decision

    def writes(self, write_id: str | None = None, pieces: int = 1) -> tuple[CommittedWrite, ...]:
        view = LogView(write_id)
        step = -(-self.end // pieces)
        for start in range(0, self.end, step):
            part = tuple(self.entries[start : start + step])
            view.feed(part, start + len(part), 0)
        return writes_in(view)


def identity(transactional_id: str, producer_id: int) -> ProducerIdentity:
    return ProducerIdentity(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=0, transaction_version=2
    )


def finished_log() -> Log:
    log = Log()
    log.append(barrier_record(W, "b"))
    parts = (log.prepare(0), log.prepare(1))
    decision = log.decide(*parts)
    log.end_transaction(DRIVER)
    for part in parts:
        log.end_transaction(part.identity.producer_id)
    log.append(done_record(decision, 1_700_000_000_123))
    return log


def test_part_below_an_operators_decision_is_not_prepared() -> None:
    """Its transaction has no marker in the log, and no run waits for it any more; a part above begins the next run."""
    log = Log()
    log.append(barrier_record(W, "b"))
    decision = log.decide(log.prepare(0))
    log.end_transaction(DRIVER)
    log.prepare(1, version=4)
    driver = replace(decision.driver, producer_epoch=1)
    for record in decision_records(replace(decision, driver=driver, nonce="o", transactions=(), resolution="rewrite")):
        log.append(record, DRIVER, 1)
    log.end_transaction(DRIVER, 2)
    assert [(each.version, each.state) for each in log.writes()] == [(3, "resolved")]
    log.prepare(0)
    assert [(each.version, each.state) for each in log.writes()] == [(3, "resolved"), (3, "prepared")]


def test_finished_write_shows_its_time_and_offsets() -> None:
    for pieces in (1, 3, 100):
        (write,) = finished_log().writes(pieces=pieces)
        assert (write.state, write.version, write.rows, write.transactions) == (
            "finished",
            3,
            20,
            2,
        )
        assert write.finished_at == "2023-11-14T22:13:20.123+00:00"
        assert write.offsets == (OffsetRange(topic="orders", partition=0, first_offset=0, last_offset=109),)
        assert write.as_json()["offsets"] == [
            {"topic": "orders", "partition": 0, "first_offset": 0, "last_offset": 109}
        ]


class WatchedLog(CommitLogWatch):
    """A watch of one partition, which is in memory."""

    def __init__(self, log: Log) -> None:
        self.log, self.view = log, LogView(None)
        admin = SimpleNamespace(
            client=SimpleNamespace(clock=lambda: 0),
            topic=lambda *_: object(),
            list_offsets=lambda where, *_, **__: dict.fromkeys(where, log.end),
        )
        super().__init__(cast(Any, admin), "log", timeout_ms=1)
        self._views = {("log", 0): self.view}

    def run(self, procedure: Procedure[None]) -> None:
        """Read as an executor, in one chunk."""
        step = procedure.send(None)
        assert isinstance(step, ReadLog)
        chunk = LogChunk(
            entries=tuple(self.log.entries[step.offset :]),
            next_offset=self.log.end,
            log_start_offset=0,
            end_offset=self.log.end,
        )
        with pytest.raises(StopIteration):
            procedure.send(chunk)


def test_foreign_record_keeps_no_parts_of_other_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    log = finished_log()
    offset = log.append(LogRecord(part_record("w2", Q, 0, 1, 1).key, b"junk"))
    log.append(part_record("w3", Q, 0, 5, 1), 500)
    watch = WatchedLog(log)
    monkeypatch.setattr(write_status, "Executor", lambda *_: watch)
    for _ in range(2):
        states = {(write.write_id, write.state) for write in watch.writes()}
        assert states == {(W, "finished"), ("w2", "unreadable"), ("w3", "prepared")}
        assert [query.write_id for query in watch.view.queries("part")] == ["w3"]
    (problem,) = (write.problem for write in watch.writes() if write.problem)
    assert problem.endswith(f"at offsets {offset}")
    log.end_transaction(500, kind=MarkerType.ABORT)
    assert {write.write_id for write in watch.writes()} == {W, "w2"}


def test_each_state_is_read_from_its_records() -> None:
    """A later version stands beside the finished one; the done record of an earlier version finishes nothing."""

    def states(log: Log) -> list[tuple[str, int | None, int]]:
        return [(each.state, each.version, each.transactions) for each in log.writes()]

    log = finished_log()
    parts = log.prepare(0, version=4), log.prepare(1, version=4)
    assert states(log) == [("finished", 3, 2), ("prepared", 4, 2)]
    log.decide(*parts, version=4, nonce="later")
    assert states(log) == [("finished", 3, 2), ("in-doubt", 4, 0)]
    log.end_transaction(DRIVER)
    assert states(log) == [("decided", 4, 2)]
    assert log.writes("kafka-eos/app") == ()
