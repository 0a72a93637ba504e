"""A batch whose oldest transaction cannot outlive it fails as soon as that is certain, not when the last task is done.

Only the tasks run while a batch runs, so a task that still writes looks around: the coordinator has aborted the prepared
transaction of a sibling by timeout, and nobody is writing that partition again.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka_eos_sink.commit.commit_log import LoggedRecord, LogView
from kafka_eos_sink.commit.log_reading import read_to_end
from kafka_eos_sink.commit.open_transactions import FREE_STATES
from kafka_eos_sink.commit.prepared_transaction import Plan
from kafka_eos_sink.commit.steps import DescribeTransactions, MarkerType, Now, Procedure, TransactionDescription
from kafka_eos_sink.commit.transactional_id import SLOTS, task_transactional_id
from kafka_eos_sink.errors import TransactionAbortedError

NEVER_TIMES_OUT_MS = 2_147_483_647
"""transaction.timeout.ms of a transaction that the coordinator never aborts (Kafka 4.1+ where the broker allows it)."""
MAX_MARGIN_MS = 60_000


def timeout_margin_ms(timeout_ms: int) -> int:
    """What must be left of a transaction's time for the decision and the ends that follow it: a matter of liveness only."""
    return min(timeout_ms // 10, MAX_MARGIN_MS)


def timeout_ways_out() -> str:
    return (
        "Ways out: smaller batches or more tasks at a time, a larger kafka.transaction.timeout.ms (up to the broker's "
        "transaction.max.timeout.ms; 2147483647 never times out where the broker allows it)"
    )


def too_old_error(what: str, elapsed_ms: int, timeout_ms: int) -> TransactionAbortedError:
    return TransactionAbortedError(
        "TRANSACTION_TOO_OLD",
        f"{what}: {elapsed_ms / 1000:.1f} s have passed and transactions end at {timeout_ms / 1000:.1f} s "
        f"(transaction.timeout.ms), so this batch can no longer be committed. {timeout_ways_out()}",
    )


def fail_if_too_late(plan: Plan, query_id: str, version: int) -> Procedure[None]:
    """Raise `TransactionAbortedError` ``TRANSACTION_TOO_OLD`` where a sibling's finished work is proven lost.

    Costs a reading of the clock until the batch is older than the timeout. Certain means: the newest part record of a partition,
    written in this batch, carries an ABORT marker, and none of the partition's ids has a transaction that could replace it.
    """
    timeout = plan.transaction_timeout_ms
    now: int = yield Now()
    elapsed = now - plan.started_ms
    if timeout == NEVER_TIMES_OUT_MS or elapsed <= timeout:
        return
    view = LogView(plan.write_id, next_offset=plan.log_offset)
    yield from read_to_end(view)
    lost = tuple(
        partition
        for partition, part in view.newest_parts(plan.write_id, query_id).items()
        if _is_aborted(part, version, plan.log_offset)
    )
    if not lost:
        return
    ids = tuple(task_transactional_id(plan.write_id, partition, slot) for partition in lost for slot in range(SLOTS))
    described: Mapping[str, TransactionDescription | None] = yield DescribeTransactions(ids)
    for partition in lost:
        own = [described.get(task_transactional_id(plan.write_id, partition, slot)) for slot in range(SLOTS)]
        if all(found is None or found.state in FREE_STATES for found in own):
            raise too_old_error(
                f"the finished transaction of partition {partition} was aborted while other tasks still wrote",
                elapsed,
                timeout,
            )


def _is_aborted(part: LoggedRecord, version: int, log_offset: int) -> bool:
    return (
        part.offset >= log_offset
        and part.value is not None
        and part.value["version"] == version
        and part.marker is not None
        and part.marker.type is MarkerType.ABORT
    )
