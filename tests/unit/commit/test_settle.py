"""What settling a decision makes of the responses to EndTxn, the commit log and the data topics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_records import barrier_key, part_record
from kafka_eos_sink.commit.log_view import LoggedDecision
from kafka_eos_sink.commit.settle import PROOFS_WITHIN_MS, Settled, _sort_results, settle
from kafka_eos_sink.commit.steps import EndResult, Marker, MarkerType, ReadRecord
from kafka_eos_sink.commit.values import Decision, PreparedTransaction
from kafka_eos_sink.errors import DecisionPendingError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.messages import EndTxnRequest
from kafka_eos_sink.protocol.reactions import REACTIONS, Reaction, reaction
from tests.unit.commit.scripted_world import DRIVER, PART, PREPARED, TASK, World

BARRIER = 21
"""Offset of the barrier in the log of a transaction in doubt."""


def decided(transaction_version: int = 2) -> Decision:
    """A decision of one transaction, of epoch 4 and with its part record at offset 1."""
    identity = ProducerIdentity(
        transactional_id="w.0.0", producer_id=10, producer_epoch=4, transaction_version=transaction_version
    )
    prepared = PreparedTransaction(partition=0, identity=identity, part_offset=1, rows=1, offsets=())
    return Decision(
        write_id="w",
        query_id="batch",
        version=0,
        nonce="n",
        driver=identity,
        topic="t",
        schema="",
        offsets_hash=None,
        transactions=(prepared,),
    )


@pytest.mark.parametrize("code", [*ErrorCode, ErrorCode.of(9_999)], ids=lambda code: code.name)
def test_end_txn_responses_follow_the_reaction_table(code: ErrorCode) -> None:
    decision = decided()
    named = decision.transactions
    results = [EndResult(error=code.value)]
    if code is ErrorCode.NONE:
        assert _sort_results(decision, named, results) == ([*named], [])
    elif (EndTxnRequest, code) in REACTIONS and reaction(EndTxnRequest, code) is Reaction.UNKNOWN:
        assert _sort_results(decision, named, results) == ([], [*named])
    else:
        # Only a rejection with a row proves that the transaction is not open. Any other code leaves it to the next run.
        with pytest.raises(DecisionPendingError, match=rf"DECIDED_NOT_FINISHED\].*{code.name}"):
            _sort_results(decision, named, results)


def in_doubt(*, is_aborted: bool = False, **own: Any) -> World:
    """A world whose coordinator rejects the EndTxn of `PREPARED`; the log holds its part, and the ABORT marker if it is aborted."""
    world = World(
        **{
            "DescribeTransactions": lambda step: dict.fromkeys(step.transactional_ids),
            "EndTransactions": lambda step: tuple(
                EndResult(error=ErrorCode.INVALID_TXN_STATE.value) for _ in step.ends
            ),
            "LogPolicy": lambda _: "compact",
            "Append": lambda _: BARRIER,
            **own,
        }
    )
    part = part_record("w", "batch", 0, 0, 0)
    world.log = [
        ReadRecord(
            offset=PREPARED.part_offset,
            producer_id=TASK.producer_id,
            producer_epoch=TASK.producer_epoch,
            transactional=True,
            key=part.key,
            value=part.value,
        )
    ]
    if is_aborted:
        world.log.append(
            Marker(
                offset=BARRIER - 1,
                producer_id=TASK.producer_id,
                producer_epoch=TASK.producer_epoch + 1,
                type=MarkerType.ABORT,
            )
        )
    world.log.append(
        ReadRecord(
            offset=BARRIER,
            producer_id=-1,
            producer_epoch=-1,
            transactional=False,
            key=barrier_key("w"),
            value=b"{}",
        )
    )
    return world


def settled(world: World, prepared: PreparedTransaction = PREPARED, within_ms: int = PROOFS_WITHIN_MS) -> Settled:
    """What a new driver makes of a decision of one transaction."""
    found = LoggedDecision(replace(decided(), driver=DRIVER, transactions=(prepared,)), 10, world.log_id)
    result: Settled = world.run(settle(found, nonce="barrier", within_ms=within_ms, recovering=True))
    return result


def test_transaction_that_joined_an_older_one_is_aborted_with_it() -> None:
    """The list names the older one's first offset, below the range."""
    world = in_doubt(
        is_aborted=True,
        AbortedTransactions=lambda step: dict.fromkeys(step.ranges, ((TASK.producer_id, PART.first_offset - 5),)),
    )
    assert settled(world).lost == (PREPARED,)


def test_range_behind_a_lagging_high_watermark_is_not_unresolved() -> None:
    """The leader is new and does not show the marker yet. Nothing has to be decided by a person."""
    world = in_doubt(
        AbortedTransactions=lambda step: dict.fromkeys(step.ranges, steps.Unseen.BLOCKED),
        AreCommitted=lambda _: (None,),
        DescribeProducers=lambda _: {("t", 0): {TASK.producer_id: (1, -1)}},
    )
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\].*t-0 does not show how w\.0\.0 ended"):
        settled(world)


def test_committed_range_beside_an_aborted_one_is_unresolved() -> None:
    """A marker was written by hand. The message names the range whose rows readers see."""
    seen = replace(PART, partition=1)
    listed = {PART: ((TASK.producer_id, PART.first_offset),), seen: ()}
    world = in_doubt(is_aborted=True, AbortedTransactions=lambda _: listed)
    with pytest.raises(DecisionPendingError, match=r"UNRESOLVED\].*t-1 shows the records of w\.0\.0 from offset 10 on"):
        settled(world, replace(PREPARED, offsets=(PART, seen)))


@pytest.mark.parametrize("transaction_version", [2, 0])
def test_without_faults_only_end_txn_and_two_reads_are_sent(transaction_version: int) -> None:
    """Below version 2, one read_committed Fetch of the rows more, because of LATE ADD."""
    identity = replace(TASK, transaction_version=transaction_version)
    world = World(AbortedTransactions=lambda step: dict.fromkeys(step.ranges, ()))

    def end(step: steps.EndTransactions) -> tuple[EndResult, ...]:
        epoch = TASK.producer_epoch + identity.bumps_epoch
        world.log = [
            Marker(offset=5, producer_id=TASK.producer_id, producer_epoch=epoch, type=MarkerType.COMMIT),
        ]
        return (EndResult(error=0),)

    world.own["EndTransactions"] = end
    found = LoggedDecision(replace(decided(), transactions=(replace(PREPARED, identity=identity),)), 10, world.log_id)
    done = world.run(settle(found, nonce="n", within_ms=8_000, recovering=False))
    assert (done.lost, done.marked) == ((), True)
    sent = [type(step) for step in world.steps if not isinstance(step, (steps.Now, steps.WallClock, steps.Reached))]
    looks = [] if identity.bumps_epoch else [steps.AbortedTransactions]
    assert sent == [steps.EndTransactions, steps.LastStableOffsets, *looks, steps.ReadLog]


def test_short_delivery_timeout_leaves_time_for_proofs() -> None:
    """The marker is missing in the commit log only. Every run would end before it looks at the data topics."""

    def nothing(step: steps.ReadLog) -> steps.LogChunk:
        world.now += 500
        return steps.LogChunk(entries=(), next_offset=step.offset, log_start_offset=0, end_offset=step.offset)

    world = World(
        AbortedTransactions=lambda step: dict.fromkeys(step.ranges, ()),
        EndTransactions=lambda _: (EndResult(error=0),),
        ReadLog=nothing,
    )
    done = settled(world, within_ms=8_000)
    assert (done.lost, done.marked) == ((), False)
