"""Finds and aborts the open transactions of a write id, which block its readers.

Rules (docs/internals/protocol.md, I11):

- Only ids that parse exactly belong to the write id.
- The driver reads producer id and epoch before the fence. PAUSE: an identity that is read later may belong to a newer driver.
- A transaction ends by EndTxn(abort) with exactly that identity. InitProducerId would abort whatever uses the id by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.steps import (
    DescribeTransactions,
    End,
    EndTransactions,
    ListOpenTransactions,
    TransactionDescription,
)
from kafka_eos_sink.commit.values import Run
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, ProducerIdentity

LIST_WITHIN_MS = 5_000
"""How long a driver waits for the list. A missed transaction blocks readers until the next list; no driver decides it."""


def list_open(run: Run, within_ms: int | None = None) -> Procedure[tuple[ProducerIdentity, ...]]:
    """Return the exact identities of the write's open transactions.

    Args:
        within_ms: As in `ListOpenTransactions`. By default all brokers must respond.
    """
    listed = yield from ListOpenTransactions(run.write.id, within_ms)
    ours = tuple(transactional_id for transactional_id in listed if run.write.parse(transactional_id) is not None)
    if not ours:
        return ()
    described = yield from DescribeTransactions(ours)
    return open_identities(described, run.transaction_version)


def open_identities(
    described: Mapping[str, TransactionDescription | None], transaction_version: int
) -> tuple[ProducerIdentity, ...]:
    """Return the identities of the open transactions among the described ones."""
    return tuple(
        ProducerIdentity(
            transactional_id=transactional_id,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            transaction_version=transaction_version,
        )
        for transactional_id, found in described.items()
        if found is not None and found.is_open
    )


def end_open(
    identities: Iterable[ProducerIdentity], decided: Collection[ProducerIdAndEpoch] = ()
) -> Procedure[tuple[ProducerIdentity, ...]]:
    """Abort what was open before the fence; return what is decided, and stays open.

    Args:
        decided: Producer id and epoch of the transactions in unfinished decisions. JOIN: another transaction of such an id may have joined
            a decided one. Its ABORT discards both, and recovery copies the decided rows.
    """
    left = tuple(each for each in identities if each.carrier in decided)
    # A rejected end means that the transaction ended meanwhile, or lives on under another identity, which the next list finds.
    if ends := tuple(End(identity=identity, commit=False) for identity in identities if identity not in left):
        yield from EndTransactions(ends)
    return left
