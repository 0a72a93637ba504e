"""Decides whether a batch may be written, by what its query id has decided."""

from __future__ import annotations

from kafka_eos_sink.commit.refusals import refused, resolve_command, text
from kafka_eos_sink.commit.values import (
    BatchIdentity,
    DecisionStatus,
    Plan,
    SettledDecision,
    TaskOutcome,
    iso_utc,
)
from kafka_eos_sink.commit.versions import MOST_RANGES, Versions
from kafka_eos_sink.errors import WriteRefusedError


def admit(plan: Plan, batch: BatchIdentity) -> tuple[TaskOutcome | None, str | None]:
    """Compare the batch with what is decided under its query id.

    A batch write is written once, in any order of versions. The versions of a stream follow each other.

    Returns:
        ALREADY_COMMITTED, or None if the batch must be written; and a warning or None.

    Raises:
        WriteRefusedError: The newest decision forbids the batch.
    """
    settled = plan.newest_decision(batch.query_id)
    if settled is None:
        if batch.streaming and batch.version > 0:
            # Nothing proves if this batch was written. Most such queries wrote with another sink before.
            raise refused("COMMIT_LOG_LOST.unknown_query", write=plan.write, batch=batch)
        return None, None
    newest = settled.decision
    queries = (newest.foreach_query, batch.foreach_query)
    if None not in queries and newest.foreach_query != batch.foreach_query:
        before, this = (f"streaming query {each}" if each else "a batch job" for each in queries)
        # An unwritten version must not count as written.
        resolution = "rewrite" if settled.status is DecisionStatus.VOID else "committed"
        go_on = resolve_command(plan.write, newest.query_id, newest.version, resolution)
        raise refused("DIFFERENT_QUERY", write=plan.write, decision=newest, before=before, this=this, go_on=go_on)
    if newest.version == batch.version:
        return _admit_again(plan, batch, settled)
    # In a foreachBatch function the version is the batch id. A new checkpoint counts from 0 again, and an older one has other rows.
    if batch.streaming or batch.foreach_query:
        return _admit_to_stream(plan, batch, settled)
    if batch.version in newest.written_versions:
        # The log has the decision of the newest version only.
        return TaskOutcome.ALREADY_COMMITTED, text("skipped_before", write=plan.write, batch=batch)
    if batch.version < newest.written_versions.floor:
        raise refused(
            "VERSION_TOO_OLD", write=plan.write, batch=batch, ranges=MOST_RANGES, floor=newest.written_versions.floor
        )
    if settled.status is DecisionStatus.VOID and newest.version < batch.version:
        why = text("rewrite_version" if newest.resolution else "void_version")
        return None, text("above_void", batch=batch, decision=newest, why=why)
    return None, None


def _skipped(plan: Plan, batch: BatchIdentity, settled: SettledDecision) -> str:
    """Describe a version that is not written again, by its decision."""
    wrote = f", with {settled.rows:,} rows" + (f" in {', '.join(settled.topics)}" if settled.topics else "")
    if settled.finished_ms is not None:
        wrote += f" ({iso_utc(settled.finished_ms, 'seconds')})"
    is_empty = settled.rows == 0 and not batch.streaming and not batch.foreach_query
    return text("skipped_empty" if is_empty else "skipped", write=plan.write, batch=batch, wrote=wrote)


def decided_versions(plan: Plan, batch: BatchIdentity) -> Versions | None:
    """Return the versions that count as written then, None for all up to the batch's."""
    settled = plan.newest_decision(batch.query_id)
    before = Versions() if settled is None else settled.decision.written_versions
    # In a foreachBatch function only writes without its name, as over Spark Connect, have left versions above its own.
    is_alone = batch.foreach_query and (batch.on_checkpoint_rollback == "rewrite" or before.last < batch.version)
    return None if batch.streaming or is_alone else before.adding(batch.version)


def _admit_to_stream(
    plan: Plan, batch: BatchIdentity, settled: SettledDecision
) -> tuple[TaskOutcome | None, str | None]:
    newest = settled.decision
    # Without the name of its query, as over Spark Connect, a foreachBatch function may have written a higher version before the newest.
    if newest.version < batch.version and batch.version not in newest.written_versions:
        if settled.status is DecisionStatus.VOID:
            case = ".rewrite" if newest.resolution else ""
            raise refused(f"EARLIER_VERSION_UNFINISHED{case}", write=plan.write, batch=batch, decision=newest)
        if batch.streaming and batch.version > newest.version + 1:
            # NEW LOG: the versions in between are decided elsewhere, and maybe this one too.
            raise refused("COMMIT_LOG_LOST.gap", write=plan.write, batch=batch, decision=newest)
        return None, None
    if batch.on_checkpoint_rollback == "skip":
        return TaskOutcome.ALREADY_COMMITTED, text("rolled_back_skipped", batch=batch, decision=newest)
    if batch.on_checkpoint_rollback == "rewrite":
        return None, text("rolled_back_written", batch=batch, decision=newest)
    id_option = "transactional.id.prefix" if batch.streaming else "txnAppId"
    raise refused("CHECKPOINT_ROLLED_BACK", write=plan.write, batch=batch, decision=newest, id_option=id_option)


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
        raise refused("DIFFERENT_BATCH.second_write", write=plan.write, batch=batch)
    if newest.resolution is not None:
        # The operator has checked the rows, so topic, schema and offsets are not compared.
        return TaskOutcome.ALREADY_COMMITTED, text("resolved_before", decision=newest)
    same_form = (batch.topic, batch.schema) == (newest.topic, newest.schema)
    # The offsets of both identify the rows. Without them, only topic and schema can.
    has_offsets = None not in (batch.offsets_hash, newest.offsets_hash)
    if not (batch.offsets_hash == newest.offsets_hash if has_offsets else same_form):
        names = (("topic option", newest.topic, batch.topic), ("schema", newest.schema, batch.schema))
        differs = [f"{name} {before!r}, and this run has {now!r}" for name, before, now in names if before != now]
        case = ".stream" if batch.streaming or batch.foreach_query else ""
        if has_offsets:
            differs = [each for each in differs if each.startswith("topic")] + ["other source offsets"]
            case = ".offsets"
        raise refused(f"DIFFERENT_BATCH{case}", write=plan.write, batch=batch, differs="; ".join(differs))
    if same_form:
        return TaskOutcome.ALREADY_COMMITTED, _skipped(plan, batch, settled)
    return TaskOutcome.ALREADY_COMMITTED, text("of_another_form", decision=newest)
