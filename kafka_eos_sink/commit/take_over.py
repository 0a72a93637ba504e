"""take_over(W): a driver makes a write id its own before it plans, aborts or recovers.

The steps are describe, list, fence, read, finish, end, in this order (docs/protocol.md):

- It describes W.driver before the fence, because the fence erases whether the coordinator calls the last decision committed.
- It lists open transactions before the fence, because nobody can decide a listed transaction after the fence.
- It fences before it reads the log, because an older driver could decide after the read.
- It reads the log before it ends anything, because a decision of an older driver must be finished, not aborted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.commit_log import barrier_record, write_done
from kafka_eos_sink.commit.driver import DRIVER_TRANSACTION_TIMEOUT_MS, describe_driver, is_held_by
from kafka_eos_sink.commit.log_reading import (
    read_to,
    read_to_barrier,
    read_to_end,
    require_markers,
    require_own_log,
    require_whole,
)
from kafka_eos_sink.commit.log_view import LoggedDecision, LogView, QueryState
from kafka_eos_sink.commit.open_transactions import end_open, list_open
from kafka_eos_sink.commit.prepared_transaction import DecisionStatus, Plan, SettledDecision
from kafka_eos_sink.commit.settle import SettleLimits, settle, settled
from kafka_eos_sink.commit.steps import Append, InitProducerId, Now, Procedure, Reached, TransactionDescription
from kafka_eos_sink.commit.transactional_id import driver_transactional_id
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.protocol.identity import ProducerIdentity


class UnknownId(Enum):
    """What to do if the commit log knows nothing of the write id."""

    BEGIN = "begin"
    """Begin it. Its open transactions are not ended: another commit log may hold their decision."""
    REFUSE = "refuse"
    """Refuse an operator's typing error or wrong log. A barrier would make the log look like the write's own."""
    ABORT = "abort"
    """Abort what is open, because the write's log is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """Which write id to take over, and how.

    nonce                    fresh for every call
    transaction_timeout_ms   of the tasks to come
    view                     what this process has read of the log, to continue from there
    predecessor              this process's plan before this one; if that batch was finished and no driver fenced since, nothing is
                             open, and the listing (whose cost grows with all ids of the cluster) is skipped
    """

    write_id: str
    nonce: str
    transaction_timeout_ms: int
    limits: SettleLimits = field(default_factory=SettleLimits)
    view: LogView | None = None
    predecessor: Plan | None = None
    unknown_id: UnknownId = UnknownId.BEGIN


def fence_only(request: TakeOver) -> Procedure[Plan]:
    """Return the plan of a write with a random id, under which nothing can be open or decided."""
    started: int = yield Now()
    driver: ProducerIdentity = yield InitProducerId(
        driver_transactional_id(request.write_id), DRIVER_TRANSACTION_TIMEOUT_MS
    )
    yield Reached("plan.fenced")
    # The barrier shows later drivers that this log is the write's own.
    yield Append((barrier_record(request.write_id, request.nonce),))
    return _plan(request, driver, started, 0, ())


def take_over(request: TakeOver, transaction_version: int) -> Procedure[Plan]:
    """Fence the older drivers of a write id, finish their decisions, end what they left open.

    Raises:
        DecisionPendingError: A decision can neither be finished nor proven void. Open transactions that no such decision names are
            ended all the same, because they block readers.
        KafkaEosError: DECISION_WITHOUT_MARKER. Nothing was touched.
        WriteRefusedError: COMMIT_LOG_TRUNCATED, NOT_THIS_COMMIT_LOG or UNKNOWN_WRITE_ID. Nothing was touched.
    """
    write_id, predecessor = request.write_id, request.predecessor
    started: int = yield Now()
    driver_id = driver_transactional_id(write_id)
    described = yield from describe_driver(driver_id, started + request.limits.deadline_ms)
    view = LogView(write_id) if request.view is None else request.view
    is_first_look = view.next_offset == 0
    # The fence erases the coordinator's state of the last decision, so it is compared with the log before.
    yield from read_to_end(view)
    require_whole(view)
    if any(query.unmarked_decisions(described) for query in view.queries("decision")):
        # Its marker may have come since, or a new leader does not show it yet.
        yield from read_to_barrier(view, request.nonce)
        for query in view.queries("decision"):
            require_markers(query, described)
    opened: tuple[ProducerIdentity, ...] = ()
    # Below version 2 an aborted attempt may continue in a new transaction of its epoch. Only a list finds that one.
    if predecessor is None or transaction_version < 2 or not _is_followed_by_nobody(view, predecessor, described):
        opened = yield from list_open(write_id, transaction_version)
    if is_first_look and request.unknown_id is not UnknownId.ABORT:
        yield from require_own_log(view, opened)
    if request.unknown_id is UnknownId.REFUSE and view.is_empty:
        raise refusals.unknown_write_id(write_id)
    driver: ProducerIdentity = yield InitProducerId(driver_id, DRIVER_TRANSACTION_TIMEOUT_MS)
    yield Reached("plan.fenced")
    barrier: int = yield Append((barrier_record(write_id, request.nonce),))
    if barrier < view.next_offset:
        # The log was deleted and created again, so no record of the old one counts.
        view.restart()
    yield from read_to(view, barrier)
    yield Reached("plan.read")
    decisions, unproven, failures = yield from _finish_decisions(view, request, described)
    yield Reached("plan.finished")
    left_open = yield from end_open(opened, unproven)
    if failures:
        raise failures[0]
    return replace(_plan(request, driver, started, barrier, tuple(decisions)), left_open=left_open)


def _finish_decisions(
    view: LogView, request: TakeOver, described: TransactionDescription | None
) -> Procedure[tuple[list[SettledDecision], set[str], list[KafkaEosError]]]:
    """Return the settled decisions, the transactional ids of those that are not proven finished, and the failures."""
    # One decision that cannot be settled must not keep the transactions of the others open.
    decisions: list[SettledDecision] = []
    unproven: set[str] = set()
    failures: list[KafkaEosError] = []
    for query in view.queries("decision"):
        found = query.newest
        named = (
            {prepared.identity.transactional_id for prepared in found.decision.transactions}
            if found is not None and not query.is_done(found.decision)
            else set()
        )
        try:
            require_markers(query, described)
            if found is not None:
                settled_decision = yield from _finish(query, found, request)
                decisions.append(settled_decision)
                if not settled_decision.proven:
                    unproven |= named
        except KafkaEosError as failure:
            failures.append(failure)
            unproven |= named
    return decisions, unproven, failures


def _is_followed_by_nobody(view: LogView, plan: Plan, driver: TransactionDescription | None) -> bool:
    """Whether the plan's batch is finished, which ended what it left open, and no driver has fenced since."""
    done = (str(query.done.get("nonce")) for query in view.queries("decision") if query.done is not None)
    return is_held_by(plan.driver, driver) and plan.nonce in done


def _plan(
    request: TakeOver,
    driver: ProducerIdentity,
    started_ms: int,
    log_offset: int,
    decisions: tuple[SettledDecision, ...],
) -> Plan:
    return Plan(
        write_id=request.write_id,
        nonce=request.nonce,
        driver=driver,
        started_ms=started_ms,
        transaction_timeout_ms=request.transaction_timeout_ms,
        log_offset=log_offset,
        decisions=decisions,
    )


def _finish(query: QueryState, found: LoggedDecision, request: TakeOver) -> Procedure[SettledDecision]:
    if query.is_done(found.decision):
        return settled(found, DecisionStatus.FINISHED)
    outcome = yield from settle(found, nonce=request.nonce, limits=request.limits, recovering=True)
    if outcome.status is DecisionStatus.FINISHED and outcome.proven:
        yield from write_done(found.decision)
    return outcome
