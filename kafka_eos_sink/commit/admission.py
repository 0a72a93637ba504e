"""Decides whether a batch may be written, by the newest decision of its query id."""

from __future__ import annotations

from kafka_eos_sink.commit.prepared_transaction import (
    BatchIdentity,
    DecisionStatus,
    Plan,
    SettledDecision,
    TaskOutcome,
)
from kafka_eos_sink.commit.refusals import resolve_command, version_of
from kafka_eos_sink.commit.steps import Procedure
from kafka_eos_sink.errors import WriteRefusedError


def admit(plan: Plan, batch: BatchIdentity) -> tuple[TaskOutcome | None, str | None]:
    """Compare the batch with the newest decision.

    Returns:
        ALREADY_COMMITTED, or None if the batch must be written; and a warning or None.

    Raises:
        WriteRefusedError: The newest decision forbids the batch.
    """
    newest = plan.newest_decision(batch.query_id)
    if newest is None:
        if batch.streaming and batch.version > 0:
            raise _not_the_next_version(plan, batch, None)
        return None, None
    if newest.version > batch.version:
        return _admit_rolled_back(plan, batch, newest)
    if newest.version < batch.version:
        if batch.streaming and newest.status is DecisionStatus.VOID:
            raise _earlier_version_unfinished(plan, batch, newest)
        if batch.streaming and batch.version > newest.version + 1:
            raise _not_the_next_version(plan, batch, newest)
        return None, None
    if newest.status is DecisionStatus.VOID:
        # None of its rows is visible, so this run may write other rows.
        return None, None
    if batch.foreach_call is not None and batch.foreach_call == newest.foreach_call:
        raise _second_write(plan, batch)
    if newest.resolution is not None:
        # The operator has checked the rows, so topic, schema and offsets are not compared.
        return TaskOutcome.ALREADY_COMMITTED, (
            f"version {batch.version} of write id {plan.write_id!r} is skipped: kafka-eos resolve recorded it as {newest.resolution}"
        )
    return TaskOutcome.ALREADY_COMMITTED, _require_same_batch(plan, batch, newest)


def require_admitted(plan: Plan, batch: BatchIdentity) -> Procedure[None]:
    """Raise the tasks' error in the planner."""
    admit(plan, batch)
    yield from ()


def _admit_rolled_back(
    plan: Plan, batch: BatchIdentity, newest: SettledDecision
) -> tuple[TaskOutcome | None, str | None]:
    if batch.on_checkpoint_rollback == "skip":
        return TaskOutcome.ALREADY_COMMITTED, (
            f"version {batch.version} of write id {plan.write_id!r} is skipped without a check of its rows, because version "
            f"{newest.version} is written (onCheckpointRollback=skip)"
        )
    if batch.on_checkpoint_rollback == "rewrite":
        return None, (
            f"version {batch.version} of write id {plan.write_id!r} is written after version {newest.version} "
            "(onCheckpointRollback=rewrite): it is the newest from now on, so later runs write the versions above it again"
        )
    raise _checkpoint_rolled_back(plan, batch, newest)


def _require_same_batch(plan: Plan, batch: BatchIdentity, newest: SettledDecision) -> str | None:
    """Require the same batch for the same version; warn if only topic or schema changed."""
    same_form = (batch.topic, batch.schema) == (newest.topic, newest.schema)
    if batch.offsets_hash is None or newest.offsets_hash is None:
        if not same_form:
            raise _different_batch(plan, batch, newest)
        return None
    if batch.offsets_hash != newest.offsets_hash:
        raise _different_batch(plan, batch, newest)
    if same_form:
        return None
    return (
        f"version {batch.version} of write id {plan.write_id!r} was committed with topic option {newest.topic!r} and schema "
        f"{newest.schema!r}; the option or the schema has changed since; the new ones apply from the next version on"
    )


