"""What a coordinator's answer to DescribeTransactions proves of one transaction, by producer id, epoch and state (KIP-890's epochs)."""

from __future__ import annotations

from enum import Enum

from kafka_eos_sink.commit.open_transactions import ONGOING, PREPARE_STATES
from kafka_eos_sink.commit.steps import TransactionDescription
from kafka_eos_sink.protocol.identity import ProducerIdentity


class Word(Enum):
    """What a coordinator says of one transaction."""

    ENDING = "open, or its markers are to be written by the coordinator itself"
    COMMITTED = "complete, as only its commit leaves the id"
    ABORTED = "complete, as only its abort leaves the id"
    UNCLEAR = "its identity, in a state that proves no end"
    GONE_ON = "forgotten, or on to another transaction: nothing of this one"


def word_on(described: TransactionDescription | None, identity: ProducerIdentity) -> Word:
    """What the coordinator of the identity's transactional id says of exactly this transaction."""
    if described is None:
        return Word.GONE_ON
    state, bump = described.state, bump_of(identity)
    if says(described, identity, 0) and state in (ONGOING, *PREPARE_STATES):
        return Word.ENDING
    if says(described, identity, 1) and state in PREPARE_STATES:
        return Word.ENDING
    if says(described, identity, bump):
        ended = {"CompleteCommit": Word.COMMITTED, "CompleteAbort": Word.ABORTED}
        return ended.get(state, Word.UNCLEAR)
    return Word.UNCLEAR if says(described, identity, 0) else Word.GONE_ON


def bump_of(identity: ProducerIdentity) -> int:
    """What an end adds to the epoch; below version 2 nothing for a commit, and for an abort that was asked for."""
    return 1 if identity.transaction_version >= 2 else 0


def says(described: TransactionDescription, identity: ProducerIdentity, later: int) -> bool:
    """Whether the coordinator names the identity, its epoch ``later`` higher."""
    return (described.producer_id, described.producer_epoch) == (
        identity.producer_id,
        identity.producer_epoch + later,
    )
