"""The operator's answer to a loud failure: a decision record that says what counts, where the log alone cannot.

committed: the version counts as written; what of it is still open is committed. Also the way to say where a query begins, or goes on
above the newest version that the log knows.
aborted: nothing of it is visible, so the batch is written anew; refused where a part is proven committed.
rewrite: the batch is written anew although parts may be visible; those rows are then in the topic twice.

It holds the fence like any driver, so a running one loses the write id and can decide nothing after it (I12).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.commit_log import append_in_transaction, decision_records, done_record
from kafka_eos_sink.commit.driver import DRIVER_TRANSACTION_TIMEOUT_MS, describe_driver
from kafka_eos_sink.commit.log_reading import (
    await_outcome,
    read_to_barrier,
    read_to_end,
    require_own_log,
    require_whole,
)
from kafka_eos_sink.commit.log_view import LogView, Outcome, QueryState
from kafka_eos_sink.commit.open_transactions import end_open, list_open
from kafka_eos_sink.commit.operator.coordinator_verdict import CoordinatorVerdict, verdict_on
from kafka_eos_sink.commit.prepared_transaction import Decision, PreparedTransaction
from kafka_eos_sink.commit.proofs import look_at, written_by
from kafka_eos_sink.commit.settle import SettleLimits
from kafka_eos_sink.commit.steps import (
    POLL_MS,
    Append,
    Appended,
    DataTopicGoneError,
    DescribeProducers,
    DescribeTransactions,
    End,
    EndResult,
    EndTransactions,
    InitProducerId,
    Now,
    Procedure,
    Reached,
    TransactionDescription,
    Wait,
)
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, driver_transactional_id
from kafka_eos_sink.commit.witnesses import ask_witnesses
from kafka_eos_sink.errors import BrokerUnavailableError, FencedError, TransactionAbortedError, WriteRefusedError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.reactions import FENCED_BY_NEWER_OWNER

MARKERS_WITHIN_MS = 10_000
"""How long markers may take to reach the data partitions; one that was passed over never does."""

Answer = Literal["committed", "aborted", "rewrite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveRequest:
    """What the operator says of one version. ``query_id`` None: the only one that the write id has. ``nonce`` is fresh."""

    write_id: str
    query_id: str | None
    version: int
    answer: Answer
    nonce: str
    limits: SettleLimits = field(default_factory=SettleLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The record that was written, what it stands above (None where a query begins), and whose transactions it ended.

    ``superseded`` has another version than ``decision`` where a query goes on above it."""

    decision: Decision
    superseded: Decision | None
    ended: tuple[str, ...]


def resolve(request: ResolveRequest, transaction_version: int) -> Procedure[Resolved]:
    """Supersede the newest decision of a query id by the operator's.

    Raises `WriteRefusedError`: ``QUERY_ID_NEEDED``, ``NOTHING_TO_RESOLVE``, ``ROWS_ARE_VISIBLE``, ``NOT_THIS_COMMIT_LOG``;
    `TransactionAbortedError` ``NOT_RESOLVED`` and `FencedError` where nothing was recorded.
    """
    write_id, driver_id = request.write_id, driver_transactional_id(request.write_id)
    started: int = yield Now()
    # A slip of the pen must not cost a running driver its write id, so the answer is held against the log before the fence, too.
    described = yield from describe_driver(driver_id, started + request.limits.deadline_ms)
    view = LogView(write_id)
    yield from read_to_end(view)
    require_whole(view)
    opened = yield from list_open(write_id, transaction_version)
    yield from require_own_log(view, opened)
    if view.is_empty:
        # A barrier would make this log look as if it knew the write id.
        _target(view, request, described)
    yield from read_to_barrier(view, request.nonce)
    _, superseded = _target(view, request, described)
    if superseded is not None and superseded.version != request.version:
        _require_at_rest(request, opened)

    driver: ProducerIdentity = yield InitProducerId(driver_id, DRIVER_TRANSACTION_TIMEOUT_MS)
    yield Reached("resolve.fenced")
    yield from read_to_barrier(view, request.nonce)
    query, superseded = _target(view, request, described)
    ended: tuple[str, ...] = ()
    # None if the query begins, or continues above its newest version, which is finished.
    same = superseded if superseded is not None and superseded.version == request.version else None
    if same is not None:
        ended = yield from _end_named(query, same, request)
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
        resolution=request.answer,
    )
    yield Reached("resolve.before_decision")
    yield from _record(decision, request)
    yield Reached("resolve.decided")
    if request.answer == "committed":
        # Not where the version is void: a done record would have the next run take it for finished.
        now: int = yield Now()
        yield Append((done_record(decision, now),))
    yield from end_open(opened, _unfinished_ids(view))
    return Resolved(decision=decision, superseded=superseded, ended=ended)


