"""Proves by markers and by Fetch that a decision's transactions ended as decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.coordinator_verdict import CoordinatorVerdict, verdict_on
from kafka_eos_sink.commit.log_reading import read_on
from kafka_eos_sink.commit.log_view import LogView, Outcome, outcome_of
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.steps import (
    POLL_MS,
    AbortedTransactions,
    AreCommitted,
    DescribeProducers,
    DescribeTransactions,
    LastStableOffsets,
    Listed,
    Now,
    Unseen,
    Wait,
    Warn,
)
from kafka_eos_sink.commit.values import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.commit.witnesses import await_coordinators
from kafka_eos_sink.protocol.identity import ProducerIdentity

Written = tuple[ProducerIdentity, OffsetRange]
"""A transaction, and the range of its records in one data partition."""

BLOCKERS_AFTER_MS = 1_000
"""Wait before the first DescribeProducers, and between two. Usually a marker arrives sooner, and a response is large: it lists
all producers of a day."""
MARKERS_WITHIN_MS = 10_000
"""Wait for markers in the commit log if the rows are proven visible without them."""
HIDDEN_READERS_MS = 10_000
"""Wait for readers to pass the batch's rows if DescribeProducers is not permitted."""


def verify_markers(
    decision: Decision, committed: Sequence[PreparedTransaction], deadline: int, *, visible: bool
) -> Procedure[bool]:
    """Wait for the COMMIT markers in the commit log; return True if all arrived.

    EndTxn responds before the markers are written. A broker can omit a marker in the commit log only (KAFKA-20734). The data topics or the
    coordinator then prove the commit. A warning names these transactions, because they stop the cleaning of the commit log.
    """
    if not committed:
        return True
    started = yield from Now()
    view = LogView(
        decision.write_id,
        next_offset=min(prepared.part_offset for prepared in committed),
        watched=frozenset(prepared.identity.producer_id for prepared in committed),
    )
    missing = list(committed)
    # A marker is missing only behind the end that the log had at first: reading up to it may take long.
    end: int | None = None
    while True:
        before, log_id = view.next_offset, view.topic_id
        chunk = yield from read_on(view)
        end = chunk.end_offset if end is None or view.topic_id != log_id else end
        waiting, missing, foreign = missing, [], None
        for prepared in waiting:
            marker = view.first_marker(prepared.identity.producer_id, prepared.part_offset)
            outcome = outcome_of(prepared.identity.producer_epoch, prepared.identity.transaction_version, marker)
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
        if visible and is_due and (yield from _are_committed(decision, missing, coordinators=foreign is None)):
            yield from Warn(refusals.unmarked_warning(decision, missing), about="marker in the commit log")
            return False
        if foreign is not None:
            raise refusals.unresolved(
                decision,
                f"the coordinator reports {foreign.identity.transactional_id} as committed, but the commit log holds another marker, and "
                "the data topics do not show its rows as committed; markers were written by hand",
            )
        if now > deadline:
            raise refusals.marker_missing(
                decision,
                f"the coordinator committed {missing[0].identity.transactional_id}, but its marker is missing in the commit log "
                f"(and of {len(missing) - 1} more). The broker may have omitted it while the partition had no leader (KAFKA-20734)",
            )


def _are_committed(
    decision: Decision, unmarked: Sequence[PreparedTransaction], *, coordinators: bool
) -> Procedure[bool]:
    """Whether data topics or coordinators show exactly these transactions committed.

    Args:
        coordinators: Whether the coordinators' state is a proof. It is none if the log holds another marker: below version 2, a late
            AddPartitionsToTxn can open an aborted transaction again, and EndTxn then commits nothing.
    """
    outcomes = yield from outcomes_for_readers(decision, unmarked, [Outcome.OPEN] * len(unmarked))
    unproven = {
        prepared.identity.transactional_id: prepared.identity
        for prepared, outcome in zip(unmarked, outcomes, strict=True)
        if outcome is not Outcome.COMMITTED
    }
    if not unproven:
        return True
    if Outcome.ABORTED in outcomes or not coordinators:
        return False
    described = yield from DescribeTransactions(tuple(unproven))
    return all(
        verdict_on(described.get(name), identity) is CoordinatorVerdict.COMMITTED for name, identity in unproven.items()
    )


def _last_offsets(committed: Sequence[PreparedTransaction]) -> dict[tuple[str, int], int]:
    last: dict[tuple[str, int], int] = {}
    for prepared in committed:
        for part in prepared.offsets:
            where = (part.topic, part.partition)
            last[where] = max(last.get(where, -1), part.last_offset)
    return last


