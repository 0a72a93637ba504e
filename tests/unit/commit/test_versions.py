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
from kafka_eos_sink.commit.values import Decision, DecisionStatus, TaskOutcome
from kafka_eos_sink.commit.versions import MOST_RANGES, VersionRange, Versions
from kafka_eos_sink.errors import WriteRefusedError
from tests.model.scripted_cluster import BATCH, ScriptedCluster
from tests.runs import run_of

pytestmark = pytest.mark.feature("versions in any order")
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


def test_a_hundred_thousand_versions_in_a_row_take_one_range() -> None:
    found = Versions()
    for version in range(100_000):
        found = found.adding(version)
    assert found == Versions((VersionRange(0, 99_999),))


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


def test_each_version_is_written_once_in_any_order() -> None:
    job = Job()
    order = [7, 3, 9, 8, 3, 1, 7, 2, 9]
    written = [version for version in order if job.run(version) is not None]
    assert written == [7, 3, 9, 8, 1, 2]
    assert job.cluster.newest().written_versions == Versions((VersionRange(1, 3), VersionRange(7, 9)))
    assert job.cluster.warnings == [
        line for version in (3, 7, 9) for line in job.cluster.warnings if line.startswith(f"version {version} of write")
    ]


def test_rollback_option_of_a_batch_job_is_warned_of() -> None:
    job = Job()
    assert job.run(1, on_checkpoint_rollback="rewrite") is not None
    assert job.run(1, on_checkpoint_rollback="rewrite") is None
    without_effect = [line for line in job.cluster.warnings if "has no effect on a batch job" in line]
    assert len(without_effect) == 2
    job.run(2, on_checkpoint_rollback="fail")
    query = Job()
    query.run(1, on_checkpoint_rollback="rewrite", foreach_query="q", foreach_call="call")
    assert len([*job.cluster.warnings, *query.cluster.warnings]) == 3, "two of the option, one of the skip"


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


def test_void_version_leaves_the_set() -> None:
    job = Job()
    job.run(4)
    found = job.cluster.plan("n").decisions[0]
    void = replace(found.decision, version=6, nonce="m~1", versions=Versions.up_to(6).without(6))
    plan = replace(job.cluster.plan("m"), decisions=(replace(found, decision=void, status=DecisionStatus.VOID),))
    assert admit(plan, replace(BATCH, version=6)) == (None, None)
    assert admit(plan, replace(BATCH, version=5))[0] is SKIP


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


def test_rollback_option_does_not_rule_a_batch_job() -> None:
    job = Job()
    job.run(5)
    for choice in ("skip", "rewrite", "fail"):
        assert job.run(5, on_checkpoint_rollback=choice) is None
    assert job.run(3, on_checkpoint_rollback="skip") is not None


@pytest.mark.parametrize("rollback", ["rewrite", "skip"])
def test_foreach_batch_needs_no_set(monkeypatch: pytest.MonkeyPatch, rollback: str) -> None:
    """A function that writes every other batch may be rolled back, however many batches there were."""
    monkeypatch.setattr(versions, "MOST_RANGES", 2)
    job = Job()
    for version in (0, 2, 4, 6):
        job.run(version, foreach_query="q", foreach_call=str(version))
    # The planner does not know the query, and must not refuse before a task does.
    admit(job.cluster.plan("next"), replace(BATCH, version=1, on_checkpoint_rollback=rollback, foreach_query=None))


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
