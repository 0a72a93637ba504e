"""Markers that a broker left out of a transaction that is committed (KAFKA-20734), found and proven.

A partition without a leader at the moment of the commit can be passed over, and its coordinator calls the transaction complete
all the same. Such a partition holds up its readers until somebody writes the marker. To write one by hand can also destroy a
transaction, so it takes two witnesses: the decision, whose COMMIT marker was read, and the coordinator, who calls exactly this
transaction committed. The driver's own transaction, which carries a decision, has the coordinator's word and the record itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ..client.admin import ProducerState, TransactionMarker
from .commit_log import LogView, Outcome, barrier_record, outcome_of
from .log_reading import read_to
from .open_transactions import ONGOING, PREPARE_STATES
from .prepared_transaction import ProducerIdentity
from .steps import Append, DescribeTransactions, Procedure, TransactionDescription
from .transactional_id import driver_transactional_id

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one decided transaction has in one partition: offsets inclusive, so that an open one there is known as ours or not."""

    query_id: str
    version: int | None
    identity: ProducerIdentity
    where: TopicPartition
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All parts of the newest decisions of a write id, what the coordinators say of their transactions, and what the first
    marker of each transaction in the commit log says."""

    parts: tuple[Part, ...]
    described: Mapping[str, TransactionDescription | None]
    witnesses: Mapping[ProducerIdentity, Outcome]


class Verdict(Enum):
    MISSING = "missing"
    """Proven committed, and open on the partition: the marker may be written."""
    RUNNING = "running"
    """Its coordinator has not ended it, or is about to write the markers itself."""
    UNPROVEN = "unproven"
    """Open on the partition, and nobody proves that it is committed: no marker is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A transaction that a partition's leader holds open, and what follows from it; ``marker`` only where it is missing."""

    part: Part
    verdict: Verdict
    reason: str
    marker: TransactionMarker | None = None


def gather(write_id: str, nonce: str, log_topic: str, log_partition: int) -> Procedure[Evidence]:
    """Read the log to its end and ask the coordinators. Fences nobody: that would erase what is to be asked."""
    driver_id = driver_transactional_id(write_id)
    described: dict[str, TransactionDescription | None] = {}
    described |= yield DescribeTransactions((driver_id,))
    barrier: int = yield Append((barrier_record(write_id, nonce),))
    view = LogView(write_id)
    yield from read_to(view, barrier)
    where = (log_topic, log_partition)
    parts: list[Part] = []
    witnesses: dict[ProducerIdentity, Outcome] = {}
    for query_id in view.query_ids(write_id):
        for record in view.undecided(write_id, query_id):
            if record.value is None:
                continue  # a finished write being forgotten: no decision that anybody waits for
            driver = ProducerIdentity(
                transactional_id=driver_id,
                producer_id=record.producer_id,
                producer_epoch=record.producer_epoch,
                transaction_version=record.value["transaction_version"],
            )
            witnesses[driver] = record.outcome
            parts.append(_part(query_id, None, driver, where, record.offset, record.offset))
        found = view.newest_decision(write_id, query_id)
        if found is None:
            continue
        for entry in found.decision.transactions:
            version, offset = found.decision.version, entry.part_offset
            parts.append(_part(query_id, version, entry.identity, where, offset, offset))
            parts += [
                _part(
                    query_id,
                    version,
                    entry.identity,
                    (part.topic, part.partition),
                    part.first_offset,
                    part.last_offset,
                )
                for part in entry.offsets
            ]
    tasks = {part.identity: part.first_offset for part in parts if part.where == where and part.version is not None}
    if tasks:
        described |= yield DescribeTransactions(tuple(identity.transactional_id for identity in tasks))
        watching = LogView(
            write_id,
            next_offset=min(tasks.values()),
            watched=frozenset(identity.producer_id for identity in tasks),
        )
        yield from read_to(watching, barrier)
        for identity, offset in tasks.items():
            marker = watching.first_marker(identity.producer_id, offset)
            witnesses[identity] = outcome_of(identity.producer_epoch, identity.transaction_version, marker)
    return Evidence(parts=tuple(parts), described=described, witnesses=witnesses)


def _part(
    query_id: str,
    version: int | None,
    identity: ProducerIdentity,
    where: TopicPartition,
    first_offset: int,
    last_offset: int,
) -> Part:
    return Part(
        query_id=query_id,
        version=version,
        identity=identity,
        where=where,
        first_offset=first_offset,
        last_offset=last_offset,
    )


def judge(evidence: Evidence, producers: Mapping[TopicPartition, Sequence[ProducerState]]) -> tuple[Finding, ...]:
    """What is open on the partitions although it is decided. ``producers`` are their leaders' answers to DescribeProducers."""
    found = (_judge(evidence, part, producers.get(part.where, ())) for part in evidence.parts)
    return tuple(finding for finding in found if finding is not None)


def _judge(evidence: Evidence, part: Part, producers: Iterable[ProducerState]) -> Finding | None:
    identity = part.identity
    producer = next((each for each in producers if each.producer_id == identity.producer_id), None)
    if (
        producer is None
        or producer.current_txn_start_offset < 0
        or producer.current_txn_start_offset > part.last_offset
    ):
        return None  # ended here; what is open from beyond our offsets is a later transaction of the same id
    start = producer.current_txn_start_offset
    if start < part.first_offset or producer.producer_epoch != identity.producer_epoch:
        return Finding(
            part=part,
            verdict=Verdict.UNPROVEN,
            reason=f"the leader holds a transaction open from offset {start} with epoch {producer.producer_epoch}, which is not this one",
        )
    described = evidence.described.get(identity.transactional_id)
    if described is not None and _says(described, identity, 0) and described.state in (ONGOING, *PREPARE_STATES):
        return Finding(part=part, verdict=Verdict.RUNNING, reason=f"its coordinator says {described.state}")
    if described is not None and _says(described, identity, 1) and described.state in PREPARE_STATES:
        return Finding(part=part, verdict=Verdict.RUNNING, reason=f"its coordinator says {described.state}")
    if described is None or described.state != "CompleteCommit" or not _says(described, identity, _bump(identity)):
        says = (
            "does not know the id any more"
            if described is None
            else f"says {described.state} of producer id {described.producer_id} epoch {described.producer_epoch}"
        )
        return Finding(part=part, verdict=Verdict.UNPROVEN, reason=f"its coordinator {says}")
    witness = evidence.witnesses.get(identity, Outcome.OPEN)
    if witness not in (Outcome.OPEN, Outcome.COMMITTED):
        return Finding(
            part=part,
            verdict=Verdict.UNPROVEN,
            reason=f"its coordinator says CompleteCommit, but its marker in the commit log says {witness.value}",
        )
    topic, partition = part.where
    return Finding(
        part=part,
        verdict=Verdict.MISSING,
        reason="decided, and its coordinator says CompleteCommit",
        marker=TransactionMarker(
            topic=topic,
            partition=partition,
            producer_id=identity.producer_id,
            # As the coordinator would have written it (KIP-890), which is what the epoch rule accepts in the commit log.
            producer_epoch=identity.producer_epoch + _bump(identity),
            committed=True,
            coordinator_epoch=max(0, producer.coordinator_epoch),
            transaction_version=identity.transaction_version,
        ),
    )


def _bump(identity: ProducerIdentity) -> int:
    """What a commit adds to the epoch."""
    return 1 if identity.transaction_version >= 2 else 0


def _says(described: TransactionDescription, identity: ProducerIdentity, later: int) -> bool:
    return (described.producer_id, described.producer_epoch) == (
        identity.producer_id,
        identity.producer_epoch + later,
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
