"""The operator's answer to a loud failure: a decision record that says what counts, where the log alone cannot.

committed: the version counts as written; what of it is still open is committed. Also the way to say where a query begins.
aborted: nothing of it is visible, so the batch is written anew; refused where a part is proven committed.
rewrite: the batch is written anew although parts may be visible; those rows are then in the topic twice.

It holds the fence like any driver, so a running one loses the write id and can decide nothing after it (I12).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import FencedError, TransactionAbortedError, WriteRefusedError
from ..protocol.error_codes import ErrorCode
from .commit_log import LoggedDecision, LogView, Outcome, barrier_record, decision_records, done_record
from .log_reading import read_to
from .open_transactions import ONGOING, end_open, list_open
from .prepared_transaction import Decision, PreparedTransaction, ProducerIdentity
from .recovery import SettleLimits, ask_witnesses, describe_ranges
from .steps import (
    Append,
    Appended,
    DescribeTransactions,
    End,
    EndResult,
    EndTransactions,
    InitProducerId,
    LogChunk,
    Now,
    Procedure,
    Reached,
    ReadLog,
    TransactionDescription,
)
from .take_over import DRIVER_TRANSACTION_TIMEOUT_MS, append_in_transaction
from .transactional_id import driver_transactional_id
from .two_phase_commit import FENCED_CODES

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
    """The record that was written, what it stands above (None where a query begins), and whose transactions it ended."""

    decision: Decision
    superseded: Decision | None
    ended: tuple[str, ...]


def resolve(request: ResolveRequest, transaction_version: int) -> Procedure[Resolved]:
    """Supersede the newest decision of a query id by the operator's.

    Raises `WriteRefusedError`: ``QUERY_ID_NEEDED``, ``NOTHING_TO_RESOLVE``, ``ROWS_ARE_VISIBLE``; `TransactionAbortedError`
    ``NOT_RESOLVED`` and `FencedError` where nothing was recorded.
    """
    write_id = request.write_id
    # A slip of the pen must not cost a running driver its write id, so the answer is held against the log before the fence, too.
    view = LogView(write_id)
    yield from _read_all(view, request)
    _target(view, request)

    opened = yield from list_open(write_id, transaction_version)
    driver: ProducerIdentity = yield InitProducerId(driver_transactional_id(write_id), DRIVER_TRANSACTION_TIMEOUT_MS)
    yield Reached("resolve.fenced")
    yield from _read_all(view, request)
    query_id, found = _target(view, request)
    ended: tuple[str, ...] = ()
    if found is not None:
        ended = yield from _end_named(view, found.decision, request)
    superseded = None if found is None else found.decision
    decision = Decision(
        write_id=write_id,
        query_id=query_id,
        version=request.version,
        nonce=request.nonce,
        driver=driver,
        topic=None if superseded is None else superseded.topic,
        schema="" if superseded is None else superseded.schema,
        offsets_hash=None if superseded is None else superseded.offsets_hash,
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
    yield from end_open(opened, _unfinished_ids(view, write_id))
    return Resolved(decision=decision, superseded=superseded, ended=ended)


def _read_all(view: LogView, request: ResolveRequest) -> Procedure[None]:
    barrier: int = yield Append((barrier_record(request.write_id, request.nonce),))
    yield from read_to(view, barrier)


def _unfinished_ids(view: LogView, write_id: str) -> set[str]:
    """The ids that unfinished decisions of any query id name: nobody but their own recovery ends what is open under them."""
    found = (view.newest_decision(write_id, query_id) for query_id in view.query_ids(write_id))
    return {
        prepared.identity.transactional_id
        for each in found
        if each is not None and view.done_nonce(write_id, each.decision.query_id) != each.decision.nonce
        for prepared in each.decision.transactions
    }


def _target(view: LogView, request: ResolveRequest) -> tuple[str, LoggedDecision | None]:
    """The query id and the decision that the answer is about; None where it says where a query begins."""
    write_id, version = request.write_id, request.version
    known = view.query_ids(write_id)
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
    found = view.newest_decision(write_id, query_id)
    if found is not None and found.decision.version == version:
        return query_id, found
    if found is None and request.answer == "committed" and not view.undecided(write_id, query_id):
        return query_id, None
    raise WriteRefusedError(
        "NOTHING_TO_RESOLVE",
        f"there is no decision of version {version} of write id {write_id!r}, query id {query_id!r}, to be called "
        f"{request.answer}: {_what_is_there(view, write_id, query_id, found)}",
    )


def _what_is_there(view: LogView, write_id: str, query_id: str, found: LoggedDecision | None) -> str:
    undecided = view.undecided(write_id, query_id)
    begun = (
        f"; the decision at offset {undecided[0].offset} of the commit log has no marker, so it counts for nothing: kafka-eos "
        "repair shows whether one is missing, else the next run writes its version anew"
        if undecided
        else ""
    )
    if found is None:
        known = [each for each in view.query_ids(write_id) if each != query_id]
        others = f" (there are decisions of {', '.join(map(repr, known))})" if known else ""
        return f"the commit log holds none at all for it{others}{begun}"
    decision = found.decision
    if decision.resolution is not None:
        state = f"resolved as {decision.resolution}"
    elif view.done_nonce(write_id, query_id) == decision.nonce:
        state = "finished"
    else:
        state = "decided and not finished"
    return f"the newest is version {decision.version}, {state}{begun}"


def _end_named(view: LogView, decision: Decision, request: ResolveRequest) -> Procedure[tuple[str, ...]]:
    """End what the superseded decision left open, as the answer wants it; by exact identity only (I11)."""
    started: int = yield Now()
    deadline = started + request.limits.deadline_ms
    named = [prepared for prepared in decision.transactions if not prepared.proven]
    still_open = yield from _still_open(named)
    if request.answer == "aborted":
        ended_before = [prepared for prepared in named if prepared not in still_open]
        yield from _refuse_if_visible(view, decision, request, ended_before, deadline)
    if not still_open:
        return ()
    commit = request.answer == "committed"  # I1: the marker of the decision that names them was read
    results: tuple[EndResult, ...] = yield EndTransactions(
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
    if request.answer == "aborted":
        # The driver that we took the id from may have been committing them at this very moment.
        yield from _refuse_if_visible(view, decision, request, still_open, deadline)
    return tuple(prepared.identity.transactional_id for prepared in still_open)


def _still_open(named: Sequence[PreparedTransaction]) -> Procedure[list[PreparedTransaction]]:
    if not named:
        return []
    ids = tuple(prepared.identity.transactional_id for prepared in named)
    described: Mapping[str, TransactionDescription | None] = yield DescribeTransactions(ids)
    return [
        prepared
        for prepared in named
        if (found := described.get(prepared.identity.transactional_id)) is not None
        and found.state == ONGOING
        and (found.producer_id, found.producer_epoch)
        == (prepared.identity.producer_id, prepared.identity.producer_epoch)
    ]


def _refuse_if_visible(
    view: LogView,
    decision: Decision,
    request: ResolveRequest,
    ended: Sequence[PreparedTransaction],
    deadline: int,
) -> Procedure[None]:
    """A version of which a part is proven committed is not void: its rows would be there twice."""
    visible = [prepared for prepared in decision.transactions if prepared.proven]
    if decision.transactions and view.done_nonce(decision.write_id, decision.query_id) == decision.nonce:
        visible = list(decision.transactions)
    elif ended:
        outcomes = yield from ask_witnesses(decision, ended, request.nonce, deadline)
        visible += [prepared for prepared, outcome in zip(ended, outcomes, strict=True) if outcome is Outcome.COMMITTED]
    if visible or decision.resolution == "committed":
        what = (
            f"{len(visible)} of {len(decision.transactions)} transactions of it are committed ({describe_ranges(visible)})"
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
    # Whatever the answer, the log tells: a repeat after a lost answer is fenced by a driver that came after the commit, too.
    started: int = yield Now()
    view = LogView(decision.write_id, next_offset=appended.offset)
    while True:
        chunk: LogChunk = yield ReadLog(view.next_offset)
        view.feed(chunk.entries, chunk.next_offset, chunk.log_start_offset)
        record = view.decision_at(decision.write_id, decision.query_id, appended.offset)
        outcome = Outcome.OPEN if record is None else record.outcome
        if outcome is Outcome.COMMITTED:
            return
        now: int = yield Now()
        if outcome is not Outcome.OPEN or now - started > request.limits.deadline_ms:
            raise _not_recorded(decision, ends[0].error)


def _not_recorded(decision: Decision, error: int | None) -> FencedError | TransactionAbortedError:
    if error in FENCED_CODES:
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
