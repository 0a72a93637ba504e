"""One write from plan to abort, as the sink calls it.

Planner, tasks and driver are separate processes. Each rebuilds its own `WriteSettings` from the options. They share only the
pickled `Plan` and the `TaskMessage` of each task.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kafka_eos_sink.client.admin import Admin, lease_admin
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit import abort as aborting
from kafka_eos_sink.commit import commit_batch
from kafka_eos_sink.commit.admission import require_admitted
from kafka_eos_sink.commit.commit_log import LOG_PARTITIONS
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.prepared_transaction import BatchIdentity, Decision, Plan, TaskIdentity, TaskMessage
from kafka_eos_sink.commit.settle import SettleLimits
from kafka_eos_sink.commit.take_over import TakeOver, fence_only, take_over
from kafka_eos_sink.commit.task import write_attempt
from kafka_eos_sink.commit.transactional_id import SLOTS, slot_of, task_transactional_id
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.murmur2 import murmur2_bytes
from kafka_eos_sink.runtime import history
from kafka_eos_sink.runtime.batch_record import BatchRecord, record_of, record_of_commit
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.requirements import (
    MAX_TIMEOUT,
    broker_settings,
    number,
    require_apis,
    require_verified_appends,
)
from kafka_eos_sink.runtime.task_executor import TaskExecutor
from kafka_eos_sink.runtime.topics import ensure_commit_log, require_dead_letter_topic, require_topic

log = logging.getLogger(__name__)

DEFAULT_TRANSACTION_TIMEOUT_MS = 900_000
"""Largest default timeout: enough for a driver restart, and brokers rarely allow more."""
CHECK_EVERY_MS = 60_000
"""How often a planner checks the commit log, broker settings and rights, at most."""
LIST_EVERY_MS = 5_000
"""Interval of lists of open transactions, which abort late transactions of killed attempts."""
LOOK_UP_WITHIN_MS = 3_000
"""Limit for coordinators that are looked up ahead of their use."""
MAX_REMEMBERED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """The settings of one write: rows, write id, cluster.

    Never pickled, because it can hold resolved secrets.
    ``random_write_id`` marks a batch job without ``txnAppId``. No later run uses its id again.
    ``history_topic`` is empty for none.
    """

    write_id: str
    query_id: str
    version: int
    random_write_id: bool
    topic: str | None
    schema: str
    offsets_hash: str | None
    on_checkpoint_rollback: Literal["fail", "skip", "rewrite"]
    commit_log_topic: str
    client: ClientConfig
    producer: ProducerConfig
    streaming: bool = False
    group_offsets: GroupOffsets | None = None
    foreach_call: str | None = None
    history_topic: str = ""
    user_metadata: str | None = None

    @property
    def batch(self) -> BatchIdentity:
        return BatchIdentity(
            query_id=self.query_id,
            version=self.version,
            topic=self.topic,
            schema=self.schema,
            offsets_hash=self.offsets_hash,
            on_checkpoint_rollback=self.on_checkpoint_rollback,
            streaming=self.streaming,
            foreach_call=self.foreach_call,
        )

    @property
    def log_partition(self) -> int:
        return log_partition_of(self.write_id)

    @property
    def commit_log(self) -> TopicPartition:
        return self.commit_log_topic, self.log_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWritten:
    """The result of an at-least-once task."""

    rows: int
    written_bytes: int = 0


def log_partition_of(write_id: str) -> int:
    """Return the partition of the commit log that holds all records of a write id."""
    return (murmur2_bytes(write_id.encode()) & 0x7FFFFFFF) % LOG_PARTITIONS


def _executor(settings: WriteSettings, admin: Admin) -> Executor:
    return Executor(admin, settings.commit_log, settings.producer)


def _take_over_request(settings: WriteSettings, transaction_timeout_ms: int) -> TakeOver:
    return TakeOver(
        write_id=settings.write_id,
        nonce=uuid.uuid4().hex,
        transaction_timeout_ms=transaction_timeout_ms,
        limits=SettleLimits(deadline_ms=settings.producer.delivery_timeout_ms),
    )


@dataclass(slots=True, kw_only=True)
class _Remembered:
    """A planner process's memory of a write, or of all writes with random ids to a topic.

    These are hints only, because other drivers may have written since.
    Times are ms of the client's clock. ``view`` holds what this process has read of the commit log.
    """

    view: LogView
    checked_at: int | None = None
    transaction_timeout_ms: int = 0
    listed_at: int = 0
    plan: Plan | None = None


_remembered: dict[tuple[object, ...], _Remembered] = {}


def plan(settings: WriteSettings) -> Plan:
    """Take the write id over and return the plan for the tasks.

    Fences earlier drivers, settles their decisions, and aborts what they left open. A random write id has no earlier driver.

    Raises:
        WriteRefusedError: The version must not be written. In a stream the tasks raise this error, because only they know the version.
        BrokerUnavailableError, AuthorizationError, DecisionPendingError, ConfigurationError.
    """
    began = time.perf_counter()
    with lease_admin(settings.client) as admin:
        executor = _executor(settings, admin)
        found = _plan(settings, executor)
    took = time.perf_counter() - began
    return replace(found, plan_ms=round(took * 1000), attempts_ended=executor.attempts_ended)


def _plan(settings: WriteSettings, executor: Executor) -> Plan:
    admin = executor.admin
    now = admin.client.clock()
    version = admin.transaction_version(now + settings.producer.max_block_ms)
    key = (
        # Nothing but the check serves the next write with a random id.
        None if settings.random_write_id else settings.write_id,
        settings.commit_log_topic,
        settings.client,
        settings.topic,
        settings.producer.dead_letter_topic,
        settings.producer.transaction_timeout_ms,
    )
    # Popped, so that a plan that fails leaves nothing behind: the next one checks and reads everything again.
    known = _remembered.pop(key, None) or _Remembered(view=LogView(settings.write_id))
    if known.checked_at is None or now - known.checked_at > CHECK_EVERY_MS:
        known.transaction_timeout_ms = _check(settings, executor)
        known.checked_at = now
    elif settings.random_write_id:
        # A task would notice a deleted topic only at its delivery timeout.
        _check_topic(settings, admin)
    request = _take_over_request(settings, known.transaction_timeout_ms)
    if settings.random_write_id:
        found = executor.run(fence_only(request))
        _remember(key, known)
        return found
    # ListTransactions goes to every broker, so consecutive micro-batches skip it for `LIST_EVERY_MS`.
    lists = known.plan is None or now - known.listed_at > LIST_EVERY_MS
    request = replace(request, view=known.view, predecessor=None if lists else known.plan)
    known.plan = executor.run(take_over(request, version))
    _report_recovered(settings, executor, known.view)
    known.view.forget_superseded()
    if lists:
        known.listed_at = now
    _remember(key, known)
    # A micro-batch's version is known to its tasks only.
    if not settings.streaming:
        executor.run(require_admitted(known.plan, settings.batch))
    return known.plan


def _remember(key: tuple[object, ...], known: _Remembered) -> None:
    _remembered[key] = known
    while len(_remembered) > MAX_REMEMBERED:
        del _remembered[next(iter(_remembered))]


def _check(settings: WriteSettings, executor: Executor) -> int:
    """Check the topics and the brokers' settings; return the tasks' transaction timeout in ms."""
    admin = executor.admin
    deadline = admin.client.clock() + settings.producer.max_block_ms
    require_apis(admin, deadline)
    found = broker_settings(admin, deadline)
    require_verified_appends(admin, found, deadline)
    dead_letter_topic = settings.producer.dead_letter_topic
    if dead_letter_topic is not None:
        require_dead_letter_topic(admin, dead_letter_topic, settings.producer.max_request_size, deadline)
    _check_topic(settings, admin)
    ensure_commit_log(admin, settings.commit_log_topic, settings.topic, deadline)
    if settings.random_write_id:
        # The plan reads no log, but the commit will. A missing right must show before anything is decided.
        executor.require_readable_log()
    return _transaction_timeout(settings, found)


def _check_topic(settings: WriteSettings, admin: Admin) -> None:
    max_block_ms = settings.producer.max_block_ms
    if settings.topic is not None and settings.producer.dead_letter_topic is None:
        require_topic(admin, settings.topic, admin.client.clock() + max_block_ms, max_block_ms)


def write_task(settings: WriteSettings, plan: Plan, task: TaskIdentity, batches: Iterator[Rows]) -> TaskMessage:
    """Run one task attempt: write all its rows in one prepared transaction."""
    with lease_admin(settings.client) as admin:
        # In one request, while Spark computes the rows.
        slot = task_transactional_id(plan.write_id, task.partition, slot_of(task.task_attempt_id))
        admin.look_up((slot, plan.driver.transactional_id), admin.client.clock() + LOOK_UP_WITHIN_MS)
        executor = TaskExecutor(admin, settings.commit_log, config=settings.producer, plan=plan, batches=batches)
        try:
            return executor.write(write_attempt(plan, settings.batch, task))
        finally:
            executor.close()


def write_task_at_least_once(settings: WriteSettings, task: TaskIdentity, batches: Iterator[Rows]) -> RowsWritten:
    """Run one task attempt with the idempotent producer and no transaction.

    A task that Spark retries writes its rows again.
    """
    rows = 0
    with lease_admin(settings.client) as admin:
        client = admin.client
        producer = Producer(client, settings.producer, transactional_id=None, transaction_version=None)
        try:
            for batch in batches:
                # A task without rows needs no producer id.
                if rows == 0 and batch.num_rows:
                    producer.init_producer_id(client.clock() + settings.producer.max_block_ms)
                    producer.begin()
                if batch.num_rows:
                    producer.write(batch)
                    rows += batch.num_rows
            if rows:
                producer.flush()
        finally:
            producer.close()
    return RowsWritten(rows=rows, written_bytes=producer.acknowledged_bytes)


def report_at_least_once(settings: WriteSettings, tasks: Sequence[RowsWritten]) -> None:
    """Log the line of a batch that was written without transactions."""
    figures = {
        "version": settings.version,
        "rows": sum(task.rows for task in tasks),
        "written_bytes": sum(task.written_bytes for task in tasks),
        "tasks": len(tasks),
    }
    log.info(
        "written at least once, version %(version)d: %(rows)d rows; %(written_bytes)d bytes; %(tasks)d tasks",
        figures,
        extra=figures,
    )


def commit(settings: WriteSettings, plan: Plan, messages: Sequence[TaskMessage | None]) -> Decision | None:
    """Decide the batch and finish it; return None if it was committed before."""
    request = commit_batch.CommitRequest(
        plan=plan,
        batch=settings.batch,
        random_write_id=settings.random_write_id,
        nonce=uuid.uuid4().hex,
        group_offsets=settings.group_offsets,
        limits=SettleLimits(deadline_ms=settings.producer.delivery_timeout_ms),
    )
    with lease_admin(settings.client) as admin:
        executor = _executor(settings, admin)
        admin.look_up(_ids_of_commit(plan, messages), admin.client.clock() + LOOK_UP_WITHIN_MS)
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
        _report(settings, admin, replace(found, user_metadata=settings.user_metadata))
        return decision


def _ids_of_commit(plan: Plan, messages: Sequence[TaskMessage | None]) -> Iterator[str]:
    """Yield the transactional ids that a commit describes: the driver's, and every slot of each task."""
    yield plan.driver.transactional_id
    for message in filter(None, messages):
        for slot in range(SLOTS):
            yield task_transactional_id(plan.write_id, message.task.partition, slot)


