"""What commit and abort make of answers that a simulated cluster does not give: errors in the middle, stuck logs, missing rights."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.abort import abort
from kafka_eos_sink.commit.commit_batch import commit
from kafka_eos_sink.commit.deadlines import fail_if_too_late
from kafka_eos_sink.commit.driver import DRIVER_TRANSACTION_TIMEOUT_MS, is_overtaken
from kafka_eos_sink.commit.log_reading import STUCK_LOG_MS, read_to
from kafka_eos_sink.commit.log_records import decision_records, part_record
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.proofs import HIDDEN_READERS_MS, verify_markers
from kafka_eos_sink.commit.steps import MarkerType
from kafka_eos_sink.commit.take_over import TakeOver, take_over
from kafka_eos_sink.commit.task import SLOT_DEADLINE_MS, fresh_identity, write_attempt
from kafka_eos_sink.commit.transactional_id import SLOTS
from kafka_eos_sink.commit.values import TaskOutcome
from kafka_eos_sink.errors import (
    AuthenticationError,
    BrokerRefusedError,
    BrokerUnavailableError,
    DecisionPendingError,
    FencedError,
    KafkaEosError,
    TransactionAbortedError,
    WriteRefusedError,
)
from kafka_eos_sink.protocol.error_codes import ErrorCode
from tests.unit.commit.scripted_world import (
    BATCH,
    DECISION_OFFSET,
    DRIVER,
    MESSAGE,
    PART,
    PLAN,
    PREPARED,
    REQUEST,
    TASK,
    World,
)


def unreachable(_: Any) -> Any:
    raise BrokerUnavailableError("REQUEST_DEADLINE", "Fetch was not done in time")


def test_commit_without_faults_decides_ends_and_verifies() -> None:
    world = World()
    decision = world.run(commit(REQUEST, [MESSAGE]))
    assert [entry.partition for entry in decision.transactions] == [0]
    assert [(end.identity, end.commit) for end in world.ended] == [(DRIVER, True), (TASK, True)]
    assert world.warnings == []


def test_error_after_decisions_end_txn_raises_decision_unknown() -> None:
    world = World(ReadLog=unreachable)
    with pytest.raises(DecisionPendingError, match=r"DECISION_UNKNOWN\].*that run finds out, and writes nothing twice"):
        world.run(commit(REQUEST, [MESSAGE]))
    assert [end.identity for end in world.ended] == [DRIVER]


@pytest.mark.parametrize("failure", [AuthenticationError("SASL_AUTHENTICATION_FAILED", "expired"), MemoryError("full")])
@pytest.mark.parametrize("step", ["EndTransactions", "ReadLog"])
def test_any_error_at_decisions_end_raises_decision_unknown(step: str, failure: Exception) -> None:
    """A broker may reject the login of a new connection after the response to EndTxn was lost."""

    def fail(_: Any) -> Any:
        raise failure

    with pytest.raises(DecisionPendingError, match=rf"DECISION_UNKNOWN\].*{failure.args[0]}"):
        World(**{step: fail}).run(commit(REQUEST, [MESSAGE]))


def test_decision_in_a_log_without_its_parts_is_not_committed() -> None:
    """The log was deleted and created again between plan and commit, so no later run could finish the decision."""
    world = World()
    late = replace(MESSAGE, prepared=replace(PREPARED, part_offset=DECISION_OFFSET + 5))
    with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\]"):
        world.run(commit(REQUEST, [late]))
    assert world.ended == []


def test_a_done_record_that_cannot_be_written_fails_nothing() -> None:
    world = World(Append=unreachable)
    assert world.run(commit(REQUEST, [MESSAGE])) is not None
    assert ["is finished, but its done record could not be appended" in said for said in world.warnings] == [True]


@pytest.mark.parametrize("step", ["AppendInTransaction", "EndTransactions"])
def test_tombstones_that_cannot_be_written_fail_nothing(step: str) -> None:
    """A write with a random id is finished by then, and visible."""
    world = World()
    decides, ends = world.AppendInTransaction, world.EndTransactions

    def append(asked: steps.AppendInTransaction) -> steps.Appended:
        return decides(asked) if len(asked.records) == 1 else fails("AppendInTransaction", steps.Appended(error=0))

    def end(asked: steps.EndTransactions) -> Any:
        return ends(asked) if steps.Reached("commit.finished") not in world.steps else fails("EndTransactions", ())

    def fails(name: str, answer: Any) -> Any:
        return unreachable(name) if name == step else answer

    world.own = {"AppendInTransaction": append, "EndTransactions": end}
    assert world.run(commit(replace(REQUEST, random_write_id=True), [MESSAGE])) is not None
    assert ["could not be removed" in said for said in world.warnings] == [True]


def test_transaction_begun_before_the_tasks_rows_is_not_decided() -> None:
    world = World(DescribeProducers=lambda _: {("t", 0): {TASK.producer_id: (0, 4)}})
    with pytest.raises(TransactionAbortedError, match=r"TRANSACTION_NOT_OPEN.*an older one was never ended"):
        world.run(commit(REQUEST, [MESSAGE]))
    assert world.ended == []


def test_unreadable_topic_logs_the_missing_check() -> None:
    world = World(DescribeProducers=lambda _: {("t", 0): None})
    assert world.run(commit(REQUEST, [MESSAGE])) is not None
    assert ["without the right to Read t" in said for said in world.warnings] == [True]


def test_timeout_lowered_by_a_task_bounds_the_commit() -> None:
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


def test_log_hiding_acknowledged_records_raises_unavailable() -> None:
    world = World()

    def nothing(step: steps.ReadLog) -> steps.LogChunk:
        world.now += 1_000
        return steps.LogChunk(entries=(), next_offset=step.offset, log_start_offset=0, end_offset=step.offset)

    world.own = {"ReadLog": nothing}
    with pytest.raises(BrokerUnavailableError, match=r"COMMIT_LOG_UNAVAILABLE\].*min.insync.replicas"):
        world.run(read_to(LogView("w"), 5))
    assert world.now < 1_000 + STUCK_LOG_MS + 5_000


def driver_as(state: str, producer_id: int, epoch: int) -> steps.TransactionDescription:
    """What its coordinator says of W.driver."""
    return steps.TransactionDescription(
        state=state,
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=60_000,
        start_time_ms=-1,
        partitions=frozenset(),
    )


def newer_driver(step: steps.DescribeTransactions) -> dict[str, Any]:
    found = driver_as("Empty", 1, 9)
    return {name: found if name == "w.driver" else None for name in step.transactional_ids}


@pytest.mark.parametrize("decided", [False, True])
def test_fenced_driver_ends_undecided_transactions_of_its_tasks(decided: bool) -> None:
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


class Readers:
    """The data partition after our EndTxn: where its last stable offset stands at each look, and who holds it there."""

    def __init__(self, world: World, *offsets: int, held_by: Mapping[int, tuple[int, int]] | None) -> None:
        self.world, self.offsets, self.held_by = world, list(offsets), held_by
        self.done: list[steps.LogRecord] = []
        world.own = {
            "LastStableOffsets": self.stable,
            "DescribeProducers": self.producers,
            "DescribeTransactions": self.described,
            "Append": self.append,
        }

    @property
    def ended(self) -> bool:
        return any(end.identity == TASK for end in self.world.ended)

    def stable(self, step: steps.LastStableOffsets) -> dict[Any, int]:
        self.world.now += 500
        at = self.offsets.pop(0) if len(self.offsets) > 1 else self.offsets[0]
        return dict.fromkeys(step.partitions, at)

    def producers(self, step: steps.DescribeProducers) -> dict[Any, Any]:
        if not self.ended and self.held_by is not None:
            return self.world.DescribeProducers(step)
        return {("t", 0): self.held_by}

    def described(self, step: steps.DescribeTransactions) -> dict[str, Any]:
        found = self.world.DescribeTransactions(step)
        if self.ended:
            found["w.0.0"] = replace(found["w.0.0"], state="CompleteCommit", producer_epoch=1)
        return found

    def append(self, step: steps.Append) -> int:
        self.done += step.records
        return 30


def test_commit_waits_for_readers_that_nothing_blocks() -> None:
    world = World()
    readers = Readers(world, 15, 15, 15, 15, PART.last_offset + 1, held_by={})
    assert world.run(commit(REQUEST, [MESSAGE])) is not None
    assert readers.offsets == [PART.last_offset + 1]
    assert (world.warnings, len(readers.done)) == ([], 1)


def test_readers_stuck_without_blocker_raise_not_finished() -> None:
    world = World()
    readers = Readers(world, 15, held_by={})
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*t-0 does not let readers past offset 19"):
        world.run(commit(REQUEST, [MESSAGE]))
    assert readers.done == []


def test_readers_blocked_by_other_writers_are_not_awaited() -> None:
    world = World()
    readers = Readers(world, 15, held_by={77: (0, 15)})
    assert world.run(commit(REQUEST, [MESSAGE])) is not None
    assert ["producer id 77 blocks read_committed readers" in said for said in world.warnings] == [True]
    assert len(readers.done) == 1


@pytest.mark.parametrize("is_random", [False, True], ids=["txnAppId", "random write id"])
def test_unproven_visibility_without_read_leaves_the_decision(is_random: bool) -> None:
    """One of its markers may be missing behind the other program's transaction, and `repair` needs the decision to write it."""
    world = World()
    readers = Readers(world, 15, held_by=None)
    assert world.run(commit(replace(REQUEST, random_write_id=is_random), [MESSAGE])) is not None
    assert "not proven that readers see the committed rows" in world.warnings[-1]
    assert readers.done == []
    assert [end.identity for end in world.ended] == [DRIVER, TASK]
    assert world.now > 1_000 + HIDDEN_READERS_MS


