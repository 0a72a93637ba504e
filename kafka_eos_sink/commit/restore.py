"""Finish decisions; copy the records of aborted transactions from the log.

A coordinator aborts a decided transaction if the timeout passes before its EndTxn, or if a person or an older driver aborts it. The
records stay in the log. The decision holds their offsets and their producer. The driver appends them again, in one new transaction per
lost one. A second decision lists the committed transactions and the copies. If a copy is aborted as well, the driver copies it again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from kafka_eos_sink.commit.decide import (
    DriverTransaction,
    append_decision,
    check_prepared,
    decide,
    decide_again,
    require_free,
)
from kafka_eos_sink.commit.log_access import read_to_barrier, write_done
from kafka_eos_sink.commit.log_records import part_record
from kafka_eos_sink.commit.log_view import LoggedDecision, LogView
from kafka_eos_sink.commit.refusals import describe_ranges, refused, text
from kafka_eos_sink.commit.settle import PROMPT_MS, Settled, settle
from kafka_eos_sink.commit.steps import Copied, Copy, CopyRecords, Gone, Now, Procedure, Reached, WallClock, Warn
from kafka_eos_sink.commit.transactional_id import SLOTS
from kafka_eos_sink.commit.transactions import fresh_identity, give_up, prepared
from kafka_eos_sink.commit.values import (
    Decision,
    DecisionStatus,
    PreparedTransaction,
    Run,
    SettledDecision,
    Write,
    plan_nonce,
)
from kafka_eos_sink.errors import (
    DecisionPendingError,
    FencedError,
    KafkaEosError,
    TransactionAbortedError,
    WriteRefusedError,
    brief,
    counted,
)
from kafka_eos_sink.protocol.identity import ProducerIdentity

MOST_COPIES = 4
"""Limit on the rounds of copies per run. After so many aborts, copying evidently takes longer than the transaction timeout."""
COPIED = -1
"""Stands for the task attempt id in the part record of a copy."""


@dataclass(slots=True)
class FinishedDecisions:
    """The result of finishing all decisions of a write id.

    ``failures`` are by query id. ``copied`` is True if W.driver wrote a decision.
    """

    decisions: list[SettledDecision] = field(default_factory=list)
    failures: dict[str, KafkaEosError] = field(default_factory=dict)
    copied: bool = False


def finish_decisions(run: Run, view: LogView, driver: DriverTransaction) -> Procedure[FinishedDecisions]:
    """Finish each query id's newest decision; ``driver`` is as the fence left it."""
    # One decision that cannot be settled must not keep the transactions of the others open.
    finished = FinishedDecisions()
    for query in view.queries("decision"):
        logged = query.newest
        if logged is None:
            continue
        state = query.state_of(logged.decision)
        try:
            before, decision = replace(driver), logged.decision
            if state.is_open:
                decision = yield from finish(run, logged, driver, recovering=True)
                if not decision.is_void:
                    yield from write_done(decision)
            if driver == before and query.undecided:
                # JOIN: a COMMIT of another query id would end the decision above, and the cleaner drop this one for it.
                yield from decide_again(run, logged, driver)
        except KafkaEosError as failure:
            finished.failures[query.query_id] = _of_decided(run.write, logged.decision, failure)
            continue
        finished.copied = finished.copied or driver != before
        finished_ms = query.done.get("finished_ms") if state.is_settled and query.done is not None else None
        finished.decisions.append(
            SettledDecision(
                # Without its transactions, a decision of copies looks void, so its written versions are set before.
                decision=replace(decision, transactions=(), user_metadata=None, versions=decision.written_versions),
                status=DecisionStatus.VOID if decision.is_unwritten else DecisionStatus.FINISHED,
                rows=sum(prepared.rows for prepared in decision.transactions),
                topics=tuple(sorted({part.topic for prepared in decision.transactions for part in prepared.offsets})),
                finished_ms=finished_ms,
            )
        )
    return finished


def _of_decided(write: Write, decision: Decision, failure: KafkaEosError) -> KafkaEosError:
    """Return the error of a decided batch: nobody must take its rows for unwritten."""
    if isinstance(failure, (DecisionPendingError, FencedError, WriteRefusedError)):
        return failure
    pending = refused("DECIDED_NOT_FINISHED", write=write, decision=decision, why=brief(failure))
    pending.__cause__ = failure
    return pending


def finish(
    run: Run,
    logged: LoggedDecision,
    driver: DriverTransaction,
    *,
    losers: Collection[ProducerIdentity] = (),
    recovering: bool,
) -> Procedure[Decision]:
    """Settle a decision; copy the lost ranges, and settle the decision of the copies.

    The caller holds W.driver.

    Returns:
        The last decision. If it is void, none of the batch's rows is visible, their records are gone, and the batch may run again.

    Raises:
        DecisionPendingError: As `settle`. LOST_PARTS if lost records are gone while other rows of the batch are visible.
            DECIDED_NOT_FINISHED or DECISION_UNKNOWN if a step failed.
    """
    for copied_here in range(MOST_COPIES + 1):
        settled = yield from settle(run, logged, driver, losers=losers, recovering=recovering)
        if not settled.lost:
            return settled.logged.decision
        if copied_here == MOST_COPIES:
            break
        losers = ()
        began = yield from Now()
        try:
            logged = yield from _restore(run, settled, driver)
        except (DecisionPendingError, WriteRefusedError):
            raise
        except KafkaEosError as failure:
            why = f"its lost rows could not be copied ({failure.brief})"
            raise refused("DECIDED_NOT_FINISHED", write=run.write, decision=logged.decision, why=why) from failure
        if logged.decision.is_void:
            return logged.decision
        # PAUSE: somebody may have aborted a copy by hand.
        now = yield from Now()
        recovering = recovering or now - began > PROMPT_MS
    raise refused("DECIDED_NOT_FINISHED.copies_aborted", write=run.write, decision=logged.decision, count=MOST_COPIES)


