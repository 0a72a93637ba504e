"""Traces on which the data topics showed what the driver did not look at, kept like those of `test_kept_traces.py`."""

from __future__ import annotations

import pytest

from kafka_eos_sink.commit.operator.missing_markers import Verdict

from . import repairing
from . import simulated_cluster as kafka
from .repairing import DATA
from .scripted import Script, ends
from .settings import faults
from .simulated_cluster import LOG
from .test_kept_traces import ROW, TASK, repair, script

OTHER = DATA + 1
BOTH = {("row", "q", 0, 0), ("row", "q", 0, 1)}


def test_rows_discarded_while_commit_waits_are_not_committed() -> None:
    """A late AddPartitionsToTxn opens the committed transaction again, whose marker is missing in the data partition."""
    found = script(0, drivers=3, faults=faults(skip_marker=1, float=1, timeout=1, pause=9))
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
    found.happens("cluster", "pause")
    found.run(0, "commit")
    assert found.driver(0).phase != "committed" or found.rows == {ROW: 1}


def two_partitions(version: int, outcome: str, *, late: bool) -> Script:
    """One broker leads the commit log and one of the two data partitions; while it is down, both markers are omitted."""
    found = script(
        version,
        data_partitions=2,
        attempts=1,
        rows=lambda driver, batch: ((0, 1),),
        faults=faults(skip_marker=2, timeout=1, pause=20),
    )
    found.run(0, "plan")
    found.run(0, "task", 0)
    found.run(0, "commit", until=ends(TASK))
    found.held |= {(TASK, LOG), (TASK, OTHER)}
    if outcome == "committed":
        found.step(0, "commit")
    else:
        found.happens("cluster", "timeout", TASK)
    found.happens("cluster", "skip marker", TASK, LOG)
    found.happens("cluster", "skip marker", TASK, OTHER)
    found.held.clear()
    found.write_markers()
    if late:
        # A late attempt, which writes nothing because it is overtaken.
        cluster, _ = kafka.init_producer_id(found.cluster, TASK, 900_000)
        found.state = found.state._replace(cluster=found.world.cluster_number(cluster))
    return found


@pytest.mark.parametrize(("version", "late"), [(0, False), (0, True), (2, True)])
def test_part_that_one_partition_shows_aborted_is_copied(version: int, late: bool) -> None:
    found = two_partitions(version, "lost", late=late)
    found.happens("spark", "restart beside")
    found.run(1, "plan")
    assert found.driver(1).code == ""
    assert found.committed_rows == BOTH


@pytest.mark.parametrize("version", [0, 2])
def test_part_that_one_partition_shows_committed_awaits_repair(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(repairing.WHERE, OTHER, ("t", 1))
    found = two_partitions(version, "committed", late=True)
    found.happens("spark", "restart beside")
    found.run(1, "plan")
    (finding,) = [each for each in repair(found) if each.where == ("t", 1)]
    assert (found.driver(1).code, finding.verdict) == ("DECIDED_NOT_FINISHED", Verdict.MISSING), finding.reason


def test_aborted_part_is_not_called_committed_by_its_coordinator() -> None:
    """Somebody aborts the decided transaction. A late AddPartitionsToTxn opens it again under its epoch, and EndTxn commits nothing."""
    found = script(0, drivers=3, faults=faults(foreign_abort=1, float=1, pause=9))
    found.run(0, "plan")
    found.run(0, "task", 0, until=lambda request: request[0] == "add" and request[2] == DATA)
    found.step(0, "task", 0, verb="float")
    found.run(0, "task", 0)
    found.run(0, "commit", until=ends(TASK))
    found.happens("somebody", "aborts", TASK)
    found.write_markers()
    found.happens("network", "late")
    found.run(0, "commit")
    assert found.driver(0).phase != "committed" or found.rows == {ROW: 1}
