"""Proves that the transactions of a decision have ended as it says: by their markers, and by what readers see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.coordinator_verdict import CoordinatorVerdict, verdict_on
from kafka_eos_sink.commit.log_reading import read_on
from kafka_eos_sink.commit.log_view import LogView, Outcome, outcome_of
from kafka_eos_sink.commit.prepared_transaction import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.commit.steps import (
    POLL_MS,
    AbortedTransactions,
    AreCommitted,
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
from kafka_eos_sink.commit.witnesses import await_coordinators
from kafka_eos_sink.protocol.identity import ProducerIdentity

Written = tuple[ProducerIdentity, OffsetRange]
"""What a transaction has in one data partition."""

HOLDERS_AFTER_MS = 1_000
"""How long to wait before asking who blocks readers, and between such requests: usually a marker is on its way, and a leader describes all
producers of a day."""
MARKERS_WITHIN_MS = 10_000
"""How long to wait for markers in the commit log if the rows are proven visible without them."""
HIDDEN_READERS_MS = 10_000
"""How long to wait for readers to pass our rows where the right to see who holds them up is missing."""


def verify_markers(
    decision: Decision, committed: Sequence[PreparedTransaction], deadline: int, *, visible: bool
) -> Procedure[bool]:
    """Read the COMMIT markers in the commit log: EndTxn responds before they are written. Return whether all are there.

    If the data topics prove that the rows are visible, a marker that a broker has omitted in the commit log only (KAFKA-20734) stops
    nobody: the coordinator's report replaces it, and a warning names what blocks the cleaning of the log.
    """
    if not committed:
        return True
    started: int = yield Now()
    view = LogView(
        decision.write_id,
        next_offset=min(prepared.part_offset for prepared in committed),
        watched=frozenset(prepared.identity.producer_id for prepared in committed),
    )
    missing = list(committed)
    while True:
        yield from read_on(view)
        asked, missing = missing, []
        for prepared in asked:
            marker = view.first_marker(prepared.identity.producer_id, prepared.part_offset)
            outcome = outcome_of(prepared.identity.producer_epoch, prepared.identity.transaction_version, marker)
            if outcome is Outcome.OPEN:
                missing.append(prepared)
            elif outcome is not Outcome.COMMITTED:
                raise refusals.unresolved(
                    decision,
                    f"the coordinator says that {prepared.identity.transactional_id} is committed, but the commit log holds "
                    f"{marker.type.value if marker else 'no'} marker for it; markers were written by hand",
                )
        if not missing:
            return True
        now: int = yield Now()
        if visible and now > started + MARKERS_WITHIN_MS and (yield from _are_complete(missing)):
            yield Warn(refusals.unmarked_warning(decision, missing), about="marker in the commit log")
            return False
        if now > deadline:
            raise refusals.marker_missing(
                decision,
                f"the coordinator committed {missing[0].identity.transactional_id}, but its marker is missing in the commit log "
                f"(and of {len(missing) - 1} more). The broker may have left out a partition without a leader (KAFKA-20734)",
            )


def _are_complete(committed: Sequence[PreparedTransaction]) -> Procedure[bool]:
    """Whether their coordinators still know exactly these transactions, as committed, with every marker that they will ever write."""
    identities = {prepared.identity.transactional_id: prepared.identity for prepared in committed}
    described: Mapping[str, TransactionDescription | None] = yield DescribeTransactions(tuple(identities))
    return all(
        verdict_on(described.get(name), identity) is CoordinatorVerdict.COMMITTED
        for name, identity in identities.items()
    )


def _last_offsets(committed: Sequence[PreparedTransaction]) -> dict[tuple[str, int], int]:
    last: dict[tuple[str, int], int] = {}
    for prepared in committed:
        for part in prepared.offsets:
            where = (part.topic, part.partition)
            last[where] = max(last.get(where, -1), part.last_offset)
    return last


def verify_visible(decision: Decision, committed: Sequence[PreparedTransaction], deadline: int) -> Procedure[bool]:
    """A read_committed reader can pass our last offset on every data partition, or only others hold it up.

    False where the right to see who holds it up is missing, and only the coordinators' word stands for the rest.
    """
    waiting = _last_offsets(committed)
    started: int = yield Now()
    looks = 0
    asks_at = started + HOLDERS_AFTER_MS
    while waiting:
        stable: Mapping[tuple[str, int], int | None]
        stable = yield LastStableOffsets(tuple(waiting), tuple(waiting.values()))
        for topic in sorted({where[0] for where, offset in stable.items() if offset is None}):
            yield Warn(
                f"{refusals.version_of(decision.version, decision.write_id)} is committed, but its rows in topic {topic} are gone: the "
                "topic was deleted"
            )
        waiting = {where: last for where, last in waiting.items() if _is_before(last, stable.get(where, -1))}
        if not waiting:
            return True
        looks += 1
        now: int = yield Now()
        if looks > 1 and now >= asks_at:
            asks_at = now + HOLDERS_AFTER_MS
            hidden, others = yield from _holders(committed, waiting, stable)
            for producer_id in sorted(set(others.values())):
                blocked = [f"{topic}-{partition}" for (topic, partition), each in others.items() if each == producer_id]
                yield Warn(
                    f"{refusals.some(blocked)}: version {decision.version} of {decision.write_id!r} is committed, but an open transaction "
                    f"of producer id {producer_id} blocks read_committed readers there; see kafka-eos transactions, and if that shows "
                    f"none of it: {refusals.command('repair', decision.write_id)}",
                    about=f"producer id {producer_id}",
                )
            waiting = {where: last for where, last in waiting.items() if where not in others}
            if not waiting:
                return True
            if hidden.issuperset(waiting) and now - started > HIDDEN_READERS_MS:
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
        yield Wait(min(POLL_MS, 2**looks) if looks < 10 else 10 * POLL_MS)
    return True


def _is_before(last: int, stable: int | None) -> bool:
    """Whether readers do not pass an offset yet. Those of a deleted topic never will."""
    return stable is not None and stable <= last


def _holders(
    committed: Sequence[PreparedTransaction],
    last_offsets: Mapping[tuple[str, int], int],
    stable: Mapping[tuple[str, int], int | None],
) -> Procedure[tuple[frozenset[tuple[str, int]], dict[tuple[str, int], int]]]:
    """Who still holds readers below our last offsets: partitions where that cannot be seen, and those that only others hold.

    Where nobody holds them the end of our transaction is not on all replicas yet: readers will pass, but do not yet. Without the right
    to look, readers who stand exactly where one of ours begins are held by that one, since that is where the first open one begins.
    """
    producers: Mapping[tuple[str, int], Mapping[int, tuple[int, int]] | None] = yield DescribeProducers(
        tuple(last_offsets)
    )
    own: dict[tuple[str, int], set[int]] = {}
    begins: dict[tuple[str, int], set[int]] = {}
    for prepared in committed:
        for part in prepared.offsets:
            own.setdefault((part.topic, part.partition), set()).add(prepared.identity.producer_id)
            begins.setdefault((part.topic, part.partition), set()).add(part.first_offset)
    hidden, others = set(), {}
    for where, last in last_offsets.items():
        if where not in producers or where not in stable:
            continue  # could not be asked now
        remembered = producers[where]
        if remembered is None:
            if stable[where] not in begins[where]:
                hidden.add(where)
            continue
        holding = {producer_id for producer_id, (_, start) in remembered.items() if 0 <= start <= last}
        if holding and not holding & own[where]:
            others[where] = min(holding)
    return frozenset(hidden), others


def _require_complete(decision: Decision, committed: Sequence[PreparedTransaction], deadline: int) -> Procedure[None]:
    yield from await_coordinators(decision, committed, deadline)
    identities = {prepared.identity.transactional_id: prepared.identity for prepared in committed}
    described: Mapping[str, TransactionDescription | None] = yield DescribeTransactions(tuple(identities))
    for transactional_id, found in described.items():
        own = identities[transactional_id]
        # A higher epoch is a later transaction of the id, which somebody began after ours was complete.
        if found is not None and found.is_open and found.is_of(own):
            raise refusals.pending(decision, f"{transactional_id} is {found.state} at its coordinator")
    yield Warn(
        "without the right to Read the data topics it cannot be proven that readers see the committed rows; the coordinator "
        "calls every transaction complete",
        about="Read after the decision",
    )


def require_not_readable(decision: Decision, lost: Sequence[PreparedTransaction]) -> Procedure[None]:
    """What the witness calls aborted must not be readable in the data topics: a marker of the commit log that was passed over
    (KAFKA-20734) can be followed by that of a later transaction of the id, which speaks for ours as well."""
    look = yield from look_at(written_by(lost))
    # If readers do not get there, the partition itself shows it.
    hidden = look.untold if look.may_read else ()
    committed: tuple[bool | None, ...] = (yield AreCommitted(hidden)) if hidden else ()
    answers = list(zip(hidden, committed, strict=True))
    yield from _require_open(decision, [each for each, found in answers if found is None])
    for identity, part in (*look.seen, *(each for each, found in answers if found)):
        raise refusals.unresolved(
            decision,
            f"the commit log shows {identity.transactional_id} aborted, but {part.topic}-{part.partition} has its records from offset "
            f"{part.first_offset} on as committed",
        )


def _require_open(decision: Decision, unmarked: Sequence[Written]) -> Procedure[None]:
    """Without a marker behind them, records belong to a transaction that is open there, or their outcome is unknown for now."""
    if not unmarked:
        return
    where = tuple(dict.fromkeys((part.topic, part.partition) for _, part in unmarked))
    producers: Mapping[tuple[str, int], Mapping[int, tuple[int, int]] | None] = yield DescribeProducers(where)
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
    """Of transactions that no coordinator holds open: what readers see of them, and what nobody can tell now, since readers do not get
    there or there is no right to Read."""

    seen: tuple[Written, ...] = ()
    untold: tuple[Written, ...] = ()
    may_read: bool = True


def written_by(transactions: Iterable[PreparedTransaction]) -> tuple[Written, ...]:
    """What they have in the data partitions."""
    return tuple((prepared.identity, part) for prepared in transactions for part in prepared.offsets)


def look_at(written: Sequence[Written]) -> Procedure[Look]:
    """Ask the data partitions themselves, as a reader would."""
    if not written:
        return Look()
    aborted: Mapping[OffsetRange, Listed] | None = yield AbortedTransactions(
        tuple(part for _, part in written), tuple(identity.producer_id for identity, _ in written)
    )
    if aborted is None:
        return Look(untold=tuple(written), may_read=False)
    seen, untold = [], []
    for identity, part in written:
        listed = aborted[part]
        if listed is Unseen.HELD:
            untold.append((identity, part))
        elif listed is not Unseen.GONE and not _lists(listed, identity, part):
            seen.append((identity, part))
    return Look(seen=tuple(seen), untold=tuple(untold))


def _lists(listed: Listed, identity: ProducerIdentity, part: OffsetRange) -> bool:
    """Whether a partition's list of aborted transactions holds this one."""
    return not isinstance(listed, Unseen) and any(
        producer_id == identity.producer_id and part.first_offset <= first_offset <= part.last_offset
        for producer_id, first_offset in listed
    )


def verify_no_foreign_abort(
    decision: Decision, committed: Sequence[PreparedTransaction], deadline: int
) -> Procedure[None]:
    """Markers can be written by hand (WriteTxnMarkers): a reader's own list of aborted transactions must not hold ours."""
    owners: dict[OffsetRange, PreparedTransaction] = {
        part: prepared for prepared in committed for part in prepared.offsets
    }
    if not owners:
        return
    aborted: Mapping[OffsetRange, Listed] | None = yield AbortedTransactions(tuple(owners))
    if aborted is None:
        yield from _require_complete(decision, committed, deadline)
        return
    for part, prepared in owners.items():
        if _lists(aborted[part], prepared.identity, part):
            raise refusals.unresolved(
                decision,
                f"{prepared.identity.transactional_id} is committed at its coordinator, but partition {part.topic}-"
                f"{part.partition} calls its records from offset {part.first_offset} aborted; a marker was written by hand",
            )
