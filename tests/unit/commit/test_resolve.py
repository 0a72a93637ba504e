"""The operator's resolution, driven by a small scripted world: one commit log partition and the coordinators' states."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_records import decision_records, done_record, part_record
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.resolve import Resolution, Resolved, ResolveRequest, resolve
from kafka_eos_sink.commit.steps import Marker, MarkerType, ReadRecord, TransactionDescription
from kafka_eos_sink.commit.values import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerUnavailableError,
    DecisionPendingError,
    FencedError,
    KafkaEosError,
    TransactionAbortedError,
    WriteRefusedError,
)
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity

W, Q = "kafka-eos/app/orders", "batch"
NOVEMBER_2026 = 1_796_000_000_000
GONE: dict[int, tuple[int, int]] = {}
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
    held: dict[tuple[str, int], dict[int, tuple[int, int]]] = field(default_factory=dict)
    readable: frozenset[OffsetRange] = frozenset()
    unseen: steps.Unseen = steps.Unseen.GONE
    """Of the ranges that are not readable."""
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
        return PreparedTransaction(partition=task, identity=by, part_offset=offset, rows=10, offsets=(where,))

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
            case steps.DescribeProducers(partitions):
                if self.held.get(partitions[0]) is GONE:
                    raise steps.DataTopicGoneError("UNKNOWN_TOPIC", "topic 'orders' is not known")
                return {where: self.held.get(where, {}) for where in partitions}
            case steps.LastStableOffsets(partitions):
                return {where: None if self.held.get(where) is GONE else self.stable(where) for where in partitions}
            case steps.CopyRecords(copies):
                return tuple(steps.Gone(f"{each.source.transactional_id}: retention") for each in copies)
            case steps.AbortedTransactions(ranges):
                return {where: () if where in self.readable else self.unseen for where in ranges}
            case steps.AreCommitted(written):
                return (None,) * len(written)
            case steps.Now():
                self.now += 1
                return self.now
            case steps.WallClock():
                return NOVEMBER_2026
            case steps.Wait(ms):
                self.now += ms
        return None

    def stable(self, where: tuple[str, int]) -> int:
        return min((start for _, start in self.held.get(where, {}).values() if start >= 0), default=10)

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

    def resolve(
        self, resolution: Resolution, version: int = 3, query_id: str | None = None, *, allow_duplicates: bool = False
    ) -> Resolved:
        request = ResolveRequest(
            write_id=W,
            query_id=query_id,
            version=version,
            resolution=resolution,
            nonce="operator",
            transaction_timeout_ms=900_000,
            allow_duplicates=allow_duplicates,
            within_ms=20,
        )
        procedure = resolve(request, 2)
        step = next(procedure)
        while True:
            try:
                try:
                    answer_of_step = self.answer(step)
                except KafkaEosError as failure:
                    step = procedure.throw(failure)
                else:
                    step = procedure.send(answer_of_step)
            except StopIteration as stop:
                result: Resolved = stop.value
                return result

    def newest(self, query_id: str = Q) -> Decision | None:
        view = LogView(W)
        view.feed(self.entries, self.next_offset, 0)
        found = view.query(query_id).newest
        return None if found is None else found.decision

    def done(self, query_id: str = Q, field: str = "nonce") -> Any:
        view = LogView(W)
        view.feed(self.entries, self.next_offset, 0)
        done = view.query(query_id).done
        return None if done is None else done[field]

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


def test_committed_ends_open_parts_and_marks_version_written() -> None:
    world = World()
    decision = world.decide(world.prepare(0, 10), world.prepare(1, 11))
    done = world.resolve("committed")
    assert world.ends[:2] == [(f"{W}.0.0", True), (f"{W}.1.0", True)]
    assert done.superseded == decision
    newest = world.newest()
    assert newest is not None
    assert (newest.version, newest.resolution, newest.transactions, newest.nonce) == (3, "committed", (), "operator")
    assert (newest.topic, newest.schema, newest.offsets_hash) == ("orders", "value string", "h")
    assert world.done() == "operator"
    # `status` and the metrics show it as a time; the clock of this process shows 1970.
    assert world.done(field="finished_ms") == NOVEMBER_2026


@pytest.mark.parametrize("has_joined", [False, True])
def test_later_transaction_is_ended_unless_it_has_joined(has_joined: bool) -> None:
    """Nobody decides it after the fence, so it would block readers for ever. If it has joined, its ABORT would discard committed rows."""
    world = World()
    named = world.prepare(0, 10)
    world.decide(named)
    world.open(named.identity, epoch=5)
    if has_joined:
        world.held["orders", 0] = {10: (5, 0)}
        with pytest.raises(TransactionAbortedError, match=r"NOT_RESOLVED\].*orders-0 still holds .*\.0\.0 open"):
            world.resolve("committed")
    else:
        world.resolve("committed")
    later = world.states[named.identity.transactional_id]
    assert (later.state, later.producer_epoch) == (("Ongoing", 5) if has_joined else ("CompleteAbort", 6))
    newest = world.newest()
    assert newest is not None
    assert newest.resolution == (None if has_joined else "committed")


def test_open_version_is_finished_and_not_rewritten() -> None:
    """Its rows are complete, and a new run would write them twice."""
    world = World()
    decision = world.decide(world.prepare(0, 10), world.prepare(1, 11))
    with pytest.raises(WriteRefusedError, match=r"ROWS_ARE_VISIBLE\].*just finished it.*--allow-duplicates"):
        world.resolve("rewrite")
    assert world.ends[:2] == [(f"{W}.0.0", True), (f"{W}.1.0", True)]
    assert (world.newest(), world.done()) == (decision, decision.nonce)
    world.resolve("rewrite", allow_duplicates=True)
    newest = world.newest()
    assert newest is not None
    assert (newest.resolution, newest.transactions) == ("rewrite", ())
    assert world.done() == decision.nonce, "not the resolution's, which would mean that it is finished"


@pytest.mark.parametrize("allow_duplicates", [False, True])
def test_a_void_version_has_no_done_record(allow_duplicates: bool) -> None:
    world = World()
    named = world.prepare(0, 10)
    world.decide(named)
    world.end(named.identity, MarkerType.ABORT)
    world.resolve("rewrite", allow_duplicates=allow_duplicates)
    newest = world.newest()
    assert newest is not None
    assert newest.resolution == "rewrite"
    assert world.done() is None  # the next run would take the version for finished


def test_rewrite_is_rejected_when_a_part_is_committed() -> None:
    world = World()
    first, second = world.prepare(0, 10), world.prepare(1, 11)
    world.decide(first, second)
    world.end(first.identity, MarkerType.COMMIT)
    world.end(second.identity, MarkerType.ABORT)
    with pytest.raises(
        WriteRefusedError, match=r"ROWS_ARE_VISIBLE\].*1 of its 2 .*orders-0 \[0..9\].*--allow-duplicates"
    ):
        world.resolve("rewrite")
    newest = world.newest()
    assert newest is not None
    assert newest.resolution is None


def test_rewrite_is_rejected_when_finished_version_lost_markers() -> None:
    world = World()
    decision = world.decide(world.prepare(0, 10))
    world.states.clear()
    world.entries = [each for each in world.entries if each.offset > 0]
    world.record(done_record(decision, 0), None)
    with pytest.raises(WriteRefusedError, match="ROWS_ARE_VISIBLE"):
        world.resolve("rewrite")


def test_rewrite_is_rejected_when_older_driver_commits_meanwhile() -> None:
    world = World()
    named = world.prepare(0, 10)
    world.decide(named)
    world.on[steps.EndTransactions] = lambda: world.end(named.identity, MarkerType.COMMIT)
    with pytest.raises(WriteRefusedError, match="ROWS_ARE_VISIBLE"):
        world.resolve("rewrite")


def test_rewrite_is_rejected_if_readers_see_rows_of_an_open_part() -> None:
    """Below version 2, a late AddPartitionsToTxn opens a committed transaction again, whose marker is missing in the commit log."""
    world = World()
    named = world.prepare(0, 10)
    named = replace(named, identity=replace(named.identity, transaction_version=0))
    world.decide(named)
    world.readable = frozenset(named.offsets)
    with pytest.raises(WriteRefusedError, match="ROWS_ARE_VISIBLE"):
        world.resolve("rewrite")


def test_committed_resolution_is_rewritten_only_on_demand() -> None:
    world = World()
    world.decide(world.prepare(0, 10))
    world.resolve("committed")
    with pytest.raises(WriteRefusedError, match="counts as written"):
        world.resolve("rewrite")
    world.resolve("rewrite", allow_duplicates=True)
    newest = world.newest()
    assert newest is not None
    assert newest.resolution == "rewrite"


def test_start_version_of_a_query() -> None:
    world = World()
    done = world.resolve("committed", 7, "5f1c")
    assert done.superseded is None
    newest = world.newest("5f1c")
    assert newest is not None
    assert (newest.version, newest.resolution) == (7, "committed")


STREAM = "5f1c"


def finished(query_id: str = STREAM) -> World:
    world = World()
    named = world.prepare(0, 10, query_id)
    decision = world.decide(named, query_id=query_id)
    world.end(named.identity, MarkerType.COMMIT)
    world.record(done_record(decision, 0), None)
    return world


def test_stream_resumes_above_versions_written_elsewhere() -> None:
    world = finished()
    done = world.resolve("committed", 7, STREAM)
    assert done.superseded is not None
    assert done.superseded.version == 3
    newest = world.newest(STREAM)
    assert newest is not None
    assert (newest.version, newest.resolution, newest.transactions) == (7, "committed", ())
    assert (newest.topic, newest.schema, newest.offsets_hash) == (None, "", None), "those of version 3 are not its own"
    assert world.done(STREAM) == "operator"
    assert world.ends == []
    assert world.resolve("committed", 9, STREAM).decision.version == 9


def test_running_query_does_not_resume_above_its_newest_version() -> None:
    """Its batch 4 is prepared: it would count as written, and be aborted."""
    world = finished()
    prepared = world.prepare(1, 11, STREAM)
    with pytest.raises(
        WriteRefusedError, match=rf"NOTHING_TO_RESOLVE\].*first: {W}\.1\.0\).*its query runs.*kafka-eos recover"
    ):
        world.resolve("committed", 4, STREAM)
    assert not world.fenced
    assert world.ends == []
    world.open(prepared.identity, "CompleteAbort", epoch=1)
    assert world.resolve("committed", 4, STREAM).decision.version == 4


@pytest.mark.parametrize(
    ("query_id", "given", "resolution", "why"),
    [
        (STREAM, STREAM, "rewrite", r"newest is version 3, finished \(docs"),
        (STREAM, None, "committed", r"newest is version 3, finished; .*add --query-id 5f1c \(docs"),
        (Q, Q, "committed", r"newest is version 3, finished \(docs"),
    ],
    ids=["rewrite", "without the query id", "a batch write"],
)
def test_invalid_version_above_finished_is_rejected_before_fence(
    query_id: str, given: str | None, resolution: Resolution, why: str
) -> None:
    world = finished(query_id)
    with pytest.raises(WriteRefusedError, match=f"NOTHING_TO_RESOLVE.*{why}"):
        world.resolve(resolution, 4, given)
    assert not world.fenced


@pytest.mark.parametrize("late", [False, True], ids=["done record lost", "an older driver's done record hides it"])
def test_stream_resumes_above_a_resolution_without_done_record(late: bool) -> None:
    """Recovery never writes that record, so nothing else would let the stream continue."""
    world = World()
    older = world.decide(world.prepare(0, 10, STREAM), query_id=STREAM)
    world.resolve("committed", 3, STREAM)
    if late:
        world.record(done_record(older, 1), None)
    else:
        key = done_record(older, 1).key
        world.entries = [each for each in world.entries if not (isinstance(each, steps.ReadRecord) and each.key == key)]
    assert world.resolve("committed", 10, STREAM).decision.version == 10


def test_query_id_in_a_command_is_quoted() -> None:
    """Any program with the right to write to the log can choose it."""
    world = finished("x'; touch /tmp/y; '")
    with pytest.raises(WriteRefusedError) as refused:
        world.resolve("committed", 4)
    *_, pasted = shlex.split(refused.value.message.rpartition("add ")[2])
    assert pasted == "x'; touch /tmp/y; '"


def test_query_does_not_resume_above_unfinished_or_rewrite() -> None:
    """Its recovery would never be heard of again."""
    world = World()
    named = world.prepare(0, 10, STREAM)
    world.decide(named, query_id=STREAM)
    world.end(named.identity, MarkerType.ABORT)
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE.*decided and not finished"):
        world.resolve("committed", 7, STREAM)
    assert not world.fenced
    world.resolve("rewrite", 3, STREAM)
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE.*resolved as rewrite"):
        world.resolve("committed", 7, STREAM)
    world.resolve("committed", 3, STREAM)
    assert world.resolve("committed", 7, STREAM).decision.version == 7


@pytest.mark.parametrize("state", ["Ongoing", "CompleteAbort", "CompleteCommit"])
def test_query_resumes_above_a_decision_without_marker(state: str) -> None:
    """A driver acts on a decision only after it has read its marker, so one without a marker counts for nothing."""
    world = finished()
    driver = replace(OLD_DRIVER, producer_epoch=5)
    decision = replace(undecided(World()), query_id=STREAM, version=4, driver=driver)
    for record in decision_records(decision):
        world.record(record, driver)
    world.open(driver, state, epoch=0 if state == "Ongoing" else 1)  # KAFKA-20734: its marker was omitted
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE\].*has no marker"):
        world.resolve("rewrite", 7, STREAM)
    assert not world.fenced
    assert world.resolve("committed", 7, STREAM).decision.version == 7


@pytest.mark.parametrize("state", ["Ongoing", "CompleteAbort", "CompleteCommit"])
def test_decision_below_an_unmarked_one_is_decided_again_first(state: str) -> None:
    """The resolution's COMMIT would end the decision without marker, and the cleaner drop version 3 for it: the stream would be refused."""
    world = finished()
    before = world.newest(STREAM)
    assert before is not None
    driver = replace(OLD_DRIVER, producer_epoch=99)
    decision = replace(undecided(World()), query_id=STREAM, version=4, driver=driver)
    for record in decision_records(decision):
        hidden = world.record(record, driver)
    world.open(driver, state, epoch=0 if state == "Ongoing" else 1)
    assert world.resolve("committed", 0, "another").decision.version == 0
    view = LogView(W)
    view.feed(world.entries, world.next_offset, 0)
    found = view.query(STREAM).newest
    assert found is not None
    assert (found.decision.nonce, found.decision.version) == (before.nonce, 3)
    assert found.offset > hidden
    resolved = view.query("another").newest
    assert resolved is not None
    assert resolved.offset > found.offset


