"""Check prepared transactions, write the decision that lists them, and commit it.

The decision is the point of no return. Before it, no row of the batch can become visible: the driver commits a task's transaction only
after it has read the decision's COMMIT marker (I1). After it, the driver must finish the batch, and nobody may write it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from kafka_eos_sink.commit.log_access import append_in_transaction, read_on
from kafka_eos_sink.commit.log_records import LARGEST_BATCH_BYTES, decision_records
from kafka_eos_sink.commit.log_view import LoggedDecision, LogView
from kafka_eos_sink.commit.outcome import Outcome, is_held_by
from kafka_eos_sink.commit.refusals import refused, some, text
from kafka_eos_sink.commit.steps import (
    Answered,
    CommitGroupOffsets,
    DescribeProducers,
    DescribeTransactions,
    End,
    EndTransactions,
    Now,
    Procedure,
    Reached,
    ReadDeniedError,
    TransactionDescription,
    WallClock,
)
from kafka_eos_sink.commit.transactions import (
    DRIVER_TRANSACTION_TIMEOUT_MS,
    NEVER_TIMES_OUT_MS,
    described_driver,
    timeout_margin_ms,
)
from kafka_eos_sink.commit.values import Decision, PreparedTransaction, Run
from kafka_eos_sink.errors import DecisionPendingError, FencedError, KafkaEosError, TransactionAbortedError, brief
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.reactions import EXPIRED_ID, FENCED_BY_NEWER_OWNER, TOO_LARGE


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """Source offsets, committed with the decision: (topic, partition, next offset)."""

    group_id: str
    offsets: tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class DriverTransaction:
    """W.driver's next transaction, which each decision moves on.

    ``sequence`` is its first log record's. ``late_end_possible`` is true while the outcome of the last transaction is in doubt, and
    below version 2 after a lost response (LATE END).
    """

    identity: ProducerIdentity
    sequence: int = 0
    late_end_possible: bool = False


def check_prepared(run: Run, prepared: Sequence[PreparedTransaction], started_ms: int) -> Procedure[int | None]:
    """Require that every prepared transaction is open and has time left to commit.

    Args:
        started_ms: This driver's wall clock at the plan. No prepared transaction is older.

    Returns:
        The time (`Now`) by which the driver must decide; None if no transaction times out.
    """
    if not prepared:
        return None
    timeout = run.transaction_timeout_ms
    described = yield from DescribeTransactions(tuple(entry.identity.transactional_id for entry in prepared))
    wall = yield from WallClock()
    now = yield from Now()
    expires: list[int] = []
    for entry in prepared:
        identity, found = entry.identity, described.get(entry.identity.transactional_id)
        if found is None or not (found.is_open and found.is_of(identity)):
            raise refused(
                "TRANSACTION_NOT_OPEN",
                transactional_id=identity.transactional_id,
                partition=entry.partition,
                state=found.state if found else "unknown id",
                age=(wall - started_ms) / 1000,
                timeout_ms=timeout,
            )
        # LATE ADD: an attempt whose transaction was aborted has continued in another one.
        forgotten = {(part.topic, part.partition) for part in entry.offsets} - found.partitions
        if forgotten:
            raise refused(
                "TRANSACTION_NOT_OPEN.continued",
                transactional_id=identity.transactional_id,
                partition=entry.partition,
                where="{}-{}".format(*min(forgotten)),
            )
        limit = min(timeout, found.timeout_ms)  # a task lowers its timeout if the broker rejects it
        if limit == NEVER_TIMES_OUT_MS:
            continue
        # No transaction is older than the plan, whose age the driver knows. Only if the plan is too old, use the coordinator's start time.
        margin, age = timeout_margin_ms(limit), wall - started_ms
        if age + margin >= limit:
            age = wall - found.start_time_ms
        if age + margin >= limit:
            raise refused(
                "TRANSACTION_TOO_OLD.check",
                transactional_id=identity.transactional_id,
                partition=entry.partition,
                age=age / 1000,
                limit=limit / 1000,
            )
        expires.append(now + limit - age - margin // 2)
    yield from _check_first_offsets(run, prepared, described)
    return min(expires, default=None)


def _check_first_offsets(
    run: Run, prepared: Sequence[PreparedTransaction], described: Mapping[str, TransactionDescription | None]
) -> Procedure[None]:
    """Require that each open transaction begins where the task's records begin.

    Its COMMIT also reaches partitions where it has no record, because the broker rejected the rows. Nothing of its producer may be open
    there. If it begins earlier, it has joined an aborted attempt (JOIN). If it begins later, or none is open, someone has ended it (LATE
    ADD), or the topic was deleted.

    Raises:
        AuthorizationError: Read on a topic is missing, so nothing shows where its transactions begin.
        TransactionAbortedError: TRANSACTION_NOT_OPEN.
    """
    firsts: dict[tuple[ProducerIdentity, TopicPartition], int] = {}
    for entry in prepared:
        found = described.get(entry.identity.transactional_id)
        added = () if found is None else found.partitions
        firsts |= {(entry.identity, where): -1 for where in added if where[0] != run.write.log_topic}
        firsts |= {(entry.identity, (part.topic, part.partition)): part.first_offset for part in entry.offsets}
    where = tuple(sorted({where for _, where in firsts}))
    if not where:
        return
    try:
        producers = yield from DescribeProducers(where)
    except ReadDeniedError as denied:
        raise refused("TOPIC_AUTHORIZATION_FAILED", topics=some(denied.topics)) from None
    for (identity, each), first in firsts.items():
        _, start = producers.get(each, {}).get(identity.producer_id, (-1, -1))
        if start != first:
            raise refused(
                f"TRANSACTION_NOT_OPEN.begins_{_where(first, start)}",
                write=run.write,
                transactional_id=identity.transactional_id,
                where="{}-{}".format(*each),
                first=first,
                start=start,
            )


def _where(first: int, start: int) -> str:
    """Compare a transaction's first offset with its records'; -1 stands for none."""
    if start < 0:
        return "nowhere"
    if first < 0:
        return "elsewhere"
    return "later" if start > first else "earlier"


def append_decision(
    decision: Decision, driver: DriverTransaction, log_id: UUID, floor: int, group_offsets: GroupOffsets | None = None
) -> Procedure[LoggedDecision]:
    """Append the decision in a transaction of W.driver, with the group's offsets.

    Args:
        floor: An offset of this log, which is lower than the decision's.

    Raises:
        WriteRefusedError: NOT_THIS_COMMIT_LOG. Nothing was decided.
    """
    records = decision_records(decision)
    yield from Reached("commit.before_decision")
    appended = yield from append_in_transaction(driver.identity, records, driver.sequence)
    if appended.error != ErrorCode.NONE:
        raise _undecided(decision, "the decision record", appended)
    if appended.offset < floor:
        # NEW LOG: the decision would make the new log the write's own, and hide that decisions of other query ids are lost.
        raise refused("NOT_THIS_COMMIT_LOG.created_again", write_id=decision.write_id)
    if group_offsets is not None:
        committed = yield from CommitGroupOffsets(driver.identity, group_offsets.group_id, group_offsets.offsets)
        if committed.error != ErrorCode.NONE:
            raise _undecided(decision, f"the offsets of group {group_offsets.group_id!r}", committed)
    driver.sequence += len(records)
    yield from Reached("commit.decision_written")
    return LoggedDecision(decision, appended.offset, log_id)


def decide(
    run: Run, logged: LoggedDecision, driver: DriverTransaction, expires_ms: int | None = None
) -> Procedure[None]:
    """Commit the decision's transaction.

    The batch is decided once the driver has read the COMMIT marker. No step bumps the epoch, so a resend is identical.
    """
    decision, identity = logged.decision, driver.identity
    now = yield from Now()
    if expires_ms is not None and now > expires_ms:
        raise refused("TRANSACTION_TOO_OLD.decision", decision=decision)
    driver.late_end_possible = True
    try:
        ends = yield from EndTransactions((End(identity=identity, commit=True),))
    except Exception as failure:  # for example a rejected login after a lost response
        raise refused("DECISION_UNKNOWN", write=run.write, decision=decision, why=brief(failure)) from failure
    (ended,) = ends
    # Only the log proves the end. PAUSE: a newer driver fences the resend of an EndTxn that has committed.
    try:
        yield from _await_marker(run, logged, ended.error)
    except (DecisionPendingError, FencedError, TransactionAbortedError):
        raise
    except Exception as failure:
        raise refused("DECISION_UNKNOWN", write=run.write, decision=decision, why=brief(failure)) from failure
    driver.late_end_possible = not identity.bumps_epoch and ended.has_lost_response
    if identity.bumps_epoch:
        driver.identity, driver.sequence = identity.after_end, 0
        if ended.producer_id >= 0:
            driver.identity = replace(identity, producer_id=ended.producer_id, producer_epoch=ended.producer_epoch)


def decide_again(
    run: Run, logged: LoggedDecision, driver: DriverTransaction, *, proven: bool = True
) -> Procedure[LoggedDecision]:
    """Write a decision once more.

    Both decisions have the same nonce, so one done record counts for both.

    Args:
        proven: Whether the decision is finished; then its entries are marked as proven.

    Raises:
        DecisionPendingError, FencedError: The decision in the log still counts.
    """
    decision = logged.decision
    yield from require_free(run, decision, driver)
    try:
        entries = tuple(replace(entry, proven=entry.proven or proven) for entry in decision.transactions)
        again = replace(decision, driver=driver.identity, transactions=entries)
        logged = yield from append_decision(again, driver, logged.log_id, logged.offset)
        yield from decide(run, logged, driver)
    except KafkaEosError as failure:
        why = f"the driver could not write its decision once more ({failure.brief})"
        raise refused("DECIDED_NOT_FINISHED", write=run.write, decision=decision, why=why) from failure
    return logged


def require_free(run: Run, decision: Decision, driver: DriverTransaction) -> Procedure[None]:
    """Require that W.driver is this driver's, with nothing open and no late EndTxn."""
    if driver.late_end_possible:
        # LATE END: it could commit the first pieces of this decision without the others.
        raise refused("DECIDED_NOT_FINISHED.driver_in_doubt", write=run.write, decision=decision)
    held = yield from described_driver(driver.identity.transactional_id)
    if not is_held_by(driver.identity, held):
        raise refused("FENCED", decision=decision, why=f"it holds {driver.identity.transactional_id}")
    if held is not None and held.is_open:
        # The leader would drop this decision as a duplicate of the failed one, and EndTxn would commit the failed one.
        raise refused("DECIDED_NOT_FINISHED.driver_open", write=run.write, decision=decision)


