"""Lost transactions of a decision are copied from the log: all of them, or none."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.cli.resolve import resolved_sentence
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.commit_batch import commit
from kafka_eos_sink.commit.decide import DriverTransaction
from kafka_eos_sink.commit.log_records import (
    LogKey,
    barrier_record,
    decision_records,
    done_record,
    parse_key,
    part_record,
)
from kafka_eos_sink.commit.log_view import LoggedDecision, LogView
from kafka_eos_sink.commit.resolve import Resolution, Resolved, ResolveRequest, resolve
from kafka_eos_sink.commit.restore import MOST_COPIES, finish
from kafka_eos_sink.commit.settle import PROOFS_WITHIN_MS, Settled
from kafka_eos_sink.commit.steps import MarkerType
from kafka_eos_sink.commit.take_over import TakeOver, take_over
from kafka_eos_sink.commit.values import (
    Decision,
    DecisionStatus,
    OffsetRange,
    PreparedTransaction,
    TaskOutcome,
)
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerUnavailableError,
    DecisionPendingError,
    KafkaEosError,
    TransactionAbortedError,
    WriteRefusedError,
)
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.wire_types import ZERO_UUID
from tests.unit.commit.scripted_world import BATCH, DRIVER, MESSAGE, REQUEST, World

NEXT_DRIVER = replace(DRIVER, producer_epoch=5)
"""W.driver's identity once the coordinator has ended the decision's transaction."""
TIMEOUT_MS = 900_000


def prepared(partition: int, rows: int = 10) -> PreparedTransaction:
    identity = ProducerIdentity(
        transactional_id=f"w.{partition}.7", producer_id=10 + partition, producer_epoch=0, transaction_version=2
    )
    where = OffsetRange(topic="t", partition=partition, first_offset=100, last_offset=99 + rows)
    return PreparedTransaction(
        partition=partition, identity=identity, part_offset=partition, rows=rows, offsets=(where,)
    )


class Cluster(World):
    """A decision of some transactions, of which ``lost`` were aborted after it; copies go where the step says."""

    def __init__(self, *lost: int, partitions: int = 2, **own: Callable[[Any], Any]) -> None:
        super().__init__(**own)
        self.named = tuple(prepared(partition) for partition in range(partitions))
        self.aborted = {self.named[partition].identity for partition in lost}
        self.open: dict[str, ProducerIdentity] = {}
        self.holder = NEXT_DRIVER
        """W.driver, as its coordinator describes it."""
        self.first_offsets: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
        self.gone: set[int] = set()
        """Data partitions whose records cannot be copied."""
        self.times_lost = 0
        """How many further copies are aborted between their decision and their EndTxn."""
        for entry in self.named:
            self.append(part_record("w", "batch", entry.partition, 1, 0), entry.identity)
        for identity in self.aborted:
            self.mark(identity, MarkerType.ABORT)
        self.decision = Decision(
            write_id="w",
            query_id="batch",
            version=1,
            nonce="mine",
            driver=DRIVER,
            topic="t",
            schema="value string",
            offsets_hash=None,
            transactions=self.named,
        )
        (record,) = decision_records(self.decision)
        self.found = LoggedDecision(self.decision, self.append(record, DRIVER))
        self.mark(DRIVER, MarkerType.COMMIT)

    def finish(
        self,
        driver: DriverTransaction | None = None,
        losers: Sequence[ProducerIdentity] = (),
        within_ms: int = PROOFS_WITHIN_MS,
    ) -> tuple[Settled, DriverTransaction]:
        driver = driver or DriverTransaction(NEXT_DRIVER)
        settled: Settled = self.run(
            finish(
                self.found,
                driver,
                nonce="barrier",
                within_ms=within_ms,
                timeout_ms=TIMEOUT_MS,
                losers=losers,
                recovering=True,
            )
        )
        return settled, driver

    # the log

    @property
    def end(self) -> int:
        return self.log[-1].offset + 1 if self.log else 0

    def append(self, record: steps.LogRecord, by: ProducerIdentity | None) -> int:
        offset = self.end
        self.log.append(
            steps.ReadRecord(
                offset=offset,
                producer_id=-1 if by is None else by.producer_id,
                producer_epoch=-1 if by is None else by.producer_epoch,
                transactional=by is not None,
                key=record.key,
                value=record.value,
            )
        )
        return offset

    def mark(self, identity: ProducerIdentity, kind: MarkerType) -> None:
        epoch = identity.producer_epoch + 1
        self.log.append(
            steps.Marker(offset=self.end, producer_id=identity.producer_id, producer_epoch=epoch, type=kind)
        )

    def records(self, kind: str) -> list[tuple[LogKey, dict[str, Any]]]:
        found = [
            (key, json.loads(entry.value))
            for entry in self.log
            if isinstance(entry, steps.ReadRecord) and entry.value and (key := parse_key(entry.key)) is not None
        ]
        return [(key, fields) for key, fields in found if key.kind == kind]

    def newest(self) -> Decision:
        view = LogView("w")
        view.feed(self.log, self.end, 0)
        found = view.query("batch").newest
        assert found is not None
        return found.decision

    # the steps

    def Append(self, step: steps.Append) -> int:  # noqa: N802
        (offset,) = [self.append(record, None) for record in step.records]
        return offset

    def AppendInTransaction(self, step: steps.AppendInTransaction) -> steps.Appended:  # noqa: N802
        (offset,) = [self.append(record, step.identity) for record in step.records]
        return steps.Appended(error=0, offset=offset)

    def LogPolicy(self, _: steps.LogPolicy) -> str:  # noqa: N802
        return "compact"

    def ListOpenTransactions(self, _: steps.ListOpenTransactions) -> tuple[str, ...]:  # noqa: N802
        return tuple(self.open)

    def InitProducerId(self, step: steps.InitProducerId) -> ProducerIdentity:  # noqa: N802
        if step.transactional_id == "w.driver":
            identity = self.holder = replace(DRIVER, producer_epoch=20 + len(self.steps))
        else:
            identity = replace(DRIVER, transactional_id=step.transactional_id, producer_id=100 + len(self.steps))
            self.open[step.transactional_id] = identity
        return identity

    def CopyRecords(self, step: steps.CopyRecords) -> tuple[steps.Copied | steps.Gone, ...]:  # noqa: N802
        self.now += 1
        return tuple(map(self.copy, step.copies))

    def copy(self, step: steps.Copy) -> steps.Copied | steps.Gone:
        for part in step.ranges:
            if part.partition in self.gone:
                where = f"{part.topic}-{part.partition} [{part.first_offset}..{part.last_offset}]"
                return steps.Gone(f"{where}: the partition does not hold these offsets any more")
        moved = tuple(replace(part, first_offset=part.first_offset + 500) for part in step.ranges)
        moved = tuple(replace(part, last_offset=part.last_offset + 500) for part in moved)
        for part in moved:
            begun = self.first_offsets.setdefault((part.topic, part.partition), {})
            begun[step.identity.producer_id] = step.identity.producer_epoch, part.first_offset
        rows = sum(part.last_offset - part.first_offset + 1 for part in moved)
        part_offset = self.append(step.part, step.identity)
        return steps.Copied(written=steps.WrittenRows(rows=rows, offsets=moved), part_offset=part_offset)

    def DescribeTransactions(self, step: steps.DescribeTransactions) -> dict[str, Any]:  # noqa: N802
        if step.transactional_ids == ("w.driver",):
            return {"w.driver": description_of(self.holder)}
        return {
            name: None
            if (identity := self.open.get(name)) is None
            else steps.TransactionDescription(
                state="Ongoing",
                producer_id=identity.producer_id,
                producer_epoch=identity.producer_epoch,
                timeout_ms=TIMEOUT_MS,
                start_time_ms=self.now,
                partitions=frozenset(
                    where for where, begun in self.first_offsets.items() if identity.producer_id in begun
                ),
            )
            for name in step.transactional_ids
        }

    def DescribeProducers(self, step: steps.DescribeProducers) -> dict[Any, Any]:  # noqa: N802
        return {where: self.first_offsets.get(where, {}) for where in step.partitions}

    def EndTransactions(self, step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:  # noqa: N802
        return tuple(self.ends(end) for end in step.ends)

    def ends(self, end: steps.End) -> steps.EndResult:
        identity = end.identity
        self.ended.append(end)
        if identity == self.holder and identity.transaction_version >= 2:
            self.holder = replace(identity, producer_epoch=identity.producer_epoch + 1)
        is_copy = self.open.pop(identity.transactional_id, None) is not None
        if is_copy:
            for begun in self.first_offsets.values():
                begun.pop(identity.producer_id, None)
        if is_copy and end.commit and self.times_lost:
            self.times_lost -= 1
            self.aborted.add(identity)
            self.mark(identity, MarkerType.ABORT)
        if identity in self.aborted:
            return steps.EndResult(error=ErrorCode.INVALID_TXN_STATE)
        self.mark(identity, MarkerType.COMMIT if end.commit else MarkerType.ABORT)
        return steps.EndResult(error=0, producer_id=identity.producer_id, producer_epoch=identity.producer_epoch + 1)

    def LastStableOffsets(self, step: steps.LastStableOffsets) -> dict[Any, int]:  # noqa: N802
        return dict.fromkeys(step.partitions, 10_000)

    def AbortedTransactions(self, step: steps.AbortedTransactions) -> dict[Any, Any]:  # noqa: N802
        lost = {identity.producer_id for identity in self.aborted}
        ids: Sequence[int] = step.producer_ids
        return {
            part: ((producer_id, part.first_offset),) if producer_id in lost else ()
            for part, producer_id in zip(step.ranges, ids, strict=True)
        }

    # what was done

    def copies(self) -> list[steps.Copy]:
        return [copy for step in self.done(steps.CopyRecords) for copy in step.copies]

    def done(self, kind: type[Any]) -> list[Any]:
        return [step for step in self.steps if isinstance(step, kind)]

    @property
    def ended_copies(self) -> list[tuple[str, bool]]:
        names = {entry.identity.transactional_id for entry in self.named} | {"w.driver"}
        return [
            (end.identity.transactional_id, end.commit)
            for end in self.ended
            if end.identity.transactional_id not in names
        ]


def description_of(driver: ProducerIdentity) -> steps.TransactionDescription:
    return steps.TransactionDescription(
        state="CompleteCommit",
        producer_id=driver.producer_id,
        producer_epoch=driver.producer_epoch,
        timeout_ms=60_000,
        start_time_ms=0,
        partitions=frozenset(),
    )


def test_fenced_driver_copies_nothing_and_ends_nothing() -> None:
    """A newer driver may have committed a transaction under the copy's id: an abort of it could discard committed rows."""
    cluster = Cluster(1)
    cluster.holder = replace(NEXT_DRIVER, producer_epoch=9)
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*FENCED"):
        cluster.finish()
    assert len(cluster.done(steps.InitProducerId)) == 1
    assert (cluster.done(steps.CopyRecords), cluster.ended_copies) == ([], [])


