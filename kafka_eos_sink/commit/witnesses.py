"""Proofs from the commit log for transactions whose outcome is in doubt.

The witness of a transaction is the first control batch of its producer id after its part record. The error code of an EndTxn proves
nothing, because it does not distinguish committed from aborted.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.coordinator_verdict import CoordinatorVerdict, verdict_on
from kafka_eos_sink.commit.log_reading import read_to_barrier
from kafka_eos_sink.commit.log_view import LoggedDecision, LogView, Outcome, outcome_of
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.steps import (
    POLL_MS,
    DescribeTransactions,
    LogPolicy,
    MarkerType,
    Now,
    TransactionDescription,
    Wait,
)
from kafka_eos_sink.commit.values import Decision, PreparedTransaction
from kafka_eos_sink.protocol.identity import ProducerIdentity


def outcomes_in_log(
    logged: LoggedDecision, doubtful: Sequence[PreparedTransaction], nonce: str, deadline: int
) -> Procedure[list[Outcome]]:
    """Return the outcome that the commit log proves of each transaction, in order.

    The result is final for two reasons. No coordinator is in a Prepare or unknown state, so none is about to write a marker. And the
    log is read up to a fresh barrier.

    Raises:
        WriteRefusedError: NOT_THIS_COMMIT_LOG if the log that holds the decision was deleted and created again.
    """
    decision = logged.decision
    yield from await_coordinators(decision, doubtful, deadline)
    view = LogView(
        decision.write_id,
        next_offset=min(prepared.part_offset for prepared in doubtful),
        watched=frozenset(prepared.identity.producer_id for prepared in doubtful),
    )
    barrier = yield from read_to_barrier(view, nonce, logged.log_id)
    if barrier < logged.offset:
        raise refusals.log_created_again(decision.write_id)
    policy = yield from LogPolicy()
    outcomes = [witness_of(decision, prepared, view, policy) for prepared in doubtful]
    if Outcome.OPEN not in outcomes:
        return outcomes
    # A marker was omitted in the commit log (KAFKA-20734). The coordinator may still know how exactly this transaction ended.
    ids = tuple(prepared.identity.transactional_id for prepared in doubtful)
    described = yield from DescribeTransactions(ids)
    return [
        _reported(described.get(prepared.identity.transactional_id), prepared.identity)
        if outcome is Outcome.OPEN
        else outcome
        for prepared, outcome in zip(doubtful, outcomes, strict=True)
    ]


def _reported(described: TransactionDescription | None, identity: ProducerIdentity) -> Outcome:
    """Return the coordinator's outcome of a transaction without marker in the log."""
    match verdict_on(described, identity):
        case CoordinatorVerdict.COMMITTED:
            return Outcome.COMMITTED
        # Below version 2, the coordinator may report a later transaction with the same epoch, so its abort proves nothing.
        case CoordinatorVerdict.ABORTED if identity.transaction_version >= 2:
            return Outcome.ABORTED
    return Outcome.OPEN


def witness_of(decision: Decision, prepared: PreparedTransaction, view: LogView, policy: str | None) -> Outcome:
    """Return the outcome that the log proves; OPEN for a part without a marker.

    Args:
        view: A view that has read the log from the part record on, and that watches the producer id.
        policy: The log's cleanup.policy, None without DescribeConfigs.
    """
    identity = prepared.identity
    marker = view.first_marker(identity.producer_id, prepared.part_offset)
    query = view.query(decision.query_id)
    part = query.part_at(prepared.partition, prepared.part_offset)
    if part is not None and (part.producer_id, part.producer_epoch) != (
        identity.producer_id,
        identity.producer_epoch,
    ):
        return Outcome.UNRESOLVED  # a new topic of the same name has another record at this offset
    if marker is None and part is not None:
        return Outcome.OPEN
    if marker is not None and marker.type is not MarkerType.EMPTY and part is not None:
        return outcome_of(identity.producer_epoch, identity.transaction_version, marker)
    # The part record was removed, or its marker is empty. Compaction removes aborted records. It removes a committed record only if a
    # newer committed record has the key. So if only compaction removes records, a removed record proves an abort.
    removed_by_compaction = (
        policy is not None
        and policy.replace(" ", "") == "compact"
        and view.log_start_offset <= prepared.part_offset < view.next_offset
        and not query.newer_committed_part(prepared.partition, prepared.part_offset)
        and view.last_unreadable < prepared.part_offset
    )
    if removed_by_compaction:
        if marker is None:
            return Outcome.ABORTED
        # The cleaner keeps a marker for delete.retention.ms after its record, so a remaining marker must be an ABORT. A marker whose
        # epoch is too high for this transaction belongs to a later one of the id.
        commit_without_bump = identity.transaction_version < 2 and marker.type is MarkerType.COMMIT
        if marker.producer_epoch > identity.producer_epoch + (0 if commit_without_bump else 1):
            return Outcome.ABORTED
        if marker.type is MarkerType.EMPTY:
            return Outcome.ABORTED
        outcome = outcome_of(identity.producer_epoch, identity.transaction_version, marker)
        return outcome if outcome is Outcome.ABORTED else Outcome.UNRESOLVED
    return Outcome.UNRESOLVED


def await_coordinators(decision: Decision, doubtful: Sequence[PreparedTransaction], deadline: int) -> Procedure[None]:
    waiting = tuple(prepared.identity.transactional_id for prepared in doubtful)
    while True:
        described = yield from DescribeTransactions(waiting)
        waiting = tuple(
            transactional_id
            for transactional_id, found in described.items()
            if found is not None and not (found.is_open or found.is_free)
        )
        if not waiting:
            return
        now = yield from Now()
        if now > deadline:
            raise refusals.pending(decision, f"the coordinator has not finished {waiting[0]} in time")
        yield from Wait(POLL_MS)
