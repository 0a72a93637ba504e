"""take_over(W): the driver makes a write id its own before it plans, aborts or recovers.

Look, list, fence, read, finish, end - in this order (docs/protocol.md):
- the last decision is looked for before the fence, because the fence erases whether its coordinator called it committed;
- listed before the fence, because the fence bumps what could be asked, and because after it nobody can decide what was listed;
- fenced before the log is read, because an older driver could still decide after a read;
- read before anything is ended, because what an older driver decided must be finished, not aborted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from kafka_eos_sink.commit.commit_log import (
    LoggedDecision,
    LoggedRecord,
    LogView,
    Outcome,
    barrier_record,
    done_record,
    tombstones,
)
from kafka_eos_sink.commit.log_reading import read_to, read_to_end, require_whole
from kafka_eos_sink.commit.open_transactions import PREPARE_STATES, end_open, list_open
from kafka_eos_sink.commit.prepared_transaction import Decision, DecisionStatus, Plan, SettledDecision
from kafka_eos_sink.commit.settle import POLL_MS, SettleLimits, settle, settled
from kafka_eos_sink.commit.steps import (
    AddPartition,
    Append,
    Appended,
    AppendInTransaction,
    DescribeTransactions,
    End,
    EndResult,
    EndTransactions,
    InitProducerId,
    LogRecord,
    MarkerType,
    Now,
    Procedure,
    Reached,
    TransactionDescription,
    Wait,
    Warn,
)
from kafka_eos_sink.commit.transactional_id import driver_transactional_id
from kafka_eos_sink.errors import FencedError, KafkaEosError, WriteRefusedError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity

DRIVER_TRANSACTION_TIMEOUT_MS = 60_000
"""Of W.driver, always: a decision transaction lives for milliseconds, and a longer one would hold up the commit log."""


class UnknownId(Enum):
    """What is done about a write id of which the commit log knows nothing."""

    BEGIN = "begin"
    """A first run. It ends no open transaction: in another commit log that may be decided."""
    REFUSE = "refuse"
    """An operator's typing error, or the wrong log: his barrier would make the log seem the write's own."""
    ABORT = "abort"
    """Its log is lost: what is open is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """Who takes over what. ``nonce`` is fresh for every call; ``transaction_timeout_ms`` is that of the tasks to come.

    ``view`` is what this process has read of the log before, to read on from there. ``predecessor`` is its plan before this one: where
    that was decided and nobody has fenced since, its commit has ended what was open, and listing (which costs by all ids of the
    cluster) is left out.
    """

    write_id: str
    nonce: str
    transaction_timeout_ms: int
    limits: SettleLimits = field(default_factory=SettleLimits)
    view: LogView | None = None
    predecessor: Plan | None = None
    unknown_id: UnknownId = UnknownId.BEGIN


def fence_only(request: TakeOver) -> Procedure[Plan]:
    """The plan of a write with a random id: nothing can be open or decided under it."""
    started: int = yield Now()
    driver: ProducerIdentity = yield InitProducerId(
        driver_transactional_id(request.write_id), DRIVER_TRANSACTION_TIMEOUT_MS
    )
    yield Reached("plan.fenced")
    yield Append((barrier_record(request.write_id, request.nonce),))  # by it this log is known to be the write's own
    return _plan(request, driver, started, 0, ())


