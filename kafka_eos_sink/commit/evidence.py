"""Gathers what leaders and coordinators show of decided transactions.

`judged` returns what follows for each range; `verify_visible` waits until read_committed consumers pass the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from kafka_eos_sink.commit.outcome import Do, End, Shown, end_of, judge
from kafka_eos_sink.commit.refusals import refused, some, text
from kafka_eos_sink.commit.steps import (
    POLL_MS,
    AbortedTransactions,
    AreCommitted,
    DataTopicGoneError,
    DescribeProducers,
    DescribeTransactions,
    LastStableOffsets,
    Listed,
    Now,
    Procedure,
    TransactionDescription,
    Unseen,
    Wait,
    Warn,
)
from kafka_eos_sink.commit.values import Decision, OffsetRange, PreparedTransaction, Run, Write
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition

T = TypeVar("T")
Held = Mapping[TopicPartition, Mapping[int, tuple[int, int]]]
"""Of each partition whose leader responded: producer id to epoch and start offset, as `DescribeProducers` returns it."""
Judged = tuple[tuple[Do, ...], ...]
"""What follows for each range of each transaction, in order."""
BLOCKERS_AFTER_MS = 1_000
"""Wait before the first DescribeProducers, and between two. Usually a marker arrives sooner, and a response is large: it lists
all producers of a day."""
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
        is_open = end_of(described[identity.transactional_id], identity) is End.UNFINISHED
        now = yield from Now()
        if is_open or now > deadline:
            part = transactions[number].offsets[todo[number].index(Do.WAIT)]
            raise refused(
                "DECIDED_NOT_FINISHED.no_marker" + "_open" * is_open,
                write=run.write,
                decision=decision,
                part=part,
                identity=identity,
            )
        yield from Wait(POLL_MS)


def those(prepared: PreparedTransaction, found: Sequence[T], *of: T) -> tuple[OffsetRange, ...]:
    """Return the ranges of a transaction of which one ``of`` these was found."""
    return tuple(part for part, each in zip(prepared.offsets, found, strict=True) if each in of)


def judged_now(
    transactions: Sequence[PreparedTransaction],
    described: Mapping[str, TransactionDescription | None],
    accepted: Collection[ProducerIdentity] = (),
) -> Procedure[Judged]:
    """As `judged`, by what coordinators and leaders show now."""
    shown = yield from look_at(transactions)
    # The note may be wrong: its leader was replaced, or a late EndTxn has committed what a late request had opened again (LATE ADD).
    doubtful = tuple(
        (prepared.identity, part)
        for prepared, ranges in zip(transactions, shown, strict=True)
        if prepared.ended == "aborted"
        for part in those(prepared, ranges, Shown.GONE)
    )
    committed = (yield from AreCommitted(doubtful)) if doubtful else ()
    wrong = {part for (_, part), each in zip(doubtful, committed, strict=True) if each}
    todo: list[tuple[Do, ...]] = []
    for prepared, ranges in zip(transactions, shown, strict=True):
        end = end_of(described[prepared.identity.transactional_id], prepared.identity)
        if end is not End.UNFINISHED and wrong.isdisjoint(prepared.offsets):
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
            raise refused("DECIDED_NOT_FINISHED.ending", write=run.write, decision=decision, held=waiting[0])
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
    held = yield from held_on({(part.topic, part.partition) for _, part in unseen})
    shown |= {each: Shown.HELD for each in unseen if holds_open(held, *each)}
    # This reads up to the end of the partition, so it comes last.
    if hidden := tuple(each for each in unseen if shown[each] is Shown.LATE):
        ends = {True: Shown.VISIBLE, False: Shown.DISCARDED, None: Shown.LATE}
        committed = yield from AreCommitted(hidden)
        shown |= {each: ends[end] for each, end in zip(hidden, committed, strict=True)}
    return [tuple(shown[each.identity, part] for part in each.offsets) for each in transactions]


def held_on(partitions: Collection[TopicPartition]) -> Procedure[Held]:
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


def holds_open(held: Held, identity: ProducerIdentity, part: OffsetRange) -> bool:
    """Whether the leader holds a transaction open that contains the range.

    It has the same producer id. It may have begun earlier, or a later epoch may have joined it (JOIN).
    """
    _, start = held.get((part.topic, part.partition), {}).get(identity.producer_id, (-1, -1))
    return 0 <= start <= part.last_offset


def verify_visible(
    write: Write, decision: Decision, committed: Sequence[PreparedTransaction], deadline: int, *, briefly: bool = False
) -> Procedure[bool]:
    """Wait until no transaction of the decision blocks readers; return if they pass.

    Args:
        briefly: Return False where the search for what blocks them would begin.

    Raises:
        DataTopicGoneError: The topics were deleted, or lost acknowledged records.
        DecisionPendingError: DECIDED_NOT_FINISHED at the deadline.
    """
    # Of each partition, the transactions that wrote there, and their last offsets.
    writers: dict[TopicPartition, list[tuple[ProducerIdentity, int]]] = {}
    for prepared in committed:
        for part in prepared.offsets:
            writers.setdefault((part.topic, part.partition), []).append((prepared.identity, part.last_offset))
    waiting = {where: max(last for _, last in wrote) for where, wrote in writers.items()}
    started = yield from Now()
    looks = 0
    next_check_ms = started + BLOCKERS_AFTER_MS
    while waiting:
        stable = yield from LastStableOffsets(tuple(waiting), tuple(waiting.values()))
        for topic in sorted({where[0] for where, offset in stable.items() if offset is None}):
            yield from Warn(text("gone_topic", decision=decision, topic=topic))
        waiting = {where: last for where, last in waiting.items() if _is_before(last, stable.get(where, -1))}
        if not waiting:
            return True
        looks += 1
        now = yield from Now()
        # Not in the first round: the coordinator is usually still writing the markers.
        if now > deadline or (looks > 1 and now >= next_check_ms):
            if briefly:
                return False
            next_check_ms = now + BLOCKERS_AFTER_MS
            held = yield from DescribeProducers(tuple(waiting))
            others = _blocked_by_others(writers, waiting, held)
            yield from _warn_of(write, decision, others)
            waiting = {where: last for where, last in waiting.items() if where not in others}
            if not waiting:
                return True
        if now > deadline:
            partition, last = next(iter(waiting.items()))
            (holder, _), *_ = writers[partition]
            raise refused(
                "DECIDED_NOT_FINISHED.blocked",
                write=write,
                decision=decision,
                where="{}-{}".format(*partition),
                offset=last,
                identity=holder,
            )
        # Markers often take two or three ms.
        yield from Wait(min(POLL_MS, 2**looks) if looks < 10 else 10 * POLL_MS)
    return True


def _warn_of(write: Write, decision: Decision, others: Mapping[TopicPartition, int]) -> Procedure[None]:
    """Warn once per producer id of the open transactions that block readers."""
    for producer_id in sorted(set(others.values())):
        blocked = [f"{topic}-{partition}" for (topic, partition), each in others.items() if each == producer_id]
        yield from Warn(
            text("blocked", decision=decision, where=some(blocked), producer_id=producer_id),
            about=f"producer id {producer_id}",
            blocked_by=producer_id,
            if_unlisted=text("unlisted", write=write),
        )


def _is_before(last: int, stable: int | None) -> bool:
    """Whether the last stable offset is at most ``last``; False for a deleted topic."""
    return stable is not None and stable <= last


def _blocked_by_others(
    writers: Mapping[TopicPartition, Sequence[tuple[ProducerIdentity, int]]],
    last_offsets: Mapping[TopicPartition, int],
    held: Held,
) -> dict[TopicPartition, int]:
    """Return the partitions that only foreign producers block, with a producer id.

    A partition without a blocker is missing: some replica lacks the marker, and readers pass soon.
    """
    others = {}
    for where, last in last_offsets.items():
        blocking = {producer_id for producer_id, (_, start) in held.get(where, {}).items() if 0 <= start <= last}
        if blocking and blocking.isdisjoint(identity.producer_id for identity, _ in writers[where]):
            others[where] = min(blocking)
    return others
