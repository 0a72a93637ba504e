"""Which transactions count as hanging, and which as discarded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_records import part_record
from kafka_eos_sink.commit.values import Run
from kafka_eos_sink.errors import AuthorizationError, BrokerUnavailableError
from kafka_eos_sink.operations.hanging import (
    DISCARD_WITHIN_MS,
    Found,
    HeldOpen,
    discard_attempts,
    discard_forgotten,
    find_hanging,
)
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.messages import ProducerState, WriteTxnMarkersRequest
from tests.model import simulated_cluster as kafka
from tests.model.performer import end_version, identity_of
from tests.model.scripted_cluster import ScriptedCluster, decided
from tests.runs import WRITE, run_of

T0, T1, T2 = ("t", 0), ("t", 1), ("t", 2)
BOTH = pytest.mark.parametrize("version", [0, 2], ids="transaction.version={}".format)
PATIENCE_MS = 60_000
SILENT = "no response). Run the command again when the brokers are back."


class Leaders:
    """The requests of an `Admin` to the leaders of a scripted cluster; ``first`` is called before each list of producers."""

    def __init__(self, cluster: ScriptedCluster, first: Callable[[], object] = lambda: None) -> None:
        self.cluster, self.first = cluster, first
        self.client = SimpleNamespace(clock=lambda: cluster.now, wait=self._wait)

    def _wait(self, delay_ms: int, _: int) -> None:
        self.cluster.now += delay_ms

    def topic(self, name: str, _: int) -> Any:
        count = len(self.cluster.kafka.logs) - 1 if name == "t" else WRITE.commit_log[1] + 1
        return SimpleNamespace(partitions=[SimpleNamespace(partition_index=each, leader_id=1) for each in range(count)])

    def describe_producers(
        self, partitions: Iterable[TopicPartition], _: int
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        self.first()
        return {where: tuple(self._producers(_log(where))) for where in partitions}

    def _producers(self, log: int) -> Iterable[ProducerState]:
        for producer_id, (start, _) in kafka.open_transactions(self.cluster.kafka, log).items():
            # A leader remembers the epoch of the last batch, also of one that joined.
            own = [each for each in self.cluster.kafka.logs[log] if each.producer_id == producer_id]
            yield ProducerState(
                producer_id=producer_id,
                producer_epoch=own[-1].producer_epoch,
                coordinator_epoch=0,
                current_txn_start_offset=start,
            )

    def write_txn_marker(self, marker: WriteTxnMarkersRequest.Marker, _: int) -> None:
        assert not marker.transaction_result
        (topic,) = marker.topics
        log = _log((topic.name, *topic.partition_indexes))
        self.cluster.kafka = kafka.write_marker_by_hand(self.cluster.kafka, log, marker.producer_id, False)


def _log(where: TopicPartition) -> int:
    return where[1] + 1 if where[0] == "t" else 0


def run_on(cluster: ScriptedCluster) -> Run:
    return run_of(version=cluster.kafka.version)


def found(cluster: ScriptedCluster, leaders: Any = None) -> Found:
    executor: Any = SimpleNamespace(run=cluster.run)
    return find_hanging(leaders or Leaders(cluster), executor, run_on(cluster), cluster.view(), PATIENCE_MS)


def discarded(cluster: ScriptedCluster, driver: ProducerIdentity) -> tuple[tuple[HeldOpen, ...], Found]:
    executor, leaders = SimpleNamespace(run=cluster.run), Leaders(cluster)
    given: Any = (leaders, executor, run_on(cluster), driver, cluster.view(), PATIENCE_MS)
    return discard_attempts(*given)


def hang(cluster: ScriptedCluster, name: str, *partitions: int, commit: bool = False) -> ProducerIdentity:
    """An attempt writes a row to each of these data partitions; its coordinator ends it and omits their markers."""
    identity: ProducerIdentity = cluster.perform(steps.InitProducerId(name, PATIENCE_MS))
    cluster.rows = [("hangs", 1 + each) for each in partitions]
    cluster.perform(steps.WriteRows(identity))
    cluster.perform(steps.AppendPart(identity, part_record("w", "batch", 0, 1, 5)))
    end_without_markers(cluster, identity, *partitions, commit=commit)
    return identity


def end_without_markers(
    cluster: ScriptedCluster, identity: ProducerIdentity, *partitions: int, commit: bool = False
) -> None:
    ended = identity_of(identity)
    cluster.kafka, _ = kafka.end_txn(cluster.kafka, ended, commit, end_version(ended))
    for each in partitions:
        cluster.kafka = kafka.write_marker(cluster.kafka, identity.transactional_id, 1 + each, skipped=True)
    cluster.write_markers()


def shown(held: Collection[HeldOpen]) -> list[tuple[str, TopicPartition, int, int | None, bool]]:
    return [(each.transactional_id, each.where, each.producer_epoch, each.version, each.is_forgotten) for each in held]


@BOTH
@pytest.mark.parametrize("is_taken", [False, True], ids=["forgotten", "another producer id"])
def test_attempt_that_joined_under_a_forgotten_id_is_discarded(version: int, is_taken: bool) -> None:
    """The leader shows the epoch of the attempt, which no decision lists, under the producer id of the decided transaction."""
    cluster, logged = decided(version=version)
    (entry,) = logged.decision.transactions
    name = entry.identity.transactional_id
    end_without_markers(cluster, entry.identity, 0, commit=True)
    assert shown(found(cluster).held) == [(name, T0, entry.identity.producer_epoch, 1, False)]
    late = hang(cluster, name, 0)
    assert shown(found(cluster).held) == [(name, T0, late.producer_epoch, 1, False)], "it holds decided rows"
    cluster.forget(name)
    if is_taken:
        cluster.open(name)
    before = found(cluster).held
    assert shown(before) == [(name, T0, late.producer_epoch, 1, True)]
    leaders: Any = Leaders(cluster)
    assert discard_forgotten(leaders, before, PATIENCE_MS) == before
    assert found(cluster).held == ()
    cluster.plan()
    assert [each for each in cluster.newest().transactions if each.identity.producer_id != entry.identity.producer_id]


@BOTH
def test_producer_of_another_program_in_a_decision_is_left_alone(version: int) -> None:
    cluster, logged = decided(version=version)
    (entry,) = logged.decision.transactions
    cluster.end(entry.identity, commit=True)
    end_without_markers(cluster, cluster.open("another-program"), 0)
    assert found(cluster) == Found()


@BOTH
@pytest.mark.parametrize("ends", [False, True], ids=["open", "has ended"])
def test_attempt_that_begins_during_the_search_does_not_hang(version: int, ends: bool) -> None:
    """Its coordinator was asked before it began, and the leader after that."""
    cluster, logged = decided(version=version)
    (entry,) = logged.decision.transactions
    cluster.end(entry.identity, commit=True)
    identity: ProducerIdentity = cluster.perform(steps.InitProducerId(entry.identity.transactional_id, 60_000))

    def write() -> None:
        cluster.rows = [("live", 1)]
        cluster.perform(steps.WriteRows(identity))

    class Racing(Leaders):
        def describe_producers(self, *given: Any) -> Any:
            held = super().describe_producers(*given)
            if ends and any(held.values()):
                cluster.end(identity, commit=False)
            return held

    leaders = Racing(cluster)
    calls = iter([write])
    leaders.first = lambda: next(calls, lambda: None)()
    assert found(cluster, leaders) == Found()


@BOTH
@pytest.mark.parametrize("omitted", [(), (1,), (0, 1)], ids=["none", "one", "all"])
def test_only_what_was_seen_to_end_counts_as_discarded(version: int, omitted: tuple[int, ...]) -> None:
    """The broker omits markers of the abort as well, although its coordinator accepts it."""
    cluster, logged = decided(partitions=2, version=version)
    for entry in logged.decision.transactions:
        cluster.end(entry.identity, commit=True)
    plan = cluster.plan()
    loser = hang(cluster, "w.0.5", 0, 1)

    def end(step: steps.EndTransactions) -> Any:
        (only,) = step.ends
        if not omitted:
            return cluster.perform(step)
        end_without_markers(cluster, only.identity, *omitted)
        return (steps.EndResult(error=0),)

    cluster.own[steps.EndTransactions] = end
    began = cluster.now
    ended, left = discarded(cluster, plan.driver)
    seen = [where for number, where in enumerate((T0, T1)) if number not in omitted]
    assert [(each.where, each.producer_epoch) for each in ended] == [(where, loser.producer_epoch) for where in seen]
    assert sorted(each.where for each in left.held) == [where for where in (T0, T1) if where not in seen]
    assert (cluster.now - began < DISCARD_WITHIN_MS) is (not omitted)


@pytest.mark.parametrize("how", ["its id expires", "its coordinator is slow"])
def test_attempt_that_was_not_seen_to_end_is_reported_as_hanging(how: str) -> None:
    """The last search does not find it: no decision lists its producer id, or its id is not free yet."""
    cluster, logged = decided()
    cluster.end(logged.decision.transactions[0].identity, commit=True)
    plan = cluster.plan()
    hang(cluster, "w.0.5", 0)

    def expire(step: steps.InitProducerId) -> Any:
        cluster.forget("w.0.5")
        return cluster.perform(step)

    def prepare(step: steps.EndTransactions) -> Any:
        (end,) = step.ends
        ended = identity_of(end.identity)
        cluster.kafka, _ = kafka.end_txn(cluster.kafka, ended, False, end_version(ended))
        return (steps.EndResult(error=0),)

    if how == "its id expires":
        cluster.own[steps.InitProducerId] = expire
    else:
        cluster.own[steps.EndTransactions] = prepare
        cluster.write_markers = lambda: None  # type: ignore[method-assign]
    ended, left = discarded(cluster, plan.driver)
    assert ended == ()
    assert [(each.transactional_id, each.where) for each in left.held] == [("w.0.5", T0)]


def test_partitions_that_could_not_be_asked_are_listed() -> None:
    """Another partition of the topic, and the other topic, are checked all the same."""
    cluster, logged = decided(partitions=3)
    for number, entry in enumerate(logged.decision.transactions):
        end_without_markers(cluster, entry.identity, number, commit=True)

    class Some(Leaders):
        def topic(self, name: str, deadline_ms: int) -> Any:
            if name != "t":
                raise AuthorizationError("TOPIC_AUTHORIZATION_FAILED", f"may not read {name}")
            leaders = enumerate((1, -1, 2))
            return SimpleNamespace(
                partitions=[SimpleNamespace(partition_index=each, leader_id=leader) for each, leader in leaders]
            )

        def describe_producers(self, partitions: Iterable[TopicPartition], deadline_ms: int) -> Any:
            if T2 in partitions:
                raise BrokerUnavailableError("REQUEST_DEADLINE", "broker 2 is down")
            return super().describe_producers(partitions, deadline_ms)

    seen = found(cluster, Some(cluster))
    assert [each.where for each in seen.held] == [T0]
    no_read = f"{WRITE.log_topic} (missing Read permission). Grant Read and run the command again."
    assert seen.not_checked == (f"t-1, t-2 ({SILENT}", no_read)
