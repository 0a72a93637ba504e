"""Ends what losing attempts of a finished batch open after its commit has looked, where they cannot do it themselves.

An attempt that finds itself overtaken ends its own transaction. One that is killed before it asks leaves it open. While batches follow
one another the next plan finds it; while a query waits for data nobody would, and `read_committed` readers would wait for the timeout.
"""

from __future__ import annotations

import logging
import threading

from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.session import Decision, Plan, WriteSettings

log = logging.getLogger(__name__)

SWEEP_AFTER_S = (3.0, 5.0)
"""Seconds from the commit to the first sweep, and from that to the second."""

_superseded: dict[str, threading.Event] = {}
"""By write id: queries of one session share the process that commits, and one that is busy must not keep another from looking."""


def sweep_later(settings: WriteSettings, plan: Plan, decision: Decision | None) -> None:
    """Look twice in the next seconds, in a thread of its own, unless a later call for the same write id supersedes this one."""
    if (previous := _superseded.pop(plan.write_id, None)) is not None:
        previous.set()
    superseded = _superseded[plan.write_id] = threading.Event()
    threading.Thread(
        target=_sweep, args=(settings, plan, decision, superseded), name="kafka-eos sweep", daemon=True
    ).start()


def _sweep(settings: WriteSettings, plan: Plan, decision: Decision | None, superseded: threading.Event) -> None:
    for delay in SWEEP_AFTER_S:
        if superseded.wait(delay):
            return
        try:
            session.sweep(settings, plan, decision)
        except Exception as error:  # nobody waits for it; the next plan ends what this one could not
            log.warning("kafka-eos: looking for left-over transactions of %r failed: %s", plan.write_id, error)
