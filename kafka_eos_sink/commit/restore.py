"""Finishes a decision. If some of its transactions were aborted, it copies their records from the log.

A coordinator aborts a decided transaction whose timeout passes before its EndTxn, or that somebody asks it to end. The records stay in
the log, and the decision names their place and their producer. Here they are appended again in new transactions, one for each lost one.
A second decision names the committed transactions and the copies. A copy that is lost as well is copied again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.commit_log import part_record
from kafka_eos_sink.commit.decide import DriverTransaction, append_decision, check_prepared, decide
from kafka_eos_sink.commit.log_view import LoggedDecision
from kafka_eos_sink.commit.prepared_transaction import Decision, PreparedTransaction, plan_nonce
from kafka_eos_sink.commit.settle import Settled, SettleLimits, settle
from kafka_eos_sink.commit.steps import (
    Copied,
    CopyRecords,
    Procedure,
    Reached,
    RecordsGoneError,
    RecordsHiddenError,
    WallClock,
    Warn,
)
from kafka_eos_sink.commit.task import fresh_identity, give_up
from kafka_eos_sink.commit.transactional_id import parse
from kafka_eos_sink.errors import DecisionPendingError, FencedError, KafkaEosError, TransactionAbortedError
from kafka_eos_sink.protocol.identity import ProducerIdentity

MOST_COPIES = 4
"""Per run. Copies that are lost so often take longer than their transaction timeout allows."""
COPIED = -1
"""Stands for the task attempt id in the part record of a copy."""


def finish(
    found: LoggedDecision,
    driver: DriverTransaction,
    *,
    nonce: str,
    limits: SettleLimits,
    timeout_ms: int,
    losers: Collection[ProducerIdentity] = (),
    recovering: bool,
) -> Procedure[tuple[Settled, DriverTransaction]]:
    """Settle a decision, and while some of its transactions were aborted, the one that names their copies.

    The caller holds W.driver.

    Args:
        driver: W.driver's next transaction.
        timeout_ms: transaction.timeout.ms of the copies.

    Returns:
        The last decision and the driver's transaction after it. ``lost`` then holds all transactions of the batch, or none: nothing of
        it is visible and it cannot be copied, so that it may run anew.

    Raises:
        DecisionPendingError: As `settle`. LOST_PARTS if some of the lost records are gone and others of the batch are visible, or
            if Read is missing.
            DECIDED_NOT_FINISHED or DECISION_UNKNOWN if a step failed.
    """
    for _ in range(MOST_COPIES):
        settled = yield from settle(found, nonce=nonce, limits=limits, losers=losers, recovering=recovering)
        if not settled.lost:
            return settled, driver
        losers = ()
        decision = found.decision
        try:
            copied = yield from _restore(settled, driver, timeout_ms, limits)
        except DecisionPendingError:
            raise
        except KafkaEosError as failure:
            raise refusals.pending(decision, f"its lost rows could not be copied ({failure})") from failure
        if copied is None:
            return settled, driver
        found, driver = copied
    raise refusals.pending(
        found.decision,
        f"its rows were copied from the log {MOST_COPIES} times, and the copies were aborted as well (first: "
        f"{found.decision.transactions[0].identity.transactional_id}). {refusals.TIMEOUT_WAYS_OUT}",
    )


def _restore(
    settled: Settled, driver: DriverTransaction, timeout_ms: int, limits: SettleLimits
) -> Procedure[tuple[LoggedDecision, DriverTransaction] | None]:
    """Copy the lost transactions, and decide the copies together with the committed rest; None if nothing of it may be decided."""
    decision, lost = settled.found.decision, settled.lost
    started: int = yield WallClock()
    opened: list[ProducerIdentity] = []
    copies: list[PreparedTransaction] = []
    gone: list[str] = []
    hidden = False
    try:
        for entry in lost:
            identity = yield from _identity_for(decision, entry, timeout_ms)
            opened.append(identity)
            try:
                copies.append((yield from _copy(decision, entry, identity)))
            except RecordsGoneError as why:
                hidden = hidden or isinstance(why, RecordsHiddenError)
                gone.append(f"{entry.rows} rows of Spark partition {entry.partition}: {why.message}")
        yield Reached("restore.copied")
        if not gone:
            expires_ms = yield from check_prepared(copies, started, timeout_ms)
            second = _decision_of(settled, copies, driver)
            found, sequence = yield from append_decision(second, driver.sequence)
    except Exception:
        yield from give_up(opened)
        raise
    if gone:
        # All or nothing: a decision that lacks some of the rows would hide that they are missing.
        yield from give_up(opened)
        if hidden or len(lost) < len(decision.transactions):
            raise refusals.lost_parts(decision, lost, gone)
        yield Warn(refusals.void_warning(decision, gone))
        return None
    try:
        after = yield from decide(found, sequence, expires_ms, limits.deadline_ms)
    except (FencedError, TransactionAbortedError):
        yield from give_up(opened)
        raise
    yield Reached("restore.decided")
    yield Warn(
        f"version {decision.version} of write id {decision.write_id!r}: {sum(entry.rows for entry in copies)} rows of "
        f"{len(copies)} transactions that had been aborted after the decision were copied from the log"
    )
    return found, after


def _decision_of(settled: Settled, copies: list[PreparedTransaction], driver: DriverTransaction) -> Decision:
    """The next decision: the committed transactions, and the copies instead of the lost ones."""
    decision = settled.found.decision
    copied = {entry.partition: entry for entry in copies}
    return replace(
        decision,
        nonce=f"{plan_nonce(decision.nonce)}~{decision.copies + 1}",
        driver=driver.identity,
        transactions=tuple(
            copied.get(entry.partition) or replace(entry, proven=settled.proven) for entry in decision.transactions
        ),
    )


def _identity_for(decision: Decision, entry: PreparedTransaction, timeout_ms: int) -> Procedure[ProducerIdentity]:
    lost = parse(entry.identity.transactional_id, decision.write_id)
    assert lost is not None
    # Another slot than the lost one's. If the ABORT marker of that one was left out somewhere (KAFKA-20734), a transaction under the
    # same producer id would join it.
    return (yield from fresh_identity(decision.write_id, entry.partition, lost.slot + 1, timeout_ms))


def _copy(decision: Decision, entry: PreparedTransaction, identity: ProducerIdentity) -> Procedure[PreparedTransaction]:
    yield Reached("restore.initialised")
    part = part_record(decision.write_id, decision.query_id, entry.partition, decision.version, COPIED)
    copied: Copied = yield CopyRecords(identity, entry.identity, entry.offsets, part)
    if copied.written.rows != entry.rows:
        raise RecordsGoneError(
            "LOST_PARTS",
            f"{entry.rows - copied.written.rows} of {entry.rows} rows are gone from {refusals.describe_ranges([entry])}",
        )
    return PreparedTransaction(
        partition=entry.partition,
        identity=identity,
        part_offset=copied.part_offset,
        rows=copied.written.rows,
        offsets=copied.written.offsets,
    )
