"""Abort transactions that losing task attempts begin after the commit of their batch.

A speculative attempt that finds the batch decided aborts its own transaction. An attempt that is killed before leaves it open. The plan
of the next batch aborts it; but a query that waits for data has no next batch, and the transaction would block ``read_committed``
consumers until its timeout.
"""

from __future__ import annotations

import logging
import threading

from kafka_eos_sink.commit.prepared_transaction import Decision, Plan
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.session import WriteSettings

log = logging.getLogger(__name__)

SWEEP_AFTER_S = (3.0, 5.0)
"""Seconds from the commit to the first sweep, and from that to the second."""

_superseded: dict[str, threading.Event] = {}
"""By write id: the queries of one session share the commit process, and a busy query must not cancel the sweep of another."""


def sweep_later(settings: WriteSettings, plan: Plan, decision: Decision | None) -> None:
    """Sweep twice in the next seconds, in a thread; a later call for the same write id cancels this one."""
    if (previous := _superseded.pop(plan.write_id, None)) is not None:
        previous.set()
    superseded = _superseded[plan.write_id] = threading.Event()
    # A daemon: it must not keep the commit process alive when the query ends. Its plan or the timeout then aborts the rest.
    threading.Thread(
        target=_sweep, args=(settings, plan, decision, superseded), name="kafka-eos sweep", daemon=True
    ).start()


def _sweep(settings: WriteSettings, plan: Plan, decision: Decision | None, superseded: threading.Event) -> None:
    for delay in SWEEP_AFTER_S:
        if superseded.wait(delay):
            return
        try:
            session.sweep(settings, plan, decision)
        except Exception as error:  # Not an error for the user: the next plan aborts what this sweep could not.
            log.warning("kafka-eos: the sweep for open transactions of %r failed: %s", plan.write_id, error)
