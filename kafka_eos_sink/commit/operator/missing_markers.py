"""Markers that a broker left out of a transaction that is committed, or decided and lost (KAFKA-20734), found and proven.

A partition without a leader at the moment of the commit can be passed over, and its coordinator calls the transaction complete
all the same. Such a partition holds up its readers until somebody writes the marker. To write one by hand can also destroy a
transaction, so it takes two witnesses: the decision, whose COMMIT marker was read, and one who says that exactly this transaction is
committed: its coordinator, or, where that has gone on to another transaction or forgotten the id, the transaction's own COMMIT marker in
the commit log. An attempt that no decision names holds up the readers of the same partitions when its ABORT is left out; there it takes
the coordinator's word as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from kafka_eos_sink.commit.log_reading import read_to, read_to_barrier, read_to_end, require_whole
from kafka_eos_sink.commit.log_view import LogView, Outcome
from kafka_eos_sink.commit.operator.coordinator_verdict import CoordinatorVerdict, bump_of, verdict_on
from kafka_eos_sink.commit.prepared_transaction import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.commit.steps import (
    DescribeTransactions,
    LogPolicy,
    MarkerType,
    Procedure,
    TransactionDescription,
)
from kafka_eos_sink.commit.transactional_id import SLOTS, task_transactional_id
from kafka_eos_sink.commit.witnesses import witness_of
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition, TransactionMarker
from kafka_eos_sink.protocol.messages import ProducerState


@dataclass(frozen=True, slots=True)
class Part:
    """The records of one transaction in one partition; both offsets inclusive.

    version    None for an attempt that no decision names
    query_id   None for an attempt that no decision names
    finished   whether its version is finished
    """

    query_id: str | None
    version: int | None
    identity: ProducerIdentity
    where: TopicPartition
    first_offset: int
    last_offset: int
    finished: bool = False

    @property
    def offsets(self) -> OffsetRange:
        topic, partition = self.where
        return OffsetRange(
            topic=topic, partition=partition, first_offset=self.first_offset, last_offset=self.last_offset
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All parts of the newest decisions of a write id, what the coordinators say of their transactions and of all other ids of the
    Spark partitions that left a record, and what the commit log proves of each transaction: OPEN where its record has no marker."""

    write_id: str
    parts: tuple[Part, ...]
    described: Mapping[str, TransactionDescription | None]
    witnesses: Mapping[ProducerIdentity, Outcome]
    inferred: frozenset[ProducerIdentity] = frozenset()
    """Those of which the commit log holds no marker of their own any more: what compaction left speaks for them, and it would be the same
    for a committed one which another has joined (KAFKA-20734) and taken along in its abort."""
    committed: frozenset[tuple[int, int]] = frozenset()
    """Producer id and epoch of the COMMIT markers of those ids in the commit log."""
    transaction_version: int = 2
    knows_decisions: bool = True
    topics: frozenset[str] = frozenset()
    """Those that the newest decisions name. An attempt that none of them names may hold up readers on any of their partitions."""
    nowhere: tuple[str, ...] = ()
    """Query ids whose newest decision names no topic, or that have none: where their attempts have written nobody can tell."""


class Verdict(Enum):
    MISSING = "missing"
    """Proven committed, or aborted, and open on the partition: the marker may be written."""
    RUNNING = "running"
    """Its coordinator has not ended it, or is about to write the markers itself."""
    UNPROVEN = "unproven"
    """Open on the partition, and nobody proves how it ended: no marker is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A transaction that a partition's leader holds open, and what follows from it; ``marker`` only where it is missing."""

    part: Part
    verdict: Verdict
    reason: str
    marker: TransactionMarker | None = None


