"""Proves that transactions ended as decided, and that readers pass their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.evidence import Held, look_at, watching, with_ranges
from kafka_eos_sink.commit.log_reading import read_on
from kafka_eos_sink.commit.outcome import Coordinator, Facts, Outcome, Shown, by_marker, of_coordinator, outcome_of
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.steps import (
    POLL_MS,
    DescribeProducers,
    DescribeTransactions,
    LastStableOffsets,
    Now,
    Wait,
    Warn,
)
from kafka_eos_sink.commit.values import Decision, PreparedTransaction, Write
from kafka_eos_sink.protocol.identity import TopicPartition

BLOCKERS_AFTER_MS = 1_000
"""Wait before the first DescribeProducers, and between two. Usually a marker arrives sooner, and a response is large: it lists
all producers of a day."""
MARKERS_WITHIN_MS = 10_000
"""Wait for markers in the commit log if the rows are proven visible without them."""


def verify_markers(
    write: Write, decision: Decision, committed: Sequence[PreparedTransaction], deadline: int
) -> Procedure[bool]:
    """Wait for the COMMIT markers in the commit log; return True if all arrived.

    EndTxn responds before the markers are written. JOIN: a marker can be missing in the commit log only. The data topics or the coordinator
    then prove the commit. A warning lists these transactions, because they stop the cleaning of the commit log.
    """
    if not committed:
        return True
    started = yield from Now()
    view = watching(write.id, committed)
    missing = list(committed)
    # A marker is missing only after the end that the log had at first: reading up to it may take long.
    end: int | None = None
    while True:
        before, log_id = view.next_offset, view.topic_id
        chunk = yield from read_on(view)
        end = chunk.end_offset if end is None or view.topic_id != log_id else end
        waiting, missing, foreign = missing, [], None
        for prepared in waiting:
            identity = prepared.identity
            marker = view.first_marker(identity.producer_id, prepared.part_offset)
            outcome = by_marker(identity.producer_epoch, identity.transaction_version, marker)
            if outcome is not Outcome.COMMITTED:
                missing.append(prepared)
            if outcome in (Outcome.ABORTED, Outcome.UNRESOLVED):
                foreign = prepared
        if not missing:
            return True
        now = yield from Now()
        if before < view.next_offset and before < end:
            started, deadline = now, max(deadline, now + MARKERS_WITHIN_MS)
        is_due = foreign is not None or now > min(deadline, started + MARKERS_WITHIN_MS)
        if is_due and (yield from _are_committed(missing, coordinators=foreign is None)):
            yield from Warn(refusals.unmarked_warning(write, decision, missing), about="marker in the commit log")
            return False
        if foreign is not None:
            raise refusals.unresolved(
                write,
                decision,
                f"the coordinator reports {foreign.identity.transactional_id} as committed, but the commit log holds another marker, and "
                "the data topics do not show its rows as committed; markers were written by hand",
            )
        if now > deadline:
            raise refusals.marker_missing(
                write,
                decision,
                f"the coordinator committed {missing[0].identity.transactional_id}, but its marker is missing in the commit log "
                f"(and of {len(missing) - 1} more). The broker may have omitted it while the partition had no leader (KAFKA-20734)",
            )


def _are_committed(unmarked: Sequence[PreparedTransaction], *, coordinators: bool) -> Procedure[bool]:
    """Whether data topics or coordinators show exactly these transactions committed.

    Args:
        coordinators: Whether the coordinators' state is a proof. It is none if the log holds another marker: LATE ADD can open an aborted
            transaction again, and EndTxn then commits nothing.
    """
    facts = yield from with_ranges(unmarked, [Facts(identity=each.identity) for each in unmarked])
    unproven = tuple(each.identity.transactional_id for each in facts if outcome_of(each) is not Outcome.COMMITTED)
    if unproven and coordinators:
        described = yield from DescribeTransactions(unproven)
        facts = [
            replace(each, coordinator=of_coordinator(described.get(each.identity.transactional_id), each.identity))
            for each in facts
        ]
    return all(outcome_of(each) is Outcome.COMMITTED for each in facts)


def _last_offsets(committed: Sequence[PreparedTransaction]) -> dict[tuple[str, int], int]:
    last: dict[tuple[str, int], int] = {}
    for prepared in committed:
        for part in prepared.offsets:
            where = (part.topic, part.partition)
            last[where] = max(last.get(where, -1), part.last_offset)
    return last


def verify_visible(
    write: Write, decision: Decision, committed: Sequence[PreparedTransaction], deadline: int
) -> Procedure[None]:
    """Wait until no transaction of the decision blocks read_committed consumers."""
    waiting = _last_offsets(committed)
    started = yield from Now()
    looks = 0
    next_check_ms = started + BLOCKERS_AFTER_MS
    while waiting:
        stable = yield from LastStableOffsets(tuple(waiting), tuple(waiting.values()))
        for topic in sorted({where[0] for where, offset in stable.items() if offset is None}):
            yield from Warn(
                f"{refusals.version_of(decision.version, decision.write_id)} is committed, but its rows in topic {topic} are gone: the "
                "topic was deleted"
            )
        waiting = {where: last for where, last in waiting.items() if _is_before(last, stable.get(where, -1))}
        if not waiting:
            return
        looks += 1
        now = yield from Now()
        # Not in the first round: the coordinator is usually still writing the markers.
        if looks > 1 and (now >= next_check_ms or now > deadline):
            next_check_ms = now + BLOCKERS_AFTER_MS
            held = yield from DescribeProducers(tuple(waiting))
            others = _blocked_by_others(committed, waiting, held)
            for producer_id in sorted(set(others.values())):
                blocked = [f"{topic}-{partition}" for (topic, partition), each in others.items() if each == producer_id]
                yield from Warn(
                    f"{refusals.some(blocked)}: version {decision.version} of {decision.write_id!r} is committed, but an open transaction "
                    f"of producer id {producer_id} blocks read_committed readers there",
                    about=f"producer id {producer_id}",
                    blocked_by=producer_id,
                    if_unlisted="no coordinator lists it. Without Describe on its transactional id, it is hidden from this principal. "
                    f"Otherwise its marker is missing: {write.command('recover', refusals.WRITE_MARKERS)}; if that does not show it, it is "
                    f"another program's, whose rows kafka-transactions.sh abort discards: {write.command('status')} shows where it begins",
                )
            waiting = {where: last for where, last in waiting.items() if where not in others}
            if not waiting:
                return
        if now > deadline:
            (topic, partition), last = next(iter(waiting.items()))
            holder = next(
                prepared
                for prepared in committed
                if any((part.topic, part.partition) == (topic, partition) for part in prepared.offsets)
            )
            raise refusals.marker_missing(
                write,
                decision,
                f"partition {topic}-{partition} does not let readers past offset {last}: its replicas are behind, or the marker of "
                f"transaction {holder.identity.transactional_id} (producer id {holder.identity.producer_id}) is missing there "
                "(KAFKA-20734), or the topic was deleted",
            )
        # Markers often take two or three ms.
        yield from Wait(min(POLL_MS, 2**looks) if looks < 10 else 10 * POLL_MS)


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


def verify_no_foreign_abort(
    write: Write, decision: Decision, committed: Sequence[PreparedTransaction]
) -> Procedure[None]:
    """Raise `UNRESOLVED` if a range of a committed transaction is aborted.

    Operators can write markers by hand (WriteTxnMarkers). LATE ADD can open a transaction again in a partition whose marker is missing, and
    the next InitProducerId or timeout discards the rows there.
    """
    shown = yield from look_at(committed)
    for prepared, ranges in zip(committed, shown, strict=True):
        facts = Facts(identity=prepared.identity, coordinator=Coordinator.COMMITTED, ranges=ranges)
        if outcome_of(facts) is not Outcome.COMMITTED:
            part = prepared.offsets[ranges.index(Shown.ABORTED)]
            raise refusals.unresolved(
                write,
                decision,
                f"{prepared.identity.transactional_id} is committed at its coordinator, but {part.topic}-{part.partition} shows its "
                f"records from offset {part.first_offset} on as aborted: a marker was written by hand, or, below transaction.version 2, "
                "the transaction was opened again and aborted",
            )