@pytest.mark.parametrize(
    ("resolution", "version", "query_id", "code"),
    [
        ("committed", 4, None, "NOTHING_TO_RESOLVE.*newest is version 3, decided and not finished"),
        ("committed", 2, Q, "NOTHING_TO_RESOLVE"),
        ("rewrite", 0, "other", "NOTHING_TO_RESOLVE.*no decision of it .*'batch'"),
    ],
)
def test_unknown_version_is_rejected_before_the_fence(
    resolution: Resolution, version: int, query_id: str | None, code: str
) -> None:
    world = World()
    world.decide(world.prepare(0, 10))
    with pytest.raises(WriteRefusedError, match=code):
        world.resolve(resolution, version, query_id)
    assert not world.fenced


def test_query_id_is_required_when_ambiguous() -> None:
    world = World()
    with pytest.raises(WriteRefusedError, match=r"QUERY_ID_NEEDED.*has no decided query id yet"):
        world.resolve("committed", 7)
    world.decide(world.prepare(0, 10))
    world.decide(world.prepare(1, 11, "q2"), query_id="q2")
    with pytest.raises(WriteRefusedError, match=r"QUERY_ID_NEEDED.*has 2 query ids: 'batch', 'q2'"):
        world.resolve("committed")
    assert not world.fenced


