"""One write from plan to abort, as the sink calls it.

Planner, tasks and driver are separate processes. Each rebuilds its own `WriteSettings` from the options. They share only the
pickled `Plan` and the `TaskMessage` of each task.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from kafka_eos_sink.client.admin import lease_admin
from kafka_eos_sink.commit import abort as aborting
from kafka_eos_sink.commit import commit_batch
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.task import write_attempt
from kafka_eos_sink.commit.values import Decision, Plan, TaskIdentity, TaskMessage, cluster_of
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.runtime import history, planning
from kafka_eos_sink.runtime.batch_record import record_of_commit
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.task_executor import TaskExecutor
from kafka_eos_sink.runtime.write_settings import DEFAULT_TRANSACTION_TIMEOUT_MS, WriteSettings, take_over_request

log = logging.getLogger(__name__)


@contextmanager
def _leased_executor(settings: WriteSettings, plan: Plan | None = None) -> Iterator[Executor]:
    with lease_admin(settings.client, cluster_of(plan)) as admin:
        yield Executor(admin, settings.commit_log, settings.producer)


def plan(settings: WriteSettings) -> Plan:
    """Take the write id over and return the plan for the tasks.

    Fences earlier drivers, settles their decisions, and aborts what they left open. A random write id has no earlier driver.

    Raises:
        WriteRefusedError: The version must not be written. In a stream the tasks raise this error, because only they know the version.
        BrokerUnavailableError, AuthorizationError, DecisionPendingError, ConfigurationError.
    """
    began = time.perf_counter()
    try:
        with _leased_executor(settings) as executor:
            found = planning.plan(settings, executor)
    except BrokerUnavailableError as error:
        # The plan is the first to wait for brokers. A user who has set a limit too low must read its name.
        limits = settings.producer
        error.message += (
            f"; the limits are max.block.ms={limits.max_block_ms} and delivery.timeout.ms={limits.delivery_timeout_ms}"
        )
        raise
    took = time.perf_counter() - began
    return replace(
        found,
        plan_ms=round(took * 1000),
        attempts_ended=executor.attempts_ended,
        cluster_id=executor.client.metadata.cluster_id,
    )


def write_task(settings: WriteSettings, plan: Plan, task: TaskIdentity, batches: Iterator[Rows]) -> TaskMessage:
    """Run one task attempt: write all its rows in one prepared transaction."""
    with (
        lease_admin(settings.client, cluster_of(plan)) as admin,
        closing(TaskExecutor(admin, settings.commit_log, settings.producer, plan, batches)) as executor,
    ):
        return executor.write(write_attempt(plan, settings.batch, task))


def commit(settings: WriteSettings, plan: Plan, messages: Sequence[TaskMessage | None]) -> Decision | None:
    """Decide the batch and finish it; return None if it was committed before."""
    request = commit_batch.CommitRequest(
        plan=plan,
        batch=settings.batch,
        random_write_id=settings.random_write_id,
        nonce=uuid.uuid4().hex,
        group_offsets=settings.group_offsets,
        within_ms=settings.producer.delivery_timeout_ms,
    )
    with _leased_executor(settings, plan) as executor:
        decision = executor.run(commit_batch.commit(request, messages))
        if decision is None:
            newest = plan.newest_decision(settings.query_id)
            is_older = newest is not None and newest.version > settings.version
            log.warning(
                "version %d of write id %r %s; this run wrote nothing",
                settings.version,
                settings.write_id,
                "is older than the newest version" if is_older else "was written before",
            )
            return None
        found = record_of_commit(decision, plan, messages, executor.stopwatch, executor.attempts_ended)
        history.report(executor.admin, settings.history_topic, replace(found, user_metadata=settings.user_metadata))
        return decision


def abort(settings: WriteSettings, plan: Plan | None, messages: Sequence[TaskMessage | None]) -> Plan | None:
    """Abort what the failed batch left open, or finish the batch if it was decided.

    Args:
        plan: None if no task returned a message.

    Returns:
        The plan for `sweep`; None if a newer driver has taken over.
    """
    with _leased_executor(settings, plan) as executor:
        deadline = executor.client.clock() + settings.producer.max_block_ms
        version = executor.admin.transaction_version(deadline) if plan is None else plan.driver.transaction_version
        timeout_ms = DEFAULT_TRANSACTION_TIMEOUT_MS if plan is None else plan.transaction_timeout_ms
        view = LogView(settings.write_id)
        request = replace(
            take_over_request(settings.write_id, settings.producer.delivery_timeout_ms, timeout_ms), view=view
        )
        found = executor.run(aborting.abort(request, plan, messages, version))
        history.report_recovered(executor, settings.history_topic, view)
        return found


def sweep(settings: WriteSettings, plan: Plan, decision: Decision | None) -> int:
    """Abort late transactions of losing or killed attempts; return their number."""
    with _leased_executor(settings, plan) as executor:
        return executor.run(aborting.sweep(plan, decision))