def _unfinished_ids(view: LogView) -> set[str]:
    """The ids in unfinished decisions of any query id. Only their own recovery ends what is open under them."""
    return {
        prepared.identity.transactional_id
        for query in view.queries("decision")
        if (found := query.newest) is not None and not query.has_done_record(found.decision)
        for prepared in found.decision.transactions
    }


def _target(
    view: LogView, request: ResolveRequest, described: TransactionDescription | None
) -> tuple[QueryState, Decision | None]:
    """Return the query and the decision that the answer supersedes, None if the query begins with the answer.

    The superseded decision has another version if the query continues above it. ``described`` is W.driver before the fence.
    """
    write_id, version = request.write_id, request.version
    known = [query.query_id for query in view.queries("decision")]
    query_id = request.query_id
    if query_id is None:
        if len(known) != 1:
            what = f"has {len(known)}: {', '.join(map(repr, known))}" if known else "has none yet"
            raise WriteRefusedError(
                "QUERY_ID_NEEDED",
                f"which query of write id {write_id!r}? The commit log {what}. Say --query-id: the id in the metadata file of the "
                "checkpoint, or batch for a batch write",
            )
        (query_id,) = known
    query = view.query(query_id)
    found = query.newest
    newest = None if found is None else found.decision
    if newest is not None and newest.version == version:
        return query, newest
    may_stand = newest is None or _may_go_on(query, request, newest)
    if may_stand and request.answer == "committed" and not _is_being_decided(query, described):
        return query, newest
    raise WriteRefusedError(
        "NOTHING_TO_RESOLVE",
        f"there is no decision of version {version} of write id {write_id!r}, query id {query_id!r}, to be called "
        f"{request.answer}: {_what_is_there(query, request, newest, known)}",
    )


def _may_go_on(query: QueryState, request: ResolveRequest, newest: Decision) -> bool:
    """Whether the versions between the newest one and the answer's may be said to be written elsewhere (``COMMIT_LOG_LOST``).

    Not above what is not finished: its own recovery would never be heard of again. Batch writes may leave versions out, so nobody has to
    say this of them; and without the query id spelled out it is rather a slip of the pen, by which a stream would skip a batch.
    """
    return request.query_id not in (None, BATCH_QUERY_ID) and newest.version < request.version and query.is_done(newest)


def _require_at_rest(request: ResolveRequest, opened: tuple[ProducerIdentity, ...]) -> None:
    """A query that is to go on above versions that its log lacks has been refused with nothing of it open. One that writes is not that
    query, and the batch that it writes would count as written and be aborted."""
    if opened:
        names = ", ".join(identity.transactional_id for identity in opened[:3]) + (
            " and more" if len(opened) > 3 else ""
        )
        raise WriteRefusedError(
            "NOTHING_TO_RESOLVE",
            f"transactions of write id {request.write_id!r} are open ({names}): its query is writing, or has just died. Stop it and run "
            f"kafka-eos recover; if it is then refused with COMMIT_LOG_LOST, say this again",
        )


def _is_being_decided(query: QueryState, described: TransactionDescription | None) -> bool:
    """Whether the next decision of a query is in a transaction that is open right now: its driver runs, or died within the last minute."""
    return (
        described is not None
        and described.is_open
        and any(
            (record.producer_id, record.producer_epoch) == (described.producer_id, described.producer_epoch)
            for record in query.undecided
        )
    )


def _what_is_there(query: QueryState, request: ResolveRequest, decision: Decision | None, known: Sequence[str]) -> str:
    undecided = query.undecided
    begun = (
        f"; the decision at offset {undecided[0].offset} of the commit log has no marker, so it counts for nothing: the next "
        "run writes its version anew"
        if undecided
        else ""
    )
    if decision is None:
        other_ids = [each for each in known if each != query.query_id]
        others = f" (there are decisions of {', '.join(map(repr, other_ids))})" if other_ids else ""
        return f"the commit log holds none at all for it{others}{begun}"
    if decision.resolution is not None:
        state = f"resolved as {decision.resolution}"
    elif query.has_done_record(decision):
        state = "finished"
    else:
        state = "decided and not finished"
    is_ahead = decision.version < request.version and query.query_id != BATCH_QUERY_ID
    unnamed = is_ahead and request.query_id is None and query.is_done(decision)
    ahead = f"; to let a stream continue above it, add --query-id '{query.query_id}'" if unnamed else ""
    return f"the newest is version {decision.version}, {state}{begun}{ahead}"


