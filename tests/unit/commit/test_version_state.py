"""What became of a version: one answer, over all kinds of decisions."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.commit.decide import DriverTransaction
from kafka_eos_sink.commit.log_records import LogKey
from kafka_eos_sink.commit.log_view import LoggedRecord, QueryState, VersionState
from kafka_eos_sink.commit.restore import finish_decisions
from kafka_eos_sink.commit.steps import Marker, MarkerType
from kafka_eos_sink.commit.values import Decision, DecisionStatus, OffsetRange, PreparedTransaction
from kafka_eos_sink.commit.write_states import _decided
from kafka_eos_sink.operations import write_status
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.runs import run_of


def identity(name: str) -> ProducerIdentity:
    return ProducerIdentity(transactional_id=name, producer_id=1, producer_epoch=4, transaction_version=2)


ENTRY = PreparedTransaction(
    partition=0,
    identity=identity("w.0.0"),
    part_offset=1,
    rows=1,
    offsets=(OffsetRange(topic="t", partition=0, first_offset=0, last_offset=0, rows=1),),
)
KINDS = [
    (query_id, nonce, entries, resolution, done)
    for query_id, nonce, entries, resolution, done in itertools.product(
        ("batch", "q"), ("n", "n~1"), ((), (ENTRY,)), (None, "committed", "rewrite"), (None, "n", "n~1")
    )
    if resolution is None
    or (not entries and nonce == "n")  # a resolution lists no transaction, and has a nonce of its own
]


def query_of(
    query_id: str, nonce: str, entries: tuple[PreparedTransaction, ...], resolution: str | None, done: str | None
) -> QueryState:
    decision = Decision(
        write_id="w",
        query_id=query_id,
        version=3,
        nonce=nonce,
        driver=identity("w.driver"),
        topic="t",
        schema="",
        offsets_hash=None,
        transactions=entries,
        resolution=resolution,
    )
    value = {"nonce": nonce, "transaction_version": 2, "count": 1, "body": ""}
    marker = Marker(offset=6, producer_id=1, producer_epoch=5, type=MarkerType.COMMIT)
    records = {
        ("decision", 0): [LoggedRecord(LogKey("decision", "w", query_id, (0,)), 5, 1, 4, value, marker, decision)]
    }
    if done is not None:
        fields = {"version": 3, "nonce": done, "finished_ms": 9}
        records["done",] = [LoggedRecord(LogKey("done", "w", query_id, ()), 7, -1, -1, fields)]  # type: ignore[index]
    return QueryState("w", query_id, records)  # type: ignore[arg-type]


@pytest.mark.parametrize(("query_id", "nonce", "entries", "resolution", "done"), KINDS)
def test_every_place_tells_the_same_state(
    query_id: str, nonce: str, entries: tuple[PreparedTransaction, ...], resolution: str | None, done: str | None
) -> None:
    """A done record counts for its own nonce only, and neither finishes a void version nor undoes a resolution."""
    query = query_of(query_id, nonce, entries, resolution, done)
    assert query.newest is not None
    decision = query.newest.decision
    state = query.state_of(decision)
    if resolution is not None:
        assert state is (VersionState.KEPT if resolution == "committed" else VersionState.REWRITE)
    elif nonce == "n~1" and not entries:
        assert state is VersionState.VOID
    else:
        assert state is (VersionState.FINISHED if done == nonce else VersionState.DECIDED)
    assert state.is_settled + decision.is_unwritten + state.is_open == 1

    # The planner acts on it: it has work with what is open, skips what is settled, and lets the rest be written.
    view: Any = SimpleNamespace(queries=lambda _: (query,))
    finishing = finish_decisions(run_of(), view, DriverTransaction(decision.driver))
    if state.is_open:
        next(finishing)
    else:
        with pytest.raises(StopIteration) as returned:
            next(finishing)
        assert returned.value.value.decisions[0].status is (
            DecisionStatus.VOID if decision.is_unwritten else DecisionStatus.FINISHED
        )
    assert decision.is_unwritten == (3 not in decision.written_versions)

    # Commands show it.
    shown = _decided(query, decision)
    names = {VersionState.DECIDED: "decided", VersionState.FINISHED: "finished", VersionState.VOID: "void"}
    assert shown.state == names.get(state, "resolved")
    assert shown.needs_run == decision.is_unwritten
    assert bool(write_status._reason([replace(shown, finished_ms=1)], False, 10)) == (not state.is_settled)
