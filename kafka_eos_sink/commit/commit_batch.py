"""The driver's commit: `decide.py`, then `restore.py`, then the done record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kafka_eos_sink.commit.admission import admit, decided_versions
from kafka_eos_sink.commit.decide import (
    DriverTransaction,
    GroupOffsets,
    append_decision,
    check_prepared,
    decide,
    decide_again,
)
from kafka_eos_sink.commit.log_access import forget, read_to_end, write_done
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.refusals import refused, text
from kafka_eos_sink.commit.restore import finish
from kafka_eos_sink.commit.settle import PROMPT_MS
from kafka_eos_sink.commit.steps import DescribeTransactions, Now, Procedure, Reached, Warn
from kafka_eos_sink.commit.transactions import open_identities
from kafka_eos_sink.commit.values import (
    BatchIdentity,
    Decision,
    Plan,
    PreparedTransaction,
    Run,
    TaskMessage,
    TaskOutcome,
)
from kafka_eos_sink.errors import DecisionPendingError, KafkaEosError, brief
from kafka_eos_sink.protocol.identity import ProducerIdentity

LOSERS_WITHIN_MS = 5_000
"""Much shorter than DRIVER_TRANSACTION_TIMEOUT_MS, because W.driver's transaction is open during this request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """A batch to decide, and the run that decides it."""

    run: Run
    plan: Plan
    batch: BatchIdentity
    group_offsets: GroupOffsets | None = None
    user_metadata: str | None = None


def commit(request: CommitRequest, messages: Sequence[TaskMessage | None]) -> Procedure[Decision | None]:
    """Decide and finish a batch; return its last decision, None if committed before.

    Raises:
        WriteRefusedError, TransactionAbortedError, FencedError: The batch is not decided. Spark may run it again.
        DecisionPendingError: The batch is decided, or may be.
    """
    run, plan, batch = request.run, request.plan, request.batch
    complete = _require_messages_of_one_run(plan, batch, messages)
    written = complete[0].batch
    _, warning = admit(plan, written)
    if warning is not None:
        yield from Warn(warning)
    if written.foreach_query == "" and written.on_checkpoint_rollback != "fail":
        yield from Warn(text("without_effect", batch=written))
    skipped = [message for message in complete if message.outcome is TaskOutcome.ALREADY_COMMITTED]
    if len(skipped) == len(complete):
        if written.foreach_call is not None:
            yield from _note_skip(request, written.foreach_call)
        return None
    if skipped:
        raise refused("MIXED_MESSAGES", write=plan.write, batch=batch)
    prepared = tuple(message.prepared for message in complete if message.prepared is not None)
    decision = Decision(
        **written.told,
        write_id=plan.write.id,
        nonce=plan.nonce,
        driver=plan.driver,
        transactions=tuple(sorted(prepared, key=lambda entry: entry.partition)),
        versions=decided_versions(plan, written),
        application_id=complete[0].application_id,
        user_metadata=request.user_metadata,
    )

    yield from Reached("commit.check")
    checked = yield from Now()
    expires_ms = yield from check_prepared(run, prepared, plan.started_ms)
    driver = DriverTransaction(plan.driver)
    floor = max([plan.log_offset, *(entry.part_offset for entry in prepared)])
    logged = yield from append_decision(decision, driver, plan.log_id, floor, request.group_offsets)
    losers = yield from _losers(plan, complete, prepared)
    yield from decide(run, logged, driver, expires_ms)
    try:
        yield from Reached("commit.decided")
        # PAUSE: somebody may have aborted by hand what this driver had found open.
        now = yield from Now()
        finished = yield from finish(run, logged, driver, losers=losers, recovering=now - checked > PROMPT_MS)
        if finished.is_void:
            raise refused("ALL_PARTS_LOST", decision=finished)
        yield from Reached("commit.finished")
        if run.write.is_random:
            yield from forget(finished, driver.identity, driver.sequence)
        else:
            yield from write_done(finished)
        return finished
    except DecisionPendingError:
        raise
    except Exception as failure:  # after any other error, Spark would run the batch again
        raise refused("DECIDED_NOT_FINISHED", write=run.write, decision=decision, why=brief(failure)) from failure


def _note_skip(request: CommitRequest, foreach_call: str) -> Procedure[None]:
    """Record the `foreachBatch` call of a skip, to reject a second write of the call."""
    plan, batch = request.plan, request.batch
    skipped = plan.newest_decision(batch.query_id)
    if skipped is None or skipped.decision.version != batch.version:
        return  # onCheckpointRollback=skip skips older versions whatever their rows are
    view = LogView(plan.write.id)
    yield from read_to_end(view)
    logged = view.query(batch.query_id).newest
    if logged is None or logged.decision.nonce != skipped.decision.nonce:
        why = f"the commit log no longer holds the decision of version {batch.version}"
        raise refused("FENCED", write=plan.write, why=why)
    called = replace(logged, decision=replace(logged.decision, foreach_call=foreach_call))
    yield from decide_again(request.run, called, DriverTransaction(plan.driver))


def _require_messages_of_one_run(
    plan: Plan, batch: BatchIdentity, messages: Sequence[TaskMessage | None]
) -> tuple[TaskMessage, ...]:
    """Require one message of this plan from each partition, and return all.

    Continuous processing in Spark drops the rows and commits ``[None]``. Messages of two plans come from two runs of the job.
    """
    complete = tuple(message for message in messages if message is not None)
    if len(complete) < len(messages) or not complete:
        raise refused("MISSING_MESSAGE", missing=len(messages) - len(complete), tasks=len(messages))
    expected = (plan.write.id, plan.nonce, batch.query_id, batch.version)
    for message in complete:
        found = (message.plan.write.id, message.plan.nonce, message.batch.query_id, message.batch.version)
        if found != expected:
            raise refused("MIXED_MESSAGES.runs", found=found, expected=expected)
    if any(message.outcome is TaskOutcome.OVERTAKEN for message in complete):
        raise refused("FENCED", write=plan.write, why="while its tasks ran")
    partitions = [message.task.partition for message in complete]
    if len(set(partitions)) < len(partitions):
        raise refused("MIXED_MESSAGES.partitions", partitions=sorted(partitions))
    return complete


def _losers(
    plan: Plan, messages: Sequence[TaskMessage], prepared: Sequence[PreparedTransaction]
) -> Procedure[tuple[ProducerIdentity, ...]]:
    """Return the open transactions of the batch that the decision does not name.

    PAUSE: this comes between the write of the decision and its commit. An attempt that checks later (`is_overtaken`) aborts its own
    transaction. One that has checked earlier has opened it before this search.
    """
    ids = plan.write.task_ids(message.task.partition for message in messages)
    try:
        described = yield from DescribeTransactions(ids, within_ms=LOSERS_WITHIN_MS)
    except KafkaEosError:
        # Without the list, the losing attempts, a sweep or the next run abort these transactions. So the driver may decide.
        return ()
    named = {(entry.identity.transactional_id, entry.identity.producer_epoch) for entry in prepared}
    return tuple(
        identity
        for identity in open_identities(described, plan.driver.transaction_version)
        if (identity.transactional_id, identity.producer_epoch) not in named
    )
