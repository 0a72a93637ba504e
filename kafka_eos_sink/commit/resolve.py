"""Record an operator's resolution of a version whose outcome cannot be proven.

committed   The version is finished as far as recovery can, and then counts as written. Rows that recovery cannot restore stay missing.
            The resolution also sets where a query begins, or where it continues above the newest version in the log.
rewrite     The version is void, and its next run writes it. The resolution is rejected if readers see rows of the version, or may see
            them later, unless the operator accepts duplicates.

The procedure fences the driver, so that a running one cannot decide anything afterwards (I12).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.decide import DriverTransaction, await_outcome
from kafka_eos_sink.commit.driver import DRIVER_TRANSACTION_TIMEOUT_MS
from kafka_eos_sink.commit.log_reading import read_to_barrier, read_to_end, require_own_log, require_whole
from kafka_eos_sink.commit.log_records import decision_records, done_record
from kafka_eos_sink.commit.log_view import LoggedDecision, LogView, Outcome, QueryState
from kafka_eos_sink.commit.log_writing import append_in_transaction
from kafka_eos_sink.commit.open_transactions import end_open, list_open
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.proofs import ends_in_topics, look_at, written_by
from kafka_eos_sink.commit.restore import finish_decision
from kafka_eos_sink.commit.settle import PROOFS_WITHIN_MS
from kafka_eos_sink.commit.steps import (
    POLL_MS,
    Append,
    DataTopicGoneError,
    DescribeProducers,
    DescribeTransactions,
    End,
    EndResult,
    EndTransactions,
    InitProducerId,
    Now,
    Reached,
    Wait,
    WallClock,
    Warn,
)
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, driver_transactional_id
from kafka_eos_sink.commit.values import Decision, DecisionStatus, PreparedTransaction
from kafka_eos_sink.commit.witnesses import outcomes_in_log
from kafka_eos_sink.errors import DecisionPendingError, FencedError, TransactionAbortedError, WriteRefusedError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.reactions import FENCED_BY_NEWER_OWNER

MARKERS_WITHIN_MS = 10_000
"""How long markers may take to reach the data partitions. An omitted one never does."""

GIVEN_UP = ("LOST_PARTS", "UNRESOLVED", "TOPIC_GONE")
"""Results of a recovery that may Read the topics, and cannot do more: *committed* gives up the rows that they name."""

Resolution = Literal["committed", "rewrite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveRequest:
    """The operator's resolution of one version.

    query_id                 None: the only one that the write id has
    nonce                    fresh for every request
    transaction_timeout_ms   of the transactions into which recovery copies lost rows
    allow_duplicates         rewrite even if rows are visible
    """

    write_id: str
    query_id: str | None
    version: int
    resolution: Resolution
    nonce: str
    transaction_timeout_ms: int
    allow_duplicates: bool = False
    within_ms: int = PROOFS_WITHIN_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The recorded decision and what it did.

    superseded   the newest decision before it: None if the query begins, another version if the query continues above it
    ended        transactional ids that were still open
    """

    decision: Decision
    superseded: Decision | None
    ended: tuple[str, ...]


def resolve(request: ResolveRequest, transaction_version: int) -> Procedure[Resolved]:
    """Replace the newest decision of a query id by the operator's.

    Raises:
        WriteRefusedError: QUERY_ID_NEEDED, NOTHING_TO_RESOLVE, ROWS_ARE_VISIBLE or NOT_THIS_COMMIT_LOG.
        TransactionAbortedError: NOT_RESOLVED; nothing was recorded, or recovery has found the version void.
        DecisionPendingError: Nothing was recorded, and recovery may still finish the version, perhaps with Read on the topics.
        FencedError: Another driver has fenced this one.
    """
    while True:
        resolved = yield from _resolve(request, transaction_version)
        if resolved is not None:
            return resolved
        # W.driver has written a decision, so the next one needs a new fence, as in `take_over`.


