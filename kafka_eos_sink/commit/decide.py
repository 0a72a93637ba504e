"""The driver's commit and abort: check, decide, end, verify, done.

The decision is the point of no return. Before it nothing of the batch can become visible (no EndTxn(commit) without a decision
whose marker was read, I1); after it the batch must be finished and never be written again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.commit_log import append_in_transaction, decision_records, forget, write_done
from kafka_eos_sink.commit.deadlines import NEVER_TIMES_OUT_MS, timeout_margin_ms
from kafka_eos_sink.commit.log_reading import await_outcome, read_to_end
from kafka_eos_sink.commit.log_view import LoggedDecision, LogView, Outcome
from kafka_eos_sink.commit.open_transactions import open_identities
from kafka_eos_sink.commit.prepared_transaction import (
    BatchIdentity,
    Decision,
    DecisionStatus,
    Plan,
    PreparedTransaction,
    TaskMessage,
    TaskOutcome,
)
from kafka_eos_sink.commit.settle import SettleLimits, settle
from kafka_eos_sink.commit.steps import (
    Appended,
    CommitGroupOffsets,
    DescribeProducers,
    DescribeTransactions,
    End,
    EndResult,
    EndTransactions,
    Now,
    Procedure,
    Reached,
    TransactionDescription,
    Warn,
)
from kafka_eos_sink.commit.transactional_id import SLOTS, task_transactional_id
from kafka_eos_sink.errors import (
    DecisionPendingError,
    FencedError,
    KafkaEosError,
    TransactionAbortedError,
    WriteRefusedError,
)
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.reactions import FENCED_BY_NEWER_OWNER

LOSERS_WITHIN_MS = 5_000
"""W.driver's transaction is open meanwhile, and its coordinator ends it after DRIVER_TRANSACTION_TIMEOUT_MS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """The source's end offsets, committed to a consumer group with the decision: (topic, partition, next offset)."""

    group_id: str
    offsets: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """A batch to be decided; ``nonce`` is fresh and marks the barriers of this commit."""

    plan: Plan
    batch: BatchIdentity
    random_write_id: bool
    nonce: str
    group_offsets: GroupOffsets | None = None
    limits: SettleLimits = field(default_factory=SettleLimits)


def commit(request: CommitRequest, messages: Sequence[TaskMessage | None]) -> Procedure[Decision | None]:
    """Decide the batch and finish it; returns the decision, or None where the batch was committed before.

    Raises before the decision: `WriteRefusedError`, `TransactionAbortedError`, `FencedError`; Spark may run the batch again. After
    it: `DecisionPendingError`.
    """
    plan, batch = request.plan, request.batch
    complete = _require_messages_of_one_run(plan, batch, messages)
    prepared = tuple(message.prepared for message in complete if message.prepared is not None)
    recorded = {message.recorded for message in complete if message.recorded is not None}
    skipped = frozenset(
        message.task.partition for message in complete if message.outcome is TaskOutcome.ALREADY_COMMITTED
    )
    if len(skipped) == len(complete) and skipped and not _lost_parts(plan, batch):
        return None

    yield Reached("commit.check")
    expires_ms = yield from _check_prepared(plan, prepared)
    carried: tuple[PreparedTransaction, ...] = ()
    if _lost_parts(plan, batch):
        carried = yield from _check_lost_parts(request, prepared, skipped, recorded)
    elif skipped:
        raise WriteRefusedError(
            "MIXED_MESSAGES",
            f"version {batch.version} of write id {plan.write_id!r}: some tasks skipped their rows and others wrote; nothing was "
            "committed. Run it again",
        )
    decision = Decision(
        write_id=plan.write_id,
        query_id=batch.query_id,
        version=batch.version,
        nonce=plan.nonce,
        driver=plan.driver,
        topic=batch.topic,
        schema=batch.schema,
        offsets_hash=batch.offsets_hash,
        transactions=tuple(sorted((*carried, *prepared), key=lambda entry: entry.partition)),
    )
    unproven = {entry.identity.transactional_id for entry in carried if not entry.proven}
    found, sequence = yield from _append_decision(request, decision)
    losers = yield from _losers(plan, complete, prepared, unproven)
    ended, sequence = yield from _decide(request, found, sequence, expires_ms)
    try:
        yield Reached("commit.decided")
        yield from _finish(request, found, losers, ended, sequence)
    except DecisionPendingError:
        raise
    except Exception as failure:  # whatever it is: it must not look like a failure before the decision
        what = str(failure) if isinstance(failure, KafkaEosError) else f"{type(failure).__name__}: {failure}"
        raise refusals.pending(decision, what) from failure
    return decision


def _lost_parts(plan: Plan, batch: BatchIdentity) -> bool:
    newest = plan.newest_decision(batch.query_id)
    return newest is not None and newest.version == batch.version and newest.status is DecisionStatus.LOST_PARTS


def _require_messages_of_one_run(
    plan: Plan, batch: BatchIdentity, messages: Sequence[TaskMessage | None]
) -> tuple[TaskMessage, ...]:
    """Spark's continuous trigger drops rows and commits [None]; messages of two plans mean that two runs were mixed."""
    complete = tuple(message for message in messages if message is not None)
    if len(complete) < len(messages) or not complete:
        raise WriteRefusedError(
            "MISSING_MESSAGE",
            f"{len(messages) - len(complete)} of {len(messages)} tasks handed over nothing: this trigger or mode of Spark does not "
            "deliver rows to Python sinks (continuous processing). Use a micro-batch trigger",
        )
    expected = (plan.write_id, plan.nonce, batch.query_id, batch.version)
    for message in complete:
        found = (message.plan.write_id, message.plan.nonce, message.query_id, message.version)
        if found != expected:
            raise WriteRefusedError(
                "MIXED_MESSAGES",
                f"the tasks wrote for different runs: {found} beside {expected} (write id, nonce, query id, version); nothing was "
                "committed",
            )
    if any(message.outcome is TaskOutcome.OVERTAKEN for message in complete):
        raise refusals.fenced(plan.write_id, f"while the tasks of version {batch.version} ran")
    partitions = [message.task.partition for message in complete]
    if len(set(partitions)) < len(partitions):
        raise WriteRefusedError(
            "MIXED_MESSAGES", f"two messages of one partition among {sorted(partitions)}; nothing was committed"
        )
    return complete


