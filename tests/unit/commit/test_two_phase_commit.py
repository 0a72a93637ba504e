"""What commit and abort make of answers that a simulated cluster does not give: errors in the middle, stuck logs, missing rights."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.commit_log import LogView, decision_records
from kafka_eos_sink.commit.prepared_transaction import (
    OffsetRange,
    Plan,
    PreparedTransaction,
    ProducerIdentity,
    TaskIdentity,
    TaskMessage,
    TaskOutcome,
)
from kafka_eos_sink.commit.log_reading import STUCK_LOG_MS, read_to
from kafka_eos_sink.commit.take_over import TakeOver
from kafka_eos_sink.commit.task import BatchIdentity
from kafka_eos_sink.commit.two_phase_commit import CommitRequest, abort, commit
from kafka_eos_sink.errors import BrokerUnavailableError, DecisionPendingError, TransactionAbortedError

DRIVER = ProducerIdentity(transactional_id="w.driver", producer_id=1, producer_epoch=4, transaction_version=2)
TASK = ProducerIdentity(transactional_id="w.0.0", producer_id=2, producer_epoch=0, transaction_version=2)
PART = OffsetRange(topic="t", partition=0, first_offset=10, last_offset=19)
BATCH = BatchIdentity(query_id="batch", version=1, topic="t", schema="value string", offsets_hash=None)
PLAN = Plan(
    write_id="w",
    nonce="mine",
    driver=DRIVER,
    started_ms=0,
    transaction_timeout_ms=900_000,
    log_offset=0,
    decisions=(),
)
PREPARED = PreparedTransaction(partition=0, identity=TASK, part_offset=3, rows=10, digest=7, offsets=(PART,))
MESSAGE = TaskMessage(
    plan=PLAN,
    query_id="batch",
    version=1,
    task=TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0),
    outcome=TaskOutcome.PREPARED,
    prepared=PREPARED,
)
REQUEST = CommitRequest(plan=PLAN, batch=BATCH, random_write_id=False, nonce="barrier")
DECISION_OFFSET = 20


class World:
    """Answers the steps of a commit in which all goes well; a test replaces an answer by one of its own."""

    def __init__(self, **own: Callable[[Any], Any]) -> None:
        self.own = own
        self.now = 1_000
        self.warnings: list[str] = []
        self.ended: list[steps.End] = []
        self.log: list[steps.ReadRecord | steps.Marker] = []

    def run(self, procedure: Generator[Any, Any, Any]) -> Any:
        answer, failure = None, None
        while True:
            try:
                step = procedure.send(answer) if failure is None else procedure.throw(failure)
            except StopIteration as stop:
                return stop.value
            answer, failure = None, None
            try:
                name = type(step).__name__
                answer = self.own[name](step) if name in self.own else getattr(self, name)(step)
            except Exception as error:
                failure = error

    def Now(self, _: steps.Now) -> int:  # noqa: N802
        return self.now

    def Wait(self, step: steps.Wait) -> None:  # noqa: N802
        self.now += step.ms

    def Reached(self, _: steps.Reached) -> None:  # noqa: N802
        return None

    def Warn(self, step: steps.Warn) -> None:  # noqa: N802
        self.warnings.append(step.message)

    def DescribeTransactions(self, step: steps.DescribeTransactions) -> dict[str, Any]:  # noqa: N802
        found = steps.TransactionDescription(
            state="Ongoing",
            producer_id=TASK.producer_id,
            producer_epoch=TASK.producer_epoch,
            timeout_ms=900_000,
            start_time_ms=500,
            partitions=frozenset({("t", 0)}),
        )
        return {name: found if name == "w.0.0" else None for name in step.transactional_ids}

    def DescribeProducers(self, _: steps.DescribeProducers) -> dict[Any, Any]:  # noqa: N802
        return {("t", 0): {TASK.producer_id: (TASK.producer_epoch, PART.first_offset)}}

    def AppendInTransaction(self, step: steps.AppendInTransaction) -> steps.Appended:  # noqa: N802
        part = steps.ReadRecord(offset=3, producer_id=2, producer_epoch=0, transactional=True, key=b"[]", value=b"")
        (record,) = step.records
        decision = steps.ReadRecord(
            offset=DECISION_OFFSET,
            producer_id=1,
            producer_epoch=4,
            transactional=True,
            key=record.key,
            value=record.value,
        )
        self.log += [part, decision]
        return steps.Appended(error=0, offset=DECISION_OFFSET)

    def EndTransactions(self, step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:  # noqa: N802
        self.ended += step.ends
        for end in step.ends:
            self.log.append(
                steps.Marker(
                    offset=self.log[-1].offset + 1,
                    producer_id=end.identity.producer_id,
                    producer_epoch=end.identity.producer_epoch + 1,
                    type=steps.MarkerType.COMMIT if end.commit else steps.MarkerType.ABORT,
                )
            )
        return tuple(steps.EndResult(error=0) for _ in step.ends)

    def ReadLog(self, step: steps.ReadLog) -> steps.LogChunk:  # noqa: N802
        entries = tuple(entry for entry in self.log if entry.offset >= step.offset)
        end = entries[-1].offset + 1 if entries else step.offset
        return steps.LogChunk(entries=entries, next_offset=end, log_start_offset=0, end_offset=end)

    def LastStableOffsets(self, step: steps.LastStableOffsets) -> dict[Any, int]:  # noqa: N802
        return dict.fromkeys(step.partitions, PART.last_offset + 2)

    def Append(self, _: steps.Append) -> int:  # noqa: N802
        return 30


def unreachable(_: Any) -> Any:
    raise BrokerUnavailableError("REQUEST_DEADLINE", "Fetch was not done in time")


def test_a_commit_in_which_all_goes_well_decides_ends_and_verifies() -> None:
    world = World()
    decision = world.run(commit(REQUEST, [MESSAGE]))
    assert [entry.partition for entry in decision.transactions] == [0]
    assert [(end.identity, end.commit) for end in world.ended] == [(DRIVER, True), (TASK, True)]
    assert world.warnings == []


def test_an_error_between_the_decisions_end_and_its_marker_does_not_look_like_an_ordinary_failure() -> None:
    world = World(ReadLog=unreachable)
    with pytest.raises(DecisionPendingError, match=r"DECISION_UNKNOWN\].*do not write its rows again"):
        world.run(commit(REQUEST, [MESSAGE]))
    assert [end.identity for end in world.ended] == [DRIVER]


def test_a_done_record_that_cannot_be_written_fails_nothing() -> None:
    world = World(Append=unreachable)
    assert world.run(commit(REQUEST, [MESSAGE])) is not None
    assert ["is finished, but that could not be noted" in said for said in world.warnings] == [True]


def test_a_transaction_that_begins_before_the_tasks_records_is_not_decided() -> None:
    world = World(DescribeProducers=lambda _: {("t", 0): {TASK.producer_id: (0, 4)}})
    with pytest.raises(TransactionAbortedError, match=r"TRANSACTION_NOT_OPEN.*an older one was never ended"):
        world.run(commit(REQUEST, [MESSAGE]))
    assert world.ended == []


def test_without_the_right_to_read_a_topic_the_missing_check_is_said() -> None:
    world = World(DescribeProducers=lambda _: {("t", 0): None})
    assert world.run(commit(REQUEST, [MESSAGE])) is not None
    assert ["without the right to Read t" in said for said in world.warnings] == [True]


def test_a_timeout_that_a_task_had_to_lower_is_the_one_that_counts() -> None:
    world = World()
    lowered = World().DescribeTransactions(steps.DescribeTransactions(("w.0.0",)))["w.0.0"]
    lowered = replace(lowered, timeout_ms=300_000)
    world.own = {
        "DescribeTransactions": lambda step: {
            name: lowered if name == "w.0.0" else None for name in step.transactional_ids
        }
    }
    world.now = 290_000
    with pytest.raises(TransactionAbortedError, match=r"TRANSACTION_TOO_OLD\].*ends it at 300\.0 s"):
        world.run(commit(REQUEST, [MESSAGE]))
    assert world.ended == []


def test_a_decision_record_that_took_too_long_is_not_decided() -> None:
    world = World()

    def slow(step: steps.AppendInTransaction) -> steps.Appended:
        world.now += 880_000
        return World.AppendInTransaction(world, step)

    world.own = {"AppendInTransaction": slow}
    with pytest.raises(TransactionAbortedError, match=r"TRANSACTION_TOO_OLD.*the commit log took too long"):
        world.run(commit(REQUEST, [MESSAGE]))
    assert world.ended == []


def test_a_log_that_does_not_show_what_it_acknowledged_is_said_and_not_waited_for_ever() -> None:
    world = World()

    def nothing(step: steps.ReadLog) -> steps.LogChunk:
        world.now += 1_000
        return steps.LogChunk(entries=(), next_offset=step.offset, log_start_offset=0, end_offset=step.offset)

    world.own = {"ReadLog": nothing}
    with pytest.raises(BrokerUnavailableError, match=r"COMMIT_LOG_UNAVAILABLE\].*min.insync.replicas"):
        world.run(read_to(LogView("w"), 5))
    assert world.now < 1_000 + STUCK_LOG_MS + 5_000


def newer_driver(step: steps.DescribeTransactions) -> dict[str, Any]:
    found = steps.TransactionDescription(
        state="Empty", producer_id=1, producer_epoch=9, timeout_ms=60_000, start_time_ms=-1, partitions=frozenset()
    )
    return {name: found if name == "w.driver" else None for name in step.transactional_ids}


@pytest.mark.parametrize("decided", [False, True])
def test_the_loser_of_two_drivers_ends_what_its_tasks_handed_over_unless_it_was_decided(decided: bool) -> None:
    world = World(DescribeTransactions=newer_driver, ListOpenTransactions=lambda _: ())
    if decided:
        finished = World()
        decision = finished.run(commit(REQUEST, [MESSAGE]))
        (record,) = decision_records(decision)
        world.log = [
            steps.ReadRecord(
                offset=20, producer_id=1, producer_epoch=4, transactional=True, key=record.key, value=record.value
            ),
            steps.Marker(offset=21, producer_id=1, producer_epoch=5, type=steps.MarkerType.COMMIT),
        ]
    barrier = steps.ReadRecord(offset=30, producer_id=-1, producer_epoch=-1, transactional=False, key=b"[]", value=b"")
    world.log.append(barrier)
    request = TakeOver(write_id="w", nonce="barrier", transaction_timeout_ms=900_000)
    world.run(abort(request, PLAN, [MESSAGE, None], 2))
    assert [(end.identity, end.commit) for end in world.ended] == ([] if decided else [(TASK, False)])