def _resolve(request: ResolveRequest, transaction_version: int) -> Procedure[Resolved | None]:
    """Return the recorded resolution, or None if recovery has written a decision."""
    write_id = request.write_id
    view = LogView(write_id)
    yield from read_to_end(view)
    require_whole(view)
    opened = yield from list_open(write_id, transaction_version)
    yield from require_own_log(view, opened)
    # A typing error must neither fence a running driver nor leave a barrier in a log that is not the write's own.
    _, superseded = _target(view, request)
    if superseded is None or superseded.version != request.version:
        _require_at_rest(request, opened)

    driver_id = driver_transactional_id(write_id)
    driver = yield from InitProducerId(driver_id, DRIVER_TRANSACTION_TIMEOUT_MS)
    yield from Reached("resolve.fenced")
    yield from read_to_barrier(view, request.nonce)
    query, superseded = _target(view, request)
    ended: tuple[str, ...] = ()
    given_up: str | None = None
    same = superseded if superseded is not None and superseded.version == request.version else None
    if same is not None and request.resolution == "rewrite":
        ended = yield from _abort_named(query, same, request)
    elif same is not None and query.newest is not None:
        ended, given_up = yield from _recover(query, query.newest, driver, request)
        # A new leader may know less of the log than the one that showed recovery its marker.
        yield from read_to_barrier(view, request.nonce)
        newest = view.query(query.query_id).newest
        if newest is None or newest.decision != same:
            return None
        yield from _require_closed(same)
    decision = Decision(
        write_id=write_id,
        query_id=query.query_id,
        version=request.version,
        nonce=request.nonce,
        driver=driver,
        topic=None if same is None else same.topic,
        schema="" if same is None else same.schema,
        offsets_hash=None if same is None else same.offsets_hash,
        transactions=(),
        resolution=request.resolution,
    )
    yield from Reached("resolve.before_decision")
    if given_up is not None:
        yield from Warn(given_up)
    yield from _record(decision, request)
    yield from Reached("resolve.decided")
    if request.resolution == "committed":
        # A void version gets no done record, which would mean that the version is finished.
        now = yield from WallClock()
        yield from Append((done_record(decision, now),))
    yield from end_open(opened, _unfinished_ids(view))
    return Resolved(decision=decision, superseded=superseded, ended=ended)


def _unfinished_ids(view: LogView) -> set[str]:
    """The ids in all unfinished decisions; only recovery ends their transactions."""
    return {
        prepared.identity.transactional_id
        for query in view.queries("decision")
        if (found := query.newest) is not None and not query.has_done_record(found.decision)
        for prepared in found.decision.transactions
    }


def _target(view: LogView, request: ResolveRequest) -> tuple[QueryState, Decision | None]:
    """Return the query and the newest decision to supersede, None if it has none."""
    known = [query.query_id for query in view.queries("decision")]
    query_id = request.query_id
    if query_id is None and len(known) == 1:
        (query_id,) = known
    if query_id is None:
        has = f"has {len(known)} query ids: {', '.join(map(repr, known))}" if known else "has no decided query id yet"
        raise WriteRefusedError(
            "QUERY_ID_NEEDED",
            f"the commit log {has} for write id {request.write_id!r}. Check the write id (kafka-eos status), then name one with "
            "--query-id: the id in the metadata file of the checkpoint, or batch for a batch write",
        )
    # The COMMIT of the resolution would end such a decision, and the cleaner drop the one below it (docs/protocol.md, Undecided).
    others = (each for each in view.queries("decision") if each.query_id != query_id)
    if other := next((each for each in others if each.undecided and each.newest), None):
        raise WriteRefusedError(
            "NOTHING_TO_RESOLVE",
            f"the decision at offset {other.undecided[0].offset} of the commit log, of query id {other.query_id!r}, has no marker",
            f"First run: {refusals.command('recover', request.write_id)}",
        )
    query = view.query(query_id)
    newest = None if query.newest is None else query.newest.decision
    if newest is not None and newest.version == request.version:
        return query, newest
    if request.resolution == "committed" and (newest is None or _may_continue_above(newest, query, request)):
        return query, newest
    raise WriteRefusedError(
        "NOTHING_TO_RESOLVE",
        f"version {request.version} of write id {request.write_id!r}, query id {query_id!r}, cannot be resolved as {request.resolution}: "
        + _what_is_there(query, newest, request, known),
    )