def _restore(run: Run, settled: Settled, driver: DriverTransaction) -> Procedure[LoggedDecision]:
    """Copy lost ranges; decide the copies with what readers see, or a void batch."""
    decision, lost = settled.logged.decision, settled.lost
    # NEW LOG: the decision of the copies belongs into the log that holds this one.
    log = LogView(run.write.id, next_offset=settled.logged.offset)
    if (yield from read_to_barrier(log, run.nonce, settled.logged.log_id)) < settled.logged.offset:
        raise refused("NOT_THIS_COMMIT_LOG.created_again", write=run.write)
    started = yield from WallClock()
    begun: list[Copy] = []
    for entry in lost:
        # BLIND: not under the id of a lost transaction, because InitProducerId erases the coordinator's proof that it was aborted.
        used = {each.identity.transactional_id for each in begun} | {each.identity.transactional_id for each in lost}
        copy = yield from _begin_copy(run, decision, entry, used)
        begun.append(copy)
    opened = [copy.identity for copy in begun]
    yield from Reached("restore.initialised")
    # JOIN and PAUSE: before the first record, because a newer driver may have committed a transaction under one of these ids.
    yield from require_free(run, decision, driver)
    try:
        results = yield from CopyRecords(tuple(begun))
        copies, gone = _sort_copies(lost, opened, results)
        yield from Reached("restore.copied")
        expires_ms: int | None = None
        if not gone:
            expires_ms = yield from check_prepared(run, copies, started)
        elif settled.kept:
            # BLIND: all or none. A decision that lacks some of the rows would hide that they are missing.
            raise _lost_parts(run.write, settled, gone)
        else:
            # The void decision is final: the user may then write the rows again, so no copy may become visible.
            yield from give_up(opened)
            copies = []
        second = _decision_of(settled, copies, driver)
        logged = yield from append_decision(second, driver, settled.logged.log_id, settled.logged.offset)
    except Exception:
        yield from give_up(opened)
        raise
    try:
        yield from decide(run, logged, driver, expires_ms)
    except (FencedError, TransactionAbortedError):
        yield from give_up(opened)
        raise
    yield from Reached("restore.decided")
    if gone:
        yield from Warn(text("void_decided", decision=decision, why="; ".join(gone)))
        return logged
    rows, transactions = counted(sum(entry.rows for entry in copies), "row"), counted(len(copies), "transaction")
    yield from Warn(text("copied", decision=decision, rows=rows, transactions=transactions))
    return logged


def _lost_parts(write: Write, settled: Settled, gone: Sequence[str]) -> KafkaEosError:
    """Some transactions are committed, maybe in a deleted topic, the others lost."""
    decision, lost = settled.logged.decision, settled.lost
    unseen = [f"rows of the committed ones are not seen either: {settled.gone}"] if settled.gone else []
    are = "was" if len(lost) == 1 else "were"
    return refused(
        "LOST_PARTS",
        write=write,
        decision=decision,
        rows=sum(entry.rows for entry in lost),
        aborted=f"{len(lost)} of its {len(decision.transactions)} transactions {are}",
        ranges=describe_ranges(lost),
        why="; ".join([*gone, *unseen]),
    )


def _decision_of(settled: Settled, copies: list[PreparedTransaction], driver: DriverTransaction) -> Decision:
    """Return the next decision: what readers see, and copies; void without any."""
    decision = settled.logged.decision
    versions = decision.versions
    kept = [replace(entry, proven=entry.proven or not settled.gone) for entry in settled.kept]
    return replace(
        decision,
        versions=versions if copies or versions is None else versions.without(decision.version),
        nonce=f"{plan_nonce(decision.nonce)}~{decision.copies + 1}",
        driver=driver.identity,
        transactions=tuple(sorted((*kept, *copies), key=lambda entry: entry.partition)) if copies else (),
    )


def _begin_copy(run: Run, decision: Decision, entry: PreparedTransaction, used: Collection[str]) -> Procedure[Copy]:
    """Begin the transaction of a copy, under an id that is not ``used`` yet."""
    lost = run.write.parse(entry.identity.transactional_id)
    assert lost is not None
    every = ((lost.slot + step) % SLOTS for step in range(SLOTS))
    slots = tuple(slot for slot in every if run.write.task_id(entry.partition, slot) not in used)
    identity = yield from fresh_identity(run.write, entry.partition, slots, run.transaction_timeout_ms)
    part = part_record(decision.write_id, decision.query_id, entry.partition, decision.version, COPIED)
    return Copy(identity, entry.identity, entry.offsets, part)


def _sort_copies(
    lost: Sequence[PreparedTransaction], identities: Sequence[ProducerIdentity], results: Sequence[Copied | Gone]
) -> tuple[list[PreparedTransaction], list[str]]:
    """Return the complete copies, and a text about each other copy's missing rows."""
    copies: list[PreparedTransaction] = []
    gone: list[str] = []
    for entry, identity, result in zip(lost, identities, results, strict=True):
        if isinstance(result, Gone):
            gone.append(f"{counted(entry.rows, 'row')} of Spark partition {entry.partition}: {result.why}")
        elif result.written.rows != entry.rows:
            gone.append(
                f"{entry.rows - result.written.rows:,} of {counted(entry.rows, 'row')} of Spark partition {entry.partition} are gone from "
                f"{describe_ranges([entry])}"
            )
        else:
            copy = prepared(entry.partition, identity, result.written, result.part_offset)
            copies.append(replace(copy, dead_letters=entry.dead_letters))
    return copies, gone
