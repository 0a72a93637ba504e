"""Missing markers: committed transactions that a partition still holds open.

As long as a marker is missing (JOIN), the partition blocks its readers. No tool of Kafka writes a COMMIT marker:
`recover --write-markers` does.

A wrong COMMIT marker shows aborted records to readers. It therefore needs two proofs: the decision, whose own COMMIT marker was read,
and that exactly this transaction is committed. The second proof is the coordinator's state. If the coordinator has begun another
transaction or forgotten the id, the proof is the COMMIT marker in the commit log. A transaction without proof is only reported: Kafka's
own tool (``kafka-transactions.sh abort``) ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum

from kafka_eos_sink.commit.evidence import from_log, held_by, look_at, watching, where_held
from kafka_eos_sink.commit.log_reading import read_to_barrier, read_to_end, require_whole
from kafka_eos_sink.commit.log_view import LogView, QueryState
from kafka_eos_sink.commit.outcome import (
    Coordinator,
    Facts,
    Outcome,
    Shown,
    has_ended,
    lacks_commit_marker,
    of_coordinator,
    outcome_of,
)
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.steps import DescribeTransactions, LogPolicy, TransactionDescription
from kafka_eos_sink.commit.values import Decision, PreparedTransaction, Run
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition, TransactionMarker
from kafka_eos_sink.protocol.messages import ProducerState


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedPart:
    """The records of a decided transaction in one partition; both offsets inclusive."""

    version: int
    identity: ProducerIdentity
    where: TopicPartition
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A write id in the commit log, at its coordinators, and in the data topics.

    parts      of the newest decision of every query id
    decided    each decided transaction with its facts, if the producer is the id's own
    described  the transactional ids of all Spark partitions that ever left a part record
    topics     the topics that the newest decisions name
    """

    parts: tuple[DecidedPart, ...] = ()
    decided: tuple[tuple[PreparedTransaction, Facts], ...] = ()
    described: Mapping[str, TransactionDescription | None] = field(default_factory=dict)
    topics: frozenset[str] = frozenset()


class Verdict(Enum):
    MISSING = "missing"
    """Proven committed, and open on the partition: the COMMIT marker may be written."""
    RUNNING = "running"
    """Its coordinator has not ended it, or is about to write the markers itself."""
    UNPROVEN = "unproven"
    """Open on the partition, ended at its coordinator, and not proven committed: no marker is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A transaction that a partition's leader holds open.

    start_offset  where the open transaction begins
    version       None if no newest decision lists the transaction
    outcome       what the facts prove of a decided transaction; None if its producer may not be the id's own
    marker        only if it is missing
    """

    transactional_id: str
    where: TopicPartition
    start_offset: int
    version: int | None
    verdict: Verdict
    reason: str
    outcome: Outcome | None = None
    marker: TransactionMarker | None = None


def gather(run: Run) -> Procedure[Evidence]:
    """Read the commit log to its end and describe the write's transactions.

    Fences no driver: InitProducerId would erase the coordinator's proof.
    """
    write = run.write
    view = LogView(write.id)
    yield from read_to_end(view)
    require_whole(view)
    if view.lacks_write:
        # A barrier would make this log look like the write's own.
        return Evidence()
    yield from read_to_barrier(view, run.nonce)
    found = [(query, newest.decision) for query in view.queries("decision") if (newest := query.newest) is not None]
    named = [(query, entry) for query, decision in found for entry in decision.transactions]
    # An attempt may be of an older batch with more Spark partitions, or of one that was never decided.
    partitions = {entry.partition for _, entry in named}
    partitions.update(partition for query in view.queries("part") for partition in query.newest_parts)
    described: Mapping[str, TransactionDescription | None] = {}
    if partitions:
        described = yield from DescribeTransactions(write.task_ids(sorted(partitions)))
    decided: tuple[tuple[PreparedTransaction, Facts], ...] = ()
    if named:
        watched = watching(write.id, [entry for _, entry in named])
        yield from read_to_barrier(watched, run.nonce)
        policy = yield from LogPolicy()
        decided = yield from _looked_at(
            [
                (
                    entry,
                    replace(from_log(watched.query(query.query_id), watched, entry, policy), coordinator=coordinator),
                )
                for query, entry in named
                if (coordinator := _own(query, entry, described)) is not None
            ]
        )
    return Evidence(
        parts=tuple(part for _, decision in found for part in _parts_of(decision, write.commit_log)),
        decided=decided,
        described=described,
        topics=frozenset(topic for _, decision in found for topic in _topics_of(decision)),
    )


def _looked_at(
    own: Sequence[tuple[PreparedTransaction, Facts]],
) -> Procedure[tuple[tuple[PreparedTransaction, Facts], ...]]:
    """Add what readers see of every range; UNSHOWN if the topics cannot be read."""
    shown = [(Shown.UNSHOWN,) * len(entry.offsets) for entry, _ in own]
    with suppress(KafkaEosError):  # a partition without a leader must not keep the others from their markers
        shown = yield from look_at([entry for entry, _ in own])
    return tuple((entry, replace(facts, ranges=ranges)) for (entry, facts), ranges in zip(own, shown, strict=True))


def _own(
    query: QueryState, entry: PreparedTransaction, described: Mapping[str, TransactionDescription | None]
) -> Coordinator | None:
    """Return the coordinator's proof; None if the producer may not be the id's own.

    A principal with Write on the commit log can name the producer of another program in a decision. The operator's right to write
    markers reaches every topic.
    """
    identity = entry.identity
    held = described.get(identity.transactional_id)
    # A leader lets only the owner of a producer id write in its transactions.
    part = query.part_at(entry.partition, entry.part_offset)
    is_own = (held is not None and held.producer_id == identity.producer_id) or (
        part is not None and part.carrier == (identity.producer_id, identity.producer_epoch)
    )
    return of_coordinator(held, identity) if is_own else None