def _not_the_next_version(plan: Plan, batch: BatchIdentity, newest: SettledDecision | None) -> WriteRefusedError:
    """Nothing proves whether a stream's batch was written if the log lacks the one before it."""
    if newest is None:
        what = (
            f"batch {batch.version} of query {batch.query_id} is not its first, but the commit log knows nothing of write id "
            f"{plan.write_id!r}: the log was lost, the write got another commit.log.topic or transactional.id.prefix, or another "
            "sink began the checkpoint. Read"
        )
    else:
        what = (
            f"the commit log of write id {plan.write_id!r} ends at version {newest.version} of query {batch.query_id}, but the "
            f"checkpoint continues at batch {batch.version}: the write was set back to a former commit.log.topic or "
            "transactional.id.prefix, or the log to an older copy; or another sink, or delivery.guarantee=at-least-once, wrote the "
            "batches between; or the checkpoint lost batches, by hand or by Spark's repartitioning of a query's state, which takes "
            f"one. If a commit log holds batch {batch.version - 1}, name it by commit.log.topic; else read"
        )
    answer = resolve_command(plan.write_id, batch.query_id, batch.version - 1, "committed")
    return WriteRefusedError(
        "COMMIT_LOG_LOST",
        f"{what} the topic with isolation.level=read_committed, to see whether batch {batch.version} is there already, as after a crash "
        f"behind its commit. Then record the last batch whose rows are all there: {answer} (or --version {batch.version} if its rows "
        "are there too)",
    )


def _earlier_version_unfinished(plan: Plan, batch: BatchIdentity, newest: SettledDecision) -> WriteRefusedError:
    return WriteRefusedError(
        "EARLIER_VERSION_UNFINISHED",
        f"{version_of(batch.version, plan.write_id)} cannot be written before version {newest.version}, which was decided and then "
        f"aborted by the transaction timeout: run version {newest.version} again, or give its rows up: "
        + resolve_command(plan.write_id, batch.query_id, newest.version, "committed"),
    )


def _checkpoint_rolled_back(plan: Plan, batch: BatchIdentity, newest: SettledDecision) -> WriteRefusedError:
    return WriteRefusedError(
        "CHECKPOINT_ROLLED_BACK",
        f"{version_of(batch.version, plan.write_id)} is older than version {newest.version}, which is already written: "
        "a checkpoint was rolled back, or a later run came first. Set onCheckpointRollback to skip (no version up to that "
        "one is written, whatever its rows are) or rewrite (write them again, on purpose). For a new checkpoint, whose versions begin "
        "at 0 with other rows, take another txnAppId or transactional.id.prefix",
    )


def _second_write(plan: Plan, batch: BatchIdentity) -> WriteRefusedError:
    return WriteRefusedError(
        "DIFFERENT_BATCH",
        f"{version_of(batch.version, plan.write_id)} was already written by this call of the foreachBatch function, so these rows would be "
        "skipped. Give each write in the function its own txnAppId: writes with the same txnAppId and the same option topic, or "
        "without that option, are one write",
    )


def _different_batch(plan: Plan, batch: BatchIdentity, newest: SettledDecision) -> WriteRefusedError:
    """The version was committed with other source offsets or, without offsets, another topic or schema."""
    answer = resolve_command(plan.write_id, batch.query_id, batch.version, "committed")
    if batch.offsets_hash is not None and newest.offsets_hash is not None:
        why = (
            "other source offsets: the checkpoint was changed, or two queries share transactional.id.prefix. Restore the offsets of this "
            f"batch in the checkpoint. Or, if the topic holds every row that the batch now has: {answer}; missing rows are then never "
            "written"
        )
    else:
        why = (
            f"topic option {newest.topic!r} and schema {newest.schema!r}, not {batch.topic!r} and {batch.schema!r}. If the rows in "
            f"the topic are the right ones: {answer}; else take another txnVersion"
        )
    return WriteRefusedError(
        "DIFFERENT_BATCH", f"{version_of(batch.version, plan.write_id)} is already committed with {why}"
    )
