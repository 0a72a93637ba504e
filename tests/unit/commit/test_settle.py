"""What the answers to EndTxn and the commit log prove of a transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_view import LoggedDecision, Outcome
from kafka_eos_sink.commit.proofs import outcomes_for_readers
from kafka_eos_sink.commit.settle import _sort_results, settle
from kafka_eos_sink.commit.steps import EndResult, Marker, MarkerType
from kafka_eos_sink.commit.values import Decision, PreparedTransaction
from kafka_eos_sink.commit.witnesses import outcomes_in_log
from kafka_eos_sink.errors import DecisionPendingError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.messages import EndTxnRequest
from kafka_eos_sink.protocol.reactions import REACTIONS, Reaction, reaction
from tests.unit.commit.scripted_world import PART, PREPARED, TASK, World


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


def witness(transaction_version: int, marker_epoch: int, kind: MarkerType) -> Outcome:
    """The log holds one marker of the producer id, behind where the part record of epoch 4 was."""
    decision = decided(transaction_version)
    (prepared,) = decision.transactions
    marker = Marker(offset=12, producer_id=10, producer_epoch=marker_epoch, type=kind)
    procedure = outcomes_in_log(LoggedDecision(decision, 10), [prepared], "nonce", 1_000)
    answer: Any = None
    while True:
        try:
            step = procedure.send(answer)
        except StopIteration as stop:
            (outcome,) = stop.value
            return Outcome(outcome)
        match step:
            case steps.DescribeTransactions():
                answer = {"w.0.0": None}
            case steps.Append():
                answer = 13
            case steps.ReadLog():
                answer = steps.LogChunk(entries=(marker,), next_offset=14, log_start_offset=0, end_offset=14)
            case steps.LogPolicy():
                answer = "compact"
            case _:
                answer = 0


@pytest.mark.parametrize(
    ("transaction_version", "epoch", "kind", "outcome"),
    [
        (2, 6, MarkerType.COMMIT, Outcome.ABORTED),  # a later transaction's: of ours nothing is left, so it was aborted
        (2, 5, MarkerType.COMMIT, Outcome.UNRESOLVED),  # ours, but the cleaner keeps committed records
        (2, 5, MarkerType.ABORT, Outcome.ABORTED),
        # Below version 2 a commit keeps its epoch, so this is a later one's.
        (0, 5, MarkerType.COMMIT, Outcome.ABORTED),
        (0, 4, MarkerType.COMMIT, Outcome.UNRESOLVED),
        (0, 5, MarkerType.ABORT, Outcome.ABORTED),
        (0, 6, MarkerType.ABORT, Outcome.ABORTED),
    ],
)
def test_cleaned_part_is_aborted_without_its_own_commit_marker(
    transaction_version: int, epoch: int, kind: MarkerType, outcome: Outcome
) -> None:
    assert witness(transaction_version, epoch, kind) is outcome


def test_transaction_that_joined_an_older_one_is_listed_as_aborted() -> None:
    """Nobody could see that before the decision, because Read was missing. It was granted since."""
    world = World(
        AbortedTransactions=lambda step: dict.fromkeys(step.ranges, ((TASK.producer_id, PART.first_offset - 5),))
    )
    outcomes = world.run(outcomes_for_readers(decided(), [PREPARED], [Outcome.ABORTED]))
    assert outcomes == [Outcome.ABORTED]


def test_range_behind_a_lagging_high_watermark_is_not_unresolved() -> None:
    """The leader is new and does not show the marker yet. Nothing has to be decided by a person."""
    world = World(
        AbortedTransactions=lambda step: dict.fromkeys(step.ranges, steps.Unseen.BLOCKED),
        AreCommitted=lambda _: (None,),
        DescribeProducers=lambda _: {("t", 0): {TASK.producer_id: (1, -1)}},
    )
    with pytest.raises(DecisionPendingError, match=r"DECIDED_NOT_FINISHED\]"):
        world.run(outcomes_for_readers(decided(), [PREPARED], [Outcome.OPEN]))


def test_short_delivery_timeout_leaves_time_for_proofs_of_readers() -> None:
    """The marker is missing in the commit log only. Every run would end before it looks at the data topics."""

    def nothing(step: steps.ReadLog) -> steps.LogChunk:
        world.now += 500
        return steps.LogChunk(entries=(), next_offset=step.offset, log_start_offset=0, end_offset=step.offset)

    world = World(
        AbortedTransactions=lambda step: dict.fromkeys(step.ranges, ()),
        EndTransactions=lambda _: (EndResult(error=0),),
        ReadLog=nothing,
    )
    found = LoggedDecision(replace(decided(), transactions=(PREPARED,)), 10)
    settled = world.run(settle(found, nonce="n", within_ms=8_000, recovering=True))
    assert (settled.lost, settled.proven, settled.marked) == ((), True, False)
