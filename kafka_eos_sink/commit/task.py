"""A task attempt: write all rows in one transaction, left open for the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.deadlines import fail_if_too_late
from kafka_eos_sink.commit.driver import is_overtaken
from kafka_eos_sink.commit.log_records import part_record
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.steps import (
    AppendPart,
    DescribeTransactions,
    End,
    EndTransactions,
    HasRows,
    InitProducerId,
    Now,
    Reached,
    Wait,
    WriteRows,
)
from kafka_eos_sink.commit.transactional_id import SLOTS, slot_of
from kafka_eos_sink.commit.values import (
    BatchIdentity,
    Plan,
    PreparedTransaction,
    TaskIdentity,
    TaskMessage,
    TaskOutcome,
    Write,
)
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.protocol.identity import ProducerIdentity

SLOT_DEADLINE_MS = 60_000
SLOT_POLL_MS = 250
SLOT_WITHIN_MS = 3_000
"""Time limit of each request to a slot's coordinator, so that InitProducerId follows a recent description. It is longer than the one
second for which a broker may throttle the client (KIP-219)."""


def write_attempt(plan: Plan, batch: BatchIdentity, task: TaskIdentity) -> Procedure[TaskMessage]:
    """Run one attempt, under a producer id and epoch that no other attempt ever has.

    If the driver has decided the batch without this attempt, the attempt aborts its own transaction and returns OVERTAKEN. It raises no
    error, because `abort` gets the plan only from the messages of tasks.

    Raises:
        WriteRefusedError: The newest decision forbids the version. Nothing was written.
        KafkaEosError: A row was rejected, or the batch can no longer commit. The attempt has aborted its own transaction.
    """
    outcome, _ = admit(plan, batch)

    def message(outcome: TaskOutcome, prepared: PreparedTransaction | None = None) -> TaskMessage:
        return TaskMessage(plan=plan, batch=batch, task=task, outcome=outcome, prepared=prepared)

    if outcome is TaskOutcome.ALREADY_COMMITTED:
        return message(TaskOutcome.ALREADY_COMMITTED)
    yield from fail_if_too_late(plan, batch.query_id, batch.version, task.partition)
    if not (yield from HasRows()):  # Spark may compute for a long time before the first row
        return message(TaskOutcome.EMPTY)
    yield from fail_if_too_late(plan, batch.query_id, batch.version, task.partition)
    own = slot_of(task.task_attempt_id)
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
    return message(
        TaskOutcome.PREPARED,
        PreparedTransaction(
            partition=task.partition,
            identity=identity,
            part_offset=part_offset,
            rows=written.rows,
            offsets=written.offsets,
            written_bytes=written.written_bytes,
            dead_letters=written.dead_letters,
        ),
    )


def give_up(identities: Sequence[ProducerIdentity]) -> Procedure[None]:
    """Abort own transactions and ignore failures.

    The next driver or the timeout aborts the rest.
    """
    if not identities:
        return
    with contextlib.suppress(Exception):  # the caller must see the first failure
        yield from EndTransactions(tuple(End(identity=identity, commit=False) for identity in identities))


def fresh_identity(write: Write, partition: int, slots: Iterable[int], timeout_ms: int) -> Procedure[ProducerIdentity]:
    """Initialise the first of these slots that has no open transaction.

    InitProducerId would abort an open transaction, which a sibling attempt may have prepared for the driver. The attempt also skips a
    slot whose coordinator does not respond, because another slot has another coordinator.
    """
    ids = tuple(write.task_id(partition, slot) for slot in slots)
    started = yield from Now()
    while True:
        for transactional_id in ids:
            failure = refused("NO_FREE_TRANSACTIONAL_ID", write=write, partition=partition, slots=SLOTS)
            try:
                described = yield from DescribeTransactions((transactional_id,), SLOT_WITHIN_MS)
                found = described[transactional_id]
                if found is None or found.is_free:
                    return (yield from InitProducerId(transactional_id, timeout_ms, SLOT_WITHIN_MS))
            except BrokerUnavailableError as unavailable:
                # PAUSE: describe the slot again before another InitProducerId, which would abort a sibling's transaction that the
                # driver may have decided by now.
                failure = unavailable
            now = yield from Now()
            if now - started > SLOT_DEADLINE_MS:
                raise failure
        yield from Wait(SLOT_POLL_MS)
