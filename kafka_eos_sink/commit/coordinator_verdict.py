"""Derive a transaction's outcome from DescribeTransactions (epochs of KIP-890)."""

from __future__ import annotations

from enum import Enum

from kafka_eos_sink.commit.steps import TransactionDescription
from kafka_eos_sink.protocol.identity import ProducerIdentity


class CoordinatorVerdict(Enum):
    """The coordinator's proof about one transaction."""

    ENDING = "open, or its markers are to be written by the coordinator itself"
    COMMITTED = "complete, in a state that only its commit leaves"
    ABORTED = "complete, in a state that only its abort leaves"
    UNCLEAR = "its identity, in a state that does not prove how it ended"
    NO_LONGER_KNOWN = "the coordinator does not know the id, or the id is in another transaction"


def verdict_on(described: TransactionDescription | None, identity: ProducerIdentity) -> CoordinatorVerdict:
    """Return the coordinator's proof about exactly this transaction."""
    if described is None:
        return CoordinatorVerdict.NO_LONGER_KNOWN
    if described.is_of(identity) and (described.is_open or described.is_ending):
        return CoordinatorVerdict.ENDING
    # From version 2 on the coordinator bumps the epoch before it writes the markers.
    if described.is_of(identity, later=1) and described.is_ending:
        return CoordinatorVerdict.ENDING
    if described.is_of(identity, later=bump_of(identity)):
        ended = {"CompleteCommit": CoordinatorVerdict.COMMITTED, "CompleteAbort": CoordinatorVerdict.ABORTED}
        return ended.get(described.state, CoordinatorVerdict.UNCLEAR)
    return CoordinatorVerdict.UNCLEAR if described.is_of(identity) else CoordinatorVerdict.NO_LONGER_KNOWN


def bump_of(identity: ProducerIdentity) -> int:
    """Return by how much EndTxn raises the epoch: 1 from version 2 on (KIP-890)."""
    # Below version 2, only an abort by the coordinator itself, as after a timeout, raises the epoch.
    return 1 if identity.transaction_version >= 2 else 0