def test_decision_without_marker_is_rejected_and_fences_nothing() -> None:
    world = World()
    decision = world.decide(world.prepare(0, 10), query_id="q")
    world.entries = [each for each in world.entries if isinstance(each, ReadRecord)]
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE\].*no marker, so it counts for nothing"):
        world.resolve("rewrite", decision.version, "q")
    assert not world.fenced


def test_query_begins_only_when_nothing_of_the_write_id_is_open() -> None:
    """Its first batch may be about to be decided: it would count as written, and be aborted."""
    world = World()
    named = world.prepare(0, 10, "q")
    decision = world.decide(named, query_id="q")
    world.entries = [each for each in world.entries if isinstance(each, ReadRecord)]
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE\].*its query runs.*kafka-eos recover"):
        world.resolve("committed", decision.version, "q")
    assert not world.fenced
    assert world.ends == []
    world.open(named.identity, "CompleteAbort", epoch=1)
    assert world.resolve("committed", decision.version, "q").superseded is None


def undecided(world: World) -> Decision:
    """The record of a first decision whose driver died before its EndTxn."""
    driver = replace(OLD_DRIVER, producer_epoch=5)
    decision = Decision(
        write_id=W,
        query_id=Q,
        version=6,
        nonce="n",
        driver=driver,
        topic=None,
        schema="",
        offsets_hash=None,
        transactions=(),
        resolution="committed",
    )
    for record in decision_records(decision):
        world.record(record, driver)
    world.open(driver)
    return decision