@pytest.mark.parametrize("others", [ErrorCode.NONE, None], ids=["open", "silent"])
def test_copy_never_takes_the_slot_of_the_lost_one(others: ErrorCode | None) -> None:
    cluster = Cluster(1)

    def describe(step: steps.DescribeTransactions) -> dict[str, Any]:
        cluster.now += 10_000
        if step.transactional_ids in (("w.driver",), ("w.1.7",)):
            return Cluster.DescribeTransactions(cluster, step)
        if others is None:
            raise BrokerUnavailableError("REQUEST_DEADLINE", "no response")
        return {name: replace(description_of(DRIVER), state="Ongoing") for name in step.transactional_ids}

    cluster.own = {"DescribeTransactions": describe}
    with pytest.raises(DecisionPendingError, match="could not be copied"):
        cluster.finish()
    assert cluster.done(steps.InitProducerId) == []


def test_lost_transaction_is_copied_and_decided_with_the_rest() -> None:
    cluster = Cluster(1)
    settled, driver = cluster.finish()
    (step,) = cluster.copies()
    assert (step.source, step.ranges) == (cluster.named[1].identity, cluster.named[1].offsets)
    rest, copy = settled.logged.decision.transactions
    assert rest == replace(cluster.named[0], proven=True)
    assert (copy.partition, copy.identity, copy.rows, copy.proven) == (1, step.identity, 10, False)
    assert copy.offsets == (OffsetRange(topic="t", partition=1, first_offset=600, last_offset=609),)
    assert settled.logged.decision == replace(
        cluster.decision, nonce="mine~1", driver=NEXT_DRIVER, transactions=(rest, copy)
    )
    assert settled.lost == ()
    assert driver == DriverTransaction(replace(DRIVER, producer_epoch=6))
    assert "10 rows of 1 transactions that had been aborted after the decision were copied" in cluster.warnings[-1]


def test_steps_of_a_copy_are_taken_in_this_order() -> None:
    """Nothing is committed before the marker of the second decision was read."""
    cluster = Cluster(0, 1)
    cluster.finish()
    kinds = (steps.InitProducerId, steps.CopyRecords, steps.DescribeProducers, steps.AppendInTransaction)
    began = cluster.steps.index(cluster.done(steps.InitProducerId)[0])
    taken = [
        type(step).__name__
        if isinstance(step, kinds)
        else ", ".join(f"{'commit' if end.commit else 'abort'} {end.identity.transactional_id}" for end in step.ends)
        for step in cluster.steps[began:]
        if isinstance(step, (*kinds, steps.EndTransactions))
    ]
    assert taken == [
        "InitProducerId",
        "InitProducerId",
        "CopyRecords",
        "DescribeProducers",
        "AppendInTransaction",
        "commit w.driver",
        "commit w.0.0, commit w.1.0",
    ]


def test_copy_takes_another_slot_and_leaves_its_own_part_record() -> None:
    cluster = Cluster(1)
    cluster.finish()
    (initialised,) = cluster.done(steps.InitProducerId)
    assert initialised.transactional_id == "w.1.0", "the lost one has slot 7"
    (step,) = cluster.copies()
    assert step.part == part_record("w", "batch", 1, 1, -1)
    assert step.identity.transaction_version == 2


