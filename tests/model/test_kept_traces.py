"""Traces on which the protocol once went wrong, or nearly: each step chosen by hand, in both transaction versions."""

from __future__ import annotations

from typing import Any

import pytest

from .exhausted import UNRESOLVABLE, one_row
from .scripted import DATA, Script, ends, is_open
from .settings import Setting, faults
from .simulated_cluster import LOG

ROW = ("row", "q", 0, 0)
TASK, DRIVER = "w.0.0", "w.driver"

pytestmark = pytest.mark.parametrize("version", [2, 0], ids=["tv2", "tv0"])


def script(version: int, **changes: Any) -> Script:
    return Script(
        Setting(**{"name": "kept", "version": version, "drivers": 4, "rows": one_row, "loud": UNRESOLVABLE, **changes})
    )


def decided_without_marker(version: int, queries: str) -> Script:
    found = script(
        version,
        faults=faults(skip_marker=1, pause=9),
        query_id=lambda driver: queries[driver % len(queries)],
        start_version=lambda driver: 0,
        attempts=1,
    )
    found.run(0, "plan")
    found.run(0, "task", 0)
    found.run(0, "commit", until=ends(DRIVER))
    return found


def test_later_transactions_marker_does_not_block_the_write_id(version: int) -> None:
    """The older driver decides between the look and the fence of the next one, and its marker is missing."""
    found = decided_without_marker(version, "ab")
    found.happens("spark", "restart beside")
    found.run(1, "plan", until=lambda request: request[0] == "init")
    found.commit_without_marker(0, DRIVER, LOG)
    found.run(1, "plan")
    found.run(1, "task", 0)
    found.run(1, "commit")
    assert found.driver(1).phase == "committed"
    found.happens("spark", "record", 1)
    found.run(0, "commit")
    found.run(0, "abort")
    found.happens("spark", "restart")
    found.run(2, "plan")
    found.run(2, "task", 0)
    found.run(2, "commit")
    assert found.driver(2).phase == "committed"
    assert found.rows == {("row", query, 0, 0): 1 for query in "ab"}


def until_init(transactional_id: str) -> Any:
    return lambda request: request[0] == "init" and request[1] == transactional_id


def test_older_driver_that_copies_discards_no_committed_rows(version: int) -> None:
    """It used to join a newer driver's committed transaction, whose marker is missing, and to abort it when its decision was refused."""
    found = script(
        version,
        batches=2,
        attempts=2,
        same_slot=False,
        faults=faults(timeout=1, skip_marker=1, speculate=1, pause=9),
    )
    found.run(0, "plan")
    found.run(0, "task", 0)
    found.run(0, "commit", until=ends(TASK))
    found.happens("cluster", "timeout", TASK)
    found.write_markers()
    # Driver 1 has seen that w.0.1 is free, and pauses. Driver 2 copies the batch and commits the next one under w.0.1.
    found.happens("spark", "restart beside")
    found.run(1, "plan", until=until_init("w.0.1"))
    found.happens("spark", "restart beside")
    found.run(2, "plan")
    while found.is_alive(2, "task"):
        found.run(2, "task")
    found.run(2, "commit")
    found.happens("spark", "record", 2)
    assert found.rows == {ROW: 1}
    found.run(2, "plan")
    found.happens("spark", "speculate")
    found.run(2, "task", 1)
    found.run(2, "commit", until=ends("w.0.1"))
    found.commit_without_marker(2, "w.0.1", DATA)
    found.write_markers()
    found.run(1, "plan")
    assert (found.driver(1).phase, found.driver(1).code) == ("failed", "DECIDED_NOT_FINISHED")
    assert found.committed_rows == {ROW}, "the row of batch 1 is not visible yet, and not discarded"
    found.run(2, "commit")
    assert found.driver(2).phase == "committed", "what hangs is discarded and copied"
    assert found.rows == {ROW: 1, ("row", "q", 1, 0): 1}


@pytest.mark.parametrize("copied", [False, True], ids=["no copies", "copies"])
def test_abort_finishes_what_its_commit_has_decided(version: int, copied: bool) -> None:
    """After a decision of copies it used to take its own driver for a newer one."""
    found = script(version, faults=faults(timeout=1, unavailable=1))
    found.run(0, "plan")
    found.run(0, "task", 0)
    found.run(0, "commit", until=ends(TASK))
    if copied:
        found.happens("cluster", "timeout", TASK)
        found.write_markers()
        found.run(0, "commit", until=ends("w.0.1"))
    found.step(0, "commit", verb="no answer")
    found.run(0, "commit")
    assert (found.driver(0).phase, found.driver(0).code) == ("abort", "DECIDED_NOT_FINISHED")
    found.run(0, "abort")
    assert not is_open(found, "w.0.1")
    assert found.rows == {ROW: 1}


def test_decision_of_another_query_ends_one_without_marker(version: int) -> None:
    """Its COMMIT does, for the cleaner only: the last decision of the first query was gone, and its stream was refused."""
    found = script(
        version,
        batches=2,
        drivers=3,
        attempts=1,
        restart="failed",
        query_id=lambda driver: "ab"[driver % 2],
        start_version=lambda driver: driver // 2,
        faults=faults(skip_marker=1, compact=1, pause=9),
    )
    found.run(0, "plan")
    found.run(0, "task")
    found.run(0, "commit")
    found.happens("spark", "record", 0)
    found.run(0, "plan")
    found.run(0, "task")
    found.run(0, "commit", until=ends(DRIVER))
    found.commit_without_marker(0, DRIVER, LOG)
    for kind in ("commit", "abort", "sweep"):
        found.run(0, kind)
    assert found.driver(0).code == "DECISION_UNKNOWN"
    for driver in (1, 2):
        found.happens("spark", "restart")
        for kind in ("plan", "task", "commit"):
            found.run(driver, kind)
        found.happens("spark", "record", driver)
        if driver == 1:
            for kind in ("plan", "task", "commit"):
                found.run(driver, kind)
            found.happens("spark", "record", driver)
            found.happens("cluster", "compact", "no")
    assert found.rows == {("row", query, batch, 0): 1 for query in "ab" for batch in (0, 1)}
