"""Take over a write id: what a driver does before it plans, aborts or recovers.

The steps are list, fence, read, end, finish. PAUSE says why in this order: after the fence, no older driver can decide what is listed,
and every decision that it must finish is in the log. A read before them shows if the log knows the write id (NEW LOG).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kafka_eos_sink.commit.decide import DriverTransaction
from kafka_eos_sink.commit.log_access import read_to_barrier, read_to_end, require_whole
from kafka_eos_sink.commit.log_records import barrier_record
from kafka_eos_sink.commit.log_standing import ReadHistory, Standing, UnknownId, Used, commit_log_lost, standing_of
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.restore import finish_decisions
from kafka_eos_sink.commit.steps import Append, InitProducerId, Procedure, Reached, WallClock
from kafka_eos_sink.commit.transactions import (
    DRIVER_TRANSACTION_TIMEOUT_MS,
    LIST_WITHIN_MS,
    described_driver,
    end_open,
    list_open,
    still_holds,
)
from kafka_eos_sink.commit.values import BatchIdentity, Plan, Run
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, ProducerIdentity, bumps_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """The run that takes its write over, and how.

    Args:
        view: The part of the log that this process has read; reading continues there.
        predecessor: The last plan of this process. If its batch is done and no driver has fenced since, nothing is open. The list of
            open transactions is then skipped, because its cost grows with all ids of the cluster.
        batch: What the driver is about to write, for error messages; None if it writes nothing.
        also_abort: Prepared transactions of a failed batch. They are aborted even if the list lacks them.
    """

    run: Run
    view: LogView | None = None
    predecessor: Plan | None = None
    also_abort: tuple[ProducerIdentity, ...] = ()
    unknown_id: UnknownId = UnknownId.BEGIN
    batch: BatchIdentity | None = None


def fence_only(run: Run) -> Procedure[Plan]:
    """Fence a random write id, append a barrier, and return the plan.

    Nothing can be open or decided under a random write id, so the driver reads no log.
    """
    started = yield from WallClock()
    driver = yield from InitProducerId(run.write.driver_id, DRIVER_TRANSACTION_TIMEOUT_MS)
    yield from Reached("plan.fenced")
    # The barrier shows later drivers that this log is the write's own.
    barrier = yield from Append((barrier_record(run.write.id, run.nonce),))
    return _plan(run, driver, started, barrier)


def _plan(run: Run, driver: ProducerIdentity, started_ms: int, barrier: int) -> Plan:
    return Plan(
        write=run.write,
        nonce=run.nonce,
        driver=driver,
        started_ms=started_ms,
        transaction_timeout_ms=run.transaction_timeout_ms,
        log_offset=barrier,
        decisions=(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """The plan, the decisions that could not be finished, and what was open.

    ``failures`` are by query id. ``driver`` is W.driver's next transaction. ``opened`` was open before a fence, ``left_open`` still is.
    """

    plan: Plan
    driver: DriverTransaction
    failures: Mapping[str, KafkaEosError]
    opened: tuple[ProducerIdentity, ...]
    left_open: tuple[ProducerIdentity, ...]


def take_over(request: TakeOver) -> Procedure[Plan]:
    """Fence older drivers, finish their decisions, and abort their open transactions.

    Raises:
        DecisionPendingError: A decision can neither be finished nor proven void. The driver still aborts the open transactions that
            no such decision names, because they block readers.
        WriteRefusedError: COMMIT_LOG_TRUNCATED, COMMIT_LOG_LOST, NOT_THIS_COMMIT_LOG or UNKNOWN_WRITE_ID. Nothing was touched.
    """
    taken = yield from taking_over(request)
    for failure in taken.failures.values():
        raise failure
    return taken.plan


def taking_over(request: TakeOver) -> Procedure[TakenOver]:
    """As `take_over`, but return the failures."""
    run = request.run
    view = LogView(run.write.id) if request.view is None else request.view
    before: dict[ProducerIdentity, None] = {}
    while True:
        started = yield from WallClock()
        standing, opened = yield from look(request, view)
        before |= dict.fromkeys(opened)
        if standing is Standing.NEW:
            yield from Append((barrier_record(run.write.id, run.nonce, view.topic_id),))
            yield from Reached("plan.begun")
        identity = yield from InitProducerId(run.write.driver_id, DRIVER_TRANSACTION_TIMEOUT_MS)
        yield from Reached("plan.fenced")
        barrier = yield from read_to_barrier(view, run.nonce, claims=standing is not Standing.UNCLAIMED)
        yield from Reached("plan.read")
        driver = DriverTransaction(identity)
        # JOIN: before the decisions, because what has joined a decided transaction may discard its rows, which are then copied.
        left_open = yield from end_open(dict.fromkeys((*opened, *request.also_abort)), still_to_commit(view))
        finished = yield from finish_decisions(run, view, driver)
        yield from Reached("plan.finished")
        if finished.copied and not finished.failures:
            # W.driver has written a decision, so it is no longer in the state after the fence, by which tasks recognise their driver.
            # PAUSE: begin with the log, not with the fence, because another driver may have decided since.
            continue
        begun = _plan(run, identity, started, barrier)
        plan = replace(begun, decisions=tuple(finished.decisions), log_id=view.topic_id)
        return TakenOver(
            plan=plan, driver=driver, failures=finished.failures, opened=tuple(before), left_open=left_open
        )


def look(request: TakeOver, view: LogView) -> Procedure[tuple[Standing, tuple[ProducerIdentity, ...]]]:
    """Return whose log it is, and what is open; touch nothing. Raise as `take_over`."""
    run, predecessor, unknown_id = request.run, request.predecessor, request.unknown_id
    is_first_look, topic_id = view.next_offset == 0, view.topic_id
    yield from read_to_end(view)
    # NEW LOG: the process has not read this one either.
    is_first_look |= view.topic_id != topic_id
    require_whole(view)
    # NEW LOG: another one may have decided the open transactions. So the list waits for every broker.
    is_unknown = is_first_look and view.lacks_write and unknown_id is not UnknownId.ABORT
    opened: tuple[ProducerIdentity, ...] = ()
    # LATE ADD: only a list finds the transaction in which an aborted attempt has continued.
    if (
        predecessor is None
        or not bumps_epoch(run.transaction_version)
        or not (yield from _is_done_and_unfenced(view, predecessor))
    ):
        opened = yield from list_open(run, None if is_unknown else LIST_WITHIN_MS)
    used = Used()
    if is_unknown and unknown_id is UnknownId.BEGIN and not opened:
        known = yield from described_driver(run.write.driver_id)
        history = yield from ReadHistory(run.write.id)
        used = Used(known=known, history=history)
    facts = {"is_first_look": is_first_look, "has_open": bool(opened), "was_used": bool(used)}
    standing = standing_of(unknown_id, lacks_write=view.lacks_write, **facts)
    if standing in (Standing.OTHER, Standing.LOST):
        # The driver of what was found appended its barrier before its first request, perhaps after this driver's read.
        yield from read_to_end(view)
        standing = standing_of(unknown_id, lacks_write=view.lacks_write, **facts)
    if standing is Standing.OTHER:
        raise refused("NOT_THIS_COMMIT_LOG", write=run.write, first=opened[0].transactional_id)
    if standing is Standing.LOST:
        raise commit_log_lost(run.write, request.batch, used)
    if standing is Standing.UNKNOWN:
        raise refused("UNKNOWN_WRITE_ID", write=run.write)
    return standing, opened


def still_to_commit(view: LogView, but: str | None = None) -> frozenset[ProducerIdAndEpoch]:
    """Return the carriers that unfinished decisions commit, ``but`` one query id's.

    LATE ADD: nobody commits a transaction any more that was noted before a discard. What a late request has opened under its identity must
    be aborted, or it would hold the range open.
    """
    entries = [
        entry for query, newest in view.unfinished() if query.query_id != but for entry in newest.decision.transactions
    ]
    noted = {entry.identity.carrier for entry in entries if entry.ended is not None}
    return frozenset(entry.identity.carrier for entry in entries if not entry.proven) - noted


def _is_done_and_unfenced(view: LogView, plan: Plan) -> Procedure[bool]:
    """Whether the plan's batch is done and unfenced, so that nothing is open."""
    done = [str(query.done.get("nonce")) for query in view.queries("decision") if query.done is not None]
    return plan.nonce in done and (yield from still_holds(plan.driver))