def test_nothing_is_copied_of_a_decision_that_was_committed() -> None:
    cluster = Cluster()
    settled, driver = cluster.finish()
    assert (settled.logged, settled.lost) == (cluster.found, ())
    assert driver == DriverTransaction(NEXT_DRIVER)
    assert cluster.done(steps.CopyRecords) == []


def test_lost_copy_is_copied_from_the_copy() -> None:
    cluster = Cluster(1)
    cluster.times_lost = 1
    settled, driver = cluster.finish()
    first, second = cluster.copies()
    assert (second.source, second.ranges) == (
        first.identity,
        (OffsetRange(topic="t", partition=1, first_offset=600, last_offset=609),),
    )
    assert second.identity.transactional_id == "w.1.1", "the lost copy has slot 0"
    assert (settled.logged.decision.nonce, settled.logged.decision.copies) == ("mine~2", 2)
    assert driver.identity.producer_epoch == DRIVER.producer_epoch + 3
    assert settled.logged.decision.transactions[0].proven


def test_losing_attempts_are_ended_once_before_the_copies() -> None:
    cluster = Cluster(1)
    loser = replace(DRIVER, transactional_id="w.1.3", producer_id=77)
    cluster.finish(losers=[loser])
    assert [end.commit for end in cluster.ended if end.identity == loser] == [False]
    kinds = [type(step).__name__ for step in cluster.steps]
    assert kinds.index("EndTransactions") < kinds.index("CopyRecords")