def test_undecided_decision_without_rows_blocks_no_start() -> None:
    """The fence aborts it, and it has no rows."""
    world = World()
    undecided(world)
    assert world.resolve("committed", 6, Q).superseded is None


def test_aborted_decision_does_not_block_the_start_version() -> None:
    """Its ABORT marker is missing (KAFKA-20734) and never comes; every other command points to this one."""
    world = World()
    world.open(undecided(world).driver, "CompleteAbort", epoch=1)
    world.resolve("committed", 6, Q)
    newest = world.newest()
    assert newest is not None
    assert (newest.version, newest.resolution) == (6, "committed")


@pytest.mark.parametrize(("resolution", "query_id"), [("rewrite", Q), ("committed", None)])
def test_mistaken_resolve_writes_nothing_to_an_unrelated_log(resolution: Resolution, query_id: str | None) -> None:
    """A barrier would have recover take the log for the write's own, and abort what is decided in the right one."""
    world = World()
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE|QUERY_ID_NEEDED"):
        world.resolve(resolution, 3, query_id)
    assert world.entries == []
    assert not world.fenced


def test_resolve_lists_fences_reads_then_ends() -> None:
    """The order of `take_over`. The decision of another query id is finished as well, and an attempt that nobody decided aborted."""
    world = World()
    world.decide(world.prepare(0, 10))
    others = world.decide(world.prepare(1, 11, "q2"), query_id="q2")
    world.prepare(2, 12)
    world.resolve("committed", query_id=Q)
    kinds = [type(step) for step in world.asked]
    fenced = kinds.index(steps.InitProducerId)
    assert steps.ListOpenTransactions in kinds[:fenced]
    assert steps.ListOpenTransactions not in kinds[fenced:]
    assert fenced < kinds.index(steps.Append) < kinds.index(steps.EndTransactions)
    # The list named all three; the coordinator rejects the abort of what is committed.
    assert world.ends[:2] == [(f"{W}.0.0", True), (f"{W}.1.0", True)]
    assert (f"{W}.2.0", False) in world.ends[2:]
    states = {name: found.state for name, found in world.states.items() if not name.endswith(".driver")}
    assert states == dict.fromkeys((f"{W}.0.0", f"{W}.1.0"), "CompleteCommit") | {f"{W}.2.0": "CompleteAbort"}
    assert world.done("q2") == others.nonce


