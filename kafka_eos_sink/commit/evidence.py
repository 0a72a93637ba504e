"""Gathers the facts of decided transactions, as far as the judge needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kafka_eos_sink.commit import refusals
from kafka_eos_sink.commit.log_reading import read_to_barrier
from kafka_eos_sink.commit.log_view import LoggedDecision, LogView, QueryState
from kafka_eos_sink.commit.outcome import Facts, Outcome, Part, Shown, in_log, of_coordinator, outcome_of
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.steps import (
    POLL_MS,
    AbortedTransactions,
    AreCommitted,
    DescribeProducers,
    DescribeTransactions,
    Listed,
    LogPolicy,
    Marker,
    MarkerType,
    Now,
    TransactionDescription,
    Unseen,
    Wait,
)
from kafka_eos_sink.commit.values import OffsetRange, PreparedTransaction, Run
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.messages import ProducerState

Held = Mapping[TopicPartition, Mapping[int, tuple[int, int]]]
"""Of each partition whose leader responded: producer id to epoch and start offset, as `DescribeProducers` returns it."""


def of_doubtful(
    run: Run, logged: LoggedDecision, doubtful: Sequence[PreparedTransaction], deadline: int
) -> Procedure[list[Facts]]:
    """Return the facts of transactions whose EndTxn was rejected, in order.

    What log and coordinators show is final for two reasons. No coordinator is in a Prepare or unknown state, so none is about to write a
    marker. And the log is read up to a fresh barrier. The error code of an EndTxn proves nothing.

    Raises:
        WriteRefusedError: NOT_THIS_COMMIT_LOG if the log is not the one that holds the decision (NEW LOG).
    """
    described = yield from _at_rest(run, logged, doubtful, deadline)
    view = watching(run.write.id, doubtful)
    barrier = yield from read_to_barrier(view, run.nonce, logged.log_id)
    if barrier < logged.offset:
        raise refusals.log_created_again(run.write.id)
    policy = yield from LogPolicy()
    query = view.query(logged.decision.query_id)
    facts = [
        replace(
            from_log(query, view, each, policy),
            coordinator=of_coordinator(described.get(each.identity.transactional_id), each.identity),
        )
        for each in doubtful
    ]
    return (yield from with_ranges(doubtful, facts))


def _at_rest(
    run: Run, logged: LoggedDecision, doubtful: Sequence[PreparedTransaction], deadline: int
) -> Procedure[Mapping[str, TransactionDescription | None]]:
    """Wait until no coordinator is about to write a marker; return what they report."""
    waiting = tuple(prepared.identity.transactional_id for prepared in doubtful)
    reports: dict[str, TransactionDescription | None] = {}
    while True:
        described = yield from DescribeTransactions(waiting)
        reports |= described
        waiting = tuple(
            transactional_id
            for transactional_id, found in described.items()
            if found is not None and not (found.is_open or found.is_free)
        )
        if not waiting:
            return reports
        now = yield from Now()
        if now > deadline:
            raise refusals.pending(run.write, logged.decision, f"the coordinator has not finished {waiting[0]} in time")
        yield from Wait(POLL_MS)


def watching(write_id: str, transactions: Sequence[PreparedTransaction]) -> LogView:
    """Return a view that begins at the first part record and keeps all their markers."""
    return LogView(
        write_id,
        next_offset=min(prepared.part_offset for prepared in transactions),
        watched=frozenset(prepared.identity.producer_id for prepared in transactions),
    )


def from_log(query: QueryState, view: LogView, prepared: PreparedTransaction, policy: str | None) -> Facts:
    """Return what a view shows that has read the log from the part record on.

    Args:
        policy: The log's cleanup.policy, None without DescribeConfigs.
    """
    facts = of_part(query, prepared)
    if facts.part is Part.OTHERS or (facts.part is Part.OWN and not _is_empty(facts.marker)):
        return facts
    offset = prepared.part_offset
    # Compaction removes aborted records. It removes a committed record only if a newer committed record has the key. So if only compaction
    # removes records, a removed record proves an abort.
    by_compaction = (
        policy is not None
        and policy.replace(" ", "") == "compact"
        and view.log_start_offset <= offset < view.next_offset
        and not query.newer_committed_part(prepared.partition, offset)
        and view.last_unreadable < offset
    )
    marker = view.first_marker(prepared.identity.producer_id, offset)
    return replace(facts, part=Part.CLEANED if by_compaction else Part.MISSING, marker=marker)


def of_part(query: QueryState, prepared: PreparedTransaction) -> Facts:
    """Return what the part record shows, and its marker."""
    identity = prepared.identity
    record = query.part_at(prepared.partition, prepared.part_offset)
    if record is None:
        return Facts(identity=identity, part=Part.MISSING)
    is_own = record.carrier == (identity.producer_id, identity.producer_epoch)
    return Facts(identity=identity, part=Part.OWN if is_own else Part.OTHERS, marker=record.marker)


def _is_empty(marker: Marker | None) -> bool:
    return marker is not None and marker.type is MarkerType.EMPTY


def with_ranges(transactions: Sequence[PreparedTransaction], facts: Sequence[Facts]) -> Procedure[list[Facts]]:
    """Add what readers see, unless the log already proves the commit."""
    asked = [number for number, each in enumerate(facts) if in_log(each) is not Outcome.COMMITTED]
    found = list(facts)
    shown = yield from look_at([transactions[number] for number in asked])
    for number, ranges in zip(asked, shown, strict=True):
        found[number] = replace(facts[number], ranges=ranges)
    late = [number for number in asked if outcome_of(found[number]) is Outcome.NOT_SHOWN]
    unshown = dict.fromkeys(
        (part.topic, part.partition)
        for number in late
        for part, each in zip(transactions[number].offsets, found[number].ranges, strict=True)
        if each is Shown.UNSHOWN
    )
    if unshown:
        held = yield from DescribeProducers(tuple(unshown))
        for number in late:
            found[number] = where_held(transactions[number], found[number], held)
    return found


def look_at(transactions: Sequence[PreparedTransaction]) -> Procedure[list[tuple[Shown, ...]]]:
    """Fetch the transactions' ranges under read_committed, as a consumer does.

    Readers can be blocked before a range. Then read the first marker after it under read_uncommitted.
    """
    ranges = [(each.identity, part) for each in transactions for part in each.offsets]
    if not ranges:
        return [() for _ in transactions]
    listed = yield from AbortedTransactions(
        tuple(part for _, part in ranges), tuple(identity.producer_id for identity, _ in ranges)
    )
    shown = {each: _shown(listed[each[1]], *each) for each in ranges}
    hidden = tuple(each for each in ranges if shown[each] is Shown.UNSHOWN)
    if hidden:
        committed = yield from AreCommitted(hidden)
        ends = {True: Shown.COMMITTED, False: Shown.ABORTED, None: Shown.UNSHOWN}
        shown |= {each: ends[end] for each, end in zip(hidden, committed, strict=True)}
    return [tuple(shown[each.identity, part] for part in each.offsets) for each in transactions]


def _shown(listed: Listed, identity: ProducerIdentity, part: OffsetRange) -> Shown:
    if isinstance(listed, Unseen):
        return Shown.GONE if listed is Unseen.GONE else Shown.UNSHOWN
    is_aborted = any(
        producer_id == identity.producer_id and first_offset <= part.last_offset for producer_id, first_offset in listed
    )
    return Shown.ABORTED if is_aborted else Shown.COMMITTED


def held_by(producers: Mapping[TopicPartition, Sequence[ProducerState]]) -> Held:
    """Return epoch and start offset of the producers that each leader remembers."""
    return {
        where: {each.producer_id: (each.producer_epoch, each.current_txn_start_offset) for each in remembered}
        for where, remembered in producers.items()
    }


def where_held(prepared: PreparedTransaction, facts: Facts, held: Held) -> Facts:
    """Replace UNSHOWN by OPEN where the leader holds exactly this transaction open."""

    def is_held(part: OffsetRange) -> bool:
        _, start = held.get((part.topic, part.partition), {}).get(prepared.identity.producer_id, (-1, -1))
        return start == part.first_offset

    ranges = tuple(
        Shown.OPEN if each is Shown.UNSHOWN and is_held(part) else each
        for part, each in zip(prepared.offsets, facts.ranges, strict=True)
    )
    return replace(facts, ranges=ranges)
