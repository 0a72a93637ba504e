"""Failing traces: what the last mends leave out."""

from __future__ import annotations

import pytest

from kafka_eos_sink.commit import proofs
from kafka_eos_sink.commit.operator.missing_markers import Verdict

from . import repairing
from .repairing import DATA
from .scripted import ends
from .settings import faults
from .simulated_cluster import LOG
from .test_kept_traces import ROW, TASK, repair, script


def test_rows_aborted_by_hand_behind_blocked_readers_are_not_called_finished() -> None:
    """The driver dies behind its decision, somebody aborts the hanging transaction in the data partition by hand, and another program's
    open transaction blocks the readers there."""
    found = script(2, foreign=True, restart="crash", faults=faults(hand_marker=1, pause=20))
    found.run(0, "plan")
    found.run(0, "task", 0)
    found.run(0, "commit", until=ends(TASK))
    found.happens("spark", "crash and restart")
    found.happens("somebody", "marks", TASK, DATA)
    found.run(1, "plan")
    assert found.driver(1).code != "" or ROW in found.committed_rows


def test_rows_discarded_behind_blocked_readers_are_not_committed() -> None:
    """As in test_kept_traces_of_data_topics, but another program's open transaction blocks the readers."""
    found = script(0, drivers=3, foreign=True, faults=faults(skip_marker=1, float=1, timeout=1, pause=9))
    found.run(0, "plan")
    found.run(0, "task", 0, until=lambda request: request[0] == "add" and request[2] == DATA)
    found.step(0, "task", 0, verb="float")
    found.run(0, "task", 0)
    found.run(0, "commit", until=ends(TASK))
    found.commit_without_marker(0, TASK, DATA)
    found.write_markers()
    found.happens("network", "late")
    found.happens("cluster", "timeout", TASK)
    found.write_markers()
    found.run(0, "commit")
    assert found.driver(0).phase != "committed" or ROW in found.committed_rows


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model sets the time to 0, so that it never passes over the check of a late commit."""
    monkeypatch.setattr(proofs, "HOLDERS_AFTER_MS", 1_000)


@pytest.mark.usefixtures("second")
def test_rows_discarded_within_a_second_are_not_committed() -> None:
    """A late AddPartitionsToTxn opens the committed transaction again. An attempt's InitProducerId aborts it at once."""
    found = script(0, drivers=3, faults=faults(skip_marker=1, float=1, foreign_init=1, pause=9))
    found.run(0, "plan")
    found.run(0, "task", 0, until=lambda request: request[0] == "add" and request[2] == DATA)
    found.step(0, "task", 0, verb="float")
    found.run(0, "task", 0)
    found.run(0, "commit", until=ends(TASK))
    found.commit_without_marker(0, TASK, DATA)
    found.write_markers()
    found.happens("network", "late")
    found.happens("somebody", "initialises", TASK)
    found.write_markers()
    found.run(0, "commit")
    assert found.driver(0).phase != "committed" or ROW in found.committed_rows


@pytest.mark.usefixtures("second")
def test_part_reopened_in_the_log_only_is_not_committed() -> None:
    """Somebody aborts the decided transaction, its ABORT marker is missing in the commit log, and a late AddPartitionsToTxn for the commit
    log opens it again there: the commit log gets a COMMIT marker, and the data partition keeps the ABORT."""
    found = script(0, drivers=3, faults=faults(foreign_abort=1, float=1, skip_marker=1, pause=9))
    found.run(0, "plan")
    found.run(0, "task", 0, until=lambda request: request[0] == "add" and request[2] == LOG)
    found.step(0, "task", 0, verb="float")
    found.run(0, "task", 0)
    found.run(0, "commit", until=ends(TASK))
    found.held.add((TASK, LOG))
    found.happens("somebody", "aborts", TASK)
    found.happens("cluster", "skip marker", TASK, LOG)
    found.held.clear()
    found.write_markers()
    found.happens("network", "late")
    found.run(0, "commit")
    assert found.driver(0).phase != "committed" or ROW in found.committed_rows


def test_repair_commits_nothing_of_a_part_that_a_partition_shows_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody aborts the decided transaction. One broker omits its ABORT markers in the commit log and in one data partition. A late
    AddPartitionsToTxn opens the transaction again in the other one, so EndTxn(commit) finds it open, and its coordinator calls it
    committed. The other partition has discarded its rows: a COMMIT marker here shows readers a half of the transaction."""
    other = DATA + 1
    monkeypatch.setitem(repairing.WHERE, other, ("t", 1))
    found = script(
        0,
        drivers=3,
        data_partitions=2,
        rows=lambda driver, batch: ((0, 1),),
        faults=faults(foreign_abort=1, float=1, skip_marker=2, pause=20),
    )
    found.run(0, "plan")
    found.run(0, "task", 0, until=lambda request: request[0] == "add" and request[2] == DATA)
    found.step(0, "task", 0, verb="float")
    found.run(0, "task", 0)
    found.run(0, "commit", until=ends(TASK))
    found.held |= {(TASK, LOG), (TASK, other)}
    found.happens("somebody", "aborts", TASK)
    found.happens("cluster", "skip marker", TASK, LOG)
    found.happens("cluster", "skip marker", TASK, other)
    found.held.clear()
    found.write_markers()
    found.happens("network", "late")
    found.run(0, "commit")
    assert found.driver(0).code == "DECIDED_NOT_FINISHED"
    verdicts = {each.where: each.verdict for each in repair(found)}
    assert verdicts[("t", 1)] is Verdict.UNPROVEN
