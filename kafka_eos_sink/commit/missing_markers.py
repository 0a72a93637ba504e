"""Missing markers: committed transactions that a partition still holds open.

A coordinator can omit a partition that has no leader when the transaction ends (KAFKA-20734). It then calls the transaction complete,
and the partition blocks its readers. No tool of Kafka writes a COMMIT marker, so `repair` writes it.

A wrong COMMIT marker shows aborted records to readers. It therefore needs two proofs: the decision, whose own COMMIT marker was read,
and that exactly this transaction is committed. The second proof is the coordinator's state. If the coordinator has begun another
transaction or forgotten the id, the proof is the COMMIT marker in the commit log. `repair` only reports a transaction without proof:
Kafka's own tool (``kafka-transactions.sh abort``) ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

from kafka_eos_sink.commit.coordinator_verdict import CoordinatorVerdict, bump_of, verdict_on
from kafka_eos_sink.commit.log_reading import read_to_barrier, read_to_end, require_whole
from kafka_eos_sink.commit.log_view import LogView, Outcome
from kafka_eos_sink.commit.procedure import Procedure
from kafka_eos_sink.commit.proofs import Written, ends_in_topics, written_by
from kafka_eos_sink.commit.steps import DescribeTransactions, LogPolicy, TransactionDescription
from kafka_eos_sink.commit.transactional_id import SLOTS, task_transactional_id
from kafka_eos_sink.commit.values import Decision, PreparedTransaction
from kafka_eos_sink.commit.witnesses import witness_of
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
    """The state of a write id in the commit log and at its coordinators.

    parts            of the newest decision of every query id
    witnesses        outcome in the commit log of each decided transaction; OPEN without a marker
    described        the transactional ids of all Spark partitions that ever left a part record
    topics           the topics that the newest decisions name
    knows_decisions  whether the commit log holds a decision of the write id, with or without a marker
    unshown          below version 2, ranges of which no leader shows the end: either still open, or the end is not readable yet
    """

    parts: tuple[DecidedPart, ...] = ()
    witnesses: Mapping[ProducerIdentity, Outcome]
    described: Mapping[str, TransactionDescription | None]
    topics: frozenset[str] = frozenset()
    knows_decisions: bool = True
    unshown: frozenset[Written] = frozenset()


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
    version       None if no newest decision names the transaction
    marker        only if it is missing
    """

    transactional_id: str
    where: TopicPartition
    start_offset: int
    version: int | None
    verdict: Verdict
    reason: str
    marker: TransactionMarker | None = None


def gather(write_id: str, nonce: str, log: TopicPartition) -> Procedure[Evidence]:
    """Read the commit log to its end and describe the write id's transactions.

    Fences no driver: InitProducerId would erase the coordinator's proof.

    Args:
        log: The partition of the commit log that holds the write id.
    """
    view = LogView(write_id)
    yield from read_to_end(view)
    require_whole(view)
    if view.lacks_write:
        # A barrier would make this log look like the write's own.
        return Evidence(witnesses={}, described={}, knows_decisions=False)
    yield from read_to_barrier(view, nonce)
    queries = view.queries("decision")
    decisions = [found.decision for query in queries if (found := query.newest) is not None]
    named = [(decision, entry) for decision in decisions for entry in decision.transactions]
    # An attempt may be of an older batch with more Spark partitions, or of one that was never decided.
    partitions = {entry.partition for _, entry in named}
    partitions.update(partition for query in view.queries("part") for partition in query.newest_parts)
    described: Mapping[str, TransactionDescription | None] = {}
    if partitions:
        described = yield from DescribeTransactions(
            tuple(task_transactional_id(write_id, each, slot) for each in sorted(partitions) for slot in range(SLOTS))
        )
    witnesses: dict[ProducerIdentity, Outcome] = {}
    unshown: frozenset[Written] = frozenset()
    if named:
        watching = LogView(
            write_id,
            next_offset=min(entry.part_offset for _, entry in named),
            watched=frozenset(entry.identity.producer_id for _, entry in named),
        )
        yield from read_to_barrier(watching, nonce)
        policy = yield from LogPolicy()
        own = [(decision, entry) for decision, entry in named if _is_own(decision, entry, watching, described)]
        witnesses = {entry.identity: Outcome.UNRESOLVED for _, entry in named}
        witnesses |= {entry.identity: witness_of(decision, entry, watching, policy) for decision, entry in own}
        unshown = yield from _look_at_topics([entry for _, entry in own], witnesses)
    return Evidence(
        parts=tuple(part for decision in decisions for part in _parts_of(decision, log)),
        witnesses=witnesses,
        described=described,
        topics=frozenset(topic for decision in decisions for topic in _topics_of(decision)),
        knows_decisions=bool(queries),
        unshown=unshown,
    )


