"""The plan of a write: check the cluster, take the write id over, and remember both for the next plan of this process."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit.admission import require_admitted
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.prepared_transaction import Plan
from kafka_eos_sink.commit.settle import SettleLimits
from kafka_eos_sink.commit.take_over import TakeOver, fence_only, take_over
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.runtime import history
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.requirements import (
    MAX_TIMEOUT,
    broker_settings,
    number,
    require_apis,
    require_verified_appends,
)
from kafka_eos_sink.runtime.topics import ensure_commit_log, require_dead_letter_topic, require_topic
from kafka_eos_sink.runtime.write_settings import WriteSettings

DEFAULT_TRANSACTION_TIMEOUT_MS = 900_000
"""Largest default timeout: enough for a driver restart, and brokers rarely allow more."""
CHECK_EVERY_MS = 60_000
"""How often a planner checks the commit log, broker settings and rights, at most."""
LIST_EVERY_MS = 5_000
"""Shortest time between two lists of open transactions. `take_over` aborts the late transactions that a list shows."""
MAX_REMEMBERED = 256


def take_over_request(
    write_id: str, limits: SettleLimits, transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS
) -> TakeOver:
    return TakeOver(
        write_id=write_id, nonce=uuid.uuid4().hex, transaction_timeout_ms=transaction_timeout_ms, limits=limits
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


def plan(settings: WriteSettings, executor: Executor) -> Plan:
    """Check the cluster, take the write id over, and return the plan; see `session.plan`."""
    admin = executor.admin
    now = admin.client.clock()
    version = admin.transaction_version(now + settings.producer.max_block_ms)
    key = (
        # All writes with random ids share one entry: the next one reuses only the check, never the view or the plan.
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
    request = take_over_request(settings.write_id, settings.limits, known.transaction_timeout_ms)
    if settings.random_write_id:
        found = executor.run(fence_only(request))
        _remember(key, known)
        return found
    # ListTransactions goes to every broker, so consecutive micro-batches skip it for `LIST_EVERY_MS`.
    lists = known.plan is None or now - known.listed_at > LIST_EVERY_MS
    request = replace(request, view=known.view, predecessor=None if lists else known.plan)
    known.plan = executor.run(take_over(request, version))
    history.report_recovered(executor, settings.history_topic, known.view)
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
    return transaction_timeout(settings, found)


def _check_topic(settings: WriteSettings, admin: Admin) -> None:
    max_block_ms = settings.producer.max_block_ms
    if settings.topic is not None and settings.producer.dead_letter_topic is None:
        require_topic(admin, settings.topic, admin.client.clock() + max_block_ms, max_block_ms)


def transaction_timeout(settings: WriteSettings, found: Mapping[str, str]) -> int:
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
