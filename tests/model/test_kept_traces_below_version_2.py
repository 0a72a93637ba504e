"""Traces that only transaction version 0 has, kept like those of `test_kept_traces.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from . import simulated_cluster as kafka
from .scripted import DATA, Script, ends
from .settings import faults
from .simulated_cluster import LOG
from .test_kept_traces import ROW, TASK, script


def decided_with_a_late_add(partition: int, **changes: Any) -> Script:
    """A decided batch before its EndTxn, with a copy of the task's AddPartitionsToTxn for a partition still in the network."""
    found = script(0, **changes)
    found.run(0, "plan")
    found.run(0, "task", 0, until=lambda request: request[0] == "add" and request[2] == partition)
    found.step(0, "task", 0, verb="float")
    found.run(0, "task", 0)
    found.run(0, "commit", until=ends(TASK))
    return found


@pytest.mark.parametrize("foreign", [False, True], ids=["readers pass", "others hold readers"])
def test_committed_part_behind_others_is_not_copied(foreign: bool) -> None:
    """A late request opens a committed transaction again whose marker in the log is missing, and its timeout leaves an ABORT there. While
    readers do not get to the rows, the partition's own marker tells."""
    found = decided_with_a_late_add(
        LOG, drivers=3, foreign=foreign, faults=faults(skip_marker=1, float=1, timeout=1, pause=9)
    )
    found.commit_without_marker(0, TASK, LOG)
    found.write_markers()
    assert ROW in found.committed_rows
    found.happens("network", "late")
    found.happens("cluster", "timeout", TASK)
    found.write_markers()
    found.happens("spark", "restart beside")
    found.run(1, "plan")
    assert found.driver(1).code == ""
    assert sum(outcome is True and entry.key == ROW for entry, outcome in data_of(found)) == 1


def data_of(found: Script) -> Iterator[tuple[kafka.Data, bool | None]]:
    """The records of the data partition, and whether they are committed."""
    for entry, outcome in zip(found.cluster.logs[DATA], kafka.outcomes(found.cluster, DATA), strict=True):
        if isinstance(entry, kafka.Data):
            yield entry, outcome


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
