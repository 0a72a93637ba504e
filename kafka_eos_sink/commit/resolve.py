"""Record an operator's resolution of a version whose outcome cannot be proven.

The write is taken over first, as `recover` does. So a decided version that is still open is finished, never undone. Then one record says
what recovery could not prove:

committed   The version counts as written. Rows that recovery cannot restore stay missing. The resolution also sets where a write begins
            of which the log has no decision, and where a stream continues above its newest version. Nothing is recorded if recovery
            finishes the version.
rewrite     The version is void, and its next run writes it. The resolution is rejected if readers see rows of the version, or may see
            them later, unless the operator accepts duplicates.

Only the newest version can be resolved: the last one that was decided, whatever its number is. The log has the transactions of this one
alone. No version before it is in doubt, because each driver finishes the newest decision before it decides another version.

The procedure fences the driver, so that a running one cannot decide anything afterwards (I12).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kafka_eos_sink.commit import resolve_refusals
from kafka_eos_sink.commit.decide import DriverTransaction, await_outcome, decide_again, require_free
from kafka_eos_sink.commit.evidence import held_on, holds_open, judged, look_at, those
from kafka_eos_sink.commit.log_access import commit_in_transaction, read_to_barrier
from kafka_eos_sink.commit.log_records import decision_records, done_record
from kafka_eos_sink.commit.log_standing import UnknownId
from kafka_eos_sink.commit.log_view import LogView, QueryState, VersionState
from kafka_eos_sink.commit.outcome import Do, Outcome, Shown
from kafka_eos_sink.commit.refusals import describe_ranges, job_of, refused, some, text
from kafka_eos_sink.commit.steps import (
    POLL_MS,
    Append,
    Now,
    Procedure,
    Reached,
    Wait,
    WallClock,
    Warn,
)
from kafka_eos_sink.commit.take_over import TakenOver, TakeOver, look, still_to_commit, taking_over
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID
from kafka_eos_sink.commit.transactions import end_open, list_open
from kafka_eos_sink.commit.values import Decision, DecisionStatus, ResolveRequest, Run, Write
from kafka_eos_sink.commit.versions import Versions
from kafka_eos_sink.errors import DecisionPendingError, Job, KafkaEosError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.reactions import FENCED_BY_NEWER_OWNER

GIVEN_UP = ("LOST_PARTS", "UNRESOLVED", "TOPIC_GONE")
"""Results of a recovery that cannot do more: *committed* accepts the loss of their rows."""

CLOSED_WITHIN_MS = 10_000
"""How long a leader may hold a transaction open of a version that is recorded as committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The newest decision of the query id, and the newest one before this command.

    ``superseded`` is None if the query begins, and another version if the stream continues above it. It is the same decision if nothing
    was recorded, because recovery has finished the version.
    """

    decision: Decision
    superseded: Decision | None


def resolve(request: ResolveRequest) -> Procedure[Resolved]:
    """Take the write over, and replace a newest decision by the operator's.

    Raises:
        WriteRefusedError: UNKNOWN_WRITE_ID, QUERY_ID_NEEDED, NOTHING_TO_RESOLVE, ROWS_ARE_VISIBLE or NOT_THIS_COMMIT_LOG.
        TransactionAbortedError: NOT_RESOLVED; nothing was recorded, or recovery has found the version void.
        DecisionPendingError: Nothing was recorded, and recovery may still finish the version.
        FencedError: Another driver has fenced this one.
    """
    run = request.run
    view = LogView(run.write.id)
    takes_over = TakeOver(run=run, view=view, unknown_id=UnknownId.RESOLVE)
    # A typo must neither fence a running driver nor leave a barrier in a log that is not the write's own.
    _, opened = yield from look(takes_over, view)
    query, newest = _target(view, request)
    before = None if newest is None or newest.version != request.version else query.state_of(newest)
    was_settled = before is not None and before.is_settled
    was_unwritten = before in (VersionState.VOID, VersionState.REWRITE)
    if before is None:
        _require_at_rest(request, query, opened)
    elif (
        was_settled and newest and request.resolution == "rewrite" and not (request.allow_duplicates or newest.is_empty)
    ):
        raise refused("ROWS_ARE_VISIBLE.written", write=run.write, decision=newest, why="it counts as written")
    for warning in resolve_refusals.warnings(view, query, request):
        yield from Warn(warning)
    taken = yield from taking_over(takes_over)
    yield from Reached("resolve.taken_over")
    # Recovery may have written a decision. A new leader may know less of the log than the one that showed recovery its marker.
    yield from read_to_barrier(view, run.nonce, claims=not view.lacks_write)
    query, superseded = _target(view, request)
    same = superseded if superseded is not None and superseded.version == request.version else None
    if same is None:
        # What began meanwhile belongs to a batch that would count as written. After the fence, no task begins.
        late = yield from list_open(run)
        _require_at_rest(request, query, (*taken.opened, *late))
    else:
        if request.resolution == "committed" and not was_settled and _is_finished(query, taken):
            # A record would replace its list of transactions, and the next run would be skipped without a comparison.
            return Resolved(decision=same, superseded=same)
        yield from _require_resolvable(query, same, taken, request, was_settled=was_settled)
        was_void = newest is not None and newest.version == same.version and not newest.transactions
        if request.resolution == "committed" and same.is_void and not was_void:
            raise refused("NOT_RESOLVED.void", write=run.write, decision=same)
    yield from _keep_newest(run, view, query.query_id, taken.driver)
    decision = _decision_of(request, query.query_id, superseded, taken.driver)
    had_outcome = was_settled if request.resolution == "committed" else was_unwritten
    if had_outcome:
        # DIFFERENT_QUERY leads here. The next run may be of any query, because over Spark Connect it cannot name its own.
        decision = replace(decision, foreach_query=None)
    yield from Reached("resolve.before_decision")
    yield from _record(run, decision, taken.driver)
    yield from Reached("resolve.decided")
    if request.resolution == "committed":
        # A void version gets no done record, which would mean that the version is finished.
        now = yield from WallClock()
        yield from Append((done_record(decision, now),))
    # What only this version's decision kept open.
    yield from end_open(taken.left_open, still_to_commit(view, but=query.query_id))
    return Resolved(decision=decision, superseded=superseded)


def _decision_of(
    request: ResolveRequest, query_id: str, superseded: Decision | None, driver: DriverTransaction
) -> Decision:
    """Return the decision to record; ``superseded`` may be of another version."""
    same = superseded if superseded is not None and superseded.version == request.version else None
    versions = None  # of a stream
    if query_id == BATCH_QUERY_ID:
        # Below the first version of an empty log, nothing is known: all count as written.
        known = Versions.up_to(request.version) if superseded is None else superseded.written_versions
        is_written = request.resolution == "committed"
        versions = known.adding(request.version) if is_written else known.without(request.version)
    return Decision(
        write_id=request.run.write.id,
        query_id=query_id,
        version=request.version,
        nonce=request.run.nonce,
        driver=driver.identity,
        topic=None if same is None else same.topic,
        schema="" if same is None else same.schema,
        offsets_hash=None if same is None else same.offsets_hash,
        transactions=(),
        resolution=request.resolution,
        foreach_query=None if superseded is None else superseded.foreach_query,
        versions=versions,
    )


def _keep_newest(run: Run, view: LogView, resolved: str, driver: DriverTransaction) -> Procedure[None]:
    """Write decisions of other query ids once more that recovery could not finish.

    JOIN: the COMMIT of the resolution would end the decision above such a one, whose marker is missing, and the cleaner drop the one below.
    """
    for query in view.queries("decision"):
        if query.query_id != resolved and query.undecided and (newest := query.newest) is not None:
            yield from decide_again(run, newest, driver, proven=False)


def _target(view: LogView, request: ResolveRequest) -> tuple[QueryState, Decision | None]:
    """Return the query and the newest decision to supersede, None if it has none."""
    known = [query.query_id for query in view.queries("decision")]
    query_id = request.query_id
    if query_id is None and len(known) == 1:
        (query_id,) = known
    if view.lacks_write and (query_id is None or request.resolution == "rewrite"):
        otherwise = text(f"{request.resolution}_unknown", write=request.run.write, request=request)
        raise refused("UNKNOWN_WRITE_ID", write=request.run.write, otherwise=otherwise)
    if query_id is None:
        raise resolve_refusals.query_id_needed(request, known)
    if query_id not in (*known, BATCH_QUERY_ID) and job_of(request.run.write.id) is Job.BATCH:
        raise refused("QUERY_ID_NEEDED.of_a_stream", write=request.run.write, query_id=query_id, request=request)
    query = view.query(query_id)
    newest = None if query.newest is None else query.newest.decision
    if newest is None:
        may_resolve = request.resolution == "committed"
    elif newest.version < request.version:
        # After COMMIT_LOG_LOST, a stream continues above its newest version: another sink has written the versions in between.
        # A request without the query id is probably a typo: its version would be skipped. Nobody would finish a version below.
        is_stream = request.query_id not in (None, BATCH_QUERY_ID)
        may_resolve = is_stream and request.resolution == "committed" and query.state_of(newest).is_settled
    else:
        may_resolve = newest.version == request.version
    if not may_resolve:
        raise resolve_refusals.nothing_to_resolve(request, query, [each for each in known if each != query_id])
    return query, newest


def _is_finished(query: QueryState, taken: TakenOver) -> bool:
    """Whether a version counts as written after the recovery of this command."""
    settled = taken.plan.newest_decision(query.query_id)
    return settled is not None and settled.status is DecisionStatus.FINISHED


def _require_at_rest(request: ResolveRequest, query: QueryState, opened: Sequence[ProducerIdentity]) -> None:
    """Reject open transactions: their batch would count as written and be aborted."""
    if opened:
        raise refused(
            "NOTHING_TO_RESOLVE.still_open" + "_stream" * (query.query_id != BATCH_QUERY_ID),
            write=request.run.write,
            request=request,
            first=opened[0].transactional_id,
            this_command=request.command(query.query_id, request.version),
        )


def _require_resolvable(
    query: QueryState, decision: Decision, taken: TakenOver, request: ResolveRequest, *, was_settled: bool
) -> Procedure[None]:
    """Require that recovery has done what it can, and left room for the resolution.

    Args:
        was_settled: Whether the version was finished before this command.
    """
    write, failure = request.run.write, taken.failures.get(query.query_id)
    if request.resolution == "committed":
        if failure is not None and failure.code not in GIVEN_UP:
            raise failure
        yield from _require_closed(write, decision)
        if failure is None:
            return
        # Name the aborted rows that the log still has, and that nobody copies any more.
        shown = yield from look_at(decision.transactions)
        aborted = [
            str(part)
            for prepared, ranges in zip(decision.transactions, shown, strict=True)
            for part in those(prepared, ranges, Shown.DISCARDED)
        ]
        rows = f", with the aborted rows in {some(aborted)} given up" if aborted else ""
        yield from Warn(text("given_up", decision=decision, rows=rows, failure=failure.brief))
        return
    if _is_finished(query, taken):
        if decision.is_empty:
            return  # no row of it is visible
        if not (was_settled and request.allow_duplicates):
            # Another run has written it since the first look, where it was empty, or this command has finished it now. Then also with
            # --allow-duplicates, which was meant for what could not be finished.
            why = "it counts as written"
            if not was_settled:
                why = f"this command has just finished it, and {text('all_visible')}"
            raise refused("ROWS_ARE_VISIBLE.written", write=write, decision=decision, why=why)
    elif failure is not None and not request.allow_duplicates:
        yield from _require_aborted(query, failure, request)


def _require_aborted(query: QueryState, failure: KafkaEosError, request: ResolveRequest) -> Procedure[None]:
    """Raise unless every transaction of the version is proven aborted.

    Then no reader sees its rows, and none ever will.
    """
    logged = query.newest
    if not isinstance(failure, DecisionPendingError) or logged is None:
        raise failure
    run, decision = request.run, logged.decision
    visible = [prepared for prepared in decision.transactions if prepared.proven]
    doubtful = [prepared for prepared in decision.transactions if not prepared.proven]
    started = yield from Now()
    try:
        todo = yield from judged(run, decision, doubtful, (), started + run.within_ms)
    except KafkaEosError as unknown:
        raise failure from unknown
    visible += [prepared for prepared, each in zip(doubtful, todo, strict=True) if {Do.NOTHING, Do.SEEN} & set(each)]
    unproven = [prepared for prepared, each in zip(doubtful, todo, strict=True) if {Do.ASK, Do.DISCARD} & set(each)]
    if (visible or unproven) and failure.code not in GIVEN_UP:
        raise failure  # another recovery may still finish the version
    if visible:
        raise refused(
            "ROWS_ARE_VISIBLE",
            write=run.write,
            decision=decision,
            count=len(visible),
            transactions=len(decision.transactions),
            ranges=describe_ranges(visible),
        )
    if unproven:
        ranges = describe_ranges(unproven)
        raise refused("ROWS_ARE_VISIBLE.unproven", write=run.write, decision=decision, ranges=ranges)


def _require_closed(write: Write, decision: Decision) -> Procedure[None]:
    """Wait until no partition holds one of the decision's transactions open.

    JOIN: no later run checks a version recorded as committed.
    """
    ranges = [
        (prepared.identity, part)
        for prepared in decision.transactions
        if not prepared.proven
        for part in prepared.offsets
    ]
    topics = sorted({part.topic for _, part in ranges})
    started = yield from Now()
    while topics:
        own = [each for each in ranges if each[1].topic == topics[0]]
        producers = yield from held_on({(part.topic, part.partition) for _, part in own})
        held = next(((identity, part) for identity, part in own if holds_open(producers, identity, part)), None)
        if held is None:
            del topics[0]
            continue
        now = yield from Now()
        if now - started > CLOSED_WITHIN_MS:
            identity, part = held
            raise refused(
                "NOT_RESOLVED.held_open",
                write=write,
                decision=decision,
                where=f"{part.topic}-{part.partition}",
                transactional_id=identity.transactional_id,
            )
        yield from Wait(POLL_MS)


def _record(run: Run, decision: Decision, driver: DriverTransaction) -> Procedure[None]:
    """Write the decision in one transaction of W.driver, and read its marker."""
    try:
        yield from require_free(run, decision, driver)
    except DecisionPendingError as failure:
        raise refused("NOT_RESOLVED", decision=decision, why=failure.brief) from failure
    ended = yield from commit_in_transaction(decision.driver, decision_records(decision), driver.sequence)
    outcome = Outcome.OPEN
    if ended.offset >= 0:
        # Only the log proves the end. PAUSE: a newer driver fences the resend of an EndTxn that has committed.
        outcome = yield from await_outcome(decision, ended.offset, run.within_ms)
    if outcome is Outcome.COMMITTED:
        return
    if ended.error in FENCED_BY_NEWER_OWNER:
        raise refused("FENCED.command", decision=decision)
    raise refused("NOT_RESOLVED.unknown", write=run.write, decision=decision, failed=ended.code)
