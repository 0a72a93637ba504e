"""Decides whether a batch may be written, by the newest decision of its query id."""

from __future__ import annotations

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.values import (
    BatchIdentity,
    DecisionStatus,
    Plan,
    SettledDecision,
    TaskOutcome,
)
from kafka_eos_sink.errors import WriteRefusedError


def admit(plan: Plan, batch: BatchIdentity) -> tuple[TaskOutcome | None, str | None]:
    """Compare the batch with the newest decision.

    Returns:
        ALREADY_COMMITTED, or None if the batch must be written; and a warning or None.

    Raises:
        WriteRefusedError: The newest decision forbids the batch.
    """
    settled = plan.newest_decision(batch.query_id)
    if settled is None:
        if batch.streaming and batch.version > 0:
            raise refusals.not_the_next_version(plan.write, batch, None)
        return None, None
    newest = settled.decision
    if newest.version == batch.version:
        return _admit_again(plan, batch, settled)
    if newest.version < batch.version:
        if batch.streaming and settled.status is DecisionStatus.VOID:
            raise refusals.earlier_version_unfinished(plan.write, batch, newest)
        if batch.streaming and batch.version > newest.version + 1:
            raise refusals.not_the_next_version(plan.write, batch, newest)
        return None, None
    if batch.on_checkpoint_rollback == "skip":
        return TaskOutcome.ALREADY_COMMITTED, (
            f"version {batch.version} of write id {plan.write.id!r} is skipped without a check of its rows, because version "
            f"{newest.version} is written (onCheckpointRollback=skip)"
        )
    if batch.on_checkpoint_rollback == "rewrite":
        return None, (
            f"version {batch.version} of write id {plan.write.id!r} is written after version {newest.version} "
            "(onCheckpointRollback=rewrite): it is the newest from now on, so later runs write the versions above it again"
        )
    raise refusals.checkpoint_rolled_back(plan.write, batch, newest)


def require_admitted(plan: Plan, batch: BatchIdentity) -> Procedure[None]:
    """Raise the tasks' error in the planner."""
    admit(plan, batch)
    yield from ()


def must_write(plan: Plan, batch: BatchIdentity) -> bool:
    """Whether the newest decision neither forbids the batch nor makes it superfluous."""
    try:
        return admit(plan, batch)[0] is None
    except WriteRefusedError:
        return False


def _admit_again(plan: Plan, batch: BatchIdentity, settled: SettledDecision) -> tuple[TaskOutcome | None, str | None]:
    """Admit the version of the newest decision; require that it is the same batch."""
    if settled.status is DecisionStatus.VOID:
        # None of its rows is visible, so this run may write other rows.
        return None, None
    newest = settled.decision
    if batch.foreach_call is not None and batch.foreach_call == newest.foreach_call:
        raise refusals.second_write(plan.write.id, batch)
    if newest.resolution is not None:
        # The operator has checked the rows, so topic, schema and offsets are not compared.
        return TaskOutcome.ALREADY_COMMITTED, (
            f"version {batch.version} of write id {plan.write.id!r} is skipped: kafka-eos resolve recorded it as {newest.resolution}"
        )
    same_form = (batch.topic, batch.schema) == (newest.topic, newest.schema)
    if batch.offsets_hash is None or newest.offsets_hash is None:
        if not same_form:
            raise refusals.different_batch(plan.write, batch, newest)
        return TaskOutcome.ALREADY_COMMITTED, None
    if batch.offsets_hash != newest.offsets_hash:
        raise refusals.different_batch(plan.write, batch, newest)
    if same_form:
        return TaskOutcome.ALREADY_COMMITTED, None
    return TaskOutcome.ALREADY_COMMITTED, (
        f"version {batch.version} of write id {plan.write.id!r} was committed with topic option {newest.topic!r} and schema "
        f"{newest.schema!r}; the option or the schema has changed since; the new ones apply from the next version on. If this is another "
        "query on a copy of that query's checkpoint, its rows are missing: give it a checkpoint of its own"
    )