def test_sequence_continues_where_the_driver_keeps_its_epoch() -> None:
    """Below version 2 an EndTxn does not bump the epoch."""
    cluster = Cluster(1)
    old = replace(NEXT_DRIVER, transaction_version=0)

    def without_bump(step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:
        results = Cluster.EndTransactions(cluster, step)
        if step.ends[0].identity == old:
            cluster.log[-1] = replace(cluster.log[-1], producer_epoch=old.producer_epoch)
        return tuple(replace(result, producer_id=-1, producer_epoch=-1) for result in results)

    cluster.own = {"EndTransactions": without_bump, "AddPartition": lambda _: 0}
    _, driver = cluster.finish(DriverTransaction(old, 3))
    (appended,) = cluster.done(steps.AppendInTransaction)
    assert (appended.identity, appended.base_sequence) == (old, 3)
    assert driver == DriverTransaction(old, 4)


def test_driver_whose_end_may_still_arrive_copies_nothing() -> None:
    """Below version 2 the late EndTxn could commit the first records of the next decision alone."""
    cluster = Cluster(1)
    old = replace(NEXT_DRIVER, transaction_version=0)
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED.*only a new run can continue"):
        cluster.finish(DriverTransaction(old, 3, late_end_possible=True))
    assert cluster.done(steps.CopyRecords) == []
    assert cluster.done(steps.AppendInTransaction) == []


def test_next_epoch_is_known_without_a_response() -> None:
    cluster = Cluster(1)

    def silent(step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:
        results = Cluster.EndTransactions(cluster, step)
        return (steps.EndResult(error=None),) if step.ends[0].identity == NEXT_DRIVER else results

    cluster.own = {"EndTransactions": silent}
    _, driver = cluster.finish()
    assert driver == DriverTransaction(replace(NEXT_DRIVER, producer_epoch=6))


def test_copies_that_are_lost_again_and_again_end_in_an_error() -> None:
    cluster = Cluster(1)
    cluster.times_lost = MOST_COPIES
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*copied from the log 4 times"):
        cluster.finish()
    assert len(cluster.done(steps.CopyRecords)) == MOST_COPIES
    assert cluster.newest().copies == MOST_COPIES, "the next run continues from there"


def test_last_copy_that_is_not_lost_finishes_the_run() -> None:
    cluster = Cluster(1)
    cluster.times_lost = MOST_COPIES - 1
    settled, _ = cluster.finish()
    assert (settled.lost, settled.logged.decision.copies) == ((), MOST_COPIES)
    assert cluster.open == {}


def test_records_that_are_gone_are_named_and_nothing_is_copied() -> None:
    cluster = Cluster(1, 2, partitions=3)
    cluster.gone = {2}
    with pytest.raises(DecisionPendingError, match=r"LOST_PARTS\]") as raised:
        cluster.finish()
    lost, _, gone = raised.value.message.partition("can be copied from the log: ")
    assert (
        "20 rows of version 1 of write id 'w' are missing from the topic: 2 of its 3 transactions were aborted" in lost
    )
    assert "in t-1 [100..109], t-2 [100..109]" in lost
    assert "t-2 [100..109]: the partition does not hold these offsets any more" in gone
    assert "t-1" not in gone, "its records can be copied"
    way_out = raised.value.way_out
    assert "kafka-eos resolve --bootstrap-servers ... --write-id w --version 1 --as committed" in way_out
    assert way_out.endswith(
        "kafka-eos resolve --bootstrap-servers ... --write-id w --version 1 --as rewrite --allow-duplicates"
    )
    assert cluster.ended_copies == [("w.1.0", False), ("w.2.0", False)]
    assert (cluster.newest(), cluster.open) == (cluster.decision, {})


def test_missing_rows_are_counted_and_nothing_is_copied() -> None:
    cluster = Cluster(1)

    def some(step: steps.CopyRecords) -> Any:
        (copied,) = Cluster.CopyRecords(cluster, step)
        assert isinstance(copied, steps.Copied)
        return (replace(copied, written=replace(copied.written, rows=7)),)

    cluster.own = {"CopyRecords": some}
    with pytest.raises(
        DecisionPendingError, match=r"LOST_PARTS\].*3 of 10 rows of Spark partition 1 are gone from t-1 \[100\.\.109\]"
    ):
        cluster.finish()
    assert cluster.ended_copies == [("w.1.0", False)]
    assert cluster.newest() == cluster.decision


@pytest.mark.parametrize("gone", [{0}, {0, 1}])
def test_decision_without_visible_or_copyable_rows_is_void(gone: set[int]) -> None:
    """Nothing partial: what could be copied is not copied either."""
    cluster = Cluster(0, 1)
    cluster.gone = gone
    settled, driver = cluster.finish()
    assert settled.lost == cluster.named
    assert cluster.ended_copies == [("w.0.0", False), ("w.1.0", False)]
    # For good, even if the records come back: somebody may have been told to write them again.
    assert (
        cluster.newest()
        == settled.logged.decision
        == replace(cluster.decision, nonce="mine~1", driver=NEXT_DRIVER, transactions=())
    )
    assert settled.logged.decision.is_void
    assert driver == DriverTransaction(replace(DRIVER, producer_epoch=6))
    assert "cannot be copied from the log: 10 rows of Spark partition 0: t-0 [100..109]" in cluster.warnings[-1]
    assert "the version may be written again, before any higher one" in cluster.warnings[-1]


def unreachable(_: Any) -> Any:
    raise BrokerUnavailableError("REQUEST_DEADLINE", "Fetch was not done in time")


def test_failed_copy_ends_its_transactions_and_decides_nothing() -> None:
    cluster = Cluster(0, 1, CopyRecords=unreachable)
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*could not be copied.*Fetch was not done"):
        cluster.finish()
    assert cluster.ended_copies == [("w.0.0", False), ("w.1.0", False)]
    assert cluster.newest() == cluster.decision


def test_copy_ended_by_another_client_is_not_decided() -> None:
    cluster = Cluster(1)

    def aborted(step: steps.DescribeProducers) -> dict[Any, Any]:
        return {where: {} for where in step.partitions}

    cluster.own = {"DescribeProducers": aborted}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*TRANSACTION_NOT_OPEN"):
        cluster.finish()
    assert cluster.ended_copies == [("w.1.0", False)]
    assert cluster.newest() == cluster.decision


def test_copy_that_took_too_long_is_not_decided() -> None:
    cluster = Cluster(1)

    def slow(step: steps.AppendInTransaction) -> steps.Appended:
        cluster.now += TIMEOUT_MS
        return Cluster.AppendInTransaction(cluster, step)

    cluster.own = {"AppendInTransaction": slow}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*TRANSACTION_TOO_OLD"):
        cluster.finish()
    assert cluster.ended_copies == [("w.1.0", False)]
    assert cluster.newest() == cluster.decision


def test_copies_of_a_fenced_driver_are_ended_at_once() -> None:
    """The marker of their decision is an ABORT, so no driver will ever commit them."""
    cluster = Cluster(1)

    def fenced(step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:
        if step.ends[0].identity == NEXT_DRIVER:
            cluster.mark(NEXT_DRIVER, MarkerType.ABORT)
            return (steps.EndResult(error=ErrorCode.PRODUCER_FENCED),)
        return Cluster.EndTransactions(cluster, step)

    cluster.own = {"EndTransactions": fenced}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*FENCED"):
        cluster.finish()
    assert cluster.ended_copies == [("w.1.0", False)]
    assert cluster.newest() == cluster.decision


def test_copies_whose_decision_is_rejected_are_ended_at_once() -> None:
    cluster = Cluster(1, AppendInTransaction=lambda _: steps.Appended(error=ErrorCode.MESSAGE_TOO_LARGE))
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*NOT_DECIDED.*MESSAGE_TOO_LARGE"):
        cluster.finish()
    assert cluster.ended_copies == [("w.1.0", False)]


def test_second_decision_without_marker_is_unknown_ends_nothing() -> None:
    """The copies may be decided: only a driver that has read the log may end them."""
    cluster = Cluster(1)

    def unmarked(step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:
        if step.ends[0].identity == NEXT_DRIVER:
            return (steps.EndResult(error=None),)
        return Cluster.EndTransactions(cluster, step)

    def later(step: steps.ReadLog) -> steps.LogChunk:
        cluster.now += 100
        return Cluster.ReadLog(cluster, step)

    cluster.own = {"EndTransactions": unmarked, "ReadLog": later}
    with pytest.raises(DecisionPendingError, match="that run finds out, and writes nothing twice") as raised:
        cluster.finish(within_ms=5_000)
    assert raised.value.code == "DECISION_UNKNOWN"
    assert cluster.ended_copies == []


def test_commit_heals_its_own_batch() -> None:
    """So a job without txnAppId heals too, whose next run has another write id."""
    world = Cluster(partitions=1)
    world.log.clear()
    entry = replace(
        world.named[0], part_offset=world.append(part_record("w", "batch", 0, 1, 0), world.named[0].identity)
    )
    world.open[entry.identity.transactional_id] = entry.identity
    world.first_offsets["t", 0] = {entry.identity.producer_id: (0, 100)}
    message = replace(MESSAGE, prepared=entry)

    def times_out(end: steps.End) -> None:
        if end.identity == DRIVER:
            del world.open[entry.identity.transactional_id]
            world.aborted.add(entry.identity)
            world.mark(entry.identity, MarkerType.ABORT)

    def ends(step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:
        results = Cluster.EndTransactions(world, step)
        times_out(step.ends[0])
        return results

    world.own = {"EndTransactions": ends}
    decision = world.run(commit(REQUEST, [message]))
    assert (decision.nonce, [copy.rows for copy in decision.transactions]) == ("mine~1", [10])
    ((_, done),) = world.records("done")
    assert done["nonce"] == "mine~1", "the next run finds nothing left to do"
    assert world.open == {}


def test_take_over_begins_again_after_it_decided_copies() -> None:
    """Tasks recognise their driver by the state that a fence leaves, and the decision of copies has changed it."""
    cluster = Cluster(1)
    request = TakeOver(write_id="w", nonce="barrier", transaction_timeout_ms=TIMEOUT_MS)
    plan = cluster.run(take_over(request, 2))
    fences = [step for step in cluster.done(steps.InitProducerId) if step.transactional_id == "w.driver"]
    assert len(fences) == 2
    (decision,) = plan.decisions
    assert (decision.version, decision.nonce, decision.status) == (1, "mine~1", DecisionStatus.FINISHED)
    assert len(cluster.done(steps.CopyRecords)) == 1
    written = [step.identity for step in cluster.done(steps.AppendInTransaction)]
    assert plan.driver not in written


def test_take_over_returns_a_void_version() -> None:
    cluster = Cluster(0, 1)
    cluster.gone = {0, 1}
    request = TakeOver(write_id="w", nonce="barrier", transaction_timeout_ms=TIMEOUT_MS)
    plan = cluster.run(take_over(request, 2))
    (decision,) = plan.decisions
    assert decision.status is DecisionStatus.VOID
    assert len(cluster.done(steps.CopyRecords)) == 1, "the second look finds it void"
    assert cluster.records("done") == []


def with_second_query(cluster: Cluster) -> None:
    """Another query id of the write, whose only transaction was aborted as well."""
    driver = replace(DRIVER, producer_epoch=8)
    entry = prepared(5)
    entry = replace(entry, part_offset=cluster.append(part_record("w", "q2", 5, 1, 0), entry.identity))
    cluster.aborted.add(entry.identity)
    cluster.mark(entry.identity, MarkerType.ABORT)
    decision = replace(cluster.decision, query_id="q2", nonce="other", driver=driver, transactions=(entry,))
    (record,) = decision_records(decision)
    cluster.append(record, driver)
    cluster.mark(driver, MarkerType.COMMIT)


def test_take_over_copies_for_two_queries_under_one_fence() -> None:
    cluster = Cluster(1)
    with_second_query(cluster)
    plan = cluster.run(take_over(TakeOver(write_id="w", nonce="barrier", transaction_timeout_ms=TIMEOUT_MS), 2))
    assert {decision.query_id: decision.nonce for decision in plan.decisions} == {"batch": "mine~1", "q2": "other~1"}
    first, second = cluster.done(steps.AppendInTransaction)
    assert second.identity == replace(first.identity, producer_epoch=first.identity.producer_epoch + 1)
    assert (first.base_sequence, second.base_sequence) == (0, 0)
    kinds = [step for step in cluster.steps if isinstance(step, (steps.InitProducerId, steps.AppendInTransaction))]
    fences = [at for at, step in enumerate(kinds) if getattr(step, "transactional_id", "") == "w.driver"]
    assert fences == [0, len(kinds) - 1]


def test_failed_decision_is_not_committed_with_another_querys() -> None:
    """The leader takes the same producer id, epoch and sequence for a resend, whatever the records are."""
    cluster = Cluster(0, 1)
    with_second_query(cluster)

    def slow(step: steps.AppendInTransaction) -> steps.Appended:
        cluster.now += 2 * TIMEOUT_MS
        return Cluster.AppendInTransaction(cluster, step)

    def describe(step: steps.DescribeTransactions) -> dict[str, Any]:
        found = Cluster.DescribeTransactions(cluster, step)
        if step.transactional_ids == ("w.driver",) and cluster.done(steps.AppendInTransaction):
            found["w.driver"] = replace(found["w.driver"], state="Ongoing")
        return found

    cluster.own = {"AppendInTransaction": slow, "DescribeTransactions": describe}
    with pytest.raises(DecisionPendingError):
        cluster.run(take_over(TakeOver(write_id="w", nonce="barrier", transaction_timeout_ms=TIMEOUT_MS), 2))
    assert len(cluster.done(steps.AppendInTransaction)) == 1
    assert not [end for end in cluster.ended if end.identity.transactional_id == "w.driver"]


def test_copies_of_one_query_stand_if_another_fails() -> None:
    cluster = Cluster(1, partitions=2)
    with_second_query(cluster)

    def some(step: steps.CopyRecords) -> Any:
        if step.copies[0].ranges[0].partition == 1:
            raise BrokerUnavailableError("REQUEST_DEADLINE", "Fetch was not done in time")
        return Cluster.CopyRecords(cluster, step)

    cluster.own = {"CopyRecords": some}
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*version 1 .*could not be copied"):
        cluster.run(take_over(TakeOver(write_id="w", nonce="barrier", transaction_timeout_ms=TIMEOUT_MS), 2))
    view = LogView("w")
    view.feed(cluster.log, cluster.end, 0)
    found = view.query("q2").newest
    assert found is not None
    assert (found.decision.nonce, view.query("q2").has_done_record(found.decision)) == ("other~1", True)
    assert cluster.newest() == cluster.decision
    assert cluster.open == {}


def outgrown(cluster: Cluster) -> TakeOver:
    """By a planner that has read a log as long as the one that another process has begun since."""
    view = LogView("w", next_offset=cluster.end, topic_id=uuid.uuid4())
    return TakeOver(write_id="w", nonce="next", transaction_timeout_ms=TIMEOUT_MS, view=view)


def test_recreated_longer_log_is_read_from_its_start() -> None:
    cluster = Cluster(partitions=1)
    (named,) = cluster.named
    cluster.open[named.identity.transactional_id] = named.identity
    cluster.run(take_over(outgrown(cluster), 2))
    assert cluster.ended[0] == steps.End(identity=named.identity, commit=True)


def test_half_finished_batch_in_a_recreated_log_is_not_admitted() -> None:
    """Its first transaction is committed already, so a second run would write those rows twice."""
    cluster = Cluster(partitions=2)
    done, named = cluster.named
    cluster.mark(done.identity, MarkerType.COMMIT)
    cluster.open[named.identity.transactional_id] = named.identity
    plan = cluster.run(take_over(outgrown(cluster), 2))
    assert admit(plan, BATCH)[0] is TaskOutcome.ALREADY_COMMITTED


def test_log_recreated_during_the_read_is_read_again() -> None:
    cluster = Cluster(partitions=1)
    (named,) = cluster.named
    cluster.open[named.identity.transactional_id] = named.identity
    reads: list[int] = []

    def changing(step: steps.ReadLog) -> steps.LogChunk:
        reads.append(step.offset)
        chunk = Cluster.ReadLog(cluster, step)
        return replace(chunk, topic_id=uuid.uuid4()) if len(reads) < 2 else chunk

    cluster.own = {"ReadLog": changing}
    cluster.run(take_over(outgrown(cluster), 2))
    assert reads[:4].count(0) > 1
    assert cluster.ended[0] == steps.End(identity=named.identity, commit=True)


def resolve_it(cluster: Cluster, resolution: Resolution = "rewrite") -> Resolved:
    request = ResolveRequest(
        write_id="w",
        query_id="batch",
        version=1,
        resolution=resolution,
        nonce="answer",
        transaction_timeout_ms=TIMEOUT_MS,
    )
    done: Resolved = cluster.run(resolve(request, 2))
    return done


@pytest.mark.parametrize("at", ["ReadLog", "InitProducerId", "Append", "EndTransactions"])
def test_version_counts_as_written_after_its_rows_were_copied(at: str) -> None:
    """No run copies a row of a version that counts as written. Kafka aborts one of its transactions before the step."""
    cluster = Cluster(partitions=2)
    lost = cluster.named[1].identity

    def times_out(step: Any) -> Any:
        if lost not in cluster.aborted:
            cluster.aborted.add(lost)
            cluster.mark(lost, MarkerType.ABORT)
        return getattr(Cluster, at)(cluster, step)

    cluster.own = {at: times_out}
    resolve_it(cluster, "committed")
    (copy,) = cluster.copies()
    assert (copy.source, cluster.ended_copies) == (lost, [(copy.identity.transactional_id, True)])
    assert cluster.newest().resolution == "committed"
    assert "were copied from the log" in cluster.warnings[-1]


def test_version_that_counts_as_written_names_the_rows_given_up() -> None:
    cluster = Cluster(1)
    cluster.gone = {1}
    resolve_it(cluster, "committed")
    assert cluster.newest().resolution == "committed"
    assert any("will count as written" in each and "t-1 [100..109]" in each for each in cluster.warnings)


@pytest.mark.parametrize("lost", [(1,), (0, 1)])
@pytest.mark.parametrize("step", ["AbortedTransactions", "CopyRecords"])
def test_rows_that_the_operator_may_not_read_are_not_given_up(lost: tuple[int, ...], step: str) -> None:
    """The next run of a principal with Read copies them."""

    def unauthorized(_: object) -> None:
        raise AuthorizationError("TOPIC_AUTHORIZATION_FAILED", "no Read on t")

    cluster = Cluster(*lost, **{step: unauthorized})
    with pytest.raises(KafkaEosError, match=r"no Read on t"):
        resolve_it(cluster, "committed")
    assert cluster.newest() == cluster.decision
    assert cluster.open == {}
    cluster.own = {}
    resolve_it(cluster, "committed")
    assert [end for end in cluster.ended_copies if end[1]] == [(f"w.{each}.0", True) for each in lost]


@pytest.mark.parametrize("transaction_version", [2, 0])
def test_resolution_after_lost_copies_has_the_next_sequence(transaction_version: int) -> None:
    """W.driver has decided the copies, which are lost and gone. A leader drops a record with the sequence of that decision."""
    cluster = Cluster(1)
    cluster.times_lost = 1

    def once(step: steps.CopyRecords) -> tuple[steps.Copied | steps.Gone, ...]:
        result = Cluster.CopyRecords(cluster, step)
        cluster.gone = {1}
        return result

    def fence(step: steps.InitProducerId) -> ProducerIdentity:
        identity = Cluster.InitProducerId(cluster, step)
        if step.transactional_id == "w.driver":
            identity = cluster.holder = replace(identity, transaction_version=transaction_version)
        return identity

    def ends(step: steps.EndTransactions) -> tuple[steps.EndResult, ...]:
        results = Cluster.EndTransactions(cluster, step)
        if step.ends[0].identity.bumps_epoch:
            return results
        cluster.log[-1] = replace(cluster.log[-1], producer_epoch=step.ends[0].identity.producer_epoch)
        return tuple(replace(result, producer_id=-1, producer_epoch=-1) for result in results)

    cluster.own = {"CopyRecords": once, "InitProducerId": fence, "EndTransactions": ends, "AddPartition": lambda _: 0}
    resolve_it(cluster, "committed")
    appended = [(step.identity, step.base_sequence) for step in cluster.done(steps.AppendInTransaction)]
    assert len(appended) == len(set(appended)) == 2
    assert len({identity for identity, _ in appended}) == (2 if transaction_version == 2 else 1)
    assert cluster.newest().resolution == "committed"
    assert any("will count as written" in each and "10 rows" in each for each in cluster.warnings)


def delete_under_readers(cluster: Cluster) -> None:
    """The topic of the committed rows was created again; the lost rows of other topics can still be copied."""

    def gone(_: steps.LastStableOffsets) -> None:
        raise steps.DataTopicGoneError("UNKNOWN_TOPIC", "topic 'other' is not known")

    cluster.own = {"LastStableOffsets": gone}


def test_lost_rows_are_copied_beside_a_deleted_topic() -> None:
    """The deleted topic takes only its own rows with it."""
    cluster = Cluster(1)
    delete_under_readers(cluster)
    with pytest.raises(DecisionPendingError, match=r"TOPIC_GONE\].*topic 'other' is not known"):
        cluster.finish()
    (copies,) = cluster.done(steps.CopyRecords)
    assert [copy.source for copy in copies.copies] == [cluster.named[1].identity]
    newest = cluster.newest()
    assert [entry.partition for entry in newest.transactions] == [0, 1]
    assert newest.transactions[0] == cluster.named[0]
    ended = {end.identity for step in cluster.done(steps.EndTransactions) for end in step.ends if end.commit}
    assert newest.transactions[1].identity in ended


def test_deleted_topic_is_no_reason_to_void_the_batch() -> None:
    """Readers may see none of the rows, so that `--as rewrite --allow-duplicates` doubles none."""
    cluster = Cluster(1)
    cluster.gone = {1}
    delete_under_readers(cluster)
    with pytest.raises(
        DecisionPendingError,
        match=r"LOST_PARTS\].*t-1 \[100..109\].*rows of the committed ones are not seen either: topic 'other' is not known",
    ):
        cluster.finish()
    resolve_it(cluster, "committed")
    assert "rows of the committed ones are not seen either" in cluster.warnings[-1]


def test_failure_behind_copies_lets_the_next_query_id_decide() -> None:
    """W.driver has decided the copies of one query id, whose settling then fails; the other query id has lost rows, too."""
    cluster = Cluster(1)
    other = replace(prepared(2), part_offset=cluster.end)
    cluster.append(part_record("w", "second", 2, 1, 0), other.identity)
    cluster.aborted.add(other.identity)
    cluster.mark(other.identity, MarkerType.ABORT)
    (record,) = decision_records(replace(cluster.decision, query_id="second", transactions=(other,)))
    cluster.append(record, DRIVER)
    cluster.mark(DRIVER, MarkerType.COMMIT)
    delete_under_readers(cluster)
    with pytest.raises(DecisionPendingError, match="TOPIC_GONE"):
        cluster.run(take_over(TakeOver(write_id="w", nonce="next", transaction_timeout_ms=TIMEOUT_MS), 2))
    deciding = [step.identity for step in cluster.done(steps.AppendInTransaction)]
    assert len(deciding) == len(set(deciding)) == 2


def test_version_without_its_deleted_topic_keeps_its_copies() -> None:
    cluster = Cluster(1)
    delete_under_readers(cluster)
    resolve_it(cluster, "committed")
    assert len(cluster.done(steps.CopyRecords)) == 1
    assert cluster.newest().resolution == "committed"
    assert "TOPIC_GONE" in cluster.warnings[-1]
    assert "aborted rows" not in cluster.warnings[-1]


def test_rows_to_give_up_are_named_before_the_record() -> None:
    cluster = Cluster(1)
    cluster.gone = {1}
    cluster.own = {"AppendInTransaction": lambda _: steps.Appended(error=ErrorCode.REQUEST_TIMED_OUT)}
    with pytest.raises(TransactionAbortedError, match="NOT_RESOLVED"):
        resolve_it(cluster, "committed")
    assert "will count as written" in cluster.warnings[-1]
    assert "the aborted rows in t-1 [100..109]" in cluster.warnings[-1]


def test_resolution_waits_for_copies_that_a_new_leader_hides() -> None:
    """Below version 2, the leader would drop the resolution as a duplicate of the copies' decision."""
    cluster = Cluster(1)
    late: list[steps.ReadLog] = []

    def lags(step: steps.ReadLog) -> steps.LogChunk:
        chunk = Cluster.ReadLog(cluster, step)
        if step.wait or late or not cluster.done(steps.AppendInTransaction):
            return chunk
        late.append(step)
        return replace(chunk, entries=(), next_offset=step.offset, end_offset=step.offset)

    cluster.own = {"ReadLog": lags}
    resolve_it(cluster, "committed")
    decisions = [step.identity for step in cluster.done(steps.AppendInTransaction)]
    assert len(set(decisions)) == len(decisions) == 2
    assert cluster.newest().resolution == "committed"


def test_void_version_counts_as_written_on_the_second_command() -> None:
    """Its next run can write it."""
    cluster = Cluster(0, 1)
    cluster.gone = {0, 1}
    with pytest.raises(
        TransactionAbortedError, match=r"NOT_RESOLVED\].*is void now.*none of its rows.*run this command again"
    ):
        resolve_it(cluster, "committed")
    assert cluster.newest().resolution is None
    assert cluster.newest().is_void
    done = resolve_it(cluster, "committed")
    assert cluster.newest().resolution == "committed"
    assert "although none of its rows is in the topic" in resolved_sentence(done, allow_duplicates=False)


@pytest.mark.parametrize("response", ["arrives", "lost"])
@pytest.mark.parametrize("kept", [0, 50], ids=["shorter", "longer"])
@pytest.mark.parametrize(
    "procedure",
    [lambda cluster: cluster.run(take_over(outgrown(cluster), 2)), resolve_it],
    ids=["take_over", "resolve"],
)
def test_log_created_again_after_the_list_ends_nothing(
    procedure: Callable[[Cluster], object], kept: int, response: str
) -> None:
    """The deleted log may have decided what is open. The next run does not treat the new log as the write's own, either."""
    cluster = Cluster(partitions=1)
    open_one = prepared(3).identity
    cluster.open[open_one.transactional_id] = open_one

    def fence(step: steps.InitProducerId) -> ProducerIdentity:
        cluster.log_id = uuid.uuid4()
        cluster.log = []
        for _ in range(kept):
            cluster.append(barrier_record("other", "n"), None)
        return Cluster.InitProducerId(cluster, step)

    def append(step: steps.Append) -> int:
        offset = Cluster.Append(cluster, step)
        if response == "lost":
            raise BrokerUnavailableError("COMMIT_LOG_UNAVAILABLE", "Produce was not done in time")
        return offset

    cluster.own = {"InitProducerId": fence, "Append": append}
    refused = r"NOT_THIS_COMMIT_LOG\].*deleted and created again.*nothing was ended"
    with pytest.raises(KafkaEosError, match=refused if response == "arrives" else "COMMIT_LOG_UNAVAILABLE"):
        procedure(cluster)
    cluster.own = {}
    again = TakeOver(write_id="w", nonce="again", transaction_timeout_ms=TIMEOUT_MS)
    with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\].*w\.3\.7"):
        cluster.run(take_over(again, 2))
    assert cluster.ended == []


@pytest.mark.parametrize("left_over", ["part", "done"])
def test_recreated_log_with_late_records_is_another_log(left_over: str) -> None:
    """A losing attempt, or another query's driver, appended them by the topic's name."""
    cluster = Cluster(partitions=2)
    first, second = cluster.named
    cluster.open[second.identity.transactional_id] = second.identity
    cluster.log, cluster.log_id = [], uuid.uuid4()
    if left_over == "part":
        late = replace(first.identity, transactional_id="w.0.6", producer_id=77)
        cluster.append(part_record("w", "batch", 0, 1, 5), late)
        cluster.mark(late, MarkerType.ABORT)
    else:
        cluster.append(done_record(replace(cluster.decision, query_id="q1"), 1), None)
    with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\].*w\.1\.7"):
        cluster.run(take_over(TakeOver(write_id="w", nonce="next", transaction_timeout_ms=TIMEOUT_MS), 2))
    assert cluster.ended == []


@pytest.mark.parametrize("end", ["listed as aborted", "readers pass", "gone"])
def test_end_of_parts_in_a_deleted_log_is_read_from_the_topics(end: str) -> None:
    """The log was created again while the tasks ran, and the decision names offsets that the new one does not have yet."""
    cluster = Cluster(0)
    cluster.decision = replace(
        cluster.decision, transactions=tuple(replace(each, part_offset=5_000) for each in cluster.named[:1])
    )
    (record,) = decision_records(cluster.decision)
    cluster.log = []
    cluster.append(barrier_record("w", "plan"), None)
    cluster.append(record, DRIVER)
    cluster.mark(DRIVER, MarkerType.COMMIT)
    cluster.own["Now"] = seconds_pass(cluster)
    shown = {"listed as aborted": None, "readers pass": (), "gone": steps.Unseen.GONE}[end]
    if shown is not None:
        cluster.own["AbortedTransactions"] = lambda step: dict.fromkeys(step.ranges, shown)
    for _ in range(2):
        if end == "gone":
            with pytest.raises(DecisionPendingError, match=r"UNRESOLVED\].*kafka-eos resolve"):
                cluster.run(take_over(NEXT, 2))
        else:
            cluster.run(take_over(NEXT, 2))
            (entry,) = cluster.newest().transactions
            assert (cluster.newest().copies, entry.proven) == ((1, False) if shown is None else (0, True))
    assert len(cluster.copies()) == (1 if shown is None else 0)


def test_log_of_a_leader_without_topic_ids_is_the_same_log() -> None:
    cluster = Cluster(partitions=1)

    def fence(step: steps.InitProducerId) -> ProducerIdentity:
        cluster.log_id = ZERO_UUID
        return Cluster.InitProducerId(cluster, step)

    cluster.own = {"InitProducerId": fence}
    cluster.run(take_over(TakeOver(write_id="w", nonce="next", transaction_timeout_ms=TIMEOUT_MS), 2))
    assert cluster.ended[0] == steps.End(identity=cluster.named[0].identity, commit=True)


def test_log_without_topic_ids_is_the_same_if_it_holds_a_barrier() -> None:
    """A leader with topic ids served the driver that appended it."""
    cluster = Cluster(partitions=1)
    cluster.log = []
    cluster.append(barrier_record("w", "plan", cluster.log_id), None)
    left = prepared(3).identity
    cluster.open[left.transactional_id] = left
    cluster.log_id = ZERO_UUID
    cluster.run(take_over(TakeOver(write_id="w", nonce="next", transaction_timeout_ms=TIMEOUT_MS), 2))
    assert cluster.ended == [steps.End(identity=left, commit=False)]


def seconds_pass(cluster: Cluster) -> Callable[[steps.Now], int]:
    """Every look at the clock takes a second, so that waits end."""

    def now(_: steps.Now) -> int:
        cluster.now += 1_000
        return cluster.now

    return now


def without_marker(cluster: Cluster) -> None:
    """The coordinator calls the named transaction committed. A broker omits its marker in the commit log only (KAFKA-20734)."""
    (named,) = cluster.named

    def complete(step: steps.DescribeTransactions) -> dict[str, Any]:
        found = Cluster.DescribeTransactions(cluster, step)
        if named.identity.transactional_id in found:
            after = replace(named.identity, producer_epoch=named.identity.producer_epoch + 1)
            found[named.identity.transactional_id] = description_of(after)
        return found

    def ends(end: steps.End) -> steps.EndResult:
        return steps.EndResult(error=0) if end.identity == named.identity else cluster.ends(end)

    cluster.own |= {
        "DescribeTransactions": complete,
        "Now": seconds_pass(cluster),
        "EndTransactions": lambda step: tuple(map(ends, step.ends)),
    }


NEXT = TakeOver(write_id="w", nonce="next", transaction_timeout_ms=TIMEOUT_MS)


def a_later_transaction_ends(cluster: Cluster) -> None:
    """An attempt of the next batch takes the id and is aborted, and its marker is the first behind the part record."""
    (named,) = cluster.named
    later = replace(named.identity, producer_epoch=named.identity.producer_epoch + 1)
    cluster.mark(later, MarkerType.ABORT)
    cluster.aborted.add(named.identity)
    cluster.own = {"AbortedTransactions": lambda step: dict.fromkeys(step.ranges, ())}


@pytest.mark.parametrize("done", ["appended", "failed", "hidden by an older driver's"])
def test_unmarked_transaction_stays_proven_without_coordinator(done: str) -> None:
    """Coordinators forget, and done records can be lost: W.driver decides again what it has proven."""
    cluster = Cluster(partitions=1)
    without_marker(cluster)
    if done == "failed":
        cluster.own["Append"] = lambda step: (
            unreachable(step) if b"done" in step.records[0].key else cluster.Append(step)
        )
    plan = cluster.run(take_over(NEXT, 2))
    assert admit(plan, BATCH)[0] is TaskOutcome.ALREADY_COMMITTED
    assert plan.driver == cluster.holder, "tasks recognise their driver by the state that a fence leaves"
    if done.startswith("hidden"):
        cluster.append(done_record(replace(cluster.decision, version=0, nonce="older"), 1), None)
    a_later_transaction_ends(cluster)
    assert admit(cluster.run(take_over(NEXT, 2)), BATCH)[0] is TaskOutcome.ALREADY_COMMITTED
    (entry,) = cluster.newest().transactions
    assert (entry, cluster.newest().nonce) == (replace(cluster.named[0], proven=True), "mine")


@pytest.mark.parametrize("logged", ["no marker", "ABORT of a later transaction"])
@pytest.mark.parametrize("visible", [True, False])
def test_readers_prove_what_a_coordinator_has_forgotten(logged: str, visible: bool) -> None:
    """A losing attempt takes the id before the driver decides again, so the coordinator knows only the attempt's transaction."""
    cluster = Cluster(partitions=1)
    without_marker(cluster)
    del cluster.own["DescribeTransactions"]
    (named,) = cluster.named
    if logged != "no marker":
        cluster.mark(replace(named.identity, producer_epoch=named.identity.producer_epoch + 2), MarkerType.ABORT)
    if not visible:
        cluster.own["AbortedTransactions"] = lambda step: dict.fromkeys(step.ranges, steps.Unseen.GONE)
        expected = r"DECIDED_NOT_FINISHED\].*KAFKA-20734" if logged == "no marker" else r"UNRESOLVED\].*another marker"
        with pytest.raises(DecisionPendingError, match=expected):
            cluster.run(take_over(NEXT, 2))
        return
    for _ in range(2):
        assert admit(cluster.run(take_over(NEXT, 2)), BATCH)[0] is TaskOutcome.ALREADY_COMMITTED
    (entry,) = cluster.newest().transactions
    assert entry == replace(named, proven=True)


@pytest.mark.parametrize("failing", ["AppendInTransaction", "marker"])
def test_unmarked_transaction_not_decided_again_admits_no_batch(failing: str) -> None:
    """A task of that batch could begin a transaction under the unmarked id. Then nothing would prove the first one's end."""
    cluster = Cluster(partitions=1)
    without_marker(cluster)
    kept = dict(cluster.own)
    if failing == "marker":
        cluster.own["EndTransactions"] = lambda step: tuple(steps.EndResult(error=0) for _ in step.ends)
    else:
        cluster.own[failing] = lambda _: steps.Appended(error=None)
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*could not record once more"):
        cluster.run(take_over(NEXT, 2))
    cluster.own = kept
    assert admit(cluster.run(take_over(NEXT, 2)), BATCH)[0] is TaskOutcome.ALREADY_COMMITTED


@pytest.mark.parametrize("state", ["newer driver", "open", "late end"])
def test_unmarked_transaction_is_not_decided_in_a_used_epoch(state: str) -> None:
    cluster = Cluster(partitions=1)
    without_marker(cluster)
    if state == "newer driver":
        cluster.holder = replace(NEXT_DRIVER, producer_epoch=9)
    describe = cluster.own["DescribeTransactions"]

    def opened(step: steps.DescribeTransactions) -> dict[str, Any]:
        found = describe(step)
        return {name: replace(each, state="Ongoing") for name, each in found.items()} if "w.driver" in found else found

    if state == "open":
        cluster.own["DescribeTransactions"] = opened
    with pytest.raises(KafkaEosError, match=r"FENCED|only a new run can continue"):
        cluster.finish(DriverTransaction(NEXT_DRIVER, 0, late_end_possible=state == "late end"))
    assert cluster.done(steps.AppendInTransaction) == []


@pytest.mark.parametrize("log_id", [uuid.uuid4(), ZERO_UUID], ids=["another log", "no topic ids"])
def test_witness_of_a_log_that_was_created_again_proves_nothing(log_id: uuid.UUID) -> None:
    """Without topic ids nobody can notice it."""
    cluster = Cluster(1)
    cluster.found = replace(cluster.found, log_id=cluster.log_id)
    cluster.log_id = log_id
    if log_id.int:
        with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\]"):
            cluster.finish()
    else:
        assert cluster.finish()[0].logged.decision.copies == 1
    ((_, barrier),) = cluster.records("barrier")
    assert barrier["log"] == str(cluster.found.log_id)


@pytest.mark.parametrize(
    "logged", ["ABORT", "no marker", "ABORT of a later transaction", "its part record is another one"]
)
@pytest.mark.parametrize("readers", ["pass", "are blocked"])
@pytest.mark.parametrize(
    "ends", [(True, True), (True, False), (True, None), (False, False), (False, None), (None, None)]
)
def test_what_data_topics_show_is_the_outcome(logged: str, readers: str, ends: tuple[bool | None, bool | None]) -> None:
    """A marker is missing in the commit log only, so the log shows no end, or that of a later transaction of the id (KAFKA-20734).

    Compaction may leave the marker of a later transaction as the witness, which proves nothing about the rows either.
    """
    cluster = Cluster(partitions=1)
    (named,) = cluster.named
    ranges = (named.offsets[0], replace(named.offsets[0], partition=9))
    entry = replace(named, offsets=ranges, rows=20)
    cluster.found = replace(cluster.found, decision=replace(cluster.decision, transactions=(entry,)))
    cluster.aborted.add(named.identity)  # its EndTxn is rejected
    if logged == "ABORT":
        cluster.mark(named.identity, MarkerType.ABORT)
    elif logged.startswith("ABORT"):
        cluster.mark(replace(named.identity, producer_epoch=named.identity.producer_epoch + 3), MarkerType.ABORT)
    elif logged.startswith("its part"):
        first = cluster.log[0]
        assert isinstance(first, steps.ReadRecord)
        cluster.log[0] = replace(first, producer_id=first.producer_id + 50)
    cluster.first_offsets = {
        ("t", part.partition): {named.identity.producer_id: (0, part.first_offset)} for part in ranges
    }
    listed = {True: (), False: ((named.identity.producer_id, ranges[0].first_offset),), None: steps.Unseen.BLOCKED}
    blocked = readers == "are blocked"
    cluster.own = {
        "Now": seconds_pass(cluster),
        "AbortedTransactions": lambda step: {
            part: () if part not in ranges else steps.Unseen.BLOCKED if blocked else listed[ends[ranges.index(part)]]
            for part in step.ranges
        },
        "AreCommitted": lambda step: tuple(ends[ranges.index(part)] if blocked else None for _, part in step.written),
    }
    shown = set(ends) - {None}
    if shown == {True, False} or not (shown or logged == "ABORT"):
        with pytest.raises(DecisionPendingError, match=r"UNRESOLVED\]"):
            cluster.finish()
        assert len(cluster.records("decision")) == 1
        return
    settled, _ = cluster.finish()
    (found,) = settled.logged.decision.transactions
    if shown == {True}:
        assert (settled.logged.decision.copies, found) == (0, replace(entry, proven=True))
        assert "is committed and visible, but a broker has omitted the marker" in "".join(cluster.warnings)
    else:
        assert settled.logged.decision.copies == 1
    assert len(cluster.records("decision")) == 2


def test_shorter_log_that_was_created_again_is_refused() -> None:
    """The new log ends before the offset of the part record, so nothing of it would be read."""
    cluster = Cluster(0, partitions=1)
    moved = tuple(replace(each, part_offset=5_000) for each in cluster.named)
    cluster.found = replace(
        cluster.found, decision=replace(cluster.decision, transactions=moved), offset=5_001, log_id=cluster.log_id
    )
    cluster.log, cluster.log_id = [], uuid.uuid4()
    with pytest.raises(WriteRefusedError, match=r"NOT_THIS_COMMIT_LOG\]"):
        cluster.finish()