def _parts_of(decision: Decision, log: TopicPartition) -> Iterable[DecidedPart]:
    for entry in decision.transactions:
        ranges = [(log, entry.part_offset, entry.part_offset)]
        ranges += [((each.topic, each.partition), each.first_offset, each.last_offset) for each in entry.offsets]
        for where, first, last in ranges:
            yield DecidedPart(
                version=decision.version, identity=entry.identity, where=where, first_offset=first, last_offset=last
            )


def _topics_of(decision: Decision) -> set[str]:
    written = {part.topic for entry in decision.transactions for part in entry.offsets}
    return written | ({decision.topic} if decision.topic else set())


def judge(evidence: Evidence, producers: Mapping[TopicPartition, Sequence[ProducerState]]) -> tuple[Finding, ...]:
    """Judge each transaction of the write id that a leader holds open.

    Args:
        producers: The leaders' responses to DescribeProducers, which was sent after the evidence was gathered.
    """
    decided: dict[tuple[TopicPartition, int], list[DecidedPart]] = {}
    for part in evidence.parts:
        decided.setdefault((part.where, part.identity.producer_id), []).append(part)
    held = held_by(producers)
    facts = {entry.identity: where_held(entry, found, held) for entry, found in evidence.decided}
    found: list[Finding | None] = []
    for where, remembered in producers.items():
        for producer in remembered:
            start = producer.current_txn_start_offset
            # A transaction that begins after the decided offsets is a later one of the same id.
            parts = [part for part in decided.get((where, producer.producer_id), ()) if start <= part.last_offset]
            if start < 0:
                continue
            found += [_judge_decided(evidence, facts.get(part.identity), part, producer) for part in parts]
            if not parts:
                found.append(_judge_attempt(evidence, where, producer))
    return tuple(finding for finding in found if finding is not None)


def unproven_versions(
    evidence: Evidence, producers: Mapping[TopicPartition, Sequence[ProducerState]]
) -> frozenset[int]:
    """Return the decided versions for which recovery would raise UNRESOLVED.

    Args:
        producers: As for `judge`.
    """
    versions = {part.identity: part.version for part in evidence.parts}
    held = held_by(producers)
    return frozenset(
        versions[entry.identity]
        for entry, facts in evidence.decided
        # Recovery ends what the coordinator has not.
        if facts.coordinator is not Coordinator.NOT_ENDED
        and outcome_of(where_held(entry, facts, held)) in (Outcome.OPEN, Outcome.UNRESOLVED)
    )


def _judge_decided(evidence: Evidence, facts: Facts | None, part: DecidedPart, producer: ProducerState) -> Finding:
    identity, start = part.identity, producer.current_txn_start_offset
    outcome = None if facts is None else outcome_of(facts)

    def finding(verdict: Verdict, reason: str, marker: TransactionMarker | None = None) -> Finding:
        return Finding(
            transactional_id=identity.transactional_id,
            where=part.where,
            start_offset=start,
            version=part.version,
            verdict=verdict,
            reason=reason,
            outcome=outcome,
            marker=marker,
        )

    if start < part.first_offset or producer.producer_epoch != identity.producer_epoch:
        # This transaction has joined an older one whose marker is missing, or a later one has joined this one.
        other = f"the leader holds a transaction open from offset {start} with epoch {producer.producer_epoch}"
        return finding(Verdict.UNPROVEN, f"{other}, which contains another transaction too")
    state = _state_of(evidence.described.get(identity.transactional_id))
    if facts is None:
        return finding(
            Verdict.UNPROVEN, f"its coordinator reports {state}, and its part record is not of this producer"
        )
    if facts.coordinator is Coordinator.NOT_ENDED:
        return finding(Verdict.RUNNING, f"its coordinator reports {state}")
    if lacks_commit_marker(facts):
        by = "its coordinator reports exactly this transaction as CompleteCommit"
        by = by if facts.coordinator is Coordinator.COMMITTED else "its marker in another partition is COMMIT"
        return finding(Verdict.MISSING, f"decided, and {by}", _commit_marker(part, producer))
    known = "committed, but not everywhere" if outcome is Outcome.COMMITTED else outcome_of(facts).value
    return finding(Verdict.UNPROVEN, f"its coordinator reports {state}, and commit log and topics show: {known}")


def _judge_attempt(evidence: Evidence, where: TopicPartition, producer: ProducerState) -> Finding | None:
    """Report a transaction that no newest decision names, if its coordinator ended it."""
    for transactional_id, described in evidence.described.items():
        if described is not None and has_ended(described, (producer.producer_id, producer.producer_epoch)):
            return Finding(
                transactional_id=transactional_id,
                where=where,
                start_offset=producer.current_txn_start_offset,
                version=None,
                verdict=Verdict.UNPROVEN,
                reason=f"no newest decision names it, and its coordinator reports {_state_of(described)}",
            )
    return None


def _state_of(described: TransactionDescription | None) -> str:
    if described is None:
        return "an unknown id"
    return f"{described.state} of producer id {described.producer_id} epoch {described.producer_epoch}"


def _commit_marker(part: DecidedPart, producer: ProducerState) -> TransactionMarker:
    identity, (topic, partition) = part.identity, part.where
    return TransactionMarker(
        topic=topic,
        partition=partition,
        producer_id=identity.producer_id,
        # The coordinator would have written this epoch (KIP-890), and the epoch rule accepts no other in the commit log.
        producer_epoch=identity.after_end.producer_epoch,
        committed=True,
        coordinator_epoch=max(0, producer.coordinator_epoch),
        transaction_version=identity.transaction_version,
    )