def take_over(request: TakeOver, transaction_version: int) -> Procedure[Plan]:
    """Fence the older drivers of a write id, finish what they decided, end what they left open.

    Raises `DecisionPendingError` where a decision can neither be finished nor called void; transactions that no such decision names are
    ended all the same, since they hold up readers. Nothing is touched where a decision lacks its marker (`KafkaEosError`
    ``DECISION_WITHOUT_MARKER``), the beginning of the log is gone (``COMMIT_LOG_TRUNCATED``), transactions are open of which it knows
    nothing (`WriteRefusedError` ``NOT_THIS_COMMIT_LOG``), or an operator's write id is unknown to it (``UNKNOWN_WRITE_ID``).
    """
    write_id, predecessor = request.write_id, request.predecessor
    started: int = yield Now()
    driver_id = driver_transactional_id(write_id)
    described = yield from describe_driver(driver_id, started + request.limits.deadline_ms)
    view = LogView(write_id) if request.view is None else request.view
    is_first_look = view.next_offset == 0
    # The fence erases what the coordinator says of the last decision, so that is held against the log before it.
    yield from read_to_end(view)
    require_whole(view)
    if any(_unmarked_decisions(view, query_id, described) for query_id in view.query_ids(write_id)):
        # Its marker may have come since, or a new leader not show it yet.
        barrier: int = yield Append((barrier_record(write_id, request.nonce),))
        yield from read_to(view, barrier)
        for query_id in view.query_ids(write_id):
            refuse_unmarked_decision(view, query_id, described)
    opened: tuple[ProducerIdentity, ...] = ()
    # Below version 2 an attempt whose transaction was aborted may go on in a new one: only a list finds that.
    if predecessor is None or transaction_version < 2 or not _is_followed_by_nobody(view, predecessor, described):
        opened = yield from list_open(write_id, transaction_version)
    if is_first_look and request.unknown_id is not UnknownId.ABORT:
        yield from require_own_log(view, opened)
    if request.unknown_id is UnknownId.REFUSE and view.is_empty:
        raise _unknown_write_id(write_id)
    driver: ProducerIdentity = yield InitProducerId(driver_id, DRIVER_TRANSACTION_TIMEOUT_MS)
    yield Reached("plan.fenced")
    barrier = yield Append((barrier_record(write_id, request.nonce),))
    if barrier < view.next_offset:
        view.restart()  # the log was deleted and begins anew: nothing read of the old one counts
    yield from read_to(view, barrier)
    yield Reached("plan.read")

    decisions: list[SettledDecision] = []
    unproven: set[str] = set()
    failures: list[KafkaEosError] = []
    for query_id in view.query_ids(write_id):
        found = view.newest_decision(write_id, query_id)
        named = (
            {prepared.identity.transactional_id for prepared in found.decision.transactions}
            if found is not None and not is_done(view, found)
            else set()
        )
        try:
            refuse_unmarked_decision(view, query_id, described)
            if found is not None:
                settled_decision = yield from _finish(view, found, request)
                decisions.append(settled_decision)
                if not settled_decision.proven:
                    unproven |= named
        except KafkaEosError as failure:
            failures.append(failure)
            unproven |= named
    yield Reached("plan.finished")
    left_open = yield from end_open(opened, unproven)
    if failures:
        raise failures[0]
    return replace(_plan(request, driver, started, barrier, tuple(decisions)), left_open=left_open)


def describe_driver(driver_id: str, deadline: int) -> Procedure[TransactionDescription | None]:
    """W.driver as it is before the fence, which erases that. One that is being ended right now is waited for, as the fence would."""
    while True:
        described: Mapping[str, TransactionDescription | None] = yield DescribeTransactions((driver_id,))
        found = described.get(driver_id)
        if found is None or found.state not in PREPARE_STATES:
            return found
        now: int = yield Now()
        if now > deadline:
            return found
        yield Wait(POLL_MS)


def _unknown_write_id(write_id: str) -> WriteRefusedError:
    return WriteRefusedError(
        "UNKNOWN_WRITE_ID",
        f"the commit log knows nothing of the write id {write_id!r}, and nothing is open under it. A batch write's is "
        "<transactional.id.prefix>/<txnAppId>/<topic>, for instance kafka-eos/nightly-orders/orders; a stream's is its "
        "transactional.id.prefix, or kafka-eos- and the query id; kafka-eos commits lists them",
    )


