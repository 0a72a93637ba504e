"""The plan of a write, and what this process remembers of it for the next plan."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit.admission import admit, must_write
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.take_over import TakeOver, fence_only, take_over
from kafka_eos_sink.commit.values import Plan
from kafka_eos_sink.runtime import history
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.requirements import require_brokers
from kafka_eos_sink.runtime.source_offsets import require_checkpoint
from kafka_eos_sink.runtime.topics import require_readable_topic, require_topics
from kafka_eos_sink.runtime.write_settings import WriteSettings, new_run

CHECK_EVERY_MS = 60_000
"""Shortest time between two checks of the commit log, the brokers' settings and the rights."""
LIST_EVERY_MS = 5_000
"""Shortest time between two lists of open transactions. `take_over` aborts the late transactions that a list shows."""
MAX_REMEMBERED = 256


@dataclass(slots=True, kw_only=True)
class _Remembered:
    """What a process remembers of a write, or of all random-id writes to a topic.

    It may be out of date, because other drivers may have written since.
    Times are ms of the client's clock. ``view`` holds what this process has read of the commit log.
    """

    view: LogView
    checked_at: int | None = None
    transaction_timeout_ms: int = 0
    listed_at: int = 0
    plan: Plan | None = None


_remembered: dict[tuple[object, ...], _Remembered] = {}


def plan(settings: WriteSettings, executor: Executor) -> Plan:
    """Check the cluster and take the write id over; return as `session.plan`."""
    admin, write, batch = executor.admin, settings.write, settings.batch
    now = admin.client.clock()
    version = admin.transaction_version(now + settings.producer.max_block_ms)
    key = (
        # All writes with random ids share one entry: the next one reuses only the check, never the view or the plan.
        None if write.is_random else write.id,
        write.log_topic,
        settings.client,
        batch.topic,
        settings.producer.dead_letter_topic,
        settings.producer.transaction_timeout_ms,
    )
    # Pop the entry, so that a plan that fails leaves none: the next plan then checks and reads everything again.
    known = _remembered.pop(key, None) or _Remembered(view=LogView(write.id))
    reads_on = known.view.next_offset > 0
    if reads_on and not _is_log_of(known.view, settings, admin):
        return plan(settings, executor)
    if known.checked_at is None or now - known.checked_at > CHECK_EVERY_MS:
        known.transaction_timeout_ms = require_brokers(settings, admin)
        require_topics(settings, admin)
        known.checked_at = now
    elif write.is_random:
        # A task would notice a deleted topic only at its delivery timeout.
        require_readable_topic(settings, admin)
    # ListTransactions goes to every broker, so consecutive micro-batches skip it for `LIST_EVERY_MS`.
    must_list = known.plan is None or now - known.listed_at > LIST_EVERY_MS
    run = new_run(write, settings.producer.delivery_timeout_ms, version, known.transaction_timeout_ms)
    request = TakeOver(run=run, view=known.view, predecessor=None if must_list else known.plan, batch=batch)
    found = executor.run(fence_only(run) if write.is_random else take_over(request))
    # Perhaps `kafka-eos forget` removed the decision, and the cleaner its tombstones before this view read them. So only a view of the
    # whole log may skip or reject a batch, or carry versions on after another driver. The entry is popped, so the next plan reads it.
    if reads_on and not batch.streaming and (known.view.has_other_barrier(run.nonce) or not must_write(found, batch)):
        return plan(settings, executor)
    if not write.is_random:
        known.plan = found
        history.report_recovered(executor, settings.history_topic, known.view, "the next run")
        known.view.forget_superseded()
        if must_list:
            known.listed_at = now
    _remembered[key] = known
    while len(_remembered) > MAX_REMEMBERED:
        del _remembered[next(iter(_remembered))]
    first = settings.first_batch
    # After the fence: the decisions of this write id are finished, and their offsets are the group's.
    if first is not None and found.newest_decision(first.query_id) is None:
        until = admin.client.clock() + settings.producer.delivery_timeout_ms
        require_checkpoint(admin, write, first, batch.on_checkpoint_rollback, until)
    # Only the tasks of a micro-batch know its version, so they admit it.
    if not batch.streaming:
        admit(found, batch)  # raises the error of the tasks
    return found


def _is_log_of(view: LogView, settings: WriteSettings, admin: Admin) -> bool:
    """Whether the cluster still has the commit log that the view has read.

    A read of a deleted log would wait for it until its deadline.
    """
    log = admin.topic(settings.write.log_topic, admin.client.clock() + settings.producer.max_block_ms)
    return log is not None and log.topic_id == view.topic_id