def _may_continue_above(newest: Decision, query: QueryState, request: ResolveRequest) -> bool:
    """Whether versions between the newest and the requested one may count as written."""
    # A stream needs this after COMMIT_LOG_LOST; batch writes may skip versions anyway. The newest version must be done, because no later
    # run would finish it. A request without the query id is probably a typing error: the stream would skip a batch.
    return (
        request.query_id not in (None, BATCH_QUERY_ID)
        and newest.version < request.version
        and _is_settled(query, newest)
    )


def _is_settled(query: QueryState, decision: Decision) -> bool:
    """Whether recovery has nothing left to do for a decision."""
    # Recovery never writes the done record of a resolution, so it may be missing.
    return query.is_done(decision) or decision.resolution == "committed"


def _require_at_rest(request: ResolveRequest, opened: Sequence[ProducerIdentity]) -> None:
    """Reject open transactions: their batch would count as written and be aborted."""
    if opened:
        raise WriteRefusedError(
            "NOTHING_TO_RESOLVE",
            f"transactions of write id {request.write_id!r} are open (first: {opened[0].transactional_id}): its query runs, or has died",
            f"Stop it, and end what is open: {refusals.command('recover', request.write_id)}; then start it. If it fails with "
            "COMMIT_LOG_LOST, run this command again",
        )


def _what_is_there(query: QueryState, newest: Decision | None, request: ResolveRequest, known: Sequence[str]) -> str:
    undecided = query.undecided
    begun = (
        f"; the decision at offset {undecided[0].offset} of the commit log has no marker, so it counts for nothing: the next "
        "run writes its version again"
        if undecided
        else ""
    )
    if newest is None:
        others = ", ".join(repr(each) for each in known if each != query.query_id)
        return f"the commit log holds no decision of it{f' (it holds some of {others})' if others else ''}{begun}"
    if newest.resolution is not None:
        state = f"resolved as {newest.resolution}"
    else:
        state = "finished" if query.has_done_record(newest) else "decided and not finished"
    is_unnamed_stream = request.query_id is None and query.query_id != BATCH_QUERY_ID
    above = newest.version < request.version and _is_settled(query, newest)
    # Any program with the right to write to the log can choose the query id.
    hint = f"; to let a stream continue above it, add --query-id {shlex.quote(query.query_id)}"
    return f"the newest is version {newest.version}, {state}{begun}{hint if above and is_unnamed_stream else ''}"


def _recover(
    query: QueryState, logged: LoggedDecision, driver: ProducerIdentity, request: ResolveRequest
) -> Procedure[tuple[tuple[str, ...], str | None]]:
    """Finish the version as a recovery does; no later run copies a row of it.

    Returns:
        The ids that were still open, and the warning that names the rows to give up.
    """
    given_up = None
    decision, timeout_ms = logged.decision, request.transaction_timeout_ms
    still_open = yield from _still_open(decision.transactions)
    try:
        settled = yield from finish_decision(
            logged, query.is_done(decision), DriverTransaction(driver), request.nonce, request.within_ms, timeout_ms
        )
    except DecisionPendingError as failure:
        written = written_by(decision.transactions)
        if failure.code not in GIVEN_UP or not (look := (yield from look_at(written))).may_read:
            raise  # with Read, recovery may still copy the rows or find their outcome
        given_up = refusals.given_up_warning(decision, failure, [part for _, part in look.aborted])
    else:
        if settled.status is DecisionStatus.VOID and decision.transactions:
            raise refusals.found_void(decision)
    return tuple(each.identity.transactional_id for each in still_open), given_up


