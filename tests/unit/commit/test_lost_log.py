"""A commit log that was deleted, or is another one, beside a write id that was used before (NEW LOG)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NoReturn

import pytest

from kafka_eos_sink.commit import log_standing, steps
from kafka_eos_sink.commit.forget import forget_write
from kafka_eos_sink.commit.log_standing import UnknownId
from kafka_eos_sink.commit.resolve import resolve
from kafka_eos_sink.commit.take_over import TakeOver, take_over
from kafka_eos_sink.commit.values import BatchIdentity, ResolveRequest
from kafka_eos_sink.commit.versions import Versions
from kafka_eos_sink.errors import BrokerUnavailableError, WriteRefusedError
from tests.model.scripted_cluster import BATCH, ScriptedCluster, written
from tests.model.simulated_cluster import Control, Data
from tests.runs import run_of
from tests.unit.commit.test_versions import Job

VERSIONS = pytest.mark.parametrize("version", [2, 0])
HISTORY = (log_standing.InHistory(version=7, finished_ms=1_700_000_000_000, application_id="app-7"),)


def lost(version: int = 2) -> ScriptedCluster:
    """A write id whose log was deleted after its first version."""
    cluster, messages = written(version=version)
    cluster.commit(messages)
    cluster.delete_log()
    return cluster


@VERSIONS
def test_plan_on_a_lost_log_is_refused_and_leaves_no_barrier(version: int) -> None:
    """Otherwise the second try would take the log for the write's own, and write all rows a second time."""
    cluster = lost(version)
    for _ in range(2):
        with pytest.raises(WriteRefusedError, match=r"COMMIT_LOG_LOST\].*its coordinator knows its driver"):
            cluster.plan("next")
    assert cluster.records("barrier") == []


@VERSIONS
@pytest.mark.parametrize("transactional", [True, False])
def test_log_copied_from_another_cluster_is_a_lost_log(version: int, transactional: bool) -> None:
    """A mirror writes the records as its own. They count for nothing, so they must not stand for a log that is there."""
    cluster, messages = written(version=version)
    cluster.commit(messages)
    log, *others = cluster.kafka.logs
    cluster.delete_log()
    copied = [
        each._replace(producer_id=77, producer_epoch=0, transactional=transactional)
        for each in log
        if isinstance(each, Data)
    ]
    marker = [Control(77, 0, commit=True)] if transactional else []
    cluster.kafka = cluster.kafka._replace(logs=((*copied, *marker), *others))
    for _ in range(2):
        with pytest.raises(WriteRefusedError, match=r"COMMIT_LOG_LOST\].*its coordinator knows its driver"):
            cluster.plan("next")
    request = ResolveRequest(run=run_of(version=version), query_id="batch", version=3, resolution="committed")
    cluster.run(resolve(request))
    assert cluster.attempt(cluster.plan("last")).prepared is None


@pytest.mark.parametrize("history", [HISTORY, ()])
@pytest.mark.parametrize("batch", [BATCH, replace(BATCH, query_id="q", version=8, streaming=True)])
def test_message_counts_rows_only_by_a_history(
    batch: BatchIdentity, history: tuple[log_standing.InHistory, ...]
) -> None:
    """Without an entry, `kafka-eos audit` fails with NO_HISTORY.

    The model reads no message. Mutations: the command is dropped, or shown always.
    """
    cluster = lost()
    cluster.history = history
    with pytest.raises(WriteRefusedError, match="COMMIT_LOG_LOST") as refused:
        cluster.run(take_over(TakeOver(run=run_of("next"), batch=batch)))
    assert ("kafka-eos audit --write-id" in refused.value.way_out) == bool(history)


@VERSIONS
def test_history_proves_it_once_the_coordinator_forgot_the_id(version: int) -> None:
    cluster = ScriptedCluster(version=version)
    cluster.history = HISTORY
    with pytest.raises(
        WriteRefusedError, match=r"COMMIT_LOG_LOST\].*the history shows version 7 \(finished 2023-11-14.*app-7"
    ) as refused:
        cluster.run(take_over(TakeOver(run=run_of("next", version=version), batch=BATCH)))
    assert "--version 7 --as committed --query-id batch" in refused.value.way_out
    assert cluster.records("barrier") == []


