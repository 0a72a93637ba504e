"""The commit log in words, from the records that procedures write."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_records import part_record
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.steps import LogRecord, Procedure
from kafka_eos_sink.commit.write_states import writes_in
from kafka_eos_sink.errors import BrokerUnavailableError, DecisionPendingError
from kafka_eos_sink.operations import write_status
from kafka_eos_sink.operations.write_status import CommitLogWatch
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.model.scripted_cluster import BATCH, TIMEOUT_MS, ScriptedCluster, decided
from tests.model.simulated_cluster import LOG
from tests.runs import drive


def finished() -> ScriptedCluster:
    """Version 1 is finished; both tasks have written to one partition."""
    cluster = ScriptedCluster()
    cluster.now = 1_123
    plan = cluster.plan()
    cluster.commit([cluster.attempt(plan, task, into=(0,)) for task in range(2)])
    return cluster


def states(cluster: ScriptedCluster) -> list[tuple[str, int | None, int]]:
    return [(each.state, each.version, each.transactions) for each in writes_in(cluster.view())]


def test_part_below_an_operators_decision_is_not_prepared() -> None:
    """Its transaction has no marker in the log, and no run waits for it any more; a part above begins the next run."""
    cluster, logged = decided()
    cluster.attempt(cluster.fence("next"), batch=replace(BATCH, version=2))
    cluster.append_decision(replace(logged.decision, nonce="o", transactions=(), resolution="rewrite"))
    assert states(cluster) == [("resolved", 1, 0)]
    cluster.attempt(cluster.fence("again"))
    assert states(cluster) == [("resolved", 1, 0), ("prepared", 1, 1)]


@pytest.mark.parametrize("pieces", [1, 3, 100])
def test_finished_write_shows_its_time_and_offsets(pieces: int) -> None:
    entries = finished().perform(steps.ReadLog(0)).entries
    view, size = LogView("w"), -(-len(entries) // pieces)
    for start in range(0, len(entries), size):
        view.feed(entries[start : start + size], min(start + size, len(entries)), 0)
    (write,) = writes_in(view)
    assert (write.state, write.version, write.rows, write.transactions) == ("finished", 1, 20, 2)
    assert write.finished_at == "1970-01-01T00:00:01.123+00:00"
    assert write.as_json()["offsets"] == [{"topic": "t", "partition": 0, "first_offset": 0, "last_offset": 19}]


class WatchedLog(CommitLogWatch):
    """A watch of one partition, which is in memory."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster, self.view = cluster, LogView(None)
        admin = SimpleNamespace(
            client=SimpleNamespace(clock=lambda: 0),
            topic=lambda *_: object(),
            list_offsets=lambda where, *_, **__: dict.fromkeys(where, len(cluster.kafka.logs[LOG])),
        )
        super().__init__(cast(Any, admin), "log", timeout_ms=1)
        self._views = {("log", 0): self.view}

    def run(self, procedure: Procedure[None]) -> None:
        drive(procedure, self.cluster.perform)


def test_foreign_record_keeps_no_parts_of_other_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = finished()
    offset = cluster.perform(steps.Append((LogRecord(part_record("w2", "batch", 0, 1, 1).key, b"junk"),)))
    task: ProducerIdentity = cluster.perform(steps.InitProducerId("w3.0.0", TIMEOUT_MS))
    cluster.perform(steps.AppendPart(task, part_record("w3", "batch", 0, 5, 1)))
    watch = WatchedLog(cluster)
    monkeypatch.setattr(write_status, "Executor", lambda *_: watch)
    for _ in range(2):
        found = {(write.write_id, write.state) for write in watch.writes()}
        assert found == {("w", "finished"), ("w2", "unreadable"), ("w3", "prepared")}
        assert [query.write_id for query in watch.view.queries("part")] == ["w3"]
    (problem,) = (write.problem for write in watch.writes() if write.problem)
    assert problem.endswith(f"at offsets {offset}")
    cluster.end(task, commit=False)
    assert {write.write_id for write in watch.writes()} == {"w", "w2"}


def test_each_state_is_read_from_its_records() -> None:
    """A later version stands beside the finished one; the done record of an earlier version finishes nothing."""

    def unreachable(_: steps.EndTransactions) -> None:
        raise BrokerUnavailableError("REQUEST_DEADLINE", "EndTxn was not done in time")

    cluster, batch = finished(), replace(BATCH, version=2)
    plan = cluster.plan("next")
    messages = [cluster.attempt(plan, task, into=(0,), batch=batch) for task in range(2)]
    assert states(cluster) == [("finished", 1, 2), ("prepared", 2, 2)]
    cluster.own[steps.EndTransactions] = unreachable
    with contextlib.suppress(DecisionPendingError):
        cluster.commit(messages, batch=batch)
    assert states(cluster) == [("finished", 1, 2), ("in-doubt", 2, 0)]
    cluster.end(plan.driver, commit=True)
    assert states(cluster) == [("decided", 2, 2)]