def verify_visible(decision: Decision, committed: Sequence[PreparedTransaction], deadline: int) -> Procedure[bool]:
    """Wait until no transaction of the decision blocks read_committed consumers.

    Return False if DescribeProducers is not permitted, so that only the coordinators' state proves the rest.
    """
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
            return True
        looks += 1
        now = yield from Now()
        # Not in the first round: the coordinator is usually still writing the markers.
        if looks > 1 and (now >= next_check_ms or now > deadline):
            next_check_ms = now + BLOCKERS_AFTER_MS
            hidden, others = yield from _blockers(committed, waiting, stable)
            for producer_id in sorted(set(others.values())):
                blocked = [f"{topic}-{partition}" for (topic, partition), each in others.items() if each == producer_id]
                yield from Warn(
                    f"{refusals.some(blocked)}: version {decision.version} of {decision.write_id!r} is committed, but an open transaction "
                    f"of producer id {producer_id} blocks read_committed readers there",
                    about=f"producer id {producer_id}",
                    blocked_by=producer_id,
                    if_unlisted="no coordinator lists it. Without Describe on its transactional id, it is hidden from this principal. "
                    f"Otherwise its marker is missing: {refusals.command('repair', decision.write_id)}",
                )
            waiting = {where: last for where, last in waiting.items() if where not in others}
            if not waiting:
                return True
            if hidden.issuperset(waiting) and now > min(deadline, started + HIDDEN_READERS_MS):
                yield from _require_complete(decision, committed, deadline)
                return False
        if now > deadline:
            (topic, partition), last = next(iter(waiting.items()))
            holder = next(
                prepared
                for prepared in committed
                if any((part.topic, part.partition) == (topic, partition) for part in prepared.offsets)
            )
            raise refusals.marker_missing(
                decision,
                f"partition {topic}-{partition} does not let readers past offset {last}: its replicas are behind, or the marker of "
                f"transaction {holder.identity.transactional_id} (producer id {holder.identity.producer_id}) is missing there "
                "(KAFKA-20734), or the topic was deleted. Repair a marker",
            )
        # Markers often take two or three ms.
        yield from Wait(min(POLL_MS, 2**looks) if looks < 10 else 10 * POLL_MS)
    return True


def _is_before(last: int, stable: int | None) -> bool:
    """Whether the last stable offset is at most ``last``; False for a deleted topic."""
    return stable is not None and stable <= last


def _blockers(
    committed: Sequence[PreparedTransaction],
    last_offsets: Mapping[tuple[str, int], int],
    stable: Mapping[tuple[str, int], int | None],
) -> Procedure[tuple[frozenset[tuple[str, int]], dict[tuple[str, int], int]]]:
    """Find which producers block readers below the batch's last offsets.

    Returns:
        The partitions whose blocker is hidden, and the other partitions that only foreign producers block, with a producer id. A
        partition without a blocker is in neither: some replica lacks the marker, and readers pass soon. Without permission, a last
        stable offset at the first offset of the batch's own transaction proves that this transaction blocks the partition.
    """
    producers = yield from DescribeProducers(tuple(last_offsets))
    own: dict[tuple[str, int], set[int]] = {}
    begins: dict[tuple[str, int], set[int]] = {}
    for prepared in committed:
        for part in prepared.offsets:
            own.setdefault((part.topic, part.partition), set()).add(prepared.identity.producer_id)
            begins.setdefault((part.topic, part.partition), set()).add(part.first_offset)
    hidden, others = set(), {}
    for where, last in last_offsets.items():
        if where not in producers or where not in stable:
            continue  # its leader did not respond
        remembered = producers[where]
        if remembered is None:
            if stable[where] not in begins[where]:
                hidden.add(where)
            continue
        blocking = {producer_id for producer_id, (_, start) in remembered.items() if 0 <= start <= last}
        if blocking and not blocking & own[where]:
            others[where] = min(blocking)
    return frozenset(hidden), others


def _require_complete(decision: Decision, committed: Sequence[PreparedTransaction], deadline: int) -> Procedure[None]:
    yield from await_coordinators(decision, committed, deadline)
    identities = {prepared.identity.transactional_id: prepared.identity for prepared in committed}
    described = yield from DescribeTransactions(tuple(identities))
    for transactional_id, found in described.items():
        own = identities[transactional_id]
        # A higher epoch belongs to a later transaction of the id, begun after this one was complete.
        if found is not None and found.is_open and found.is_of(own):
            raise refusals.pending(decision, f"{transactional_id} is {found.state} at its coordinator")
    yield from Warn(
        "not proven that readers see the committed rows: the Read permission on the data topics is missing; the coordinators "
        "report every transaction as complete",
        about="Read after the decision",
    )