def _end_named(query: QueryState, decision: Decision, request: ResolveRequest) -> Procedure[tuple[str, ...]]:
    """End what the superseded decision left open, as the answer wants it; by exact identity only (I11)."""
    started: int = yield Now()
    deadline = started + request.limits.deadline_ms
    named = [prepared for prepared in decision.transactions if not prepared.proven]
    still_open = yield from _still_open(named)
    if request.answer == "aborted":
        ended_before = [prepared for prepared in named if prepared not in still_open]
        yield from _refuse_if_visible(query, decision, request, ended_before, deadline)
    commit = request.answer == "committed"  # I1: the marker of the decision that names them was read
    results: tuple[EndResult, ...] = ()
    if still_open:
        results = yield EndTransactions(
            tuple(End(identity=prepared.identity, commit=commit) for prepared in still_open)
        )
    if any(result.error != ErrorCode.NONE for result in results):
        left = yield from _still_open(still_open)
        if left:
            raise TransactionAbortedError(
                "NOT_RESOLVED",
                f"{left[0].identity.transactional_id} and {len(left) - 1} more transactions of version {decision.version} of write id "
                f"{decision.write_id!r} could not be ended; nothing was recorded, say it again",
            )
    if request.answer == "aborted" and still_open:
        # The driver that we took the id from may have been committing them at this very moment.
        yield from _refuse_if_visible(query, decision, request, still_open, deadline)
    if request.answer != "rewrite":
        yield from _require_ended_everywhere(decision, named, request.answer)
    return tuple(
        prepared.identity.transactional_id
        for prepared, result in zip(still_open, results, strict=True)
        if result.error == ErrorCode.NONE
    )


_ELSE = {
    "committed": "before the version counts as written, else its rows can be lost later",
    "aborted": "before the version is written anew, else its rows can come back with a later transaction",
}


def _require_ended_everywhere(
    decision: Decision, named: Sequence[PreparedTransaction], answer: Literal["committed", "aborted"]
) -> Procedure[None]:
    """What is resolved is looked after by nobody any more: a partition that still holds such a transaction open, because its marker was
    passed over (KAFKA-20734), would have a later transaction of the id join it, and do with its rows what becomes of that one."""
    waiting = {(part.topic, part.partition) for prepared in named for part in prepared.offsets}
    started: int = yield Now()
    while True:
        gives_up = (yield Now()) - started > MARKERS_WITHIN_MS
        holders: dict[tuple[str, int], PreparedTransaction] = {}
        for topic in sorted({topic for topic, _ in waiting}):
            where = tuple(sorted(each for each in waiting if each[0] == topic))
            try:
                producers: Mapping[tuple[str, int], Mapping[int, tuple[int, int]] | None] = yield DescribeProducers(
                    where
                )
            except DataTopicGoneError:
                waiting -= set(where)
                continue
            except BrokerUnavailableError:
                gives_up = True  # it was waited for
                continue
            for partition, remembered in producers.items():
                holder = None if remembered is None else _holder(named, partition, remembered)
                if holder is None:
                    waiting.discard(partition)
                else:
                    holders[partition] = holder
        if not waiting:
            return
        if gives_up:
            partition = min(waiting)
            what = (
                f"still holds {holders[partition].identity.transactional_id} open"
                if partition in holders
                else "cannot be asked whether its transactions are ended"
            )
            raise TransactionAbortedError(
                "NOT_RESOLVED",
                f"{partition[0]}-{partition[1]} {what} (version {decision.version} of write id {decision.write_id!r}): a marker that is "
                f"missing there (KAFKA-20734) must be written {_ELSE[answer]}. "
                f"Nothing was recorded; first run {refusals.command('repair', decision.write_id)}",
            )
        yield Wait(POLL_MS)


def _holder(
    named: Sequence[PreparedTransaction], where: tuple[str, int], remembered: Mapping[int, tuple[int, int]]
) -> PreparedTransaction | None:
    for prepared in named:
        _, start = remembered.get(prepared.identity.producer_id, (-1, -1))
        if any((part.topic, part.partition) == where and 0 <= start <= part.last_offset for part in prepared.offsets):
            return prepared
    return None