def test_without_read_readers_at_our_first_row_are_blocked_by_us() -> None:
    world = World()
    readers = Readers(world, PART.first_offset, held_by=None)
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*t-0 does not let readers past offset 19"):
        world.run(commit(REQUEST, [MESSAGE]))
    assert readers.done == []


def test_a_commit_of_no_messages_is_refused() -> None:
    world = World()
    with pytest.raises(WriteRefusedError, match=r"MISSING_MESSAGE\]"):
        world.run(commit(REQUEST, []))
    assert world.ended == []


def test_commit_refuses_tasks_of_different_runs() -> None:
    world = World()
    foreign = replace(MESSAGE, version=2)
    with pytest.raises(WriteRefusedError, match=r"MIXED_MESSAGES\].*different runs"):
        world.run(commit(REQUEST, [MESSAGE, foreign]))
    assert world.ended == []


def test_commit_refuses_two_messages_of_one_partition() -> None:
    world = World()
    with pytest.raises(WriteRefusedError, match=r"MIXED_MESSAGES\].*two messages of one partition"):
        world.run(commit(REQUEST, [MESSAGE, MESSAGE]))
    assert world.ended == []


def test_attempt_fails_when_all_its_ids_have_open_transactions() -> None:
    opened = World().DescribeTransactions(steps.DescribeTransactions(("w.0.0",)))["w.0.0"]
    world = World(DescribeTransactions=lambda step: dict.fromkeys(step.transactional_ids, opened))
    with pytest.raises(
        TransactionAbortedError,
        match=r"NO_FREE_TRANSACTIONAL_ID\].*kafka-eos transactions --bootstrap-servers ... --prefix w",
    ):
        world.run(fresh_identity("w", 0, range(8), 900_000))
    assert world.now > SLOT_DEADLINE_MS