def test_unproven_decision_of_another_query_stops_no_resolution() -> None:
    """What is open under the ids of that decision stays open: its ABORT could discard committed rows."""
    world = World()
    world.decide(world.prepare(0, 10))
    others = world.prepare(1, 11, "q2")
    unproven = world.decide(others, query_id="q2")
    world.open(others.identity, epoch=5)
    assert world.resolve("committed", query_id=Q).decision.resolution == "committed"
    assert world.newest("q2") == unproven
    assert world.states[others.identity.transactional_id].state == "Ongoing"


def test_part_open_on_a_partition_does_not_count_as_written() -> None:
    """Its marker is missing: a later transaction of the id would join it, and lose its rows if aborted."""
    world = World()
    named = world.prepare(0, 10)
    world.decide(named)
    world.held["orders", 0] = {10: (0, 0)}
    with pytest.raises(
        DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*orders-0 .*\.0\.0 .*is missing there.*kafka-eos repair"
    ):
        world.resolve("committed")
    newest = world.newest()
    assert newest is not None
    assert newest.resolution is None
    world.resolve("rewrite", allow_duplicates=True)  # does not need the marker


@pytest.mark.parametrize(
    "remembered",
    [{}, {10: (0, -1)}, {10: (1, 10)}, {99: (0, 0)}, GONE],
    ids=["nobody", "ended", "a later one", "somebody else", "topic gone"],
)
def test_part_open_on_no_partition_counts_as_written(remembered: dict[int, tuple[int, int]]) -> None:
    world = World()
    world.decide(world.prepare(0, 10))
    world.held["orders", 0] = remembered
    assert world.resolve("committed").decision.resolution == "committed"