def require_own_log(view: LogView, opened: Sequence[ProducerIdentity]) -> Procedure[None]:
    """Refuse to end open transactions of a write id of which this log knows nothing: in its own one they may be decided.

    Their plan wrote a barrier before the first of them was opened. To be asked before the caller writes one.
    """
    if not opened or not view.is_empty:
        return
    yield from read_to_end(view)  # a first driver may have begun between the first read and the list
    if view.is_empty:
        raise WriteRefusedError(
            "NOT_THIS_COMMIT_LOG",
            f"{len(opened)} transactions of write id {view.write_id!r} are open (first: {opened[0].transactional_id}), but this commit log "
            "knows nothing of it, so they belong to a run with another commit.log.topic, where they may be decided: ending them could "
            "lose rows, and nothing was touched. Name that log: kafka-eos recover --bootstrap-servers ... --commit-log-topic ... "
            f"--write-id '{view.write_id}'. If it was lost, wait for their transaction.timeout.ms, or give them up: the same command on "
            "this log with --abort-unknown",
        )


def is_held_by(driver: ProducerIdentity, found: TransactionDescription | None) -> bool:
    """Whether W.driver is as its InitProducerId or its own EndTxn left it.

    Its own end under version 2 is epoch + 1 in a state that only an end makes; a newer driver's InitProducerId leaves Empty.
    """
    if found is None or found.producer_id != driver.producer_id:
        return False
    if found.producer_epoch == driver.producer_epoch:
        return True
    return (
        driver.transaction_version >= 2
        and found.producer_epoch == driver.producer_epoch + 1
        and found.state in ("PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
    )


def is_overtaken(plan: Plan) -> Procedure[bool]:
    """Asked by a task: whether its batch is being decided, was decided or given up, or another driver has taken over.

    ``W.driver`` is as the fence left it, and Empty, until then. Not `is_held_by`: the driver's own decision overtakes an attempt that
    is not part of it, and an id that its coordinator has forgotten does not.

    Asked between InitProducerId and the first row: an attempt whose id was freed by a committed transaction of this batch could join that
    one where the broker has left out its marker (KAFKA-20734), and its end would abort committed rows. And after everything was sent,
    when the driver may have looked for losing attempts already.
    """
    driver_id, mine = driver_transactional_id(plan.write_id), plan.driver
    described: Mapping[str, TransactionDescription | None] = yield DescribeTransactions((driver_id,))
    found = described.get(driver_id)
    if found is None:
        return False
    if found.producer_id == mine.producer_id and found.producer_epoch < mine.producer_epoch:
        return False  # a coordinator that has lost its partition and does not know it tells how things were before the fence
    return (found.producer_id, found.producer_epoch, found.state) != (mine.producer_id, mine.producer_epoch, "Empty")


def fenced_error(write_id: str, why: str) -> FencedError:
    """`FencedError` ``FENCED``; ``why`` is where it was noticed."""
    return FencedError(
        "FENCED",
        f"a newer driver of write id {write_id!r} has taken over ({why}); it finishes what is decided. Only one query or job may run "
        "under a write id at a time",
    )


def _is_followed_by_nobody(view: LogView, plan: Plan, driver: TransactionDescription | None) -> bool:
    """Whether `plan` was decided and finished, which ends what its batch left open, and nobody has fenced since."""
    done = (view.done_nonce(plan.write_id, query_id) for query_id in view.query_ids(plan.write_id))
    return is_held_by(plan.driver, driver) and plan.nonce in done


def _plan(
    request: TakeOver,
    driver: ProducerIdentity,
    started_ms: int,
    log_offset: int,
    decisions: tuple[SettledDecision, ...],
) -> Plan:
    return Plan(
        write_id=request.write_id,
        nonce=request.nonce,
        driver=driver,
        started_ms=started_ms,
        transaction_timeout_ms=request.transaction_timeout_ms,
        log_offset=log_offset,
        decisions=decisions,
    )


def _finish(view: LogView, found: LoggedDecision, request: TakeOver) -> Procedure[SettledDecision]:
    if is_done(view, found):
        return settled(found, DecisionStatus.FINISHED)
    outcome = yield from settle(found, nonce=request.nonce, limits=request.limits, recovering=True)
    if outcome.status is DecisionStatus.FINISHED and outcome.proven:
        yield from write_done(found.decision)
    return outcome


def write_done(decision: Decision) -> Procedure[None]:
    """A hint only: recovery is right without it, so its failure fails nothing."""
    now: int = yield Now()
    try:
        yield Append((done_record(decision, now),))
    except KafkaEosError as failure:
        yield Warn(
            f"version {decision.version} of write id {decision.write_id!r} is finished, but that could not be noted in the commit log "
            f"({failure.code}); the next run will prove it again"
        )


def is_done(view: LogView, found: LoggedDecision) -> bool:
    """Whether nothing of a decision is left to be looked after, so that no recovery looks at it again."""
    decision = found.decision
    if decision.resolution not in (None, "committed"):
        return False
    return view.done_nonce(decision.write_id, decision.query_id) == decision.nonce


def _unmarked_decisions(
    view: LogView, query_id: str, described: TransactionDescription | None
) -> list[tuple[LoggedRecord, bool]]:
    """Decisions that may count although their own marker is missing, and whether their coordinator calls them committed.

    A decision whose marker never came after the fence is undecided, since nobody acts before the marker is read. Unless its
    coordinator called the transaction committed: then the marker was passed over (KAFKA-20734), and may be written at any time. A marker
    with an epoch that is neither its own nor a later transaction's proves nothing either.
    """
    assert view.write_id is not None
    found = []
    for record in view.undecided(view.write_id, query_id):
        if record.value is None:
            continue  # a finished write being forgotten: nobody waits for that
        if _is_ended_by_a_later_one(record):
            continue  # its own marker was never read, so nobody acted on it, and none can follow
        committed = (
            described is not None
            and described.state in ("CompleteCommit", "PrepareCommit")
            and described.producer_id == record.producer_id
            and described.producer_epoch in (record.producer_epoch, record.producer_epoch + 1)
        )
        if committed or record.outcome is Outcome.UNRESOLVED:
            found.append((record, committed))
    return found


def refuse_unmarked_decision(view: LogView, query_id: str, described: TransactionDescription | None) -> None:
    """Raises `KafkaEosError` ``DECISION_WITHOUT_MARKER``; ``described`` is W.driver before the fence."""
    for record, committed in _unmarked_decisions(view, query_id, described):
        raise KafkaEosError(
            "DECISION_WITHOUT_MARKER",
            f"the decision at offset {record.offset} of the commit log for write id {view.write_id!r} has no marker of its own, "
            + ("though its coordinator calls it committed (KAFKA-20734). " if committed else "only a foreign one. ")
            + f"Repair: kafka-eos repair --bootstrap-servers ... --write-id '{view.write_id}'. Do not use the stock "
            "kafka-transactions.sh abort",
        )


def _is_ended_by_a_later_one(record: LoggedRecord) -> bool:
    """Whether its marker has an epoch that only a later transaction of W.driver can have (as `outcome_of` has them)."""
    marker = record.marker
    if marker is None:
        return False
    without_bump = record.value is not None and record.value["transaction_version"] < 2
    own = record.producer_epoch + (0 if without_bump and marker.type is MarkerType.COMMIT else 1)
    return marker.producer_epoch > own


def append_in_transaction(
    driver: ProducerIdentity, records: tuple[LogRecord, ...], base_sequence: int
) -> Procedure[Appended]:
    """Add the commit log's partition where the version asks for it, then append."""
    if driver.transaction_version < 2:
        error: int | None = yield AddPartition(driver)
        if error != ErrorCode.NONE:
            return Appended(error=error)
    appended: Appended = yield AppendInTransaction(driver, base_sequence, records)
    return appended


def forget(decision: Decision, driver: ProducerIdentity, base_sequence: int) -> Procedure[None]:
    """Tombstone all records of a write that nobody can ever ask for again, in one transaction.

    The batch is finished: a failure here leaves a few records behind and is only said."""
    appended = yield from append_in_transaction(driver, tombstones(decision), base_sequence)
    if appended.error == ErrorCode.NONE:
        ends: tuple[EndResult, ...] = yield EndTransactions((End(identity=driver, commit=True),))
        if ends[0].error == ErrorCode.NONE:
            return
    yield Warn(
        f"the commit log keeps the records of the finished write {decision.write_id!r}: they could not be removed"
    )