def _still_open(named: Sequence[PreparedTransaction]) -> Procedure[list[PreparedTransaction]]:
    if not named:
        return []
    ids = tuple(prepared.identity.transactional_id for prepared in named)
    described: Mapping[str, TransactionDescription | None] = yield DescribeTransactions(ids)
    return [
        prepared
        for prepared in named
        if (found := described.get(prepared.identity.transactional_id)) is not None
        and found.is_open
        and found.is_of(prepared.identity)
    ]


def _refuse_if_visible(
    query: QueryState,
    decision: Decision,
    request: ResolveRequest,
    ended: Sequence[PreparedTransaction],
    deadline: int,
) -> Procedure[None]:
    """A version of which a part is proven committed is not void: its rows would be there twice."""
    visible = [prepared for prepared in decision.transactions if prepared.proven]
    if decision.transactions and query.has_done_record(decision):
        visible = list(decision.transactions)
    elif ended:
        outcomes = yield from ask_witnesses(decision, ended, request.nonce, deadline)
        ids = tuple(prepared.identity.transactional_id for prepared in ended)
        described: Mapping[str, TransactionDescription | None] = yield DescribeTransactions(ids)
        verdicts = [verdict_on(described[prepared.identity.transactional_id], prepared.identity) for prepared in ended]
        witnesses = list(zip(ended, outcomes, verdicts, strict=True))
        visible += [
            prepared
            for prepared, outcome, verdict in witnesses
            if outcome is Outcome.COMMITTED or verdict is CoordinatorVerdict.COMMITTED
        ]
        # The commit log may lack a proof that the data topics have: readers see what no partition calls aborted.
        look = yield from look_at(written_by(prepared for prepared in ended if prepared not in visible))
        seen, held = ({identity for identity, _ in each} for each in (look.seen, look.untold))
        visible += [prepared for prepared in ended if prepared.identity in seen]
        # What nobody can look at is aborted there only where the coordinator says so of exactly this one. The commit log's ABORT may be
        # that of one that joined it; below version 2 a late request may have begun a committed one anew, and the ABORT be of that end.
        untold = [
            prepared
            for prepared, _, verdict in witnesses
            if prepared.identity in held
            and not (prepared.identity.transaction_version >= 2 and verdict is CoordinatorVerdict.ABORTED)
        ]
        if untold and not visible:
            yield from _require_ended_everywhere(decision, untold, "aborted")  # they may stand before their own rows
            raise TransactionAbortedError(
                "NOT_RESOLVED",
                f"nobody can tell now whether readers will see {refusals.describe_ranges(untold)} of version {decision.version} of "
                f"write id {decision.write_id!r}: another open transaction stands before it (kafka-eos transactions), or the right to "
                "Read it is missing. Nothing was recorded; say it again later, or, with those rows perhaps twice: --as rewrite",
            )
    if visible or decision.resolution == "committed":
        what = (
            f"{len(visible)} of {len(decision.transactions)} transactions of it are visible ({refusals.describe_ranges(visible)})"
            if visible
            else "it was resolved as committed before"
        )
        raise WriteRefusedError(
            "ROWS_ARE_VISIBLE",
            f"version {decision.version} of write id {decision.write_id!r} cannot be called aborted: {what}. To write it anew all "
            "the same, with those rows twice: --as rewrite; to leave it as it is: --as committed",
        )


def _record(decision: Decision, request: ResolveRequest) -> Procedure[None]:
    """The decision record in one transaction of W.driver, and its marker read: it counts from then on."""
    appended: Appended = yield from append_in_transaction(decision.driver, decision_records(decision), 0)
    if appended.error != ErrorCode.NONE:
        raise _not_recorded(decision, appended.error)
    ends: tuple[EndResult, ...] = yield EndTransactions((End(identity=decision.driver, commit=True),))
    # Only the log proves the end: a resend after a lost response is also fenced by a driver that came after the commit.
    outcome = yield from await_outcome(decision, appended.offset, request.limits.deadline_ms)
    if outcome is not Outcome.COMMITTED:
        raise _not_recorded(decision, ends[0].error)


def _not_recorded(decision: Decision, error: int | None) -> FencedError | TransactionAbortedError:
    if error in FENCED_BY_NEWER_OWNER:
        return FencedError(
            "FENCED",
            f"a newer driver of write id {decision.write_id!r} took over at the same time; stop the job or query first, then say it "
            "again",
        )
    answered = "no answer" if error is None else ErrorCode.of(error).name
    return TransactionAbortedError(
        "NOT_RESOLVED",
        f"whether version {decision.version} of write id {decision.write_id!r} is now {decision.resolution} is not known (EndTxn of "
        f"the record: {answered}; its marker did not come); look with kafka-eos commits, and say it again if it is not there",
    )