@pytest.mark.parametrize("resolution", ["committed", "rewrite"])
def test_nothing_is_recorded_without_read_on_a_topic(resolution: Resolution) -> None:
    world = World()
    world.decide(world.prepare(0, 10))

    def unauthorized() -> None:
        raise AuthorizationError("TOPIC_AUTHORIZATION_FAILED", "no Read on orders")

    world.on[steps.AbortedTransactions] = unauthorized
    with pytest.raises(AuthorizationError, match="no Read on orders"):
        world.resolve(resolution)
    newest = world.newest()
    assert newest is not None
    assert newest.resolution is None


def test_rewrite_is_rejected_while_a_partition_has_no_leader() -> None:
    world = World()
    named = world.prepare(0, 10)
    world.decide(named)
    world.end(replace(named.identity, producer_epoch=7), MarkerType.COMMIT)

    def leaderless() -> None:
        raise BrokerUnavailableError("REQUEST_DEADLINE", "orders-0 has no leader")

    world.on[steps.AbortedTransactions] = leaderless
    with pytest.raises(BrokerUnavailableError):
        world.resolve("rewrite")
    newest = world.newest()
    assert newest is not None
    assert newest.resolution is None


def test_nothing_is_recorded_while_a_partition_has_no_leader() -> None:
    world = World()
    world.decide(world.prepare(0, 10))

    def leaderless() -> None:
        raise BrokerUnavailableError("REQUEST_DEADLINE", "orders-0 has no leader")

    world.on[steps.DescribeProducers] = leaderless
    with pytest.raises(BrokerUnavailableError, match="orders-0 has no leader"):
        world.resolve("committed")
    newest = world.newest()
    assert newest is not None
    assert newest.resolution is None


def test_part_reopened_on_a_partition_does_not_count_as_written() -> None:
    """Below version 2, a late AddPartitionsToTxn opens it again, after readers have passed its rows."""
    world = World()
    world.decide(world.prepare(0, 10))
    world.on[steps.DescribeProducers] = lambda: world.held.update({("orders", 0): {10: (0, 0)}})
    with pytest.raises(
        TransactionAbortedError, match=r"NOT_RESOLVED\].*orders-0 still holds .*\.0\.0 open.*kafka-eos repair"
    ):
        world.resolve("committed")


def test_marker_wait_starts_when_the_transactions_are_ended() -> None:
    world = World()
    world.decide(world.prepare(0, 10))

    def held() -> None:
        world.held["orders", 0] = {10: (0, 0)}
        world.on[steps.Wait] = world.held.clear

    def slow() -> None:
        world.now += 60_000
        world.on[steps.DescribeProducers] = held

    world.on[steps.EndTransactions] = slow
    assert world.resolve("committed").decision.resolution == "committed"
    assert not world.on


def test_delayed_marker_is_awaited() -> None:
    world = World()
    world.decide(world.prepare(0, 10))
    world.held["orders", 0] = {10: (0, 0)}
    world.on[steps.Wait] = world.held.clear
    assert world.resolve("committed").decision.resolution == "committed"


def test_rewrite_is_rejected_when_rows_are_visible_without_proof() -> None:
    world = World()
    named = world.prepare(0, 10)
    world.decide(named)
    world.end(replace(named.identity, producer_epoch=7), MarkerType.COMMIT)  # a later one's: its own was omitted
    world.readable = frozenset(named.offsets)
    with pytest.raises(WriteRefusedError, match=r"ROWS_ARE_VISIBLE\].*just finished it"):
        world.resolve("rewrite")


def test_rewrite_is_rejected_when_coordinator_committed_it() -> None:
    """Readers do not get to its rows, and the commit log has no marker: later they would, and find them twice."""
    world = World(unseen=steps.Unseen.GONE)
    named = world.prepare(0, 10)
    world.decide(named)
    world.open(named.identity, "CompleteCommit", epoch=1)
    with pytest.raises(WriteRefusedError, match=r"ROWS_ARE_VISIBLE\].*just finished it"):
        world.resolve("rewrite")


