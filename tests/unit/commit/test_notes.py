"""What a driver writes down of each range before a discard, and what later runs make of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.take_over import TakeOver, take_over
from kafka_eos_sink.commit.values import PreparedTransaction
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from tests.model import simulated_cluster as kafka
from tests.model.scripted_cluster import TIMEOUT_MS, ScriptedCluster
from tests.runs import run_of


def recovered(cluster: ScriptedCluster, nonce: str) -> str:
    """The status of the version after a further run, or the code of its error."""
    try:
        plan = cluster.run(take_over(TakeOver(run=run_of(nonce, version=cluster.kafka.version))))
    except KafkaEosError as failure:
        return failure.code
    (settled,) = plan.decisions
    return settled.status.name


def seen(cluster: ScriptedCluster) -> Mapping[object, int]:
    """How often read_committed consumers see each row."""
    found: dict[object, int] = {}
    for partition in range(1, len(cluster.kafka.logs)):
        ended = kafka.outcomes(cluster.kafka, partition)
        stable = kafka.last_stable_offset(cluster.kafka, partition)
        for offset, entry in enumerate(cluster.kafka.logs[partition][:stable]):
            if isinstance(entry, kafka.Data) and ended[offset]:
                found[entry.key] = found.get(entry.key, 0) + 1
    return found


def retention(cluster: ScriptedCluster, partition: int = 1) -> None:
    for offset, entry in enumerate(cluster.kafka.logs[partition]):
        if isinstance(entry, kafka.Data):
            cluster.change(partition, offset, gone=True)


def noted_and_dead(version: int, *, commit: bool = True) -> tuple[ScriptedCluster, PreparedTransaction]:
    """A transaction that has ended, and whose marker is missing, is noted; the driver dies before its discard."""
    cluster = ScriptedCluster(version=version)
    logged = cluster.decide([cluster.attempt(cluster.plan())])
    (named,) = logged.decision.transactions
    cluster.end_without_marker(named.identity, commit=commit, partition=1)

    def dies(step: steps.InitProducerId) -> object:
        if step.transactional_id == named.identity.transactional_id:
            raise BrokerUnavailableError("REQUEST_DEADLINE", "the driver dies here")
        return cluster.perform(step)

    cluster.own = {steps.InitProducerId: dies}
    assert recovered(cluster, "first") == "DECIDED_NOT_FINISHED"
    cluster.own.clear()
    assert [entry.ended for entry in cluster.newest().transactions] == ["aborted"]
    return cluster, named


def late_request(cluster: ScriptedCluster, named: PreparedTransaction) -> None:
    """A late AddPartitionsToTxn opens the transaction again (LATE ADD)."""
    identity = kafka.Identity(
        named.identity.transactional_id, named.identity.producer_id, named.identity.producer_epoch, 0
    )
    cluster.kafka, _ = kafka.add_partition(cluster.kafka, identity, 1)
    (transaction,) = [each for name, each in cluster.kafka.transactions if name == identity.transactional_id]
    assert transaction.state == kafka.ONGOING


def test_noted_transaction_without_its_part_record_is_left_to_kafkas_tool() -> None:
    """The cleaner removes an aborted part record. Without it, recover --discard ends nothing, and status prints Kafka's command."""
    cluster, named = noted_and_dead(2, commit=False)
    assert named.identity.producer_id in cluster.view().producer_ids
    cluster.change(kafka.LOG, named.part_offset, gone=True)
    assert cluster.view().producer_ids == set()


def test_late_request_after_a_note_does_not_block_the_next_runs() -> None:
    """Nobody commits a noted transaction any more, so the next run aborts what the request has opened."""
    cluster, named = noted_and_dead(version=0)
    late_request(cluster, named)
    assert recovered(cluster, "second") == "FINISHED"
    assert set(seen(cluster).values()) == {1}


def test_note_tells_that_nobody_saw_rows_that_are_gone() -> None:
    """They are removed after the note. The discard erases what the coordinator reports, so only the note shows that the version is void."""
    cluster, _ = noted_and_dead(version=2)
    retention(cluster)
    assert recovered(cluster, "second") == "VOID"


def test_note_of_a_replaced_leader_is_not_believed() -> None:
    """It does not get the COMMIT marker, which the new leader has, and readers there have seen the rows."""
    cluster = ScriptedCluster()
    logged = cluster.decide([cluster.attempt(cluster.plan())])
    before = cluster.kafka.logs[1]

    def outdated(step: steps.Step) -> object:
        now = cluster.kafka
        cluster.kafka = now._replace(logs=(now.logs[0], before))
        answer = cluster.perform(step)
        cluster.kafka = now
        return answer

    asked = steps.AbortedTransactions, steps.DescribeProducers, steps.LastStableOffsets, steps.AreCommitted
    cluster.own = dict.fromkeys(asked, outdated)
    assert recovered(cluster, "first") == "DECIDED_NOT_FINISHED"
    cluster.own.clear()
    assert [entry.ended for entry in cluster.newest().transactions] == ["aborted"]
    assert len(seen(cluster)) == logged.decision.transactions[0].rows
    retention(cluster)
    assert recovered(cluster, "second") == "UNRESOLVED"


@pytest.mark.parametrize("version", [2, 0])
def test_two_lost_entries_of_one_transaction_are_copied_under_two_ids(version: int) -> None:
    """Its ABORT marker is missing on one partition, and the other one's rows are gone for a while."""
    cluster = ScriptedCluster(partitions=2, version=version)
    (named,) = cluster.decide([cluster.attempt(cluster.plan(), into=(0, 1))]).decision.transactions
    cluster.end_without_marker(named.identity, commit=False, partition=1)
    if version == 2:
        # An attempt that goes no further erases the coordinator's report.
        cluster.perform(steps.InitProducerId(named.identity.transactional_id, TIMEOUT_MS))

    def gone(step: steps.AbortedTransactions) -> object:
        answer = dict(cluster.perform(step))
        return answer | {part: steps.Unseen.GONE for part in step.ranges if part.partition == 1}

    cluster.own = {steps.AbortedTransactions: gone}
    assert recovered(cluster, "first") == "UNRESOLVED"
    assert len(cluster.newest().transactions) == 2
    cluster.own.clear()  # another replica leads, which still has the records
    assert recovered(cluster, "second") == "FINISHED"
    assert len(seen(cluster)) == named.rows
    assert set(seen(cluster).values()) == {1}
