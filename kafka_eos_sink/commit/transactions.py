"""The transactions of a write id: list, end, begin; and who holds its driver's id.

Rules (docs/internals/protocol.md, I11):

- Only ids that parse exactly belong to the write id.
- The driver reads producer id and epoch before the fence. PAUSE: an identity that is read later may belong to a newer driver.
- A transaction ends by EndTxn(abort) with exactly that identity. InitProducerId would abort whatever uses the id by then.
- A newer driver fences an older one by InitProducerId of ``W.driver``. The coordinator's state of this id shows whether a driver still
  holds the write id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from kafka_eos_sink.commit import outcome
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.steps import (
    DescribeTransactions,
    End,
    EndTransactions,
    InitProducerId,
    ListOpenTransactions,
    Now,
    Procedure,
    TransactionDescription,
    Wait,
    WrittenRows,
)
from kafka_eos_sink.commit.values import Plan, PreparedTransaction, Run, Write
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, ProducerIdentity

SLOT_DEADLINE_MS = 60_000
SLOT_POLL_MS = 250
SLOT_WITHIN_MS = 3_000
"""Time limit of each request to a slot's coordinator, so that InitProducerId follows a recent description. It is longer than the one
second for which a broker may throttle the client (KIP-219)."""
NEVER_TIMES_OUT_MS = 2_147_483_647
"""transaction.timeout.ms that disables the timeout (Kafka 4.1+, if the broker allows it)."""
MAX_MARGIN_MS = 60_000
LIST_WITHIN_MS = 5_000
"""How long a driver waits for the list. A missed transaction blocks readers until the next list; no driver decides it."""


def list_open(run: Run, within_ms: int | None = None) -> Procedure[tuple[ProducerIdentity, ...]]:
    """Return the exact identities of the write's open transactions.

    All brokers must respond, unless ``within_ms`` limits the wait.
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


DRIVER_TRANSACTION_TIMEOUT_MS = 60_000
"""Timeout of W.driver's transactions. They last for milliseconds; a longer one would block readers of the commit log."""


def still_holds(driver: ProducerIdentity, decided: Sequence[PreparedTransaction] = ()) -> Procedure[bool]:
    """Whether this driver holds the write id, and the ids of ``decided`` have had no further transaction.

    JOIN: such a one may have aborted what hung. It is a newer driver's discard, or a late attempt's that asked a replaced coordinator.
    """
    ids = tuple(each.identity.transactional_id for each in decided)
    described = yield from DescribeTransactions((driver.transactional_id, *ids))
    ends = [outcome.end_of(described[each.identity.transactional_id], each.identity) for each in decided]
    return outcome.is_held_by(driver, described.get(driver.transactional_id)) and outcome.End.SILENT not in ends


def described_driver(driver_id: str) -> Procedure[TransactionDescription | None]:
    """Return the coordinator's state of W.driver, None if it does not know the id."""
    described = yield from DescribeTransactions((driver_id,))
    return described.get(driver_id)


def is_overtaken(plan: Plan) -> Procedure[bool]:
    """Whether the driver has decided or aborted the batch, or a newer one fenced it.

    Until then W.driver is Empty, as the fence left it. Return False if the coordinator no longer knows the driver's id.

    A task calls this before its first row (JOIN: its id may belong to a transaction of this batch that was just committed), and after its
    last request (PAUSE: the driver may have searched for losing attempts before this one began its transaction).
    """
    found = yield from described_driver(plan.driver.transactional_id)
    return found is not None and not outcome.waits(plan.driver, found)


def timeout_margin_ms(timeout_ms: int) -> int:
    """Return the ms to reserve for decision and EndTxn, for liveness only."""
    return min(timeout_ms // 10, MAX_MARGIN_MS)


def give_up(identities: Sequence[ProducerIdentity]) -> Procedure[None]:
    """Abort own transactions; the next driver or the timeout aborts what fails."""
    with contextlib.suppress(Exception):  # the caller must see the first failure
        yield from EndTransactions(tuple(End(identity=identity, commit=False) for identity in identities))


def fresh_identity(write: Write, partition: int, slots: Iterable[int], timeout_ms: int) -> Procedure[ProducerIdentity]:
    """Initialise the first of these slots that has no open transaction.

    InitProducerId would abort an open transaction, which a sibling attempt may have prepared for the driver. The attempt also skips a
    slot whose coordinator does not respond, because another slot has another coordinator.
    """
    ids = tuple(write.task_id(partition, slot) for slot in slots)
    if not ids:
        raise refused("NO_FREE_TRANSACTIONAL_ID", write=write, partition=partition, ids="all")
    started = yield from Now()
    while True:
        for transactional_id in ids:
            failure: KafkaEosError | None = None
            try:
                described = yield from DescribeTransactions((transactional_id,), SLOT_WITHIN_MS)
                found = described[transactional_id]
                if found is None or found.is_free:
                    return (yield from InitProducerId(transactional_id, timeout_ms, SLOT_WITHIN_MS))
            except BrokerUnavailableError as unavailable:
                # PAUSE: describe the slot again before another InitProducerId, which would abort a sibling's transaction that the
                # driver may have decided by now.
                failure = unavailable
            now = yield from Now()
            if now - started > SLOT_DEADLINE_MS:
                raise failure or refused(
                    "NO_FREE_TRANSACTIONAL_ID", write=write, partition=partition, ids=" ".join(ids)
                )
        yield from Wait(SLOT_POLL_MS)


def prepared(partition: int, identity: ProducerIdentity, written: WrittenRows, part_offset: int) -> PreparedTransaction:
    """Return a transaction whose rows and part record are acknowledged."""
    return PreparedTransaction(
        partition=partition,
        identity=identity,
        part_offset=part_offset,
        rows=written.rows,
        offsets=written.offsets,
        written_bytes=written.written_bytes,
        dead_letters=written.dead_letters,
    )
