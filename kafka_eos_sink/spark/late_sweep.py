"""Abort transactions that attempts begin after the end of their batch.

An attempt that finds the batch decided or aborted aborts its own transaction. An attempt that is killed before that leaves it open. The
plan of the next batch aborts it. But a query that waits for data has no next batch, and a job may have no next run. Then the transaction
would block ``read_committed`` consumers until its timeout.
"""

from __future__ import annotations

import logging
import threading

from kafka_eos_sink.commit.values import Decision, Plan, Write
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.write_settings import WriteSettings

log = logging.getLogger(__name__)

SWEEP_AFTER_S = (3.0, 5.0)
"""Seconds before the first and the second sweep. Killed workers live on for 2 to 4 s."""
AT_ONCE_S = 5.0
"""Longest wait for a sweep ``at_once``, in seconds."""

_superseded: dict[str, threading.Event] = {}
"""Write id to the event that cancels its sweep. The queries of one session share the commit process."""


def log_failed_abort(batch: str, error: Exception, write: Write | None = None) -> None:
    """Log an abort's error: raised, it would hide the error of the batch. ``write`` is that of a job."""
    later = "The next run finishes a decided batch, and aborts any other, as Kafka does at the transaction timeout"
    if write is not None and write.is_random:
        later = (
            "Each run without txnAppId has a new write id, so no later run finishes this batch or frees consumers. Run the job again only "
            f"if its error, or this command once brokers respond, says that this is safe: {write.command('recover')}"
        )
    log.warning(
        "kafka-eos: the abort of %s did not finish (%s). Rows visible: no, unless the batch was decided. %s",
        batch,
        error if isinstance(error, KafkaEosError) else type(error).__name__,
        later,
    )


def sweep_later(settings: WriteSettings, plan: Plan, decision: Decision | None, *, at_once: bool = False) -> None:
    """Sweep twice within seconds, in a thread; the write id's next call cancels it.

    Args:
        at_once: Also sweep now, and wait for it: after a job's last write or a query's abort, Spark kills this process.
    """
    if (previous := _superseded.pop(plan.write.id, None)) is not None:
        previous.set()
    superseded = _superseded[plan.write.id] = threading.Event()
    swept = threading.Event()

    def run() -> None:
        for delay in (0.0, *SWEEP_AFTER_S) if at_once else SWEEP_AFTER_S:
            if superseded.wait(delay):
                return
            try:
                session.sweep(settings, plan, decision)
            except Exception as error:  # Not an error for the user: the next plan aborts what this sweep could not.
                log.warning("kafka-eos: the sweep for open transactions of %r failed: %s", plan.write.id, error)
            swept.set()
        if _superseded.get(plan.write.id) is superseded:
            del _superseded[plan.write.id]

    # A daemon: it must not keep the commit process alive. The next plan or the timeout then aborts the rest.
    try:
        threading.Thread(target=run, name="kafka-eos sweep", daemon=True).start()
    except RuntimeError as error:
        # No more threads are allowed here. The batch is committed, so that must not fail it.
        log.warning("kafka-eos: no sweep for open transactions of %r: %s", plan.write.id, error)
        return
    if at_once:
        swept.wait(AT_ONCE_S)
