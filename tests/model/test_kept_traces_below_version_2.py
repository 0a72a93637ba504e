"""Traces that only transaction version 0 has, kept like those of `test_kept_traces.py`."""

from __future__ import annotations

from typing import Any

import pytest

from .scripted import DATA, Script, ends
from .settings import faults
from .simulated_cluster import LOG
from .test_kept_traces import ROW, TASK, script

OTHER = DATA + 1
BOTH = {("row", "q", 0, 0), ("row", "q", 0, 1)}


def decided_with_a_late_add(partition: int, **changes: Any) -> Script:
    """A decided batch before its EndTxn, with a copy of the task's AddPartitionsToTxn for a partition still in the network."""
    found = script(0, **changes)
    found.run(0, "plan")
    found.run(0, "task", 0, until=lambda request: request[0] == "add" and request[2] == partition)
    found.step(0, "task", 0, verb="float")
    found.run(0, "task", 0)
    found.run(0, "commit", until=ends(TASK))
    return found


def test_commit_of_a_transaction_that_was_opened_again_proves_nothing_of_rows_that_are_gone() -> None:
    """Somebody aborts it, and retention removes one range. A late request opens it again, and the driver commits only that."""
    found = decided_with_a_late_add(
        DATA,
        drivers=3,
        data_partitions=2,
        rows=lambda driver, version: ((0, 1),),
        faults=faults(foreign_abort=1, float=1, retain=1, pause=9),
        loud=frozenset({"UNRESOLVED"}),
    )
    found.happens("somebody", "aborts", TASK)
    found.write_markers()
    found.happens("cluster", "retain", DATA + 1)
    found.happens("network", "late")
    found.run(0, "commit")
    assert found.driver(0).code == "UNRESOLVED"
    assert found.rows == {}


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