def _look_at_topics(
    own: Sequence[PreparedTransaction], witnesses: dict[ProducerIdentity, Outcome]
) -> Procedure[frozenset[Written]]:
    """Replace witnesses that the data topics contradict; return `Evidence.unshown`."""
    proven = {identity for identity, outcome in witnesses.items() if outcome is Outcome.COMMITTED}
    # Below version 2, a late AddPartitionsToTxn can open a transaction again in one partition, and the next end leaves a marker there
    # only. So neither a COMMIT marker in the commit log nor the coordinator speaks for the other partitions.
    in_doubt = [each for each in own if each.identity not in proven or each.identity.transaction_version < 2]
    ends: dict[Written, bool | None] | None = dict.fromkeys(written_by(in_doubt))
    with suppress(KafkaEosError):  # a partition without a leader must not keep the others from their markers
        ends = yield from ends_in_topics(in_doubt)
    unshown: set[Written] = set()
    for entry in in_doubt:
        ranges = written_by([entry])
        shown = {(ends or {}).get(each) for each in ranges} - {None}
        is_below_two = entry.identity.transaction_version < 2
        if shown == {True}:
            # Some partition has its marker, so the transaction is committed as a whole.
            witnesses[entry.identity] = Outcome.COMMITTED
        elif False in shown or (ends is None and is_below_two and entry.identity not in proven):
            witnesses[entry.identity] = Outcome.UNRESOLVED
        elif ends is not None and is_below_two:
            unshown.update(each for each in ranges if each in ends and ends[each] is None)
    return frozenset(unshown)


def _is_own(
    decision: Decision,
    entry: PreparedTransaction,
    view: LogView,
    described: Mapping[str, TransactionDescription | None],
) -> bool:
    """Whether the coordinator or the part record shows the producer as the id's own.

    Whoever may Write the commit log can name the producer of another program in a decision of their own. The operator's right to write
    markers reaches every topic.
    """
    identity = entry.identity
    held = described.get(identity.transactional_id)
    if held is not None and held.producer_id == identity.producer_id:
        return True
    # A leader lets only the owner of a producer id write in its transactions.
    part = view.query(decision.query_id).part_at(entry.partition, entry.part_offset)
    return part is not None and part.carrier == (identity.producer_id, identity.producer_epoch)


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
    # A new leader may not show an ABORT marker yet. Only an open transaction explains that a range shows no end.
    hidden = {
        identity
        for identity, part in evidence.unshown
        if (identity.producer_id, part.first_offset)
        not in [
            (each.producer_id, each.current_txn_start_offset)
            for each in producers.get((part.topic, part.partition), ())
        ]
    }
    evidence = replace(evidence, witnesses={**evidence.witnesses, **dict.fromkeys(hidden, Outcome.UNRESOLVED)})
    found: list[Finding | None] = []
    for where, remembered in producers.items():
        for producer in remembered:
            start = producer.current_txn_start_offset
            # A transaction that begins behind the decided offsets is a later one of the same id.
            parts = [part for part in decided.get((where, producer.producer_id), ()) if start <= part.last_offset]
            if start < 0:
                continue
            found += [_judge_decided(evidence, part, producer) for part in parts]
            if not parts:
                found.append(_judge_attempt(evidence, where, producer))
    return tuple(finding for finding in found if finding is not None)


def _judge_decided(evidence: Evidence, part: DecidedPart, producer: ProducerState) -> Finding:
    identity, start = part.identity, producer.current_txn_start_offset

    def finding(verdict: Verdict, reason: str, marker: TransactionMarker | None = None) -> Finding:
        return Finding(
            transactional_id=identity.transactional_id,
            where=part.where,
            start_offset=start,
            version=part.version,
            verdict=verdict,
            reason=reason,
            marker=marker,
        )

    if start < part.first_offset or producer.producer_epoch != identity.producer_epoch:
        # This transaction has joined an older one whose marker is missing, or a later one has joined this one.
        other = f"the leader holds a transaction open from offset {start} with epoch {producer.producer_epoch}"
        return finding(Verdict.UNPROVEN, f"{other}, which contains another transaction too")
    described = evidence.described.get(identity.transactional_id)
    witness = evidence.witnesses.get(identity, Outcome.OPEN)
    match verdict_on(described, identity), witness:
        case CoordinatorVerdict.ENDING, _:
            return finding(Verdict.RUNNING, f"its coordinator reports {_state_of(described)}")
        case CoordinatorVerdict.COMMITTED, Outcome.COMMITTED | Outcome.OPEN:
            reason = "decided, and its coordinator reports exactly this transaction as CompleteCommit"
            return finding(Verdict.MISSING, reason, _commit_marker(part, producer))
        case CoordinatorVerdict.NO_LONGER_KNOWN, Outcome.COMMITTED:
            reason = "decided, and its marker in another partition is COMMIT"
            return finding(Verdict.MISSING, reason, _commit_marker(part, producer))
    known = f"its coordinator reports {_state_of(described)}, and the commit log proves: {witness.value}"
    return finding(Verdict.UNPROVEN, known)


def _judge_attempt(evidence: Evidence, where: TopicPartition, producer: ProducerState) -> Finding | None:
    """Report a transaction that no newest decision names, if its coordinator ended it."""
    for transactional_id, described in evidence.described.items():
        if described is None or described.producer_id != producer.producer_id or described.is_ending:
            continue
        # With the same epoch in another state it is open, or has begun after the description.
        ended_here = described.producer_epoch == producer.producer_epoch and described.state.startswith("Complete")
        if ended_here or described.producer_epoch > producer.producer_epoch:
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
        producer_epoch=identity.producer_epoch + bump_of(identity),
        committed=True,
        coordinator_epoch=max(0, producer.coordinator_epoch),
        transaction_version=identity.transaction_version,
    )
