"""Proofs of single steps that still go wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.abort import abort
from kafka_eos_sink.commit.commit_log import decision_records
from kafka_eos_sink.commit.log_view import Outcome
from kafka_eos_sink.commit.prepared_transaction import Decision, PreparedTransaction
from kafka_eos_sink.commit.proofs import outcomes_for_readers
from kafka_eos_sink.commit.steps import AreCommitted, MarkerType
from kafka_eos_sink.commit.take_over import TakeOver
from tests.unit.commit.scripted_world import DRIVER, MESSAGE, PART, PLAN, PREPARED, TASK, World
from tests.unit.runtime.test_record_copier import LOST, Cluster, batch, changed, emptied, where

DECISION = Decision(
    write_id="w",
    query_id="batch",
    version=1,
    nonce="mine",
    driver=DRIVER,
    topic="t",
    schema="value string",
    offsets_hash=None,
    transactions=(PREPARED,),
)


def test_marker_that_the_cleaner_emptied_shows_no_end() -> None:
    """It was a COMMIT, whose records newer ones of their keys have replaced."""
    empty = changed(bytearray(emptied(101, 0)), attributes=0x30)
    cluster = Cluster(batch(100, b"a"), empty)
    assert cluster.copier.are_committed(AreCommitted(((LOST, where(100, 100)),))) == (None,)


def test_transaction_that_joined_an_older_one_is_listed_as_aborted() -> None:
    """Nobody could see that before the decision, because Read was missing. It was granted since."""
    world = World(
        AbortedTransactions=lambda step: dict.fromkeys(step.ranges, ((TASK.producer_id, PART.first_offset - 5),))
    )
    outcomes = world.run(outcomes_for_readers(DECISION, [PREPARED], [Outcome.ABORTED]))
    assert outcomes == [Outcome.ABORTED]


def test_range_behind_a_lagging_high_watermark_is_not_unresolved() -> None:
    """The leader is new and does not show the marker yet. Nothing has to be decided by a person."""
    other = replace(PART, partition=1)
    entry: PreparedTransaction = replace(PREPARED, offsets=(PART, other), rows=20)
    world = World(
        AbortedTransactions=lambda _: {PART: (), other: steps.Unseen.HELD},
        AreCommitted=lambda _: (None,),
        DescribeProducers=lambda _: {("t", 1): {TASK.producer_id: (1, -1)}},
    )
    with pytest.raises(Exception, match=r"DECIDED_NOT_FINISHED\]"):
        world.run(outcomes_for_readers(DECISION, [entry], [Outcome.OPEN]))


def test_abort_finishes_copies_whose_first_decision_was_cleaned() -> None:
    """Compaction keeps only the newest decision of a key."""
    copies = replace(DECISION, nonce="mine~1", driver=replace(DRIVER, producer_epoch=5))
    (record,) = decision_records(copies)
    fenced: list[Any] = []

    class Fenced(Exception):
        pass

    def init(step: steps.InitProducerId) -> Any:
        fenced.append(step)
        raise Fenced

    described = steps.TransactionDescription(
        state="CompleteCommit",
        producer_id=1,
        producer_epoch=6,
        timeout_ms=60_000,
        start_time_ms=0,
        partitions=frozenset(),
    )
    world = World(
        DescribeTransactions=lambda step: dict.fromkeys(step.transactional_ids, described),
        ListOpenTransactions=lambda _: (),
        InitProducerId=init,
    )
    world.log += [
        steps.ReadRecord(
            offset=25, producer_id=1, producer_epoch=5, transactional=True, key=record.key, value=record.value
        ),
        steps.Marker(offset=26, producer_id=1, producer_epoch=6, type=MarkerType.COMMIT),
        steps.ReadRecord(offset=30, producer_id=-1, producer_epoch=-1, transactional=False, key=b"[]", value=b""),
    ]
    with pytest.raises(Fenced):
        world.run(abort(TakeOver(write_id="w", nonce="b", transaction_timeout_ms=900_000), PLAN, [MESSAGE], 2))
    assert fenced, world.warnings
