"""Removes a write that will not run again from the commit log, by tombstones.

Its barrier stays (NEW LOG): so a later run under the id can begin, although the coordinator still knows it.

A write with an open transaction, or with an in-doubt or unfinished version, is rejected: its records are the proof that recovery
needs. `log_access.forget` does the same for writes with a random id, right after they are finished.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos_sink.commit.log_access import commit_in_transaction, read_on, read_to_end
from kafka_eos_sink.commit.log_standing import UnknownId
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.refusals import refused, text
from kafka_eos_sink.commit.steps import LogRecord, Now, Procedure
from kafka_eos_sink.commit.take_over import TakeOver, look, take_over
from kafka_eos_sink.commit.transactions import list_open
from kafka_eos_sink.commit.values import Run, Write
from kafka_eos_sink.commit.write_states import writes_in
from kafka_eos_sink.errors import counted
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity


def forget_write(run: Run, finished_before_ms: int | None = None) -> Procedure[int]:
    """Write tombstones for all records of a write id; return their number.

    Args:
        finished_before_ms: Refuse a write id of which a version has finished since, in ms since 1970.

    Raises:
        WriteRefusedError: WRITE_NOT_ENDED, UNKNOWN_WRITE_ID, or a code for an incomplete commit log. Nothing was forgotten.
        TransactionAbortedError: NOT_FORGOTTEN.
    """
    write = run.write
    before = LogView(write.id)
    _, opened = yield from look(TakeOver(run=run, unknown_id=UnknownId.REFUSE), before)
    if not before.own_keys():
        raise refused("UNKNOWN_WRITE_ID", write=write)
    # take_over would abort what is open and finish what is decided, although its job may still run.
    _require_ended(write, before, opened)
    view = LogView(write.id)
    plan = yield from take_over(TakeOver(run=run, view=view, unknown_id=UnknownId.REFUSE))
    # A job may have begun a batch between the first read and the fence. After the fence no driver can decide.
    yield from read_to_end(view)
    opened = yield from list_open(run)
    _require_ended(write, view, opened)
    if finished_before_ms is not None:
        for each in writes_in(view):
            if each.finished_ms is None or each.finished_ms >= finished_before_ms:
                raise refused("WRITE_NOT_ENDED.in_use", write=write, version=each.version)
    tombstones = tuple(LogRecord(key, None) for key in view.own_keys())
    ended = yield from commit_in_transaction(plan.driver, tombstones, 0)
    now = yield from Now()
    if ended.error != ErrorCode.NONE:
        raise refused("NOT_FORGOTTEN", write=write, why=ended.code)
    give_up_at = now + run.within_ms
    # JOIN: their marker can be missing. Without it, the tombstones remove nothing.
    while any(query.newest for query in view.queries("decision")):
        if now > give_up_at:
            raise refused("NOT_FORGOTTEN", write=write, why="their marker is missing")
        yield from read_on(view)
        now = yield from Now()
    return len(tombstones)


def _require_ended(write: Write, view: LogView, opened: Sequence[ProducerIdentity]) -> None:
    """Raise `WriteRefusedError` unless the write has ended.

    If no transaction is open, what lacks its marker in the log (JOIN) counts as ended.
    """
    for query in view.queries("decision"):
        # Raises if a decision is unreadable: its transactions are unknown.
        _ = query.newest
    pending = []
    if opened:
        transactions, first = counted(len(opened), "open transaction"), opened[0].transactional_id
        pending.append(text("open_transactions", transactions=transactions, first=first))
    states = ("decided", "prepared", "in-doubt") if opened else ("decided",)
    for each in writes_in(view):
        if each.state in states:
            which = "a version" if each.version is None else f"version {each.version}"
            waiting = counted(each.transactions, "prepared transaction")
            pending.append(text(f"unended_{each.state}", which=which, query_id=each.query_id, transactions=waiting))
    if pending:
        raise refused("WRITE_NOT_ENDED", write=write, pending="; ".join(pending))
