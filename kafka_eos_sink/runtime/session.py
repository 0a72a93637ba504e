"""One write from plan to abort, as the sink calls it.

Planner, tasks and driver are separate processes. Each rebuilds its own `WriteSettings` from the options. They share only the
pickled `Plan` and the `TaskMessage` of each task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

from kafka_eos_sink.client.admin import lease_admin
from kafka_eos_sink.commit import abort as aborting
from kafka_eos_sink.commit import commit_batch
from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.refusals import text
from kafka_eos_sink.commit.take_over import TakeOver
from kafka_eos_sink.commit.task import write_attempt
from kafka_eos_sink.commit.values import Decision, Plan, Run, TaskIdentity, TaskMessage, TaskOutcome
from kafka_eos_sink.errors import BrokerUnavailableError, WriteRefusedError, printable
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.runtime import history, planning
from kafka_eos_sink.runtime.batch_record import record_of_commit
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.task_executor import TaskExecutor
from kafka_eos_sink.runtime.write_settings import WriteSettings, new_run

log = logging.getLogger(__name__)


@contextmanager
def _leased_executor(settings: WriteSettings, plan: Plan | None = None) -> Iterator[Executor]:
    with lease_admin(settings.client, None if plan is None else plan.cluster_id) as admin:
        yield Executor(admin, settings.write.commit_log, settings.producer, settings.history_topic)


def _run(settings: WriteSettings, plan: Plan) -> Run:
    """A run of this driver after its plan."""
    within_ms = settings.producer.delivery_timeout_ms
    return new_run(plan.write, within_ms, plan.driver.transaction_version, plan.transaction_timeout_ms)


def plan(settings: WriteSettings) -> Plan:
    """Take the write id over and return the plan for the tasks.

    Fences earlier drivers, settles their decisions, and aborts their open transactions. A random write id has no earlier driver.

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
        raise BrokerUnavailableError(
            error.code,
            f"{error.message}; the limits are kafka.max.block.ms={limits.max_block_ms} and "
            f"kafka.delivery.timeout.ms={limits.delivery_timeout_ms}",
            error.way_out,
        ) from error
    took = time.perf_counter() - began
    return replace(
        found,
        plan_ms=round(took * 1000),
        attempts_ended=executor.attempts_aborted,
        cluster_id=executor.client.metadata.cluster_id,
    )


def write_task(settings: WriteSettings, plan: Plan, task: TaskIdentity, batches: Iterator[Rows]) -> TaskMessage:
    """Run one task attempt: write all its rows in one prepared transaction."""
    with (
        lease_admin(settings.client, plan.cluster_id) as admin,
        closing(TaskExecutor(admin, settings.write.commit_log, settings.producer, plan, batches)) as executor,
    ):
        return executor.write(write_attempt(plan, settings.batch, task))


def commit(settings: WriteSettings, plan: Plan, messages: Sequence[TaskMessage | None]) -> Decision | None:
    """Decide the batch and finish it; return None if it was committed before."""
    batch, metadata = settings.batch, settings.user_metadata
    # Half a surrogate pair would make the decision unreadable.
    request = commit_batch.CommitRequest(
        run=_run(settings, plan),
        plan=plan,
        batch=batch,
        group_offsets=settings.group_offsets,
        user_metadata=None if metadata is None else metadata.encode("utf-8", "replace").decode(),
    )
    with _leased_executor(settings, plan) as executor:
        executor.first_batch = batch.version == 0
        decision = executor.run(commit_batch.commit(request, messages))
        if decision is None:
            return None
        found = record_of_commit(decision, plan, messages, executor.stopwatch, executor.attempts_aborted)
        history.report(executor.admin, settings.history_topic, found)
        # Micro-batches without rows are normal: their next run reads the same ones.
        if decision.is_empty and not (settings.write.is_random or batch.streaming or decision.foreach_query):
            log.warning("%s", printable(text("recorded_empty", write=settings.write, batch=batch)))
        return decision


def abort(settings: WriteSettings, plan: Plan | None, messages: Sequence[TaskMessage | None]) -> Plan | None:
    """Abort what the failed batch left open, or finish the batch if it was decided.

    Args:
        plan: None if no task returned a message.

    Returns:
        The plan for `sweep`; None if a newer driver has taken over.
    """
    with _leased_executor(settings, plan) as executor:
        if plan is None:
            version = executor.admin.transaction_version(executor.client.clock() + settings.producer.max_block_ms)
            run = new_run(settings.write, settings.producer.delivery_timeout_ms, version)
        else:
            run = _run(settings, plan)
            with suppress(WriteRefusedError):  # the tasks raise it
                outcome, written = admit(plan, settings.batch)
                if outcome is TaskOutcome.ALREADY_COMMITTED:
                    log.warning("%s", printable(written or ""))
        view = LogView(run.write.id)
        found = executor.run(aborting.abort(TakeOver(run=run, view=view), plan, messages))
        history.report_recovered(executor, settings.history_topic, view, "abort")
        return found


def sweep(settings: WriteSettings, plan: Plan, decision: Decision | None) -> int:
    """Abort late transactions of losing or killed attempts; return their number."""
    with _leased_executor(settings, plan) as executor:
        return executor.run(aborting.sweep(_run(settings, plan), plan, decision))
