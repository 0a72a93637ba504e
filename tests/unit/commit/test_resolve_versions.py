"""`resolve` of a batch write's version that is not the newest one, on the simulated cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_eos_sink.commit import steps, versions
from kafka_eos_sink.commit.refusals import job_of
from kafka_eos_sink.commit.resolve import resolve
from kafka_eos_sink.commit.values import Resolution, ResolveRequest, Write
from kafka_eos_sink.errors import DecisionPendingError, Job, KafkaEosError, TransactionAbortedError, WriteRefusedError
from tests.runs import run_of
from tests.unit.commit.test_resolve import Cluster, batch_of, unreachable

pytestmark = pytest.mark.feature("versions in any order")


def written(cluster: Cluster, version: int, **changes: object) -> bool:
    """Whether a run of the version writes its rows."""
    nonce = f"n-{version}-{len(cluster.kafka.logs[0])}"
    batch = replace(
        batch_of(version=version), **{"streaming": False, "offsets_hash": None, "foreach_query": "", **changes}
    )
    plan = cluster.plan(nonce)
    message = cluster.attempt(plan, batch=batch)
    return cluster.commit([message], batch=batch) is not None


def test_version_raised_after_a_lost_log() -> None:
    """The operator found version 5 in the topic first, and then 7."""
    cluster = Cluster()
    cluster.resolve("committed", 5, "batch")
    done = cluster.resolve("committed", 7, "batch")
    assert done.superseded is not None
    assert done.superseded.version == 5
    assert "the versions above 5 and below 7 do not count as written by it" in cluster.warnings[-1]
    assert not written(cluster, 7)
    assert not written(cluster, 4)
    assert written(cluster, 6)
    assert not written(cluster, 6)


def test_version_taken_out_after_a_lost_log() -> None:
    cluster = Cluster()
    cluster.resolve("committed", 7, "batch")
    with pytest.raises(WriteRefusedError, match=r"ROWS_ARE_VISIBLE\].*no longer shows its rows") as refused:
        cluster.resolve("rewrite", 3, "batch")
    assert not cluster.fenced
    assert "--query-id batch --version 3 --as rewrite --allow-duplicates" in refused.value.way_out
    cluster.resolve("rewrite", 3, "batch", allow_duplicates=True)
    # The newest decision is that of version 3 now, which no run has written.
    cluster.resolve("rewrite", 4, "batch", allow_duplicates=True)
    cluster.resolve("committed", 9, "batch")
    assert [version for version in range(11) if written(cluster, version)] == [3, 4, 8, 10]
    assert not any(written(cluster, version) for version in range(11))


@pytest.mark.parametrize(
    ("resolution", "version", "why"),
    [
        ("committed", 2, "version 2 needs no resolution, because its next run skips it"),
        ("rewrite", 4, "version 4 needs no resolution, because its next run writes it"),
    ],
)
def test_version_that_is_so_already_needs_no_resolution(resolution: Resolution, version: int, why: str) -> None:
    cluster = Cluster()
    for each in range(4):
        assert written(cluster, each)
    with pytest.raises(WriteRefusedError, match=rf"NOTHING_TO_RESOLVE\].*{why}"):
        cluster.resolve(resolution, version, "batch", allow_duplicates=resolution == "rewrite")
    assert not cluster.fenced


def test_other_version_waits_for_an_unfinished_newest_one() -> None:
    cluster = Cluster()

    def of_driver(step: steps.EndTransactions) -> object:
        return cluster.perform(step) if step.ends[0].identity.transactional_id == "w.driver" else unreachable(step)

    assert written(cluster, 2)
    # The decision ends, and then no coordinator of a task responds.
    cluster.own[steps.EndTransactions] = of_driver
    with pytest.raises(DecisionPendingError):
        written(cluster, 3)
    del cluster.own[steps.EndTransactions]
    for resolution, version in (("committed", 7), ("rewrite", 2)):
        with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE\].*first finish version 3: kafka-eos recover"):
            cluster.resolve(resolution, version, "batch", allow_duplicates=resolution == "rewrite")
    assert not cluster.fenced


def test_other_version_waits_for_what_is_open() -> None:
    cluster = Cluster()
    cluster.resolve("committed", 7, "batch")
    cluster.prepare(0, version=8)
    for resolution, version in (("committed", 9), ("rewrite", 2)):
        with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE\].*its job runs, or has died"):
            cluster.resolve(resolution, version, "batch", allow_duplicates=resolution == "rewrite")
    assert not cluster.fenced


def test_foreach_batch_takes_out_the_newest_version_only() -> None:
    """Above a version that is not written, the next batch of the query would be refused."""
    cluster = Cluster()
    for version in range(3):
        assert written(cluster, version, foreach_query="q", foreach_call=str(version))
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE\].*starts from a checkpoint before it"):
        cluster.resolve("rewrite", 1, "batch", allow_duplicates=True)
    assert not cluster.fenced
    cluster.resolve("committed", 4, "batch")
    assert not written(cluster, 4, foreach_query="q", foreach_call="new")
    assert written(cluster, 5, foreach_query="q", foreach_call="5")


def test_any_batch_leaves_open_which_query_continues() -> None:
    """Over Spark Connect a query cannot name itself, so it looks like another one."""
    cluster = Cluster()
    assert written(cluster, 0, foreach_query="q", foreach_call="0")
    with pytest.raises(WriteRefusedError, match=r"DIFFERENT_QUERY\].*--version 0 --as committed --any-batch"):
        written(cluster, 1)
    cluster.resolve("committed", 0, "batch", any_batch=True)
    assert written(cluster, 1)
    with pytest.raises(WriteRefusedError, match="DIFFERENT_QUERY"):
        written(cluster, 2, foreach_query="q", foreach_call="2")


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


def test_version_resolved_as_rewrite_is_given_up_with_a_warning() -> None:
    cluster = Cluster()
    decision = cluster.decided(0)
    cluster.end(decision.transactions[0].identity, commit=False)
    cluster.resolve("rewrite", 3)  # proven: no row of it is visible
    cluster.warnings.clear()
    cluster.resolve("committed", 3, any_batch=True)
    assert "was resolved as rewrite, and no run has written it since" in cluster.warnings[0]


def test_version_found_void_behind_another_newest_one() -> None:
    cluster = Cluster()
    cluster.resolve("committed", 2, "batch")

    def beside() -> None:
        decision = cluster.decided(0)  # version 3
        cluster.end(decision.transactions[0].identity, commit=False)
        cluster.steps.clear()

    cluster.before(steps.InitProducerId, beside)
    with pytest.raises((TransactionAbortedError, WriteRefusedError), match="void"):
        cluster.resolve("committed", 3, "batch")
    assert cluster.newest().resolution is None


def test_unwritten_version_below_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MOST_RANGES", 2)
    cluster = Cluster()
    for version in (1, 5, 9, 3):
        assert written(cluster, version)
    cluster.resolve("rewrite", 3, allow_duplicates=True)  # "its next run writes it"
    assert written(cluster, 11)
    with pytest.raises(WriteRefusedError) as refused:
        cluster.resolve("rewrite", 3, "batch", allow_duplicates=True)
    assert "write them with a txnVersion from 6 on that" in refused.value.way_out
    with pytest.raises(WriteRefusedError, match=r"VERSION_TOO_OLD\].*from 6 on"):
        written(cluster, 3)


def test_version_below_the_floor_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MOST_RANGES", 2)
    cluster = Cluster()
    for version in (4, 8, 12):
        assert written(cluster, version)
    with pytest.raises(WriteRefusedError, match=r"NOTHING_TO_RESOLVE\].*with a txnVersion from 5 on"):
        cluster.resolve("committed", 1, "batch")
    assert not cluster.fenced
