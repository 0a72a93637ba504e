"""The driver's abort after a failed batch, and its sweep after a finished one."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos_sink.commit.driver import still_holds
from kafka_eos_sink.commit.log_reading import read_to_barrier
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.open_transactions import end_open, list_open
from kafka_eos_sink.commit.prepared_transaction import Decision, DecisionStatus, Plan, TaskMessage, plan_nonce
from kafka_eos_sink.commit.steps import POLL_MS, Now, Procedure, Wait, Warn
from kafka_eos_sink.commit.take_over import TakeOver, take_over

ABORT_QUIET_MS = 3_000
ABORT_DEADLINE_MS = 15_000


def abort(
    request: TakeOver, plan: Plan | None, messages: Sequence[TaskMessage | None], transaction_version: int
) -> Procedure[None]:
    """End what the failed batch left open; finish it where it was decided after all.

    Spark calls abort also after a commit that raised, so the log is asked first. Where a newer driver holds the write id, only this
    batch's own transactions are ended. Killed workers live on for seconds: repeated until two listings, three seconds apart, are
    empty, for 15 s at most.

    `plan` is None where no task handed it over: then nobody can tell whether a newer driver has taken over. It is fenced in that
    case, which costs it a round and no row.
    """
    started: int = yield Now()
    nonce = None if plan is None else plan.nonce
    quiet_since: int | None = None
    taken_over = False
    while True:
        opened = yield from list_open(request.write_id, transaction_version)
        now: int = yield Now()
        if opened or not taken_over:
            if plan is not None and not (yield from still_holds(plan)):
                yield from _end_own(plan, nonce, request.nonce, messages)
                return
            quiet_since = None
            plan = yield from take_over(request, transaction_version)
            if not taken_over:
                yield from _tell_what_was_finished(plan, nonce)
            taken_over = True
        elif quiet_since is None:
            quiet_since = now
        elif now - quiet_since >= ABORT_QUIET_MS:
            return
        if now - started > ABORT_DEADLINE_MS:
            if opened:
                yield Warn(
                    f"transactions of write id {request.write_id!r} are still open after the abort: {opened[0].transactional_id} and "
                    f"{len(opened) - 1} more; the next run ends them, or the transaction timeout"
                )
            return
        yield Wait(ABORT_QUIET_MS // 3 if not opened else POLL_MS)


def _tell_what_was_finished(found: Plan, nonce: str | None) -> Procedure[None]:
    """The caller of a failed commit sees an error: that the batch is in the topic all the same must be said."""
    for decision in found.decisions:
        if plan_nonce(decision.nonce) == nonce and decision.status is DecisionStatus.FINISHED:
            yield Warn(
                f"version {decision.version} of write id {found.write_id!r} failed in its commit, but it was decided and is now "
                "committed and visible: do not write its rows again"
            )


def _end_own(
    plan: Plan, nonce: str | None, barrier_nonce: str, messages: Sequence[TaskMessage | None]
) -> Procedure[None]:
    """A newer driver only looks after its own partitions: end what this batch handed over, unless it was decided.

    Nobody can decide it any more, as our driver is fenced; whether it was decided before stands in the log up to a barrier.
    """
    own = [message.prepared.identity for message in messages if message is not None and message.prepared is not None]
    if not own:
        return
    view = LogView(plan.write_id)
    yield from read_to_barrier(view, barrier_nonce)
    for query in view.queries("decision"):
        if nonce in query.nonces_not_aborted:
            yield Warn(
                f"a batch of write id {plan.write_id!r} failed in its commit, but it may be decided: the newer driver that has taken over "
                "finishes it then. Do not write its rows again under another id"
            )
            return
    yield from end_open(own)


def sweep(plan: Plan, decision: Decision | None) -> Procedure[int]:
    """End what a finished batch's losing attempts opened after its last look; how many were found.

    Whatever is open while W.driver is still ours was begun before the next plan's fence: nobody will ever decide it. Described first
    and W.driver after it, so that a newer driver's transaction is never among them. Where a decision is not proven, what is open may
    have joined a committed transaction: left to the next plan, which knows its ids.
    """
    if not all(found.proven for found in plan.decisions):
        return 0
    opened = yield from list_open(plan.write_id, plan.driver.transaction_version)
    if not opened or not (yield from still_holds(plan)):
        return 0
    named = () if decision is None else decision.transactions
    yield from end_open(opened, {prepared.identity.transactional_id for prepared in named})
    return len(opened)
