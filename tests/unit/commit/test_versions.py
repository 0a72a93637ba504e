"""The set of versions that count as written, and what it admits."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import versions
from kafka_eos_sink.commit.admission import admit
from kafka_eos_sink.commit.log_records import decision_records
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.take_over import TakeOver, take_over
from kafka_eos_sink.commit.values import Decision, TaskOutcome
from kafka_eos_sink.commit.versions import MOST_RANGES, Versions
from kafka_eos_sink.errors import WriteRefusedError
from tests.model.scripted_cluster import BATCH, ScriptedCluster
from tests.runs import run_of

SKIP = TaskOutcome.ALREADY_COMMITTED


def test_the_set_holds_what_was_added_in_any_order() -> None:
    chance = random.Random(7)
    for _ in range(200):
        added = [chance.randrange(40) for _ in range(chance.randrange(30))]
        found = Versions()
        for version in added:
            found = found.adding(version)
        gone = chance.randrange(40)
        assert [version for version in range(40) if version in found] == sorted(set(added))
        assert [version for version in range(40) if version in found.without(gone)] == sorted(set(added) - {gone})
        # Sorted, and with a gap between two ranges: so few as possible.
        ends = [end for each in found.ranges for end in (each.first, each.last + 1)]
        assert ends == sorted(set(ends))


def test_the_lowest_ranges_leave_the_set_and_raise_the_floor() -> None:
    found = Versions()
    for version in range(0, 2 * MOST_RANGES + 10, 2):
        found = found.adding(version)
    assert len(found.ranges) == MOST_RANGES
    assert (found.floor, found.ranges[0].first) == (9, 10)
    # A late version between two ranges joins them.
    assert found.adding(2 * MOST_RANGES + 7).floor == 9
    assert found.without(10).floor == 9


class Job:
    """A batch job under one write id, whose versions are decided in any order."""

    def __init__(self) -> None:
        self.cluster = ScriptedCluster()
        self.runs = 0

    def run(self, version: int, **changes: Any) -> Decision | None:
        """Return the decision of a run, None if it skips the version."""
        self.runs += 1
        batch = replace(BATCH, version=version, **{"foreach_query": "", **changes})
        plan = self.cluster.plan(f"n{self.runs}")
        message = self.cluster.attempt(plan, batch=batch)
        return self.cluster.commit([message], batch=batch)


def test_older_record_means_all_versions_up_to_its_own() -> None:
    """As an earlier version of the sink wrote it."""
    job = Job()
    decision = job.run(5)
    assert decision is not None
    old = replace(decision, versions=None, foreach_query=None)
    assert b"ranges" not in (decision_records(old)[0].value or b"")
    plan = replace(job.cluster.plan("n"), decisions=(replace(job.cluster.plan("m").decisions[0], decision=old),))
    for version in (0, 4, 5):
        assert admit(plan, replace(BATCH, version=version))[0] is SKIP
    assert admit(plan, replace(BATCH, version=6)) == (None, None)
    assert replace(old, nonce="n~1", transactions=()).written_versions == Versions.up_to(4)


def lost_decision(foreach_query: str | None) -> Job:
    """Version 5 is decided without a set of versions, and its rows are lost."""
    job, batch = Job(), replace(BATCH, version=5, foreach_query=foreach_query)
    logged = job.cluster.decide([job.cluster.attempt(job.cluster.plan("n"), batch=batch)], batch=batch)
    job.cluster.append_decision(replace(logged.decision, versions=None))
    job.cluster.end(logged.decision.transactions[0].identity, commit=False)
    return job


def test_older_record_that_was_copied_still_counts_as_written() -> None:
    """Without its transactions, the decision of the copies looked void: the next version left it out, and it was written twice."""
    job = lost_decision(None)
    assert job.run(7) is not None
    assert job.cluster.newest().written_versions == Versions.up_to(5).adding(7)
    assert job.run(5) is None


def test_another_query_is_not_told_to_rewrite_a_copied_version() -> None:
    job = lost_decision("q1")
    with pytest.raises(WriteRefusedError, match=r"DIFFERENT_QUERY\].*--version 5 --as committed"):
        job.run(5, foreach_query="q2")
    assert job.cluster.newest().copies == 1


def test_version_below_the_floor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MOST_RANGES", 2)
    job = Job()
    for version in (1, 5, 9):
        job.run(version)
    with pytest.raises(WriteRefusedError, match=r"VERSION_TOO_OLD\].*version 1 .*from 2 on"):
        job.run(1)
    with pytest.raises(WriteRefusedError, match="VERSION_TOO_OLD"):
        job.run(0)
    assert job.run(3) is not None
    with pytest.raises(WriteRefusedError, match="VERSION_TOO_OLD"):
        job.run(2)


def test_foreach_batch_follows_the_rules_of_a_stream() -> None:
    """There the version is the batch id, and a new checkpoint counts from 0 again."""
    job = Job()
    for version in (0, 1, 4):
        assert job.run(version, foreach_query="q1", foreach_call=f"call {version}") is not None
    with pytest.raises(WriteRefusedError, match=r"DIFFERENT_QUERY\].*query q1 has decided version 4.*query q2"):
        job.run(0, foreach_query="q2", foreach_call="other")
    with pytest.raises(WriteRefusedError, match=r"DIFFERENT_QUERY\].*this is a batch job"):
        job.run(2)
    for version in (1, 2):
        with pytest.raises(WriteRefusedError, match=r"CHECKPOINT_ROLLED_BACK\].*continues at batch"):
            job.run(version, foreach_query="q1", foreach_call="older")
    assert job.run(4, foreach_query="q1", foreach_call="again") is None
    # On purpose: the versions above it are written again, too.
    rewrite = {"foreach_query": "q1", "on_checkpoint_rollback": "rewrite"}
    assert job.run(1, foreach_call="new 1", **rewrite) is not None
    assert job.cluster.newest().written_versions == Versions.up_to(1)
    assert job.run(4, foreach_call="new 4", **rewrite) is not None


def test_view_of_a_planner_shows_that_another_run_came_between() -> None:
    """It may have been `forget`, and the cleaner: the versions of the view must not come back with the next decision."""
    cluster = ScriptedCluster()
    view = LogView("w")
    for nonce in ("first", "second"):
        cluster.run(take_over(TakeOver(run=run_of(nonce), view=view)))
        assert not view.has_other_barrier(nonce)
        view.forget_superseded()
    cluster.plan("other")
    cluster.run(take_over(TakeOver(run=run_of("third"), view=view)))
    assert view.has_other_barrier("third")
