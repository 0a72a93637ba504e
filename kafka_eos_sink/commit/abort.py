"""The driver's abort after a failed batch, and its sweep after a finished one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kafka_eos_sink.commit.log_access import read_to_barrier, read_to_end
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.outcome import Outcome
from kafka_eos_sink.commit.refusals import text
from kafka_eos_sink.commit.steps import Procedure, Warn
from kafka_eos_sink.commit.take_over import TakeOver, take_over
from kafka_eos_sink.commit.transactions import LIST_WITHIN_MS, end_open, list_open, still_holds
from kafka_eos_sink.commit.values import Decision, DecisionStatus, Plan, Run, TaskMessage, plan_nonce
from kafka_eos_sink.errors import RunAgain
from kafka_eos_sink.protocol.identity import ProducerIdentity


def abort(request: TakeOver, plan: Plan | None, messages: Sequence[TaskMessage | None]) -> Procedure[Plan | None]:
    """Abort what the failed batch left open, or finish the batch if it was decided.

    Spark calls abort also after a commit that raised, so the driver reads the log first. If a newer driver holds the write id, abort
    aborts only the transactions in the tasks' messages. A `sweep` ends what killed workers open later.

    Args:
        plan: None if no task returned a message. Then abort cannot recognise a newer driver, and fences it. The newer driver's batch
            then fails and must run again, but no row is lost or doubled.

    Returns:
        The plan for `sweep`; None if a newer driver holds the write id.
    """
    own = tuple(
        message.prepared.identity for message in messages if message is not None and message.prepared is not None
    )
    if plan is not None and not (yield from _holds_write_id(plan)):
        yield from _end_own(plan, request.run.nonce, own)
        return None
    found = yield from take_over(replace(request, also_abort=own))
    if plan is None:
        return found
    for settled in found.decisions:
        if plan_nonce(settled.decision.nonce) == plan.nonce and settled.status is DecisionStatus.FINISHED:
            # After the abort, Spark shows the error of the commit, and nothing can change it. So the warning begins with its code.
            again = RunAgain.TWICE if found.write.is_random else RunAgain.SAME_ID
            yield from Warn(text("finished_by_abort", decision=settled.decision, again=again))
    return found


def _holds_write_id(plan: Plan) -> Procedure[bool]:
    """Whether no other driver has fenced since this driver's plan or last decision.

    PAUSE: a newer driver that finishes the batch may write decisions with the plan's nonce. They do not count: their epoch is another.
    No other driver takes over a random write id, so its W.driver is not compared. Tombstones may have changed W.driver's state.
    """
    view = LogView(plan.write.id, next_offset=plan.log_offset)
    yield from read_to_end(view)
    driver = plan.driver
    for query in view.queries("decision"):
        for decided in query.of_plan(plan.nonce):
            if decided.outcome is Outcome.COMMITTED and decided.carrier == driver.carrier:
                driver = driver.after_end
    return plan.write.is_random or (yield from still_holds(driver))


def _end_own(plan: Plan, barrier_nonce: str, own: Sequence[ProducerIdentity]) -> Procedure[None]:
    """Abort the transactions in the tasks' messages, unless the batch may be decided.

    A newer driver ignores Spark partitions that its own batch lacks, so this driver ends them. This driver is fenced and can no longer
    decide. If it has decided, its decision is in the log before a fresh barrier.
    """
    if not own:
        return
    view = LogView(plan.write.id)
    yield from read_to_barrier(view, barrier_nonce, plan.log_id)
    for query in view.queries("decision"):
        if any(decided.outcome is not Outcome.ABORTED for decided in query.of_plan(plan.nonce)):
            yield from Warn(text("perhaps_decided", write=plan.write))
            return
    yield from end_open(own)


def sweep(run: Run, plan: Plan, decision: Decision | None) -> Procedure[int]:
    """Abort what losing attempts opened after the commit's search; return how many.

    A transaction that is open while this driver holds W.driver began before the next plan's fence, so no driver will decide it.
    PAUSE: W.driver's description comes after the list, so the list holds no transaction of a newer driver.

    Args:
        decision: The last decision of the batch; None if the batch was aborted. No other driver takes over a random write id.
    """
    opened = yield from list_open(run, LIST_WITHIN_MS)
    driver = plan.driver if decision is None else decision.driver
    if not opened or not (plan.write.is_random or (yield from still_holds(driver))):
        return 0
    named = () if decision is None else decision.transactions
    yield from end_open(opened, {prepared.identity.carrier for prepared in named})
    return len(opened)