def test_error_after_the_decision_raises_decided_not_finished() -> None:
    def broken(_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    world = World(LastStableOffsets=broken)
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*ZeroDivisionError: a bug"):
        world.run(commit(REQUEST, [MESSAGE]))


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("", r"not confirmed the commit of w.0.0 in time \(CONCURRENT_TRANSACTIONS\)\. "),
        ("held by t-0", r"not confirmed the commit of w.0.0 in time \(CONCURRENT_TRANSACTIONS; held by t-0\)\. "),
    ],
)
def test_blocked_end_txn_raises_not_finished_with_its_reason(detail: str, said: str) -> None:
    world = World()

    def busy(step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:
        if step.ends[0].identity == DRIVER:
            return World.EndTransactions(world, step)
        return tuple(steps.EndResult(error=ErrorCode.CONCURRENT_TRANSACTIONS, detail=detail) for _ in step.ends)

    world.own = {"EndTransactions": busy}
    with pytest.raises(DecisionPendingError, match=rf"DECIDED_NOT_FINISHED\].*{said}"):
        world.run(commit(REQUEST, [MESSAGE]))


@pytest.mark.parametrize("marked", [MarkerType.COMMIT, MarkerType.ABORT])
def test_fenced_end_txn_of_decision_is_settled_by_the_log(marked: MarkerType) -> None:
    """The repeat of a lost answer may meet a driver that came after the commit."""
    world = World()

    def fenced(step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:
        World.EndTransactions(world, step)
        assert isinstance(world.log[-1], steps.Marker)
        world.log[-1] = replace(world.log[-1], type=marked)
        return (steps.EndResult(error=ErrorCode.PRODUCER_FENCED),)

    world.own = {"EndTransactions": fenced}
    expected: tuple[type[KafkaEosError], str] = (
        (
            DecisionPendingError,
            "DECIDED_NOT_FINISHED.*another run of the write id has replaced this one, and finishes it",
        )
        if marked is MarkerType.COMMIT
        else (
            FencedError,
            "FENCED.*another run has replaced this run of write id 'w'.*the commit log took more than 60 s: .*run this one again",
        )
    )
    with pytest.raises(expected[0], match=expected[1]):
        world.run(commit(REQUEST, [MESSAGE]))
    assert [end.identity for end in world.ended] == [DRIVER]


def test_truncated_commit_log_is_rejected_before_any_fencing() -> None:
    def deleted(step: steps.ReadLog) -> steps.LogChunk:
        return steps.LogChunk(entries=(), next_offset=7, log_start_offset=7, end_offset=7)

    world = World(ReadLog=deleted, DescribeTransactions=lambda step: dict.fromkeys(step.transactional_ids))
    request = TakeOver(write_id="w", nonce="barrier", transaction_timeout_ms=900_000)
    with pytest.raises(WriteRefusedError, match=r"COMMIT_LOG_TRUNCATED\].*begins at offset 7, not at 0"):
        world.run(take_over(request, 2))
    with pytest.raises(WriteRefusedError, match=r"COMMIT_LOG_TRUNCATED\]"):
        world.run(read_to(LogView("w"), 6))


def test_open_transactions_unknown_to_the_log_are_not_ended() -> None:
    """Their write has another commit log, and may be decided there."""
    empty = steps.LogChunk(entries=(), next_offset=0, log_start_offset=0, end_offset=0)
    world = World(ReadLog=lambda _: empty, ListOpenTransactions=lambda _: ("w.0.0",))
    request = TakeOver(write_id="w", nonce="barrier", transaction_timeout_ms=900_000)
    with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\].*write id 'w' has open transactions.*w\.0\.0"):
        world.run(take_over(request, 2))
    assert world.ended == []
    assert world.log == []


def test_a_task_reads_the_log_to_its_end_at_the_first_look() -> None:
    """The partition is shared: somebody else writes to it whenever it is read."""
    looks = 0

    def growing(step: steps.ReadLog) -> steps.LogChunk:
        nonlocal looks
        looks += 1
        assert looks <= 10
        other = steps.ReadRecord(
            offset=step.offset,
            producer_id=-1,
            producer_epoch=-1,
            transactional=False,
            key=b'["barrier","other"]',
            value=b'{"format":1,"nonce":"x"}',
        )
        return steps.LogChunk(
            entries=(other,), next_offset=step.offset + 1, log_start_offset=0, end_offset=step.offset + 5
        )

    world = World(ReadLog=growing)
    world.now = PLAN.transaction_timeout_ms + 1
    world.run(fail_if_too_late(PLAN, "batch", 1, 0))
    assert looks == 5


@pytest.mark.parametrize("own", [0, 1])
def test_next_attempt_replaces_the_part_that_its_partition_lost(own: int) -> None:
    """An attempt may fail behind its part record. In a long batch that must not stop its successor, only other partitions' attempts."""
    part = part_record("w", "batch", 0, 1, 7)
    world = World(DescribeTransactions=lambda step: dict.fromkeys(step.transactional_ids))
    world.log = [
        steps.ReadRecord(offset=3, producer_id=2, producer_epoch=0, transactional=True, key=part.key, value=part.value),
        steps.Marker(offset=4, producer_id=2, producer_epoch=1, type=MarkerType.ABORT),
    ]
    world.now = PLAN.transaction_timeout_ms + 1
    look = fail_if_too_late(PLAN, "batch", 1, own)
    if own == 0:
        world.run(look)
        world.own["HasRows"] = lambda _: False
        assert world.run(write_attempt(PLAN, BATCH, MESSAGE.task)).outcome is TaskOutcome.EMPTY
        return
    with pytest.raises(TransactionAbortedError, match=r"TRANSACTION_TOO_OLD.*transaction of partition 0"):
        world.run(look)


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize(("chunk", "fetch_ms"), [(10, 6_000), (60, 12_000)])
def test_marker_is_missing_only_once_the_log_is_read(chunk: int, fetch_ms: int, visible: bool) -> None:
    """The partition is shared and long, and Fetch is slow. The marker arrives behind what the log held at first."""
    world = World()

    def slow(step: steps.ReadLog) -> steps.LogChunk:
        world.now += fetch_ms if step.offset < 60 else 100
        if step.offset < 60:
            return steps.LogChunk(
                entries=(), next_offset=step.offset // 10 * 10 + chunk, log_start_offset=0, end_offset=60
            )
        marker = steps.Marker(offset=60, producer_id=2, producer_epoch=1, type=MarkerType.COMMIT)
        return steps.LogChunk(entries=(marker,), next_offset=61, log_start_offset=0, end_offset=61)

    world.own = {"ReadLog": slow}
    decision: Any = SimpleNamespace(write_id="w", version=1, query_id="batch")
    assert world.run(verify_markers(decision, (PREPARED,), 20_000, visible=visible))
    assert world.warnings == []


def test_marker_that_never_comes_is_missing_after_the_deadline() -> None:
    world = World(ReadLog=lambda _: steps.LogChunk(entries=(), next_offset=60, log_start_offset=0, end_offset=60))
    world.own["Now"] = lambda _: seconds(world)
    decision: Any = SimpleNamespace(write_id="w", version=1, query_id="batch")
    with pytest.raises(DecisionPendingError, match="its marker is missing in the commit log"):
        world.run(verify_markers(decision, (PREPARED,), 20_000, visible=False))
    assert world.now < 40_000


def seconds(world: World) -> int:
    world.now += 1_000
    return world.now


@pytest.mark.parametrize(
    ("producer_id", "epoch", "state", "overtaken"),
    [
        (1, 4, "Empty", False),
        (1, 4, "Ongoing", True),  # the decision is being written
        (1, 5, "CompleteCommit", True),
        (1, 5, "Empty", True),
        (9, 0, "Empty", True),
        (1, 3, "CompleteCommit", False),  # a coordinator that was replaced tells how it was before the fence
    ],
)
def test_attempt_is_overtaken_once_its_driver_has_decided(
    producer_id: int, epoch: int, state: str, overtaken: bool
) -> None:
    found = driver_as(state, producer_id, epoch)
    assert World(DescribeTransactions=lambda _: {"w.driver": found}).run(is_overtaken(PLAN)) is overtaken
    assert World(DescribeTransactions=lambda _: {"w.driver": None}).run(is_overtaken(PLAN)) is False


def refused(_: Any) -> Any:
    raise BrokerRefusedError("BROKER_REFUSED", "DescribeTransactions: TRANSACTIONAL_ID_AUTHORIZATION_FAILED")


@pytest.mark.parametrize("failed", [unreachable, refused])
def test_failed_search_for_losing_attempts_stops_no_decision(failed: Callable[[Any], Any]) -> None:
    world = World()
    asked: list[steps.DescribeTransactions] = []

    def silent_at_last(step: steps.DescribeTransactions) -> dict[str, Any]:
        asked.append(step)
        found: dict[str, Any] = World.DescribeTransactions(world, step) if len(asked) == 1 else failed(step)
        return found

    world.own = {"DescribeTransactions": silent_at_last}
    assert world.run(commit(REQUEST, [MESSAGE])) is not None
    check, losers = asked
    assert check.transactional_ids == ("w.0.0",)
    assert len(losers.transactional_ids) == SLOTS
    assert losers.within_ms is not None
    assert losers.within_ms < DRIVER_TRANSACTION_TIMEOUT_MS, "the decision's transaction is open meanwhile"
    assert [(end.identity, end.commit) for end in world.ended] == [(DRIVER, True), (TASK, True)]


def test_marker_is_missing_although_the_deleted_log_was_longer() -> None:
    """The log was created again, and others extend it with every read."""
    deleted, created = uuid.uuid4(), uuid.uuid4()
    chunks = iter([(deleted, 60, 1_000)])

    def read(step: steps.ReadLog) -> steps.LogChunk:
        topic_id, read_to, end = next(chunks, (created, step.offset + 1, step.offset + 1))
        return steps.LogChunk(entries=(), next_offset=read_to, log_start_offset=0, end_offset=end, topic_id=topic_id)

    world = World(ReadLog=read)
    world.own["Now"] = lambda _: seconds(world)
    decision: Any = SimpleNamespace(write_id="w", version=1, query_id="batch")
    with pytest.raises(DecisionPendingError, match="its marker is missing in the commit log"):
        world.run(verify_markers(decision, (PREPARED,), 20_000, visible=False))
    assert world.now < 60_000