def outcomes_for_readers(
    decision: Decision, doubtful: Sequence[PreparedTransaction], logged: Sequence[Outcome]
) -> Procedure[list[Outcome]]:
    """Return each outcome; if the log proves no commit, the data topics count first.

    A marker can be missing in the commit log only (KAFKA-20734). The marker of a later transaction of the id then ends both transactions
    there, or its InitProducerId makes the coordinator forget the first one. So the data topics count if all ranges that show an end show
    the same end. If none shows an end, or Read is missing, the commit log's outcome counts.

    Args:
        logged: The outcome that the commit log proves of each transaction.

    Raises:
        DecisionPendingError: UNRESOLVED if one range is committed and another aborted. DECIDED_NOT_FINISHED if a leader shows neither an
            end nor an open transaction yet.
    """
    in_doubt = [each for each, outcome in zip(doubtful, logged, strict=True) if outcome is not Outcome.COMMITTED]
    ends = (yield from ends_in_topics(in_doubt)) or {}
    outcomes: list[Outcome] = []
    for prepared, outcome in zip(doubtful, logged, strict=True):
        ranges = [] if outcome is Outcome.COMMITTED else [each for each in written_by([prepared]) if each in ends]
        shown = {ends[each] for each in ranges} - {None}
        if True not in shown:
            yield from _require_open(decision, [each for each in ranges if ends[each] is None])
        if shown == {True}:
            # If a range has no marker, `verify_visible` waits for it.
            outcomes.append(Outcome.COMMITTED)
        elif True in shown:
            _, part = next(each for each in ranges if ends[each])
            raise refusals.unresolved(
                decision,
                f"{part.topic}-{part.partition} shows the records of {prepared.identity.transactional_id} from offset {part.first_offset} "
                "on as committed, but neither the commit log nor its other partitions show a commit",
            )
        else:
            # Readers may have seen the rows of a range that is gone.
            is_aborted = bool(shown) and len(ranges) == len(prepared.offsets)
            outcomes.append(Outcome.ABORTED if is_aborted else outcome)
    return outcomes


def ends_in_topics(transactions: Sequence[PreparedTransaction]) -> Procedure[dict[Written, bool | None] | None]:
    """Return how each range ended: True for committed, False for aborted, else None.

    None stands for no marker. A range that is gone is missing. The result is None if a topic may not be read.
    """
    look = yield from look_at(written_by(transactions))
    if not look.may_read:
        return None
    ends: dict[Written, bool | None] = {**dict.fromkeys(look.seen, True), **dict.fromkeys(look.aborted, False)}
    if look.hidden:
        # Readers are blocked before these rows, so read the markers behind them under read_uncommitted.
        committed = yield from AreCommitted(look.hidden)
        ends.update(zip(look.hidden, committed, strict=True))
    return ends


def _require_open(decision: Decision, unmarked: Sequence[Written]) -> Procedure[None]:
    """Raise unless the transaction of each record without a marker is open."""
    if not unmarked:
        return
    where = tuple(dict.fromkeys((part.topic, part.partition) for _, part in unmarked))
    producers = yield from DescribeProducers(where)
    for identity, part in unmarked:
        remembered = producers.get((part.topic, part.partition), {})
        if remembered is not None and remembered.get(identity.producer_id, (-1, -1))[1] != part.first_offset:
            raise refusals.pending(
                decision,
                f"{part.topic}-{part.partition} does not show how {identity.transactional_id} ended, whose records begin at offset "
                f"{part.first_offset}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Ranges that are seen, listed as aborted, or hidden (reader blocked, no Read)."""

    seen: tuple[Written, ...] = ()
    aborted: tuple[Written, ...] = ()
    hidden: tuple[Written, ...] = ()
    may_read: bool = True


def written_by(transactions: Iterable[PreparedTransaction]) -> tuple[Written, ...]:
    """Return each transaction's ranges in the data partitions."""
    return tuple((prepared.identity, part) for prepared in transactions for part in prepared.offsets)


def look_at(written: Sequence[Written]) -> Procedure[Look]:
    """Fetch the ranges under read_committed, as a consumer does."""
    if not written:
        return Look()
    aborted = yield from AbortedTransactions(
        tuple(part for _, part in written), tuple(identity.producer_id for identity, _ in written)
    )
    if aborted is None:
        return Look(hidden=tuple(written), may_read=False)
    seen: list[Written] = []
    discarded: list[Written] = []
    hidden: list[Written] = []
    for identity, part in written:
        listed = aborted[part]
        if listed is Unseen.BLOCKED:
            hidden.append((identity, part))
        elif listed is not Unseen.GONE:
            (discarded if _lists(listed, identity, part) else seen).append((identity, part))
    return Look(seen=tuple(seen), aborted=tuple(discarded), hidden=tuple(hidden))


def _lists(listed: Listed, identity: ProducerIdentity, part: OffsetRange) -> bool:
    """Whether a partition's list of aborted transactions holds this one."""
    return not isinstance(listed, Unseen) and any(
        producer_id == identity.producer_id and first_offset <= part.last_offset for producer_id, first_offset in listed
    )


def verify_no_foreign_abort(
    decision: Decision, committed: Sequence[PreparedTransaction], deadline: int
) -> Procedure[None]:
    """Raise `UNRESOLVED` if a range of a committed transaction is aborted.

    Operators can write markers by hand (WriteTxnMarkers). Below version 2, a late AddPartitionsToTxn can open a transaction again in a
    partition whose marker is missing, and the next InitProducerId or timeout discards the rows there.
    """
    ends = yield from ends_in_topics(committed)
    if ends is None:
        yield from _require_complete(decision, committed, deadline)
        return
    for (identity, part), is_committed in ends.items():
        if is_committed is False:
            raise refusals.unresolved(
                decision,
                f"{identity.transactional_id} is committed at its coordinator, but {part.topic}-{part.partition} shows its records from "
                f"offset {part.first_offset} on as aborted: a marker was written by hand, or, below transaction.version 2, the transaction "
                "was opened again and aborted",
            )