def gather(
    write_id: str, nonce: str, log_topic: str, log_partition: int, transaction_version: int
) -> Procedure[Evidence]:
    """Read the log to its end and ask the coordinators. Fences nobody: that would erase what is to be asked."""
    view = LogView(write_id)
    yield from read_to_end(view)
    require_whole(view)
    if view.is_empty:  # nor leave a barrier, by which another log than the write's own would seem to know it
        return Evidence(write_id=write_id, parts=(), described={}, witnesses={}, knows_decisions=False)
    barrier = yield from read_to_barrier(view, nonce)
    described: dict[str, TransactionDescription | None] = {}
    where = (log_topic, log_partition)
    parts: list[Part] = []
    committed: frozenset[tuple[int, int]] = frozenset()
    witnesses: dict[ProducerIdentity, Outcome] = {}
    inferred: set[ProducerIdentity] = set()
    tasks: dict[ProducerIdentity, tuple[Decision, PreparedTransaction]] = {}
    topics_of: dict[str, set[str]] = {}
    for query in view.queries("decision"):
        query_id = query.query_id
        found = query.newest
        if found is None:
            continue
        decision = found.decision
        finished = decision.resolution is not None or query.has_done_record(decision)
        for entry in decision.transactions:
            tasks[entry.identity] = decision, entry
            inside = [(where, entry.part_offset, entry.part_offset)]
            inside += [((part.topic, part.partition), part.first_offset, part.last_offset) for part in entry.offsets]
            parts += [Part(query_id, decision.version, entry.identity, *one, finished) for one in inside]
        topics_of[query_id] = {part.topic for entry in decision.transactions for part in entry.offsets}
        if decision.topic:
            topics_of[query_id].add(decision.topic)
    # An attempt may be of an older batch, with more Spark partitions than the newest one has, or of one that was never decided.
    attempted = {query.query_id: query.newest_parts for query in view.queries("part")}
    partitions = {partition for parts_of in attempted.values() for partition in parts_of}
    partitions |= {entry.partition for _, entry in tasks.values()}
    ids = {task_transactional_id(write_id, partition, slot) for partition in partitions for slot in range(SLOTS)}
    attempting = [
        query_id
        for query_id, parts_of in attempted.items()
        if any(each.value is not None for each in parts_of.values())
    ]
    if ids:
        described |= yield DescribeTransactions(tuple(sorted(ids)))
        # The named ones' own too: an id that was forgotten, or whose epochs ran out, has another producer id now, or none.
        known = {found.producer_id for found in described.values() if found is not None}
        watching = LogView(write_id, watched=frozenset(known | {identity.producer_id for identity in tasks}))
        yield from read_to(watching, barrier)
        committed = frozenset(
            (marker.producer_id, marker.producer_epoch)
            for marker in watching.all_markers
            if marker.type is MarkerType.COMMIT
        )
        # A newer batch may have been decided since, and the cleaner have come for the older part.
        yield from read_to_end(watching)
        policy: str | None = yield LogPolicy()
        for identity, (decision, entry) in tasks.items():
            witnesses[identity], has_marker = _witness(watching, decision, entry, policy)
            if not has_marker:
                inferred.add(identity)
    return Evidence(
        write_id=write_id,
        parts=tuple(parts),
        described=described,
        witnesses=witnesses,
        inferred=frozenset(inferred),
        committed=committed,
        transaction_version=transaction_version,
        knows_decisions=any(query.newest or query.undecided for query in view.queries("decision")),
        topics=frozenset[str]().union(*topics_of.values()),
        nowhere=tuple(each for each in dict.fromkeys((*topics_of, *attempting)) if not topics_of.get(each)),
    )


def _witness(
    watching: LogView, decision: Decision, entry: PreparedTransaction, policy: str | None
) -> tuple[Outcome, bool]:
    """What the commit log proves of a transaction, and whether by a marker of its own. OPEN where the record stands and has none: there
    recovery waits, and calls it unresolved in the end; repair asks whether one is missing."""
    identity = entry.identity
    marker = watching.first_marker(identity.producer_id, entry.part_offset)
    part = watching.query(decision.query_id).part_at(entry.partition, entry.part_offset)
    if (
        marker is None
        and part is not None
        and (part.producer_id, part.producer_epoch)
        == (
            identity.producer_id,
            identity.producer_epoch,
        )
    ):
        return Outcome.OPEN, False
    has_marker = part is not None and marker is not None and marker.type is not MarkerType.EMPTY
    return witness_of(decision, entry, watching, policy), has_marker


def judge(evidence: Evidence, producers: Mapping[TopicPartition, Sequence[ProducerState]]) -> tuple[Finding, ...]:
    """What is open on the partitions although it is decided. ``producers`` are their leaders' answers to DescribeProducers."""
    found = [_judge(evidence, part, producers.get(part.where, ())) for part in evidence.parts]
    found += [_judge_undecided(evidence, where, producer) for where, there in producers.items() for producer in there]
    return tuple(finding for finding in found if finding is not None)


def holder_of(part: Part, producers: Iterable[ProducerState]) -> ProducerState | None:
    """Who holds the part open, by its leader's answer; what is open from beyond our offsets is a later transaction of the same id."""
    for each in producers:
        if each.producer_id == part.identity.producer_id and 0 <= each.current_txn_start_offset <= part.last_offset:
            return each
    return None