def _check_prepared(plan: Plan, prepared: Sequence[PreparedTransaction]) -> Procedure[int | None]:
    """Every prepared transaction is open under its own identity and lives long enough.

    Returns until when (this driver's clock, ms) the decision must be made, None for ever.
    """
    described: Mapping[str, TransactionDescription | None] = {}
    if prepared:
        described = yield DescribeTransactions(tuple(entry.identity.transactional_id for entry in prepared))
    now: int = yield Now()
    timeout = plan.transaction_timeout_ms
    expires: list[int] = []
    for entry in prepared:
        identity, found = entry.identity, described.get(entry.identity.transactional_id)
        is_open = found is not None and found.is_open and found.is_of(identity)
        if not is_open:
            raise TransactionAbortedError(
                "TRANSACTION_NOT_OPEN",
                f"the transaction {identity.transactional_id} of partition {entry.partition} is not open any more (its coordinator "
                f"says {found.state if found else 'unknown id'}), {(now - plan.started_ms) / 1000:.1f} s after the batch began, with "
                f"transaction.timeout.ms {timeout}; nothing was committed. {refusals.TIMEOUT_WAYS_OUT}",
            )
        assert found is not None
        # Below version 2 an attempt whose transaction somebody aborted goes on in a new one under the same epoch.
        forgotten = {(part.topic, part.partition) for part in entry.offsets} - found.partitions
        if forgotten:
            topic, number = min(forgotten)
            raise TransactionAbortedError(
                "TRANSACTION_NOT_OPEN",
                f"the transaction {identity.transactional_id} of partition {entry.partition} does not hold {topic}-{number} any "
                "more, which it wrote to: somebody aborted it while the task was running; nothing was committed. Run it again",
            )
        limit = min(timeout, found.timeout_ms)  # a task may have had to ask for less than was planned
        if limit == NEVER_TIMES_OUT_MS:
            continue
        # By the driver's own clock since the plan, before which no task began; where that is not enough, by the broker's start time.
        margin, age = timeout_margin_ms(limit), now - plan.started_ms
        if age + margin >= limit:
            age = now - found.start_time_ms
        if age + margin >= limit:
            raise TransactionAbortedError(
                "TRANSACTION_TOO_OLD",
                f"the transaction {identity.transactional_id} of partition {entry.partition} is {age / 1000:.1f} s old and its "
                f"coordinator ends it at {limit / 1000:.1f} s (transaction.timeout.ms); it cannot outlive the decision, so nothing was "
                f"committed. {refusals.TIMEOUT_WAYS_OUT}",
            )
        expires.append(now + limit - age - margin // 2)
    yield from _check_first_offsets(prepared)
    return min(expires, default=None)


def _losers(
    plan: Plan, messages: Sequence[TaskMessage], prepared: Sequence[PreparedTransaction], unproven: Collection[str]
) -> Procedure[tuple[ProducerIdentity, ...]]:
    """Open transactions of the batch that the decision does not name, but for `unproven` ids, as in `end_open`.

    Looked for when the decision is written and before it is committed: attempts that ask later find themselves overtaken and end what
    they opened, and those that asked before have opened it by now.
    """
    ids = tuple(
        task_transactional_id(plan.write_id, message.task.partition, slot)
        for message in messages
        for slot in range(SLOTS)
    )
    described: Mapping[str, TransactionDescription | None] = {}
    if ids:
        try:
            described = yield DescribeTransactions(ids, within_ms=LOSERS_WITHIN_MS)
        except KafkaEosError:
            return ()  # no reason to give up a batch that is about to be decided: they end themselves, or a sweep or the next run does it
    named = {(entry.identity.transactional_id, entry.identity.producer_epoch) for entry in prepared}
    return tuple(
        identity
        for identity in open_identities(described, plan.driver.transaction_version)
        if (identity.transactional_id, identity.producer_epoch) not in named
        and identity.transactional_id not in unproven
    )


def _check_first_offsets(prepared: Sequence[PreparedTransaction]) -> Procedure[None]:
    """On every partition the open transaction begins where the task's records begin.

    Earlier: the marker of an aborted attempt was passed over (KAFKA-20734), and one COMMIT would make its records visible with
    ours. Later, or none open: somebody ended it under the task (by hand, or below version 2 by an exact abort).
    """
    where = tuple(sorted({(part.topic, part.partition) for entry in prepared for part in entry.offsets}))
    if not where:
        return
    producers: Mapping[tuple[str, int], Mapping[int, tuple[int, int]] | None] = yield DescribeProducers(where)
    hidden = sorted({topic for topic, partition in where if producers.get((topic, partition), {}) is None})
    if hidden:
        yield Warn(
            f"without the right to Read {', '.join(hidden)} it cannot be checked that no older open transaction is committed along with "
            "this one (KAFKA-20734), nor that nobody wrote markers by hand; grant Read"
        )
    for entry in prepared:
        for part in entry.offsets:
            remembered = producers.get((part.topic, part.partition), {})
            if remembered is None:
                continue
            _, start = remembered.get(entry.identity.producer_id, (-1, -1))
            if start != part.first_offset:
                raise TransactionAbortedError(
                    "TRANSACTION_NOT_OPEN",
                    f"on {part.topic}-{part.partition} the open transaction of {entry.identity.transactional_id} begins at offset "
                    f"{start}, not at {part.first_offset} where the task's records begin: "
                    + (
                        "a marker was written by hand"
                        if start < 0 or start > part.first_offset
                        else "an older one was never ended"
                    )
                    + "; nothing was committed. Run it again; if it comes again, see kafka-eos repair",
                )


def _check_lost_parts(
    request: CommitRequest,
    prepared: Sequence[PreparedTransaction],
    skipped: frozenset[int],
    recorded: set[tuple[int, str]],
) -> Procedure[tuple[PreparedTransaction, ...]]:
    """The re-run wrote exactly what was lost; returns the committed entries, which the new decision repeats (I2)."""
    plan, batch = request.plan, request.batch
    newest = plan.newest_decision(batch.query_id)
    assert newest is not None
    if recorded != {(newest.offset, newest.nonce)}:
        raise WriteRefusedError("MIXED_MESSAGES", "the tasks were measured against different decisions; run it again")
    # The plan says which parts are lost, the record says what was in them.
    view = LogView(plan.write_id, next_offset=newest.offset)
    yield from read_to_end(view)
    found = view.query(batch.query_id).newest
    if found is None or (found.offset, found.decision.nonce) != (newest.offset, newest.nonce):
        raise FencedError("FENCED", f"the decision of version {batch.version} was replaced by a newer driver")

    entries = {entry.partition: entry for entry in found.decision.transactions}
    written = {entry.partition: entry for entry in prepared}
    problems = []
    if set(written) != set(newest.lost):
        problems.append(f"partitions {sorted(newest.lost)} were lost, but this run wrote {sorted(written)}")
    if not newest.committed <= skipped:
        problems.append(f"partitions {sorted(newest.committed - skipped)} are committed, but this run lacks them")
    for partition in sorted(set(written) & set(newest.lost)):
        ours, theirs = written[partition], entries[partition]
        if theirs.digest is None or ours.digest is None:
            problems.append(f"no digest was recorded for partition {partition}")
        elif (ours.rows, ours.digest) != (theirs.rows, theirs.digest):
            problems.append(
                f"partition {partition} has other rows than were decided ({ours.rows} against {theirs.rows})"
            )
    if problems:
        raise refusals.not_the_same_rows(plan, batch.version, "; ".join(problems))
    return tuple(
        replace(entry, proven=newest.proven)
        for entry in found.decision.transactions
        if entry.partition in newest.committed
    )


def _append_decision(request: CommitRequest, decision: Decision) -> Procedure[tuple[LoggedDecision, int]]:
    """The decision in an open transaction of W.driver, with the offsets of the group; returns where it lies and the next sequence."""
    records = decision_records(decision)
    yield Reached("commit.before_decision")
    appended: Appended = yield from append_in_transaction(decision.driver, records, 0)
    if appended.error != ErrorCode.NONE:
        raise _undecided(decision, "the decision record", appended.error)
    if request.group_offsets is not None:
        offsets = request.group_offsets
        error: int | None = yield CommitGroupOffsets(decision.driver, offsets.group_id, offsets.offsets)
        if error != ErrorCode.NONE:
            raise _undecided(decision, f"the offsets of group {offsets.group_id!r}", error)
    yield Reached("commit.decision_written")
    return LoggedDecision(decision, appended.offset), len(records)


def _decide(
    request: CommitRequest, found: LoggedDecision, sequence: int, expires_ms: int | None
) -> Procedure[tuple[ProducerIdentity, int]]:
    """Commit the decision's transaction and read its COMMIT marker; only then is anything decided.

    Returns the driver's identity after it and the next sequence number. Never fences: a repeat is identical.
    """
    decision = found.decision
    driver = decision.driver
    now: int = yield Now()
    if expires_ms is not None and now > expires_ms:
        raise TransactionAbortedError(
            "TRANSACTION_TOO_OLD",
            f"version {decision.version} of write id {decision.write_id!r} could not be decided before its oldest transaction times out: "
            f"the commit log took too long; nothing was committed. {refusals.TIMEOUT_WAYS_OUT}",
        )
    ends: tuple[EndResult, ...] = yield EndTransactions((End(identity=driver, commit=True),))
    (ended,) = ends
    # Only the log proves the end: a resend after a lost response is also fenced by a driver that came after the commit.
    try:
        yield from _await_marker(request, decision, found.offset, ended.error)
    except (DecisionPendingError, FencedError, TransactionAbortedError):
        raise
    except KafkaEosError as failure:
        raise refusals.decision_unknown(decision, str(failure)) from failure
    after = driver
    if ended.producer_id >= 0:
        after = ProducerIdentity(
            transactional_id=driver.transactional_id,
            producer_id=ended.producer_id,
            producer_epoch=ended.producer_epoch,
            transaction_version=driver.transaction_version,
        )
    return after, sequence if after == driver else 0


def _undecided(decision: Decision, what: str, error: int | None) -> KafkaEosError:
    code = "no answer" if error is None else ErrorCode.of(error).name
    if error in FENCED_BY_NEWER_OWNER:
        return refusals.fenced(decision.write_id, f"{code} for {what}")
    return refusals.not_decided(decision, what, code)


def _await_marker(request: CommitRequest, decision: Decision, offset: int, error: int | None) -> Procedure[None]:
    """Return once the decision's own COMMIT marker is read; ``error`` is the result of its EndTxn."""
    outcome = yield from await_outcome(decision, offset, request.limits.deadline_ms)
    fenced = error in FENCED_BY_NEWER_OWNER
    if outcome is Outcome.COMMITTED and fenced:
        raise refusals.pending(decision, "a newer driver of the write id has taken over and finishes it")
    if outcome is Outcome.COMMITTED:
        return
    if outcome is Outcome.ABORTED:
        code = error if fenced else ErrorCode.INVALID_TXN_STATE
        raise _undecided(decision, "the decision, whose transaction was aborted", code)
    raise refusals.decision_unknown(decision, "its marker did not appear in the commit log")


def _finish(
    request: CommitRequest,
    found: LoggedDecision,
    losers: tuple[ProducerIdentity, ...],
    driver: ProducerIdentity,
    sequence: int,
) -> Procedure[None]:
    decision = found.decision
    outcome = yield from settle(found, nonce=request.nonce, limits=request.limits, losers=losers, recovering=False)
    yield Reached("commit.finished")
    if outcome.status is not DecisionStatus.FINISHED:
        raise refusals.lost_parts(decision, outcome.lost, can_be_rerun=not request.random_write_id)
    if request.random_write_id:
        yield from forget(decision, driver, sequence)
    elif outcome.proven:
        yield from write_done(decision)
