"""`resolve` of a batch write, whose versions come in any order, on the simulated cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_eos_sink.commit import steps, versions
from kafka_eos_sink.commit.refusals import job_of
from kafka_eos_sink.commit.resolve import resolve
from kafka_eos_sink.commit.values import Resolution, ResolveRequest, Write
from kafka_eos_sink.commit.versions import VersionRange, Versions
from kafka_eos_sink.errors import DecisionPendingError, Job, KafkaEosError, WriteRefusedError
from tests.runs import run_of
from tests.unit.commit.test_resolve import Cluster, batch_of, unreachable


def written(cluster: Cluster, version: int, **changes: object) -> bool:
    """Whether a run of the version writes its rows."""
    nonce = f"n-{version}-{len(cluster.kafka.logs[0])}"
    batch = replace(
        batch_of(version=version), **{"streaming": False, "offsets_hash": None, "foreach_query": "", **changes}
    )
    plan = cluster.plan(nonce)
    message = cluster.attempt(plan, batch=batch)
    return cluster.commit([message], batch=batch) is not None


def refused(
    cluster: Cluster, resolution: Resolution, version: int, *, allow_duplicates: bool = False
) -> WriteRefusedError:
    """The error of a request that fences nobody."""
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE\].*Nothing was changed") as raised:
        cluster.resolve(resolution, version, "batch", allow_duplicates=allow_duplicates)
    assert not cluster.fenced
    return raised.value


@pytest.mark.parametrize("resolution", ["committed", "rewrite"])
def test_version_decided_before_the_newest_is_refused(resolution: Resolution) -> None:
    """The newest one was decided last, whatever its number is: the log has the transactions of this one alone."""
    cluster = Cluster()
    for version in (5, 3):
        assert written(cluster, version)
    error = refused(cluster, resolution, 5, allow_duplicates=resolution == "rewrite")
    assert (
        f"version 5 of write id 'w', query id 'batch', cannot be resolved as {resolution}: it is not the newest decided version, which is "
        "version 3, finished" in error.message
    )
    assert error.way_out.endswith(
        "to correct version 5, or to add rows that it lacks, write them with a new txnVersion"
    )
    cluster.resolve("rewrite", 3, allow_duplicates=True)
    assert [version for version in (3, 5) if written(cluster, version)] == [3]


def test_older_version_is_refused_while_the_newest_one_is_in_doubt() -> None:
    cluster = Cluster()

    def of_driver(step: steps.EndTransactions) -> object:
        return cluster.perform(step) if step.ends[0].identity.transactional_id == "w.driver" else unreachable(step)

    assert written(cluster, 5)
    # The decision ends, and then no coordinator of a task responds.
    cluster.own[steps.EndTransactions] = of_driver
    with pytest.raises(DecisionPendingError):
        written(cluster, 3)
    del cluster.own[steps.EndTransactions]
    for resolution, version in (("committed", 7), ("rewrite", 5)):
        error = refused(cluster, resolution, version, allow_duplicates=resolution == "rewrite")
        assert "which is version 3, decided and not finished" in error.message
    cluster.resolve("committed", 3)
    assert cluster.newest().written_versions == Versions((VersionRange(3, 3), VersionRange(5, 5)))


@pytest.mark.parametrize("query_id", ["5f1c", "Batch", ""])
def test_batch_write_has_one_query_id(query_id: str) -> None:
    """After a lost log, a mistyped one would count as written, and the job would stay refused or write twice."""
    write = Write("kafka-eos/night/t", "log", "--bootstrap-servers a:1")
    assert job_of(write.id) is Job.BATCH
    cluster = Cluster()
    before = cluster.kafka
    request = ResolveRequest(run=run_of("operator", write=write), query_id=query_id, version=7, resolution="committed")
    with pytest.raises(KafkaEosError, match=r"QUERY_ID_NEEDED\].*--query-id batch --version 7 --as committed"):
        cluster.run(resolve(request))
    assert cluster.kafka == before


def test_unwritten_version_below_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MOST_RANGES", 2)
    cluster = Cluster()
    for version in (1, 5, 9, 3):
        assert written(cluster, version)
    cluster.resolve("rewrite", 3, allow_duplicates=True)  # "its next run writes it"
    assert written(cluster, 11)
    assert refused(cluster, "rewrite", 3).way_out.endswith("with a new txnVersion, from 6 on")
    with pytest.raises(WriteRefusedError, match=r"VERSION_TOO_OLD\].*from 6 on"):
        written(cluster, 3)
