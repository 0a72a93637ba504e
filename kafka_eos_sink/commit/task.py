"""A task attempt: find a free transactional id, write all rows in one transaction, leave it open, hand over its identity."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kafka_eos_sink.commit.commit_log import part_record
from kafka_eos_sink.commit.deadlines import NEVER_TIMES_OUT_MS, fail_if_too_late
from kafka_eos_sink.commit.open_transactions import FREE_STATES
from kafka_eos_sink.commit.prepared_transaction import (
    DecisionStatus,
    Plan,
    PreparedTransaction,
    SettledDecision,
    TaskIdentity,
    TaskMessage,
    TaskOutcome,
)
from kafka_eos_sink.commit.steps import (
    AppendPart,
    DescribeTransactions,
    End,
    EndTransactions,
    HasRows,
    InitProducerId,
    Now,
    Procedure,
    Reached,
    TransactionDescription,
    Wait,
    Warn,
    WriteRows,
    Written,
)
from kafka_eos_sink.commit.take_over import is_overtaken
from kafka_eos_sink.commit.transactional_id import SLOTS, slot_of, task_transactional_id
from kafka_eos_sink.errors import BrokerUnavailableError, TransactionAbortedError, WriteRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity

SLOT_DESCRIPTION_VALID_MS = 1_000
SLOT_DEADLINE_MS = 60_000
SLOT_POLL_MS = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIdentity:
    """What is written: by exactly these the same write is recognised (I15).

    ``streaming``: versions count from 0 without a gap, since Spark hands every batch that it runs to its sink, empty ones too;
    `admit` holds the log to it. ``can_be_rerun``: somebody can come back for this version, so that the digests of its parts are worth
    their price; nobody can for a random write id.
    """

    query_id: str
    version: int
    topic: str | None
    schema: str
    offsets_hash: str | None
    on_checkpoint_rollback: Literal["fail", "skip", "rewrite"] = "fail"
    streaming: bool = False
    can_be_rerun: bool = True


def admit(plan: Plan, batch: BatchIdentity, partition: int) -> tuple[TaskOutcome | None, str | None]:
    """What this partition has to do in the face of the newest decision: (ALREADY_COMMITTED or None for write, a warning or None).

    Raises `WriteRefusedError` where the decision forbids the batch; nothing was written then."""
    newest = plan.newest_decision(batch.query_id)
    if newest is None:
        if batch.streaming and batch.version > 0:
            raise _log_lost(
                plan,
                batch,
                f"batch {batch.version} of query {batch.query_id} is not its first, but the commit log knows nothing of write id "
                f"{plan.write_id!r}: the log was lost, the write got another commit.log.topic or transactional.id.prefix, or the "
                "checkpoint was begun by another sink. Look",
            )
        return None, None
    if newest.version > batch.version:
        return _admit_rolled_back(plan, batch, newest)
    if newest.version < batch.version:
        if newest.status in (DecisionStatus.VOID, DecisionStatus.LOST_PARTS):
            raise WriteRefusedError(
                "EARLIER_VERSION_UNFINISHED",
                f"version {batch.version} of write id {plan.write_id!r} cannot be written before version {newest.version}, which was "
                f"decided and then {'aborted' if newest.status is DecisionStatus.VOID else 'partly aborted'} by the transaction "
                f"timeout: run version {newest.version} again, or give its lost rows up: kafka-eos resolve --write-id "
                f"'{plan.write_id}' --version {newest.version} --as committed",
            )
        if batch.streaming and batch.version > newest.version + 1:
            raise _log_lost(
                plan,
                batch,
                f"the commit log of write id {plan.write_id!r} ends at version {newest.version} of query {batch.query_id}, but the "
                f"checkpoint goes on at batch {batch.version}: the write was set back to a former commit.log.topic or "
                "transactional.id.prefix, or the log to an older copy; or another sink, or delivery.guarantee=at-least-once, wrote what "
                "is in between; or batches were left out in the checkpoint, by hand or by Spark's repartitioning of a query's state, which "
                f"takes one. If a commit log knows of batch {batch.version - 1}, give the write that one again; else look",
            )
        return None, None
    if newest.status is DecisionStatus.VOID:
        return None, None  # nothing of it is visible: it is compared with nothing
    if newest.resolution is not None:  # the operator looked at the rows: topic, schema and offsets are not asked again
        return TaskOutcome.ALREADY_COMMITTED, (
            f"version {batch.version} of write id {plan.write_id!r} is skipped: kafka-eos resolve called it {newest.resolution}"
        )
    warning = _require_same_batch(plan, batch, newest)
    if newest.status is DecisionStatus.FINISHED or partition in newest.committed:
        return TaskOutcome.ALREADY_COMMITTED, warning
    return None, warning


def _log_lost(plan: Plan, batch: BatchIdentity, what: str) -> WriteRefusedError:
    """A batch that is not the next one after the newest that the log knows, so that nobody can tell what of it was written before."""
    return WriteRefusedError(
        "COMMIT_LOG_LOST",
        f"{what} whether batch {batch.version} is in the topic already, as after a crash behind its commit (what counts is what a "
        "consumer with isolation.level=read_committed shows); say up to which batch all are: kafka-eos resolve --write-id "
        f"'{plan.write_id}' --version {batch.version - 1} --as committed --query-id '{batch.query_id}' (or --version {batch.version} if "
        "that is there, too)",
    )


def _admit_rolled_back(
    plan: Plan, batch: BatchIdentity, newest: SettledDecision
) -> tuple[TaskOutcome | None, str | None]:
    if batch.on_checkpoint_rollback == "skip":
        return TaskOutcome.ALREADY_COMMITTED, (
            f"version {batch.version} of write id {plan.write_id!r} is left out, whether it was ever written or not: version "
            f"{newest.version} is (onCheckpointRollback=skip)"
        )
    if batch.on_checkpoint_rollback == "rewrite":
        return None, (
            f"version {batch.version} of write id {plan.write_id!r} is written although version {newest.version} is "
            "(onCheckpointRollback=rewrite): it is the newest from now on, so the versions above it are written again when they come"
        )
    raise WriteRefusedError(
        "CHECKPOINT_ROLLED_BACK",
        f"version {batch.version} of write id {plan.write_id!r} is older than version {newest.version}, which is already written: "
        "a checkpoint was rolled back, or a later run came first. Set onCheckpointRollback to skip (leave out every version up to that "
        "one, whatever its rows are) or rewrite (write them again, on purpose); for a new checkpoint, whose versions begin anew with other "
        "rows, take another txnAppId or transactional.id.prefix",
    )


def _require_same_batch(plan: Plan, batch: BatchIdentity, newest: SettledDecision) -> str | None:
    """The same version must be the same write; returns a warning where only topic or schema changed."""
    if batch.offsets_hash is not None and newest.offsets_hash is not None:
        if batch.offsets_hash != newest.offsets_hash:
            raise WriteRefusedError(
                "DIFFERENT_BATCH",
                f"version {batch.version} of write id {plan.write_id!r} is already committed with other source offsets: the "
                "checkpoint was changed, or two queries share transactional.id.prefix. Put offsets of this batch in the checkpoint back "
                "as they were; or, if every row that the batch now has is in the topic, since those that are not are left out for "
                f"good: kafka-eos resolve --write-id '{plan.write_id}' --version {batch.version} --as committed",
            )
        if (batch.topic, batch.schema) == (newest.topic, newest.schema):
            return None
        return (
            f"version {batch.version} of write id {plan.write_id!r} was committed with topic option {newest.topic!r} and schema "
            f"{newest.schema!r}; the option or the schema has changed since, the new ones count from the next version on"
        )
    if (batch.topic, batch.schema) != (newest.topic, newest.schema):
        raise WriteRefusedError(
            "DIFFERENT_BATCH",
            f"version {batch.version} of write id {plan.write_id!r} is already committed with topic option {newest.topic!r} and "
            f"schema {newest.schema!r}, not {batch.topic!r} and {batch.schema!r}. If the rows in the topic are the right ones: "
            f"kafka-eos resolve --write-id '{plan.write_id}' --version {batch.version} --as committed; else take another txnVersion",
        )
    return None


def write_attempt(plan: Plan, batch: BatchIdentity, task: TaskIdentity) -> Procedure[TaskMessage]:
    """One attempt: at most one transaction, under a producer id and epoch that no other attempt has or had.

    Raises `WriteRefusedError` before anything is written, `TransactionAbortedError` and whatever the rows ask for after; the own
    transaction is ended then, since it was never handed over. The same where the batch went on without this attempt, which it says in its
    message: a failure would leave the driver's abort without the plan.
    """
    outcome, warning = admit(plan, batch, task.partition)
    if warning is not None and task.partition == 0:
        yield Warn(warning)
    newest = plan.newest_decision(batch.query_id)
    same_version = newest is not None and newest.version == batch.version
    recorded = (newest.offset, newest.nonce) if newest is not None and same_version else None

    def message(outcome: TaskOutcome, prepared: PreparedTransaction | None = None) -> TaskMessage:
        return TaskMessage(
            plan=plan,
            query_id=batch.query_id,
            version=batch.version,
            task=task,
            outcome=outcome,
            prepared=prepared,
            recorded=recorded,
        )

    if outcome is TaskOutcome.ALREADY_COMMITTED:
        return message(TaskOutcome.ALREADY_COMMITTED)
    yield from fail_if_too_late(plan, batch.query_id, batch.version)
    if not (yield HasRows()):  # which may wait long for what Spark computes first
        return message(TaskOutcome.EMPTY)
    if (
        newest is not None
        and same_version
        and newest.status is DecisionStatus.LOST_PARTS
        and task.partition not in newest.lost
    ):
        raise WriteRefusedError(
            "NOT_THE_SAME_ROWS",
            f"version {batch.version} of write id {plan.write_id!r} is partly committed, and this run has rows in partition "
            f"{task.partition}, which had none: the source or the number of partitions changed. Answer with: kafka-eos resolve "
            f"--write-id '{plan.write_id}' --version {batch.version} --as committed|rewrite",
        )

    yield from fail_if_too_late(plan, batch.query_id, batch.version)
    identity = yield from _fresh_identity(plan, task)
    yield Reached("task.initialised")
    if (yield from is_overtaken(plan)):
        return message(TaskOutcome.OVERTAKEN)
    yield Reached("task.may_write")
    try:
        # A part can only be lost to the timeout, and only be written again by a run under the same id.
        digest = batch.can_be_rerun and plan.transaction_timeout_ms != NEVER_TIMES_OUT_MS
        written: Written = yield WriteRows(identity, digest)
        yield Reached("task.flushed")
        part = part_record(plan.write_id, batch.query_id, task.partition, batch.version, task.task_attempt_id)
        part_offset: int = yield AppendPart(identity, part)
        # After the last request that opens a transaction: below version 2 one that the driver has ended is opened again by the next.
        overtaken = yield from is_overtaken(plan)
    except Exception:
        yield from _give_up(identity)
        raise
    if overtaken:
        yield from _give_up(identity)
        return message(TaskOutcome.OVERTAKEN)
    yield Reached("task.prepared")
    return message(
        TaskOutcome.PREPARED,
        PreparedTransaction(
            partition=task.partition,
            identity=identity,
            part_offset=part_offset,
            rows=written.rows,
            digest=written.digest,
            offsets=written.offsets,
        ),
    )


def _give_up(identity: ProducerIdentity) -> Procedure[None]:
    """End the own transaction, which nobody else will ever name. Best effort: the next driver or the timeout ends it otherwise."""
    with contextlib.suppress(Exception):  # what ended the attempt is what its caller must see
        yield EndTransactions((End(identity=identity, commit=False),))


def _fresh_identity(plan: Plan, task: TaskIdentity) -> Procedure[ProducerIdentity]:
    """InitProducerId of the first slot without an open transaction, beginning at the attempt's own.

    An open one is left alone: a sibling attempt may have prepared it, and the driver may be about to name it.
    """
    first = slot_of(task.task_attempt_id)
    ids = tuple(task_transactional_id(plan.write_id, task.partition, (first + step) % SLOTS) for step in range(SLOTS))
    started: int = yield Now()
    while True:
        described_at: int = yield Now()
        described: Mapping[str, TransactionDescription | None] = yield DescribeTransactions(ids)
        free = [
            transactional_id
            for transactional_id in ids
            if (found := described.get(transactional_id)) is None or found.state in FREE_STATES
        ]
        now: int = yield Now()
        if free and now - described_at <= SLOT_DESCRIPTION_VALID_MS:
            try:
                identity: ProducerIdentity = yield InitProducerId(free[0], plan.transaction_timeout_ms)
                return identity
            except BrokerUnavailableError:
                # Not repeated blindly: by the time it arrives, a sibling may have taken this id and been decided.
                if now - started > SLOT_DEADLINE_MS:
                    raise
        elif not free:
            if now - started > SLOT_DEADLINE_MS:
                raise TransactionAbortedError(
                    "NO_FREE_TRANSACTIONAL_ID",
                    f"all {SLOTS} transactional ids of partition {task.partition} of write id {plan.write_id!r} carry open "
                    f"transactions; see: kafka-eos transactions --prefix '{plan.write_id}'",
                )
            yield Wait(SLOT_POLL_MS)
