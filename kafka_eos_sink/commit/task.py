"""A task attempt: write all rows in one transaction, left open for the driver."""

from __future__ import annotations

from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.log_access import read_to_end
from kafka_eos_sink.commit.log_records import part_record
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.outcome import Outcome
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.steps import (
    AppendPart,
    DescribeTransactions,
    HasRows,
    Procedure,
    Reached,
    WallClock,
    WriteRows,
)
from kafka_eos_sink.commit.transactional_id import SLOTS
from kafka_eos_sink.commit.transactions import NEVER_TIMES_OUT_MS, fresh_identity, give_up, is_overtaken, prepared
from kafka_eos_sink.commit.values import (
    BatchIdentity,
    Plan,
    PreparedTransaction,
    TaskIdentity,
    TaskMessage,
    TaskOutcome,
)


def write_attempt(plan: Plan, batch: BatchIdentity, task: TaskIdentity) -> Procedure[TaskMessage]:
    """Run one attempt, under a producer id and epoch that no other attempt ever has.

    If the driver has decided the batch without this attempt, the attempt aborts its own transaction and returns OVERTAKEN. It raises no
    error, because `abort` gets the plan only from the messages of tasks.

    Raises:
        WriteRefusedError: The newest decision forbids the version. Nothing was written.
        KafkaEosError: A row was rejected, or the batch can no longer commit. The attempt has aborted its own transaction.
    """
    outcome, _ = admit(plan, batch)

    def message(outcome: TaskOutcome, transaction: PreparedTransaction | None = None) -> TaskMessage:
        return TaskMessage(plan=plan, batch=batch, task=task, outcome=outcome, prepared=transaction)

    if outcome is TaskOutcome.ALREADY_COMMITTED:
        return message(TaskOutcome.ALREADY_COMMITTED)
    yield from fail_if_too_late(plan, batch.query_id, batch.version, task.partition)
    if not (yield from HasRows()):  # Spark may compute for a long time before the first row
        return message(TaskOutcome.EMPTY)
    yield from fail_if_too_late(plan, batch.query_id, batch.version, task.partition)
    # Attempts of one partition that run at the same time begin their search at different slots.
    own = task.task_attempt_id % SLOTS
    slots = (*range(own, SLOTS), *range(own))
    identity = yield from fresh_identity(plan.write, task.partition, slots, plan.transaction_timeout_ms)
    yield from Reached("task.initialised")
    if (yield from is_overtaken(plan)):
        return message(TaskOutcome.OVERTAKEN)
    yield from Reached("task.may_write")
    try:
        written = yield from WriteRows(identity)
        while written is None:
            # More rows follow. A batch that can no longer commit fails now, not after its last row.
            yield from fail_if_too_late(plan, batch.query_id, batch.version, task.partition)
            written = yield from WriteRows(identity)
        yield from Reached("task.flushed")
        part = part_record(plan.write.id, batch.query_id, task.partition, batch.version, task.task_attempt_id)
        part_offset = yield from AppendPart(identity, part)
        # LATE ADD: check after the last Produce, because a later one opens a transaction again that the driver has ended.
        overtaken = yield from is_overtaken(plan)
    except Exception:
        yield from give_up([identity])
        raise
    if overtaken:
        yield from give_up([identity])
        return message(TaskOutcome.OVERTAKEN)
    yield from Reached("task.prepared")
    return message(TaskOutcome.PREPARED, prepared(task.partition, identity, written, part_offset))


def fail_if_too_late(plan: Plan, query_id: str, version: int, own: int) -> Procedure[None]:
    """Raise ``TRANSACTION_TOO_OLD`` if another partition's rows than its own are lost.

    The proof: a partition's newest part record is of this batch and has an ABORT marker, and none of the partition's ids has an open
    transaction that could replace it. Until the batch is older than the timeout, the check only reads the clock.
    """
    timeout = plan.transaction_timeout_ms
    now = yield from WallClock()
    elapsed = now - plan.started_ms
    if timeout == NEVER_TIMES_OUT_MS or elapsed <= timeout:
        return
    view = LogView(plan.write.id, next_offset=plan.log_offset)
    yield from read_to_end(view)
    lost = tuple(
        partition
        for partition, part in view.query(query_id).newest_parts.items()
        if partition != own
        and part.offset >= plan.log_offset
        and part.value is not None
        and part.value.get("version") == version
        and part.outcome is Outcome.ABORTED
    )
    if not lost:
        return
    described = yield from DescribeTransactions(plan.write.task_ids(lost))
    for partition in lost:
        held = [described.get(each) for each in plan.write.task_ids([partition])]
        if all(found is None or found.is_free for found in held):
            why = f"the finished transaction of partition {partition} was aborted while other tasks still wrote"
            raise refused("TRANSACTION_TOO_OLD", elapsed=elapsed / 1000, limit=timeout / 1000, why=why)
