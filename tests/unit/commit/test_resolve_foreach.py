"""Resolutions of versions that a `foreachBatch` function writes, on the simulated cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.errors import WriteRefusedError
from tests.unit.commit.test_resolve import Cluster, batch_of
from tests.unit.commit.test_resolve_versions import written as writes

pytestmark = pytest.mark.feature("versions in any order")


def in_call(version: int) -> dict[str, Any]:
    return {"foreach_query": "q", "foreach_call": f"call {version}"}


def void(cluster: Cluster, version: int, **changes: Any) -> None:
    """A version that is decided, and then void: its transaction is aborted, and retention removes its rows."""
    batch = replace(batch_of(version=version), offsets_hash=None, **changes)
    logged = cluster.decide([cluster.attempt(cluster.plan(f"void {version}"), batch=batch)], batch=batch)
    cluster.end(logged.decision.transactions[0].identity, commit=False)
    cluster.plan(f"finds {version} void")
    assert cluster.newest().is_void


def test_version_below_another_resolution() -> None:
    cluster = Cluster()
    for version in range(4):
        assert writes(cluster, version, **in_call(version))
    cluster.resolve("committed", 10, "batch")
    cluster.resolve("committed", 7, "batch")
    with pytest.raises(WriteRefusedError, match=r"CHECKPOINT_ROLLED_BACK"):
        writes(cluster, 10, **in_call(10))


def test_version_given_up_leaves_the_ones_above() -> None:
    """Only commands that the errors name."""
    cluster = Cluster()
    cluster.resolve("committed", 10, "batch")  # COMMIT_LOG_LOST's way out
    cluster.resolve("rewrite", 3, "batch", allow_duplicates=True)  # a version recorded by mistake
    with pytest.raises(WriteRefusedError, match=r"EARLIER_VERSION_UNFINISHED\].*--version 3 --as committed"):
        writes(cluster, 11, **in_call(11))
    cluster.resolve("committed", 3)
    # Batch 10 runs again after a crash between commit and checkpoint. It counts as written.
    with pytest.raises(WriteRefusedError, match=r"CHECKPOINT_ROLLED_BACK.*batch 10 of"):
        writes(cluster, 10, **in_call(10))


def test_version_written_again_leaves_the_ones_above() -> None:
    cluster = Cluster()
    cluster.resolve("committed", 10, "batch")
    cluster.resolve("rewrite", 3, "batch", allow_duplicates=True)
    assert writes(cluster, 3, **in_call(3))
    with pytest.raises(WriteRefusedError, match=r"CHECKPOINT_ROLLED_BACK.*batch 10 of"):
        writes(cluster, 4, **in_call(4))


def test_query_gets_its_name_later() -> None:
    """Spark Connect (no task sees the query) first, then classic Spark, with the command of DIFFERENT_QUERY."""
    cluster = Cluster()
    for version in range(6):
        assert writes(cluster, version)
    cluster.resolve("rewrite", 2, "batch", allow_duplicates=True)
    assert writes(cluster, 2)
    with pytest.raises(WriteRefusedError, match=r"DIFFERENT_QUERY\].*--version 2 --as committed --any-batch"):
        writes(cluster, 5, **in_call(5))
    cluster.resolve("committed", 2, any_batch=True)
    with pytest.raises(WriteRefusedError, match=r"CHECKPOINT_ROLLED_BACK.*batch 5 of"):
        writes(cluster, 5, **in_call(5))


def test_unwritten_version_of_another_query_stays_unwritten() -> None:
    cluster = Cluster()
    for version in range(3):
        assert writes(cluster, version, **in_call(version))
    void(cluster, 3, **in_call(3))
    cluster.resolve("rewrite", 3)  # proven: no row of it is visible
    with pytest.raises(WriteRefusedError, match="DIFFERENT_QUERY") as refused:
        writes(cluster, 3)  # the same query in an unwrapped thread
    assert "--version 3 --as rewrite --any-batch" in refused.value.way_out
    cluster.resolve("rewrite", 3, any_batch=True)
    assert writes(cluster, 3)


def test_nothing_is_recorded_above_a_void_version() -> None:
    """A stream is refused there: no run would write version 3 any more."""
    cluster = Cluster()
    for version in range(3):
        assert writes(cluster, version, **in_call(version))
    void(cluster, 3, **in_call(3))
    with pytest.raises(WriteRefusedError, match=r"EARLIER_VERSION_UNFINISHED"):
        writes(cluster, 4, **in_call(4))
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE.*which writes version 3"):
        cluster.resolve("committed", 4, "batch")
    assert writes(cluster, 3, **in_call(3))


def test_any_batch_of_a_resolved_version_lets_a_job_go_on() -> None:
    cluster = Cluster()
    assert writes(cluster, 0, **in_call(0))
    cluster.resolve("committed", 4, "batch")
    with pytest.raises(WriteRefusedError, match=r"DIFFERENT_QUERY\].*--version 4 --as committed --any-batch"):
        writes(cluster, 5)
    cluster.resolve("committed", 4, any_batch=True)
    assert writes(cluster, 5)