def _judge(evidence: Evidence, part: Part, producers: Iterable[ProducerState]) -> Finding | None:
    identity = part.identity
    producer = holder_of(part, producers)
    if producer is None:
        return None
    start = producer.current_txn_start_offset
    if start < part.first_offset or producer.producer_epoch != identity.producer_epoch:
        # Older than this one, which has joined it; or this one, joined by a later one.
        reason = f"the leader holds a transaction open from offset {start} with epoch {producer.producer_epoch}, which is not this one"
        return Finding(part=part, verdict=Verdict.UNPROVEN, reason=reason)
    described = evidence.described.get(identity.transactional_id)
    witness = evidence.witnesses.get(identity, Outcome.OPEN)
    match verdict_on(described, identity), witness:
        case CoordinatorVerdict.ENDING, _:
            assert described is not None
            return Finding(part=part, verdict=Verdict.RUNNING, reason=f"its coordinator says {described.state}")
        case CoordinatorVerdict.COMMITTED, Outcome.COMMITTED | Outcome.OPEN:
            return _missing(part, producer, True, "decided, and its coordinator says CompleteCommit")
        case CoordinatorVerdict.GONE_ON, Outcome.COMMITTED:
            return _missing(part, producer, True, "decided, and its marker in the commit log says committed")
        case CoordinatorVerdict.ABORTED, Outcome.ABORTED:
            return _missing(part, producer, False, "decided, and lost: its coordinator and the commit log say aborted")
        case CoordinatorVerdict.GONE_ON, Outcome.ABORTED if identity not in evidence.inferred:
            return _missing(part, producer, False, "decided, and lost: its marker in the commit log says aborted")
        case CoordinatorVerdict.ABORTED, Outcome.OPEN if (
            identity.transaction_version >= 2
        ):  # the epoch is that of no other end
            return _missing(part, producer, False, "decided, and lost: its coordinator says CompleteAbort")
    says = (
        "does not know the id any more"
        if described is None
        else f"says {described.state} of producer id {described.producer_id} epoch {described.producer_epoch}"
    )
    return Finding(
        part=part,
        verdict=Verdict.UNPROVEN,
        reason=f"its coordinator {says}, and its marker in the commit log: {witness.value}",
    )


def _missing(part: Part, producer: ProducerState, committed: bool, reason: str) -> Finding:
    identity, (topic, partition) = part.identity, part.where
    return Finding(
        part=part,
        verdict=Verdict.MISSING,
        reason=reason,
        marker=TransactionMarker(
            topic=topic,
            partition=partition,
            producer_id=identity.producer_id,
            # As the coordinator would have written it (KIP-890), which is what the epoch rule accepts in the commit log.
            producer_epoch=identity.producer_epoch + bump_of(identity),
            committed=committed,
            coordinator_epoch=max(0, producer.coordinator_epoch),
            transaction_version=identity.transaction_version,
        ),
    )


def _judge_undecided(evidence: Evidence, where: TopicPartition, producer: ProducerState) -> Finding | None:
    """What an attempt that no decision names holds open on a partition, although its coordinator has ended it."""
    start = producer.current_txn_start_offset
    if start < 0 or any(
        part.where == where and part.identity.producer_id == producer.producer_id and start <= part.last_offset
        for part in evidence.parts
    ):
        return None  # nothing is open, or it is judged with its decision
    for transactional_id, described in evidence.described.items():
        if described is None or described.producer_id != producer.producer_id:
            continue
        if not _is_over(evidence, described, producer):
            continue
        identity = ProducerIdentity(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_version=evidence.transaction_version,
        )
        part = Part(None, None, identity, where, start, start)
        if _is_its_abort(evidence, described, producer):
            return _missing(part, producer, False, "named by no decision, and its coordinator says CompleteAbort")
        reason = f"named by no decision, and its coordinator says {described.state} of epoch {described.producer_epoch}, not of this one"
        return Finding(part=part, verdict=Verdict.UNPROVEN, reason=reason)
    return None


def _is_over(evidence: Evidence, described: TransactionDescription, producer: ProducerState) -> bool:
    """Neither open, nor begun since the coordinator was asked, nor about to be ended by the coordinator itself."""
    if described.is_ending:
        return False
    if described.producer_epoch == producer.producer_epoch and evidence.transaction_version < 2:
        return described.state.startswith("Complete")
    return described.producer_epoch > producer.producer_epoch


def _is_its_abort(evidence: Evidence, described: TransactionDescription, producer: ProducerState) -> bool:
    """Whether the coordinator is in the state that only the abort of exactly this transaction makes."""
    # Below version 2 an abort that keeps the epoch and one that bumps it cannot be told from those of a later transaction.
    return (
        evidence.transaction_version >= 2
        and described.state == "CompleteAbort"
        and described.producer_epoch == producer.producer_epoch + 1
        and not any((producer.producer_id, producer.producer_epoch + later) in evidence.committed for later in (0, 1))
    )


def rounds(findings: Iterable[Finding]) -> tuple[tuple[TransactionMarker, ...], ...]:
    """The missing markers in rounds that hold at most one per partition, as they are written."""
    made: list[dict[TopicPartition, TransactionMarker]] = []
    for marker in (finding.marker for finding in findings if finding.marker is not None):
        where = (marker.topic, marker.partition)
        free = next((each for each in made if where not in each), None)
        if free is None:
            made.append(free := {})
        free[where] = marker
    return tuple(tuple(each.values()) for each in made)
