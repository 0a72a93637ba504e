"""What `forget` takes for ended."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.forget import _require_ended, forget_write
from kafka_eos_sink.commit.write_states import writes_in
from kafka_eos_sink.errors import (
    BrokerUnavailableError,
    DecisionPendingError,
    TransactionAbortedError,
    WriteRefusedError,
)
from tests.model.scripted_cluster import written
from tests.model.simulated_cluster import LOG
from tests.runs import WRITE, run_of


def cut_off(_: steps.EndTransactions) -> NoReturn:
    raise BrokerUnavailableError("REQUEST_DEADLINE", "EndTxn was not done in time")


@pytest.mark.parametrize("is_open", [False, True], ids=["nothing open", "a transaction open"])
@pytest.mark.parametrize("kind", ["decision", "part"])
def test_record_without_marker_is_forgotten_if_nothing_is_open(kind: str, is_open: bool) -> None:
    """No recovery ends such a decision or attempt, so the command would be refused for ever."""
    cluster, (message,) = written()
    assert message.prepared is not None
    if kind == "decision":
        cluster.own = {steps.EndTransactions: cut_off}
        with pytest.raises(DecisionPendingError):
            cluster.commit([message])
    opened = (message.prepared.identity,) if is_open else ()
    view = cluster.view()
    if not opened:
        _require_ended(WRITE, view, opened)
        return
    with pytest.raises(WriteRefusedError, match=r"WRITE_NOT_ENDED\].*it has 1 open transaction .*without an outcome"):
        _require_ended(WRITE, view, opened)


@pytest.mark.parametrize("version", [2, 0])
@pytest.mark.parametrize("is_marked", [True, False], ids=["all markers", "a missing marker"])
def test_write_is_forgotten_only_once_its_tombstones_are_marked(version: int, is_marked: bool) -> None:
    """Without it the next batch of the version was skipped, although the command had called the write forgotten."""
    cluster, messages = written(version=version)
    cluster.commit(messages)

    def unmarked(step: steps.EndTransactions) -> Any:
        for end in step.ends:
            cluster.end_without_marker(end.identity, commit=end.commit, partition=LOG)
        return tuple(steps.EndResult(error=0) for _ in step.ends)

    def later(_: steps.Now) -> int:
        cluster.now += 1_000
        return cluster.now

    if is_marked:
        cluster.own = {steps.Now: later}  # the marker comes with the last read, behind the deadline
        tombstones = cluster.run(forget_write(run_of(version=version, within_ms=500)))
        assert tombstones == 3, "of a part, a decision and a done record"
        return
    cluster.own = {steps.EndTransactions: unmarked}
    with pytest.raises(TransactionAbortedError, match=r"NOT_FORGOTTEN.*their marker is missing"):
        cluster.run(forget_write(run_of(version=version, within_ms=9_000)))


@pytest.mark.parametrize("is_old", [True, False], ids=["at rest", "finished since"])
def test_write_that_has_run_since_is_not_forgotten(is_old: bool) -> None:
    """`forget --prefix` takes minutes, and a job may have run after the command looked at it."""
    cluster, messages = written()
    cluster.commit(messages)
    (found,) = writes_in(cluster.view())
    assert found.finished_ms is not None
    procedure = forget_write(run_of(), finished_before_ms=found.finished_ms + is_old)
    if is_old:
        cluster.run(procedure)
        assert writes_in(cluster.view()) == ()
        return
    with pytest.raises(WriteRefusedError, match=r"WRITE_NOT_ENDED\].*version 1 .*has finished since"):
        cluster.run(procedure)
    assert [each.state for each in writes_in(cluster.view())] == ["finished"]
