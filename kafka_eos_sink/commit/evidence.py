"""Gathers what leaders and coordinators show of decided transactions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from kafka_eos_sink.commit.outcome import Do, End, Shown, end_of, judge
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.steps import (
    POLL_MS,
    AbortedTransactions,
    AreCommitted,
    DataTopicGoneError,
    DescribeProducers,
    DescribeTransactions,
    Listed,
    Now,
    TransactionDescription,
    Unseen,
    Wait,
)
from kafka_eos_sink.commit.values import Decision, OffsetRange, PreparedTransaction, Run
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.messages import ProducerState

Held = Mapping[TopicPartition, Mapping[int, tuple[int, int]]]
"""Of each partition whose leader responded: producer id to epoch and start offset, as `DescribeProducers` returns it."""
Judged = tuple[tuple[Do, ...], ...]
"""What follows for each range of each transaction, in order."""
NOTED: Mapping[str | None, End] = {"committed": End.COMMITTED, "aborted": End.ABORTED}
"""By `PreparedTransaction.ended`."""


def judged(
    run: Run,
    decision: Decision,
    transactions: Sequence[PreparedTransaction],
    accepted: Collection[ProducerIdentity],
    deadline: int,
) -> Procedure[Judged]:
    """Return what follows for each range, once nothing is about to change it.

    Coordinators come first: what a leader still holds open after its coordinator has written all markers hangs.

    Args:
        accepted: Transactions whose EndTxn(commit) was accepted. That proves the commit, also after the coordinator has forgotten it.
    """
    while True:
        described = yield from _at_rest(run, decision, transactions, deadline)
        todo = yield from judged_now(transactions, described, accepted)
        if Do.WAIT not in chain.from_iterable(todo):
            return todo
        number = next(number for number, each in enumerate(todo) if Do.WAIT in each)
        identity = transactions[number].identity
        # No coordinator is about to write a marker, so this one holds the transaction open, and only another EndTxn ends it.
        is_open = end_of(described[identity.transactional_id], identity) is End.ENDING
        now = yield from Now()
        if is_open or now > deadline:
            part = transactions[number].offsets[todo[number].index(Do.WAIT)]
            why = (
                f"{part.topic}-{part.partition} does not show how {identity.transactional_id} ended, whose records begin at offset "
                f"{part.first_offset}" + "; its coordinator reports it as open" * is_open
            )
            raise refused("DECIDED_NOT_FINISHED", write=run.write, decision=decision, why=why)
        yield from Wait(POLL_MS)


def judged_now(
    transactions: Sequence[PreparedTransaction],
    described: Mapping[str, TransactionDescription | None],
    accepted: Collection[ProducerIdentity] = (),
) -> Procedure[Judged]:
    """As `judged`, by what coordinators and leaders show now."""
    shown = yield from look_at(transactions)
    todo: list[tuple[Do, ...]] = []
    for prepared, ranges in zip(transactions, shown, strict=True):
        end = end_of(described[prepared.identity.transactional_id], prepared.identity)
        if end is not End.ENDING:
            end = NOTED.get(prepared.ended, end)
        if end is End.SILENT and prepared.identity in accepted:
            end = End.COMMITTED
        todo.append(judge(ranges, end))
    return tuple(todo)


def _at_rest(
    run: Run, decision: Decision, transactions: Sequence[PreparedTransaction], deadline: int
) -> Procedure[Mapping[str, TransactionDescription | None]]:
    """Wait until no coordinator is about to write a marker; return what they report."""
    waiting = tuple(dict.fromkeys(prepared.identity.transactional_id for prepared in transactions))
    reports: dict[str, TransactionDescription | None] = {}
    while waiting:
        described = yield from DescribeTransactions(waiting)
        reports |= described
        waiting = tuple(
            transactional_id
            for transactional_id, found in described.items()
            if found is not None and not (found.is_open or found.is_free)
        )
        if not waiting:
            break
        now = yield from Now()
        if now > deadline:
            why = f"the coordinator has not finished {waiting[0]} in time"
            raise refused("DECIDED_NOT_FINISHED", write=run.write, decision=decision, why=why)
        yield from Wait(POLL_MS)
    return reports


def look_at(transactions: Sequence[PreparedTransaction]) -> Procedure[list[tuple[Shown, ...]]]:
    """Return what leaders show of the transactions' ranges.

    First as a read_committed consumer sees them. Where nothing is left, or an open transaction blocks readers, it counts whether the
    leader holds the range's own transaction open; if it does not, the first marker after the range.
    """
    ranges = [(each.identity, part) for each in transactions for part in each.offsets]
    if not ranges:
        return [() for _ in transactions]
    listed = yield from AbortedTransactions(
        tuple(part for _, part in ranges), tuple(identity.producer_id for identity, _ in ranges)
    )
    shown = {each: _shown(listed[each[1]], *each) for each in ranges}
    unseen = [each for each in ranges if shown[each] in (Shown.GONE, Shown.LATE)]
    held = yield from _held_on({(part.topic, part.partition) for _, part in unseen})
    shown |= {each: Shown.HELD for each in unseen if holds_open(held, *each)}
    # This reads up to the end of the partition, so it comes last.
    if hidden := tuple(each for each in unseen if shown[each] is Shown.LATE):
        ends = {True: Shown.VISIBLE, False: Shown.DISCARDED, None: Shown.LATE}
        committed = yield from AreCommitted(hidden)
        shown |= {each: ends[end] for each, end in zip(hidden, committed, strict=True)}
    return [tuple(shown[each.identity, part] for part in each.offsets) for each in transactions]


def _held_on(partitions: Collection[TopicPartition]) -> Procedure[Held]:
    """Return what leaders hold open; a deleted topic holds nothing."""
    held: dict[TopicPartition, Mapping[int, tuple[int, int]]] = {}
    for topic in sorted({topic for topic, _ in partitions}):
        try:
            found = yield from DescribeProducers(tuple(sorted(each for each in partitions if each[0] == topic)))
        except DataTopicGoneError:
            continue
        held |= found
    return held


def _shown(listed: Listed, identity: ProducerIdentity, part: OffsetRange) -> Shown:
    if isinstance(listed, Unseen):
        return Shown.GONE if listed is Unseen.GONE else Shown.LATE
    is_aborted = any(
        producer_id == identity.producer_id and first_offset <= part.last_offset for producer_id, first_offset in listed
    )
    return Shown.DISCARDED if is_aborted else Shown.VISIBLE


def held_by(producers: Mapping[TopicPartition, Sequence[ProducerState]]) -> Held:
    """Return epoch and start offset of the producers that each leader remembers."""
    return {
        where: {each.producer_id: (each.producer_epoch, each.current_txn_start_offset) for each in remembered}
        for where, remembered in producers.items()
    }


def holds_open(held: Held, identity: ProducerIdentity, part: OffsetRange) -> bool:
    """Whether the leader holds a transaction open that contains the range.

    It has the same producer id. It may have begun earlier, or a later epoch may have joined it (JOIN).
    """
    _, start = held.get((part.topic, part.partition), {}).get(identity.producer_id, (-1, -1))
    return 0 <= start <= part.last_offset