def _abort_named(query: QueryState, decision: Decision, request: ResolveRequest) -> Procedure[tuple[str, ...]]:
    """Abort superseded open transactions by exact identity (I11); return their ids."""
    named = [prepared for prepared in decision.transactions if not prepared.proven]
    still_open = yield from _still_open(named)
    if not request.allow_duplicates:
        yield from _require_invisible(query, decision, request, [each for each in named if each not in still_open])
    results: tuple[EndResult, ...] = ()
    if still_open:
        results = yield from EndTransactions(tuple(End(identity=each.identity, commit=False) for each in still_open))
    ended = {each: result.error == ErrorCode.NONE for each, result in zip(still_open, results, strict=True)}
    failed = [each for each, succeeded in ended.items() if not succeeded]
    if failed and (yield from _still_open(failed)):
        raise _not_resolved(
            decision,
            f"{failed[0].identity.transactional_id} and {len(failed) - 1} more transactions could not be ended. Run the command again",
        )
    if not request.allow_duplicates:
        # The driver that lost the write id may have committed them in the meantime. Below version 2, a late AddPartitionsToTxn may have
        # opened a committed transaction again, whose marker is missing in the commit log.
        committed = yield from _committed_among(query, still_open, request)
        ends = (yield from ends_in_topics(still_open)) or {}
        seen = {identity for (identity, _), is_committed in ends.items() if is_committed}
        _require_none(decision, [each for each in still_open if each in committed or each.identity in seen])
    return tuple(each.identity.transactional_id for each, succeeded in ended.items() if succeeded)


def _still_open(named: Sequence[PreparedTransaction]) -> Procedure[list[PreparedTransaction]]:
    if not named:
        return []
    ids = tuple(prepared.identity.transactional_id for prepared in named)
    described = yield from DescribeTransactions(ids)
    return [
        prepared
        for prepared in named
        if (found := described.get(prepared.identity.transactional_id)) is not None
        and found.is_open
        and found.is_of(prepared.identity)
    ]


def _require_closed(decision: Decision) -> Procedure[None]:
    """Wait until no partition holds one of the decision's transactions open.

    No later run checks a version recorded as committed. If a marker was omitted (KAFKA-20734), a later transaction of the id joins the
    open one, and its abort discards committed rows.
    """
    own = {
        (part.topic, part.partition, prepared.identity.producer_id): (
            part.last_offset,
            prepared.identity.transactional_id,
        )
        for prepared in decision.transactions
        if not prepared.proven
        for part in prepared.offsets
    }
    topics = sorted({topic for topic, _, _ in own})
    started = yield from Now()
    while topics:
        where = tuple(sorted({(topic, partition) for topic, partition, _ in own if topic == topics[0]}))
        try:
            producers = yield from DescribeProducers(where)
        except DataTopicGoneError:
            producers = {}
        if None in producers.values():
            yield from Warn(
                f"not checked whether {topics[0]} holds a transaction of {decision.write_id} open: the Read permission is missing. If it "
                "does (KAFKA-20734), committed rows could be lost later"
            )
        held = [
            f"{topic}-{partition} still holds {own[topic, partition, producer_id][1]} open"
            for (topic, partition), remembered in producers.items()
            for producer_id, (_, start) in (remembered or {}).items()
            if 0 <= start <= own.get((topic, partition, producer_id), (-1, ""))[0]
        ]
        if not held:
            del topics[0]
            continue
        now = yield from Now()
        if now - started > MARKERS_WITHIN_MS:
            why = f"{held[0]}, because its marker is missing there (KAFKA-20734), and its rows could be lost later"
            raise _not_resolved(decision, f"{why}. First run: {refusals.command('repair', decision.write_id)}")
        yield from Wait(POLL_MS)


