"""Traces on which the data topics showed what the driver did not look at, kept like those of `test_kept_traces.py`."""

from __future__ import annotations

import pytest

from . import simulated_cluster as kafka
from .scripted import DATA, Script, ends
from .settings import faults
from .simulated_cluster import LOG
from .test_kept_traces import ROW, TASK, script
from .test_kept_traces_below_version_2 import decided_with_a_late_add

OTHER = DATA + 1
BOTH = {("row", "q", 0, 0), ("row", "q", 0, 1)}


def test_rows_discarded_while_commit_waits_are_not_committed() -> None:
    """A late AddPartitionsToTxn opens the committed transaction again, whose marker is missing in the data partition."""
    found = decided_with_a_late_add(DATA, drivers=3, faults=faults(skip_marker=1, float=1, timeout=1, pause=9))
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
def test_range_that_hangs_beside_a_visible_one_is_copied(version: int) -> None:
    found = two_partitions(version, "committed", late=True)
    found.happens("spark", "restart beside")
    found.run(1, "plan")
    assert found.driver(1).code == ""
    assert (found.committed_rows, set(found.rows.values())) == (BOTH, {1})


def test_aborted_part_is_not_called_committed_by_its_coordinator() -> None:
    """Somebody aborts the decided transaction. A late AddPartitionsToTxn opens it again under its epoch, and EndTxn commits nothing."""
    found = decided_with_a_late_add(DATA, drivers=3, faults=faults(foreign_abort=1, float=1, pause=9))
    found.happens("somebody", "aborts", TASK)
    found.write_markers()
    found.happens("network", "late")
    found.run(0, "commit")
    assert found.driver(0).phase != "committed" or found.rows == {ROW: 1}


def test_rows_aborted_by_hand_behind_others_are_not_finished() -> None:
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
    """As above, but another program's open transaction blocks the readers."""
    found = decided_with_a_late_add(
        DATA, drivers=3, foreign=True, faults=faults(skip_marker=1, float=1, timeout=1, pause=9)
    )
    found.commit_without_marker(0, TASK, DATA)
    found.write_markers()
    found.happens("network", "late")
    found.happens("cluster", "timeout", TASK)
    found.write_markers()
    found.run(0, "commit")
    assert found.driver(0).phase != "committed" or ROW in found.committed_rows


def test_rows_discarded_within_a_second_are_not_committed() -> None:
    """A late AddPartitionsToTxn opens the committed transaction again. An attempt's InitProducerId aborts it at once."""
    found = decided_with_a_late_add(DATA, drivers=3, faults=faults(skip_marker=1, float=1, foreign_init=1, pause=9))
    found.commit_without_marker(0, TASK, DATA)
    found.write_markers()
    found.happens("network", "late")
    found.happens("somebody", "initialises", TASK)
    found.write_markers()
    found.run(0, "commit")
    assert found.driver(0).phase != "committed" or ROW in found.committed_rows


def test_part_reopened_in_the_log_only_is_not_committed() -> None:
    """Somebody aborts the decided transaction, its ABORT marker is missing in the commit log, and a late AddPartitionsToTxn for the commit
    log opens it again there: the commit log gets a COMMIT marker, and the data partition keeps the ABORT."""
    found = decided_with_a_late_add(LOG, drivers=3, faults=faults(foreign_abort=1, float=1, skip_marker=1, pause=9))
    found.held.add((TASK, LOG))
    found.happens("somebody", "aborts", TASK)
    found.happens("cluster", "skip marker", TASK, LOG)
    found.held.clear()
    found.write_markers()
    found.happens("network", "late")
    found.run(0, "commit")
    assert found.driver(0).phase != "committed" or ROW in found.committed_rows


def finished(found: Script) -> Script:
    """The commit, and if it fails, the abort and the next driver's plan."""
    found.run(0, "commit")
    if found.driver(0).phase != "committed":
        found.run(0, "abort")
        found.happens("spark", "restart")
        found.run(1, "plan")
        assert found.driver(1).code == ""
    return found


@pytest.mark.parametrize("reopened", [LOG, DATA], ids=["commit log", "data"])
def test_part_reopened_beside_what_hangs_has_each_row_once(reopened: int) -> None:
    """Somebody aborts the decided transaction. One broker omits its ABORT markers in the commit log and in one data partition. A late
    AddPartitionsToTxn opens the transaction again in the commit log or in the other data partition, so EndTxn(commit) finds it open, and
    its coordinator calls it committed. The other data partition has discarded its rows."""
    found = decided_with_a_late_add(
        reopened,
        drivers=3,
        data_partitions=2,
        rows=lambda driver, batch: ((0, 1),),
        faults=faults(foreign_abort=1, float=1, skip_marker=2, pause=20),
    )
    found.held |= {(TASK, LOG), (TASK, OTHER)}
    found.happens("somebody", "aborts", TASK)
    found.happens("cluster", "skip marker", TASK, LOG)
    found.happens("cluster", "skip marker", TASK, OTHER)
    found.held.clear()
    found.write_markers()
    found.happens("network", "late")
    assert finished(found).rows == dict.fromkeys(BOTH, 1)


def test_part_discarded_later_beside_what_hangs_has_each_row_once() -> None:
    """One broker omits the COMMIT markers of both data partitions. A late AddPartitionsToTxn opens the transaction again in one of them.
    Its timeout discards the rows there."""
    found = decided_with_a_late_add(
        DATA,
        drivers=3,
        data_partitions=2,
        rows=lambda driver, batch: ((0, 1),),
        faults=faults(timeout=1, float=1, skip_marker=2, pause=20),
    )
    found.held |= {(TASK, DATA), (TASK, OTHER)}
    found.step(0, "commit")
    found.happens("cluster", "skip marker", TASK, DATA)
    found.happens("cluster", "skip marker", TASK, OTHER)
    found.held.clear()
    found.write_markers()
    found.happens("network", "late")
    found.happens("cluster", "timeout", TASK)
    found.write_markers()
    assert finished(found).rows == dict.fromkeys(BOTH, 1)