def _report(settings: WriteSettings, admin: Admin, record: BatchRecord) -> None:
    log.info("%s", record.line(), extra=record.figures())
    if settings.history_topic:
        history.write(admin, settings.history_topic, record)


def _report_recovered(settings: WriteSettings, executor: Executor, view: LogView) -> None:
    """Report the decisions of dead drivers that this plan has finished."""
    for query_id, copied in executor.stopwatch.finished.items():
        if (newest := view.query(query_id).newest) is not None:
            record = record_of(newest.decision, time.time_ns() // 1_000_000, parts_copied=copied, recovered=True)
            _report(settings, executor.admin, record)


def abort(settings: WriteSettings, plan: Plan | None, messages: Sequence[TaskMessage | None]) -> Plan | None:
    """Abort what the failed batch left open, or finish the batch if it was decided.

    Args:
        plan: None if no task's message brought it to this process.

    Returns:
        The plan for `sweep`; None if a newer driver has taken over.
    """
    with lease_admin(settings.client) as admin:
        deadline = admin.client.clock() + settings.producer.max_block_ms
        version = admin.transaction_version(deadline) if plan is None else plan.driver.transaction_version
        timeout_ms = DEFAULT_TRANSACTION_TIMEOUT_MS if plan is None else plan.transaction_timeout_ms
        view = LogView(settings.write_id)
        request = replace(_take_over_request(settings, timeout_ms), view=view)
        executor = _executor(settings, admin)
        found = executor.run(aborting.abort(request, plan, messages, version))
        _report_recovered(settings, executor, view)
        return found


def sweep(settings: WriteSettings, plan: Plan, decision: Decision | None) -> int:
    """Abort late transactions of losing or killed attempts; return their number."""
    with lease_admin(settings.client) as admin:
        return _executor(settings, admin).run(aborting.sweep(plan, decision))


def _transaction_timeout(settings: WriteSettings, found: Mapping[str, str]) -> int:
    """Return the configured transaction.timeout.ms, else the broker's maximum.

    It is at most 15 minutes if none is configured, or if the write id is random.
    """
    configured = settings.producer.transaction_timeout_ms
    maximum = number(found, MAX_TIMEOUT)
    if configured is None and maximum is None:
        warn_once(
            f"the brokers' {MAX_TIMEOUT} may not be read (missing right: DescribeConfigs on the cluster). Tasks try a "
            f"transaction.timeout.ms of {DEFAULT_TRANSACTION_TIMEOUT_MS} and smaller ones if the broker rejects it. Grant the right, "
            "or set kafka.transaction.timeout.ms"
        )
    if configured is not None:
        if maximum is not None and configured > maximum:
            raise ConfigurationError(
                "INVALID_TRANSACTION_TIMEOUT",
                f"kafka.transaction.timeout.ms is {configured}, but the brokers allow at most {maximum}; lower it, or raise "
                f"{MAX_TIMEOUT} on the brokers",
            )
        # No later run uses a random id. Only the timeout ends its open transaction, so the sink keeps the timeout short.
        return min(configured, DEFAULT_TRANSACTION_TIMEOUT_MS) if settings.random_write_id else configured
    return DEFAULT_TRANSACTION_TIMEOUT_MS if maximum is None else min(maximum, DEFAULT_TRANSACTION_TIMEOUT_MS)
