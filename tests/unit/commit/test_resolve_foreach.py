"""Resolutions of versions that a `foreachBatch` function writes, on the simulated cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.errors import WriteRefusedError
from tests.unit.commit.test_resolve import Cluster, batch_of
from tests.unit.commit.test_resolve_versions import written as writes


def in_call(version: int) -> dict[str, Any]:
    return {"foreach_query": "q", "foreach_call": f"call {version}"}


def void(cluster: Cluster, version: int, **changes: Any) -> None:
    """A version that is decided, and then void: its transaction is aborted, and retention removes its rows."""
    batch = replace(batch_of(version=version), offsets_hash=None, **changes)
    logged = cluster.decide([cluster.attempt(cluster.plan(f"void {version}"), batch=batch)], batch=batch)
    cluster.end(logged.decision.transactions[0].identity, commit=False)
    cluster.plan(f"finds {version} void")
    assert cluster.newest().is_void


def test_nothing_is_recorded_above_a_void_version() -> None:
    """A stream is refused there: no run would write version 3 any more."""
    cluster = Cluster()
    for version in range(3):
        assert writes(cluster, version, **in_call(version))
    void(cluster, 3, **in_call(3))
    with pytest.raises(WriteRefusedError, match=r"EARLIER_VERSION_UNFINISHED"):
        writes(cluster, 4, **in_call(4))
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE.*which is version 3, void"):
        cluster.resolve("committed", 4, "batch")
    assert writes(cluster, 3, **in_call(3))


@pytest.mark.parametrize("settled", [False, True])
def test_committed_keeps_the_query_unless_it_was_finished_before(settled: bool) -> None:
    """Another query under the txnAppId would be skipped. Only the command of DIFFERENT_QUERY leaves open which query continues."""
    cluster = Cluster()
    void(cluster, 0, **in_call(0))
    cluster.resolve("committed", 0)
    if settled:
        cluster.resolve("committed", 0)
        assert writes(cluster, 1)
    else:
        with pytest.raises(WriteRefusedError, match=r"DIFFERENT_QUERY\].*--version 0 --as committed; otherwise"):
            writes(cluster, 1)
