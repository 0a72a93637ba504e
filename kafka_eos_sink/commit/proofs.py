"""Waits until read_committed consumers pass the rows of a decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka_eos_sink.commit.evidence import Held
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.refusals import refused, some, text
from kafka_eos_sink.commit.steps import POLL_MS, DescribeProducers, LastStableOffsets, Now, Wait, Warn
from kafka_eos_sink.commit.values import Decision, PreparedTransaction, Write
from kafka_eos_sink.protocol.identity import TopicPartition

BLOCKERS_AFTER_MS = 1_000
"""Wait before the first DescribeProducers, and between two. Usually a marker arrives sooner, and a response is large: it lists
all producers of a day."""


def _last_offsets(committed: Sequence[PreparedTransaction]) -> dict[tuple[str, int], int]:
    last: dict[tuple[str, int], int] = {}
    for prepared in committed:
        for part in prepared.offsets:
            where = (part.topic, part.partition)
            last[where] = max(last.get(where, -1), part.last_offset)
    return last


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
    waiting = _last_offsets(committed)
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
            others = _blocked_by_others(committed, waiting, held)
            yield from _warn_of(write, decision, others)
            waiting = {where: last for where, last in waiting.items() if where not in others}
            if not waiting:
                return True
        if now > deadline:
            (topic, partition), last = next(iter(waiting.items()))
            holder = next(
                prepared
                for prepared in committed
                if any((part.topic, part.partition) == (topic, partition) for part in prepared.offsets)
            )
            why = (
                f"partition {topic}-{partition} does not let readers past offset {last} of transaction "
                f"{holder.identity.transactional_id}: its replicas are behind, or the topic was deleted"
            )
            raise refused("DECIDED_NOT_FINISHED", write=write, decision=decision, why=why)
        # Markers often take two or three ms.
        yield from Wait(min(POLL_MS, 2**looks) if looks < 10 else 10 * POLL_MS)
    return True


def _warn_of(write: Write, decision: Decision, others: Mapping[TopicPartition, int]) -> Procedure[None]:
    """Warn once per producer id of the open transactions that block readers."""
    for producer_id in sorted(set(others.values())):
        blocked = [f"{topic}-{partition}" for (topic, partition), each in others.items() if each == producer_id]
        yield from Warn(
            f"{some(blocked)}: version {decision.version} of {decision.write_id!r} is committed, but an open transaction "
            f"of producer id {producer_id} blocks read_committed readers there",
            about=f"producer id {producer_id}",
            blocked_by=producer_id,
            if_unlisted="no coordinator lists it. Without Describe on its transactional id, it is hidden from this principal. "
            f"Otherwise it hangs, and kafka-transactions.sh abort discards it: {write.command('status')} shows where it begins",
        )


def _is_before(last: int, stable: int | None) -> bool:
    """Whether the last stable offset is at most ``last``; False for a deleted topic."""
    return stable is not None and stable <= last


def _blocked_by_others(
    committed: Sequence[PreparedTransaction], last_offsets: Mapping[TopicPartition, int], held: Held
) -> dict[TopicPartition, int]:
    """Return the partitions that only foreign producers block, with a producer id.

    A partition without a blocker is missing: some replica lacks the marker, and readers pass soon.
    """
    own: dict[TopicPartition, set[int]] = {}
    for prepared in committed:
        for part in prepared.offsets:
            own.setdefault((part.topic, part.partition), set()).add(prepared.identity.producer_id)
    others = {}
    for where, last in last_offsets.items():
        blocking = {producer_id for producer_id, (_, start) in held.get(where, {}).items() if 0 <= start <= last}
        if blocking and not blocking & own[where]:
            others[where] = min(blocking)
    return others