def test_forgotten_id_is_written_under_again() -> None:
    cluster, messages = written()
    cluster.commit(messages)
    cluster.history = HISTORY
    assert cluster.run(forget_write(run_of())) == 3
    assert cluster.plan("next").decisions == ()
    # The cleaner leaves only the barriers: there is nothing to forget.
    log, *others = cluster.kafka.logs
    barriers = tuple(each for each in log if isinstance(each, Data) and b"barrier" in each.key)
    cluster.kafka = cluster.kafka._replace(logs=(barriers, *others))
    with pytest.raises(WriteRefusedError, match="UNKNOWN_WRITE_ID"):
        cluster.run(forget_write(run_of()))


def test_resolution_and_recover_are_the_ways_on() -> None:
    cluster = lost()
    request = ResolveRequest(run=run_of(), query_id="batch", version=3, resolution="committed")
    cluster.run(resolve(request))
    (settled,) = cluster.plan("next").decisions
    assert settled.decision.written_versions == Versions.up_to(3)
    assert cluster.attempt(cluster.plan("again"), batch=replace(BATCH, version=2)).prepared is None

    cluster = lost()
    cluster.run(take_over(TakeOver(run=run_of(), unknown_id=UnknownId.ABORT)))
    assert cluster.plan("next").decisions == ()


@VERSIONS
def test_failed_resolution_does_not_hide_the_loss(version: int) -> None:
    """Otherwise the scheduler's next try begins from nothing, and writes the version a second time."""
    cluster = lost(version)

    def no_leader(_: steps.AppendInTransaction) -> NoReturn:
        raise BrokerUnavailableError("REQUEST_DEADLINE", "the commit log has no leader")

    cluster.own = {steps.AppendInTransaction: no_leader}
    request = ResolveRequest(run=run_of(version=version), query_id="batch", version=1, resolution="committed")
    for _ in range(2):
        with pytest.raises(BrokerUnavailableError):
            cluster.run(resolve(request))
        with pytest.raises(WriteRefusedError, match="COMMIT_LOG_LOST"):
            cluster.plan("next")
    cluster.own = {}
    cluster.run(resolve(request))
    assert cluster.plan("last").decisions[0].decision.version == 1


@VERSIONS
def test_end_of_what_a_lost_log_left_open_does_not_hide_the_loss(version: int) -> None:
    """NOT_THIS_COMMIT_LOG names this command; only the next error names the choice between resolve and a new begin."""
    cluster, messages = written(version=version)
    cluster.commit(messages)
    cluster.attempt(cluster.plan("killed"), batch=replace(BATCH, version=2))
    cluster.delete_log()
    with pytest.raises(WriteRefusedError, match="NOT_THIS_COMMIT_LOG"):
        cluster.plan("next")
    recover = TakeOver(run=run_of("operator", version=version), unknown_id=UnknownId.ABORT)
    cluster.run(take_over(recover))
    with pytest.raises(WriteRefusedError, match="COMMIT_LOG_LOST"):
        cluster.plan("next")
    # Nothing is open now: it begins from nothing.
    cluster.run(take_over(replace(recover, run=run_of("operator 2", version=version))))
    assert cluster.plan("next").decisions == ()


def test_version_is_proposed_only_by_a_whole_history() -> None:
    """The newest records may be those of a backfill, and versions above them would be written a second time."""
    cluster = ScriptedCluster()
    shown = log_standing.MOST_SHOWN
    cluster.history = tuple(replace(HISTORY[0], version=version) for version in range(shown, 0, -1))
    with pytest.raises(WriteRefusedError, match="COMMIT_LOG_LOST") as refused:
        cluster.run(take_over(TakeOver(run=run_of("next"), batch=BATCH)))
    assert "with its number as N" in refused.value.way_out
    assert "--version N --as committed" in refused.value.way_out


def test_command_after_a_lost_log_records_all_lower_versions() -> None:
    """Versions may be written in any order, so the topic may lack a lower one: its rows get a new version."""
    job = Job()
    for version in (7, 3):
        job.run(version)
    job.cluster.delete_log()
    job.cluster.history = HISTORY
    with pytest.raises(WriteRefusedError, match="COMMIT_LOG_LOST") as refused:
        job.cluster.run(take_over(TakeOver(run=run_of("next"), batch=replace(BATCH, version=5))))
    assert "find the highest version in the topic" in refused.value.way_out
    assert "write the rows of lower versions that the topic lacks with a new txnVersion; " in refused.value.way_out
    (command,) = re.findall(r"kafka-eos resolve [^;]*", refused.value.way_out)
    assert command.endswith(" --version 7 --as committed --query-id batch")
    job.cluster.run(resolve(ResolveRequest(run=run_of("op"), query_id="batch", version=7, resolution="committed")))
    assert [version for version in range(9) if job.run(version) is not None] == [8]