def _undecided(decision: Decision, what: str, failed: Answered) -> KafkaEosError:
    if failed.error in FENCED_BY_NEWER_OWNER:
        slow = text("slow_log", seconds=DRIVER_TRANSACTION_TIMEOUT_MS // 1_000)
        return refused("FENCED", decision=decision, why=f"{failed.code} for {what}", hint=slow)
    if failed.error in TOO_LARGE:
        cause = text("too_large", largest=LARGEST_BATCH_BYTES)
    elif failed.error == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
        cause = EXPIRED_ID
    else:
        return refused("NOT_DECIDED", decision=decision, step=what, failed=failed.code)
    return refused("NOT_DECIDED.cause", decision=decision, step=what, failed=failed.code, cause=cause)


def _await_marker(run: Run, logged: LoggedDecision, error: int | None) -> Procedure[None]:
    """Wait for the decision's COMMIT marker; ``error`` is the result of its EndTxn."""
    decision = logged.decision
    outcome = yield from await_outcome(decision, logged.offset, run.within_ms)
    fenced = error in FENCED_BY_NEWER_OWNER
    if outcome is Outcome.COMMITTED and not fenced:
        return
    if outcome is Outcome.COMMITTED:
        raise refused("DECIDED_NOT_FINISHED.replaced", write=run.write, decision=decision)
    if outcome is Outcome.ABORTED:
        code = error if fenced else ErrorCode.INVALID_TXN_STATE
        raise _undecided(decision, "the decision, whose transaction was aborted", Answered(error=code))
    why = "its marker did not appear in the commit log"
    raise refused("DECISION_UNKNOWN", write=run.write, decision=decision, why=why)


def await_outcome(decision: Decision, offset: int, within_ms: int) -> Procedure[Outcome]:
    """Read the log until the decision at an offset has its marker.

    Returns:
        The decision's outcome; OPEN if its marker did not appear within ``within_ms``.
    """
    started = yield from Now()
    view = LogView(decision.write_id, next_offset=offset)
    while True:
        yield from read_on(view)
        outcome = view.query(decision.query_id).outcome_at(offset)
        if outcome is not Outcome.OPEN:
            return outcome
        now = yield from Now()
        if now - started > within_ms:
            return outcome