@pytest.mark.parametrize(
    ("kind", "unseen"),
    [
        (MarkerType.ABORT, steps.Unseen.BLOCKED),
        (MarkerType.COMMIT, steps.Unseen.BLOCKED),
        (MarkerType.EMPTY, steps.Unseen.BLOCKED),
        (MarkerType.COMMIT, steps.Unseen.GONE),
    ],
)
def test_rewrite_is_rejected_when_visibility_is_unknown(kind: MarkerType, unseen: steps.Unseen) -> None:
    """The ABORT in the commit log may be that of a transaction that joined it. Readers may have seen records that are gone."""
    world = World(unseen=unseen)
    named = world.prepare(0, 10)
    world.decide(named)
    world.end(named.identity if kind is MarkerType.ABORT else replace(named.identity, producer_epoch=7), kind)
    with pytest.raises(
        WriteRefusedError,
        match=r"ROWS_ARE_VISIBLE\].*nothing proves that orders-0 \[0..9\] were aborted.*--allow-duplicates",
    ):
        world.resolve("rewrite")
    newest = world.newest()
    assert newest is not None
    assert newest.resolution is None
    world.resolve("rewrite", allow_duplicates=True)


def test_aborted_rows_may_be_rewritten() -> None:
    world = World(unseen=steps.Unseen.GONE)
    named = world.prepare(0, 10)
    world.decide(named)
    world.end(named.identity, MarkerType.ABORT)
    assert world.resolve("rewrite").decision.resolution == "rewrite"


def test_timeout_before_the_end_leaves_visible_rows() -> None:
    """Recovery commits the other one, so the version is not void."""
    world = World()
    first, second = world.prepare(0, 10), world.prepare(1, 11)
    world.decide(first, second)
    world.on[steps.EndTransactions] = lambda: world.end(first.identity, MarkerType.ABORT)
    with pytest.raises(WriteRefusedError, match=r"ROWS_ARE_VISIBLE\].*1 of its 2 .*orders-1 \[0..9\]"):
        world.resolve("rewrite")
    newest = world.newest()
    assert newest is not None
    assert newest.resolution is None


@pytest.mark.parametrize("resolution", ["committed", "rewrite"])
def test_empty_log_with_open_transactions_is_the_wrong_log(resolution: Resolution) -> None:
    world = World()
    world.open(identity(0, 10))
    with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\].*has open transactions.*--commit-log-topic"):
        world.resolve(resolution, 3, Q)
    assert not world.fenced
    assert world.entries == [], "the barrier would pass for a plan's at the next try"


def test_nothing_is_recorded_if_a_transaction_cannot_be_ended() -> None:
    world = World(end_error=None)
    world.decide(world.prepare(0, 10))
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*no response"):
        world.resolve("committed")
    assert not any(isinstance(step, steps.AbortedTransactions) for step in world.asked), "another error could hide this"
    newest = world.newest()
    assert newest is not None
    assert newest.resolution is None


@pytest.mark.parametrize(
    ("world", "error", "code"),
    [
        (World(driver_error=ErrorCode.PRODUCER_FENCED.value), FencedError, "FENCED"),
        (World(driver_error=None), TransactionAbortedError, "NOT_RESOLVED.*no response"),
        (World(marks_driver=False), TransactionAbortedError, "NOT_RESOLVED"),
    ],
)
def test_resolution_not_known_to_be_recorded_raises(world: World, error: type[KafkaEosError], code: str) -> None:
    world.decide(world.prepare(0, 10))
    with pytest.raises(error, match=code):
        world.resolve("committed")
    assert world.done() == "n-batch-3", "the version's own, not the resolution's"


@pytest.mark.parametrize("answered", [None, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_resolution_with_lost_end_txn_counts_with_its_marker(answered: int | None) -> None:
    """Not heard, or repeated when a driver that came after it had fenced already."""
    world = World()
    world.decide(world.prepare(0, 10))
    world.resolve("committed")

    class Deaf(World):
        def ended(self, end: steps.End) -> steps.EndResult:
            result = super().ended(end)
            return replace(result, error=answered) if end.identity.transactional_id.endswith(".driver") else result

    deaf = Deaf(entries=world.entries, states=world.states, next_offset=world.next_offset)
    deaf.resolve("rewrite", allow_duplicates=True)
    newest = deaf.newest()
    assert newest is not None
    assert newest.resolution == "rewrite"
