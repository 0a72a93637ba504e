"""The driver's abort after a failed batch, and its sweep after a finished one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kafka_eos_sink.commit.driver import after_end, still_holds
from kafka_eos_sink.commit.log_reading import read_to_barrier, read_to_end
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.open_transactions import LIST_WITHIN_MS, end_open, list_open
from kafka_eos_sink.commit.prepared_transaction import Decision, DecisionStatus, Plan, TaskMessage, plan_nonce
from kafka_eos_sink.commit.steps import Procedure, Warn
from kafka_eos_sink.commit.take_over import TakeOver, take_over
from kafka_eos_sink.commit.transactional_id import is_random_write_id
from kafka_eos_sink.protocol.identity import ProducerIdentity


def abort(
    request: TakeOver, plan: Plan | None, messages: Sequence[TaskMessage | None], transaction_version: int
) -> Procedure[Plan | None]:
    """End what the failed batch left open; finish the batch if it was decided after all.

    Spark calls abort also after a commit that raised, so the log is read first. If a newer driver holds the write id, only this
    batch's own transactions are ended. What killed workers open afterwards, a `sweep` ends.

    Args:
        plan: None if no task handed it over. Then nobody can tell whether a newer driver has taken over. It is fenced in that case,
            which costs it a round and no row.

    Returns:
        The plan to sweep with; None if a newer driver holds the write id.
    """
    own = tuple(
        message.prepared.identity for message in messages if message is not None and message.prepared is not None
    )
    if plan is not None and not (yield from _holds_write_id(plan)):
        yield from _end_own(plan, request.nonce, own)
        return None
    found = yield from take_over(replace(request, handed_over=own), transaction_version)
    if plan is not None:
        yield from _tell_what_was_finished(found, plan.nonce)
    return found


def _holds_write_id(plan: Plan) -> Procedure[bool]:
    """Whether W.driver is as the plan's fence, or the last decision of the plan's batch, has left it.

    Nobody else ever takes over a random write id, whose tombstones are another transaction.
    """
    view = LogView(plan.write_id, next_offset=plan.log_offset)
    yield from read_to_end(view)
    driver = plan.driver
    for query in view.queries("decision"):
        found = query.newest
        if found is not None and plan_nonce(found.decision.nonce) == plan.nonce:
            driver = after_end(found.decision.driver)
    return is_random_write_id(plan.write_id) or (yield from still_holds(driver))


def _tell_what_was_finished(found: Plan, nonce: str) -> Procedure[None]:
    """The caller of a failed commit sees an error: that the batch is in the topic all the same must be said."""
    for decision in found.decisions:
        if plan_nonce(decision.nonce) == nonce and decision.status is DecisionStatus.FINISHED:
            yield Warn(
                f"version {decision.version} of write id {found.write_id!r} failed in its commit, but it was decided and is now "
                "committed and visible: do not write its rows again"
            )


def _end_own(plan: Plan, barrier_nonce: str, own: Sequence[ProducerIdentity]) -> Procedure[None]:
    """A newer driver only looks after its own partitions: end what this batch handed over, unless it was decided.

    Nobody can decide it any more, as our driver is fenced; whether it was decided before stands in the log up to a barrier.
    """
    if not own:
        return
    view = LogView(plan.write_id)
    yield from read_to_barrier(view, barrier_nonce, plan.log_id)
    for query in view.queries("decision"):
        if plan.nonce in query.nonces_not_aborted:
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

    Args:
        decision: The last one of the batch; None if it was aborted. No other driver ever takes over a random write id.
    """
    if not all(found.proven for found in plan.decisions):
        return 0
    opened = yield from list_open(plan.write_id, plan.driver.transaction_version, LIST_WITHIN_MS)
    driver = plan.driver if decision is None else decision.driver
    if not opened or not (is_random_write_id(plan.write_id) or (yield from still_holds(driver))):
        return 0
    named = () if decision is None else decision.transactions
    yield from end_open(opened, {prepared.identity.transactional_id for prepared in named})
    return len(opened)