def _require_invisible(
    query: QueryState, decision: Decision, request: ResolveRequest, ended: Sequence[PreparedTransaction]
) -> Procedure[None]:
    """Raise if readers see, or may see later, rows of these or proven transactions."""
    if query.has_done_record(decision) or decision.resolution == "committed":
        raise _not_void(decision, "it counts as written")
    committed = yield from _committed_among(query, ended, request)
    visible = [*committed, *(prepared for prepared in decision.transactions if prepared.proven)]
    # The data topics may hold a proof that the commit log lacks.
    look = yield from look_at(written_by(prepared for prepared in ended if prepared not in visible))
    seen, unreached = ({identity for identity, _ in each} for each in (look.seen, look.hidden))
    _require_none(decision, [*visible, *(prepared for prepared in ended if prepared.identity in seen)])
    if unreached:
        where = refusals.describe_ranges(prepared for prepared in ended if prepared.identity in unreached)
        blocked = f"an open transaction blocks them ({refusals.command('repair', decision.write_id)} names those of this write)"
        raise _not_void(
            decision, f"readers do not reach {where} now, and may see these rows later: {blocked}, or Read is missing"
        )


def _committed_among(
    query: QueryState, ended: Sequence[PreparedTransaction], request: ResolveRequest
) -> Procedure[list[PreparedTransaction]]:
    found = query.newest
    if found is None or not ended:
        return []
    started = yield from Now()
    outcomes = yield from outcomes_in_log(found, ended, request.nonce, started + request.within_ms)
    return [each for each, outcome in zip(ended, outcomes, strict=True) if outcome is Outcome.COMMITTED]


def _require_none(decision: Decision, visible: Sequence[PreparedTransaction]) -> None:
    if visible:
        count = f"{len(visible)} of its {len(decision.transactions)} transactions are committed"
        raise _not_void(decision, f"{count} ({refusals.describe_ranges(visible)})")


def _not_void(decision: Decision, why: str) -> WriteRefusedError:
    return WriteRefusedError(
        "ROWS_ARE_VISIBLE",
        f"{refusals.version_of(decision.version, decision.write_id)} is not proven void: {why}",
        refusals.keep_or_rewrite(decision),
    )


def _record(decision: Decision, request: ResolveRequest) -> Procedure[None]:
    """Write the decision in one transaction of W.driver, and read its marker."""
    appended = yield from append_in_transaction(decision.driver, decision_records(decision), 0)
    if appended.error != ErrorCode.NONE:
        raise _unrecorded(decision, appended.error)
    ends = yield from EndTransactions((End(identity=decision.driver, commit=True),))
    # Only the log proves the end: a newer driver also fences the resend of an EndTxn that committed, with a lost response.
    outcome = yield from await_outcome(decision, appended.offset, request.within_ms)
    if outcome is not Outcome.COMMITTED:
        raise _unrecorded(decision, ends[0].error)


def _unrecorded(decision: Decision, error: int | None) -> FencedError | TransactionAbortedError:
    if error in FENCED_BY_NEWER_OWNER:
        return FencedError(
            "FENCED",
            f"a job or query of write id {decision.write_id!r} has begun meanwhile and replaced this command",
            "Stop the job or query, and run this command again",
        )
    code = "no response" if error is None else ErrorCode.of(error).name
    return TransactionAbortedError(
        "NOT_RESOLVED",
        f"whether {refusals.version_of(decision.version, decision.write_id)} is now resolved is not known ({code}, no marker)",
        f"Run this command again, unless this one shows the version as resolved: {refusals.command('status', decision.write_id)}",
    )


def _not_resolved(decision: Decision, why: str) -> TransactionAbortedError:
    return TransactionAbortedError(
        "NOT_RESOLVED",
        f"{refusals.version_of(decision.version, decision.write_id)} was not resolved, and nothing was recorded: {why}",
    )
