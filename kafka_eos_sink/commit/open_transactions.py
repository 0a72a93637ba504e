"""Finding and ending the open transactions of a write id: nobody else does it, and they stop every reader.

Rules: ours are the ids that parse exactly; what is to be ended is pinned (producer id and epoch) before the fence, because
an identity read later could already belong to a newer driver; to end is EndTxn(abort) with exactly that identity,
never InitProducerId, which would hit whatever runs under the id by then (docs/protocol.md, I11).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafka_eos_sink.commit.steps import (
    DescribeTransactions,
    End,
    EndTransactions,
    ListOpenTransactions,
    Procedure,
    TransactionDescription,
)
from kafka_eos_sink.commit.transactional_id import parse
from kafka_eos_sink.protocol.identity import ProducerIdentity

ONGOING = "Ongoing"
FREE_STATES = ("Empty", "CompleteCommit", "CompleteAbort")
"""Coordinator states in which an id carries no transaction; every other one, known or not, is left alone."""
PREPARE_STATES = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


def identity_of(transactional_id: str, described: TransactionDescription, transaction_version: int) -> ProducerIdentity:
    return ProducerIdentity(
        transactional_id=transactional_id,
        producer_id=described.producer_id,
        producer_epoch=described.producer_epoch,
        transaction_version=transaction_version,
    )


def list_open(write_id: str, transaction_version: int) -> Procedure[tuple[ProducerIdentity, ...]]:
    """The exact identities of this write's Ongoing transactions, as they are before a fence."""
    listed: tuple[str, ...] = yield ListOpenTransactions(write_id)
    ours = tuple(transactional_id for transactional_id in listed if parse(transactional_id, write_id) is not None)
    return (yield from describe_open(ours, transaction_version))


def describe_open(
    transactional_ids: tuple[str, ...], transaction_version: int
) -> Procedure[tuple[ProducerIdentity, ...]]:
    if not transactional_ids:
        return ()
    described: Mapping[str, TransactionDescription | None] = yield DescribeTransactions(transactional_ids)
    return open_identities(described, transaction_version)


def open_identities(
    described: Mapping[str, TransactionDescription | None], transaction_version: int
) -> tuple[ProducerIdentity, ...]:
    return tuple(
        identity_of(transactional_id, found, transaction_version)
        for transactional_id, found in described.items()
        if found is not None and found.state == ONGOING
    )


def end_open(
    identities: Collection[ProducerIdentity], undecided_ids: Collection[str] = ()
) -> Procedure[tuple[ProducerIdentity, ...]]:
    """Abort what was open before the fence, but for `undecided_ids`: those of decisions that are not proven finished; what was left alone.

    Of these a transaction under a later epoch is left alone, too: where a marker of the decided one was passed over (KAFKA-20734) it has
    joined it, and its ABORT would discard committed records. A refusal means that it ended meanwhile or lives on under another
    identity: both are fine, the next list finds the latter.
    """
    ends = tuple(
        End(identity=identity, commit=False)
        for identity in identities
        if identity.transactional_id not in undecided_ids
    )
    if ends:
        yield EndTransactions(ends)
    return tuple(identity for identity in identities if identity.transactional_id in undecided_ids)
