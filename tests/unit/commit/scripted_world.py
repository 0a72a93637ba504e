"""The steps of a commit, performed by a script in which all goes well."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator
from typing import Any

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.commit_batch import CommitRequest
from kafka_eos_sink.commit.values import (
    BatchIdentity,
    OffsetRange,
    Plan,
    PreparedTransaction,
    TaskIdentity,
    TaskMessage,
    TaskOutcome,
)
from kafka_eos_sink.protocol.identity import ProducerIdentity

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
PREPARED = PreparedTransaction(partition=0, identity=TASK, part_offset=3, rows=10, offsets=(PART,))
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
        self.steps: list[Any] = []
        self.warnings: list[str] = []
        self.ended: list[steps.End] = []
        self.log: list[steps.ReadRecord | steps.Marker] = []
        self.log_id = uuid.uuid4()

    def run(self, procedure: Generator[Any, Any, Any]) -> Any:
        answer, failure = None, None
        while True:
            try:
                step = procedure.send(answer) if failure is None else procedure.throw(failure)
            except StopIteration as stop:
                return stop.value
            self.steps.append(step)
            answer, failure = None, None
            try:
                name = type(step).__name__
                answer = self.own[name](step) if name in self.own else getattr(self, name)(step)
            except Exception as error:
                failure = error

    def Now(self, _: steps.Now) -> int:  # noqa: N802
        return self.now

    def WallClock(self, _: steps.WallClock) -> int:  # noqa: N802
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
        return steps.LogChunk(
            entries=entries, next_offset=end, log_start_offset=0, end_offset=end, topic_id=self.log_id
        )

    def LastStableOffsets(self, step: steps.LastStableOffsets) -> dict[Any, int]:  # noqa: N802
        return dict.fromkeys(step.partitions, PART.last_offset + 2)

    def Append(self, _: steps.Append) -> int:  # noqa: N802
        return 30
