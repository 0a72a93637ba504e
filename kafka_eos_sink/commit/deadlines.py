"""Fails a batch as soon as it is certain that one of its transactions timed out.

The driver does nothing while the tasks of a batch run. So each task that still writes checks the prepared transactions of the others:
whether the coordinator aborted one, and no attempt writes its rows again.
"""

from __future__ import annotations

from kafka_eos_sink.commit.log_reading import read_to_end
from kafka_eos_sink.commit.log_view import LoggedRecord, LogView
from kafka_eos_sink.commit.outcome import Outcome
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.steps import DescribeTransactions, WallClock
from kafka_eos_sink.commit.values import Plan

NEVER_TIMES_OUT_MS = 2_147_483_647
"""transaction.timeout.ms that disables the timeout (Kafka 4.1+, if the broker allows it)."""
MAX_MARGIN_MS = 60_000


def timeout_margin_ms(timeout_ms: int) -> int:
    """Return the ms to reserve for decision and EndTxn, for liveness only."""
    return min(timeout_ms // 10, MAX_MARGIN_MS)


def fail_if_too_late(plan: Plan, query_id: str, version: int, own: int) -> Procedure[None]:
    """Raise ``TRANSACTION_TOO_OLD`` if another partition's rows than its own are lost.

    The proof: a partition's newest part record is of this batch and has an ABORT marker, and none of the partition's ids has an open
    transaction that could replace it. Until the batch is older than the timeout, the check only reads the clock.
    """
    timeout = plan.transaction_timeout_ms
    now = yield from WallClock()
    elapsed = now - plan.started_ms
    if timeout == NEVER_TIMES_OUT_MS or elapsed <= timeout:
        return
    view = LogView(plan.write.id, next_offset=plan.log_offset)
    yield from read_to_end(view)
    lost = tuple(
        partition
        for partition, part in view.query(query_id).newest_parts.items()
        if partition != own and _is_aborted(part, version, plan.log_offset)
    )
    if not lost:
        return
    described = yield from DescribeTransactions(plan.write.task_ids(lost))
    for partition in lost:
        held = [described.get(each) for each in plan.write.task_ids([partition])]
        if all(found is None or found.is_free for found in held):
            why = f"the finished transaction of partition {partition} was aborted while other tasks still wrote"
            raise refused("TRANSACTION_TOO_OLD", elapsed=elapsed / 1000, limit=timeout / 1000, why=why)


def _is_aborted(part: LoggedRecord, version: int, log_offset: int) -> bool:
    return (
        part.offset >= log_offset
        and part.value is not None
        and part.value.get("version") == version
        and part.outcome is Outcome.ABORTED
    )
