"""The operator's answer, driven by a small scripted world: one commit log partition and the coordinators' states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.commit_log import (
    LogView,
    decision_records,
    done_record,
    parse_key,
    part_record,
)
from kafka_eos_sink.commit.prepared_transaction import (
    Decision,
    OffsetRange,
    PreparedTransaction,
    ProducerIdentity,
)
from kafka_eos_sink.commit.recovery import SettleLimits
from kafka_eos_sink.commit.resolve import Answer, Resolved, ResolveRequest, resolve
from kafka_eos_sink.commit.steps import Marker, MarkerType, ReadRecord, TransactionDescription
from kafka_eos_sink.errors import FencedError, KafkaEosError, TransactionAbortedError, WriteRefusedError
from kafka_eos_sink.protocol.error_codes import ErrorCode

W, Q = "kafka-eos/app/orders", "batch"
OLD_DRIVER = ProducerIdentity(transactional_id=f"{W}.driver", producer_id=1, producer_epoch=0, transaction_version=2)


def identity(task: int, producer_id: int) -> ProducerIdentity:
    return ProducerIdentity(
        transactional_id=f"{W}.{task}.0", producer_id=producer_id, producer_epoch=0, transaction_version=2
    )


@dataclass
class World:
    """Answers the steps as a cluster of transaction version 2 would; ``on`` lets something happen before a step."""

    entries: list[ReadRecord | Marker] = field(default_factory=list)
    states: dict[str, TransactionDescription] = field(default_factory=dict)
    asked: list[Any] = field(default_factory=list)
    on: dict[type[Any], Callable[[], None]] = field(default_factory=dict)
    end_error: int | None = ErrorCode.NONE.value
    driver_error: int | None = ErrorCode.NONE.value
    marks_driver: bool = True
    now: int = 0
    next_offset: int = 0

    def record(self, written: steps.LogRecord, by: ProducerIdentity | None) -> int:
        offset, self.next_offset = self.next_offset, self.next_offset + 1
        self.entries.append(
            ReadRecord(
                offset=offset,
                producer_id=-1 if by is None else by.producer_id,
                producer_epoch=-1 if by is None else by.producer_epoch,
                transactional=by is not None,
                key=written.key,
                value=written.value,
            )
        )
        return offset

    def open(self, by: ProducerIdentity, state: str = "Ongoing", epoch: int = 0) -> None:
        self.states[by.transactional_id] = TransactionDescription(
            state=state,
            producer_id=by.producer_id,
            producer_epoch=by.producer_epoch + epoch,
            timeout_ms=900_000,
            start_time_ms=0,
            partitions=frozenset(),
        )

    def end(self, by: ProducerIdentity, kind: MarkerType) -> None:
        self.entries.append(
            Marker(offset=self.next_offset, producer_id=by.producer_id, producer_epoch=by.producer_epoch + 1, type=kind)
        )
        self.next_offset += 1
        self.open(by, "CompleteCommit" if kind is MarkerType.COMMIT else "CompleteAbort", epoch=1)

    def prepare(self, task: int, producer_id: int, query_id: str = Q) -> PreparedTransaction:
        by = identity(task, producer_id)
        offset = self.record(part_record(W, query_id, task, 3, 0), by)
        self.open(by)
        where = OffsetRange(topic="orders", partition=task, first_offset=0, last_offset=9)
        return PreparedTransaction(
            partition=task, identity=by, part_offset=offset, rows=10, digest=None, offsets=(where,)
        )

    def decide(self, *named: PreparedTransaction, query_id: str = Q, version: int = 3) -> Decision:
        decision = Decision(
            write_id=W,
            query_id=query_id,
            version=version,
            nonce=f"n-{query_id}-{version}",
            driver=replace(OLD_DRIVER, producer_epoch=self.next_offset),
            topic="orders",
            schema="value string",
            offsets_hash="h",
            transactions=named,
        )
        for record in decision_records(decision):
            self.record(record, decision.driver)
        self.end(decision.driver, MarkerType.COMMIT)
        return decision

    def answer(self, step: Any) -> Any:
        if not isinstance(step, steps.Now | steps.Wait | steps.ReadLog | steps.LogPolicy):
            self.asked.append(step)
        if (happens := self.on.pop(type(step), None)) is not None:
            happens()
        match step:
            case steps.ListOpenTransactions():
                return tuple(key for key, state in self.states.items() if state.state == "Ongoing")
            case steps.DescribeTransactions(ids):
                return {each: self.states.get(each) for each in ids}
            case steps.InitProducerId(transactional_id, _):
                by = replace(OLD_DRIVER, transactional_id=transactional_id, producer_epoch=100)
                self.open(by, "Empty")
                return by
            case steps.Append(records):
                (record,) = records
                return self.record(record, None)
            case steps.AppendInTransaction(by, _, records):
                offsets = [self.record(each, by) for each in records]
                return steps.Appended(error=ErrorCode.NONE, offset=offsets[0])
            case steps.EndTransactions(ends):
                return tuple(self.ended(each) for each in ends)
            case steps.ReadLog(offset):
                entries = tuple(each for each in self.entries if each.offset >= offset)
                return steps.LogChunk(
                    entries=entries,
                    next_offset=max(offset, self.next_offset),
                    log_start_offset=0,
                    end_offset=self.next_offset,
                )
            case steps.LogPolicy():
                return "compact"
            case steps.Now():
                self.now += 1
                return self.now
        return None

    def ended(self, end: steps.End) -> steps.EndResult:
        by, kind = end.identity, MarkerType.COMMIT if end.commit else MarkerType.ABORT
        if by.transactional_id.endswith(".driver"):
            if self.driver_error == ErrorCode.NONE and self.marks_driver:
                self.end(by, kind)
            return steps.EndResult(error=self.driver_error)
        state = self.states[by.transactional_id]
        if (state.state, state.producer_epoch) != ("Ongoing", by.producer_epoch):
            return steps.EndResult(error=ErrorCode.INVALID_TXN_STATE)
        if self.end_error == ErrorCode.NONE:
            self.end(by, kind)
        return steps.EndResult(error=self.end_error)

    def resolve(self, answer: Answer, version: int = 3, query_id: str | None = None) -> Resolved:
        request = ResolveRequest(
            write_id=W,
            query_id=query_id,
            version=version,
            answer=answer,
            nonce="operator",
            limits=SettleLimits(deadline_ms=20),
        )
        procedure = resolve(request, 2)
        step = next(procedure)
        while True:
            try:
                step = procedure.send(self.answer(step))
            except StopIteration as stop:
                result: Resolved = stop.value
                return result

    def newest(self, query_id: str = Q) -> Decision | None:
        view = LogView(W)
        view.feed(self.entries, self.next_offset, 0)
        found = view.newest_decision(W, query_id)
        return None if found is None else found.decision

    def done(self, query_id: str = Q) -> str | None:
        view = LogView(W)
        view.feed(self.entries, self.next_offset, 0)
        return view.done_nonce(W, query_id)

    @property
    def ends(self) -> list[tuple[str, bool]]:
        """Task transactions that were asked to end, and how."""
        return [
            (end.identity.transactional_id, end.commit)
            for step in self.asked
            if isinstance(step, steps.EndTransactions)
            for end in step.ends
            if not end.identity.transactional_id.endswith(".driver")
        ]

    @property
    def fenced(self) -> bool:
        return any(isinstance(step, steps.InitProducerId) for step in self.asked)


def test_committed_commits_what_is_open_and_names_the_version_written() -> None:
    world = World()
    decision = world.decide(world.prepare(0, 10), world.prepare(1, 11))
    done = world.resolve("committed")
    assert world.ends[:2] == [(f"{W}.0.0", True), (f"{W}.1.0", True)]
    assert (done.superseded, done.ended) == (decision, (f"{W}.0.0", f"{W}.1.0"))
    newest = world.newest()
    assert newest is not None
    assert (newest.version, newest.resolution, newest.transactions, newest.nonce) == (3, "committed", (), "operator")
    assert (newest.topic, newest.schema, newest.offsets_hash) == ("orders", "value string", "h")
    assert world.done() == "operator"


def test_committed_leaves_alone_what_is_not_exactly_the_named_transaction() -> None:
    world = World()
    named = world.prepare(0, 10)
    world.decide(named)
    world.open(named.identity, epoch=5)  # a later transaction of the same id, that nobody decided
    done = world.resolve("committed")
    assert done.ended == ()
    assert (f"{W}.0.0", True) not in world.ends


@pytest.mark.parametrize("answer", ["aborted", "rewrite"])
def test_a_void_version_is_ended_and_has_no_done_record(answer: Answer) -> None:
    world = World()
    world.decide(world.prepare(0, 10))
    world.resolve(answer)
    assert world.ends[0] == (f"{W}.0.0", False)
    newest = world.newest()
    assert newest is not None
    assert newest.resolution == answer
    assert world.done() is None  # the next run would take the version for finished


def test_aborted_is_refused_before_anything_is_touched_where_a_part_is_committed() -> None:
    world = World()
    first, second = world.prepare(0, 10), world.prepare(1, 11)
    world.decide(first, second)
    world.end(first.identity, MarkerType.COMMIT)
    with pytest.raises(WriteRefusedError, match=r"ROWS_ARE_VISIBLE\].*1 of 2 .*orders-0 \[0..9\].*--as rewrite"):
        world.resolve("aborted")
    assert world.ends == []
    newest = world.newest()
    assert newest is not None
    assert newest.resolution is None


def test_aborted_is_refused_where_the_version_is_finished_though_its_markers_are_gone() -> None:
    world = World()
    decision = world.decide(world.prepare(0, 10))
    world.states.clear()
    world.entries = [each for each in world.entries if each.offset > 0]
    world.record(done_record(decision, 0), None)
    with pytest.raises(WriteRefusedError, match="ROWS_ARE_VISIBLE"):
        world.resolve("aborted")


def test_aborted_is_refused_where_the_former_driver_commits_at_this_moment() -> None:
    world = World()
    named = world.prepare(0, 10)
    world.decide(named)
    world.on[steps.EndTransactions] = lambda: world.end(named.identity, MarkerType.COMMIT)
    with pytest.raises(WriteRefusedError, match="ROWS_ARE_VISIBLE"):
        world.resolve("aborted")


def test_what_cannot_be_proven_may_be_called_aborted() -> None:
    world = World()
    named = world.prepare(0, 10)
    world.decide(named)
    world.end(replace(named.identity, producer_epoch=7), MarkerType.COMMIT)  # no marker that could be its own
    world.resolve("aborted")
    newest = world.newest()
    assert newest is not None
    assert newest.resolution == "aborted"


def test_a_resolution_can_be_replaced_but_not_what_was_called_committed_by_aborted() -> None:
    world = World()
    world.decide(world.prepare(0, 10))
    world.resolve("committed")
    with pytest.raises(WriteRefusedError, match="resolved as committed before"):
        world.resolve("aborted")
    world.resolve("rewrite")
    newest = world.newest()
    assert newest is not None
    assert newest.resolution == "rewrite"


def test_where_a_query_begins() -> None:
    world = World()
    done = world.resolve("committed", 7, "5f1c")
    assert done.superseded is None
    newest = world.newest("5f1c")
    assert newest is not None
    assert (newest.version, newest.resolution) == (7, "committed")


@pytest.mark.parametrize(
    ("answer", "version", "query_id", "code"),
    [
        ("committed", 4, None, "NOTHING_TO_RESOLVE.*newest is version 3, decided and not finished"),
        ("committed", 2, Q, "NOTHING_TO_RESOLVE"),
        ("aborted", 0, "other", "NOTHING_TO_RESOLVE.*none at all for it .*'batch'"),
    ],
)
def test_a_version_that_is_not_there_is_refused_before_the_fence(
    answer: Answer, version: int, query_id: str | None, code: str
) -> None:
    world = World()
    world.decide(world.prepare(0, 10))
    with pytest.raises(WriteRefusedError, match=code):
        world.resolve(answer, version, query_id)
    assert not world.fenced


def test_the_query_id_is_asked_for_where_it_is_not_clear() -> None:
    world = World()
    with pytest.raises(WriteRefusedError, match=r"QUERY_ID_NEEDED.*has none yet"):
        world.resolve("committed", 7)
    world.decide(world.prepare(0, 10))
    world.decide(world.prepare(1, 11, "q2"), query_id="q2")
    with pytest.raises(WriteRefusedError, match=r"QUERY_ID_NEEDED.*has 2: 'batch', 'q2'"):
        world.resolve("committed")
    assert not world.fenced


def test_a_decision_without_a_marker_is_not_passed_over() -> None:
    world = World()
    decision = world.decide(world.prepare(0, 10), query_id="q")
    world.entries = [each for each in world.entries if isinstance(each, ReadRecord)]
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE.*has no marker.*kafka-eos repair"):
        world.resolve("committed", decision.version, "q")


def test_list_fence_read_end_and_only_what_no_decision_names() -> None:
    world = World()
    world.decide(world.prepare(0, 10))
    others = world.prepare(1, 11, "q2")
    world.decide(others, query_id="q2")  # unfinished: its own recovery ends it
    world.prepare(2, 12)  # of an attempt that nobody decided
    world.resolve("committed", query_id=Q)
    kinds = [type(step) for step in world.asked]
    listed, fenced = kinds.index(steps.ListOpenTransactions), kinds.index(steps.InitProducerId)
    assert listed < fenced < kinds.index(steps.Append, fenced) < kinds.index(steps.EndTransactions)
    assert (f"{W}.2.0", False) in world.ends
    assert all(name != others.identity.transactional_id for name, _ in world.ends)


def test_nothing_is_recorded_where_a_transaction_cannot_be_ended() -> None:
    world = World(end_error=None)
    world.decide(world.prepare(0, 10))
    with pytest.raises(TransactionAbortedError, match="NOT_RESOLVED"):
        world.resolve("committed")
    newest = world.newest()
    assert newest is not None
    assert newest.resolution is None


@pytest.mark.parametrize(
    ("world", "error", "code"),
    [
        (World(driver_error=ErrorCode.PRODUCER_FENCED.value), FencedError, "FENCED"),
        (World(driver_error=None), TransactionAbortedError, "NOT_RESOLVED.*no answer"),
        (World(marks_driver=False), TransactionAbortedError, "NOT_RESOLVED"),
    ],
)
def test_an_answer_that_is_not_known_to_be_recorded_is_an_error(
    world: World, error: type[KafkaEosError], code: str
) -> None:
    world.decide(world.prepare(0, 10))
    with pytest.raises(error, match=code):
        world.resolve("committed")
    kinds = {key.kind for each in world.entries if isinstance(each, ReadRecord) and (key := parse_key(each.key))}
    assert "done" not in kinds


@pytest.mark.parametrize("answered", [None, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_an_answer_whose_end_was_not_heard_counts_once_its_marker_is_read(answered: int | None) -> None:
    """Not heard, or repeated when a driver that came after it had fenced already."""
    world = World()
    world.decide(world.prepare(0, 10))

    class Deaf(World):
        def ended(self, end: steps.End) -> steps.EndResult:
            result = super().ended(end)
            return replace(result, error=answered) if end.identity.transactional_id.endswith(".driver") else result

    deaf = Deaf(entries=world.entries, states=world.states, next_offset=world.next_offset)
    deaf.resolve("rewrite")
    newest = deaf.newest()
    assert newest is not None
    assert newest.resolution == "rewrite"
