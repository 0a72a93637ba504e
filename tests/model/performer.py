"""Steps of the protocol as requests to the simulated cluster, and their answers back into the protocol's types.

This stands where `runtime/executor.py` and `runtime/task_executor.py` stand in reality. A request is a hashable tuple, so that it can
be kept in a state: delayed, repeated identically, or processed after its sender died.
"""

from __future__ import annotations

from typing import Any

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_records import parse_key
from kafka_eos_sink.commit.steps import Answered
from kafka_eos_sink.commit.values import OffsetRange
from kafka_eos_sink.errors import AuthorizationError, BrokerUnavailableError, TransactionAbortedError
from kafka_eos_sink.protocol.identity import ProducerIdentity

from . import simulated_cluster as kafka
from .procedures import Throw
from .simulated_cluster import BLOCKED, LOG, Cluster, Control, Data, Identity

Request = tuple[Any, ...]
TOPIC = "t"
LOG_TOPIC = "__kafka_eos_commits"

UNANSWERED = "unanswered"
"""Stands behind the answer of an EndTxn of which another copy is still in the network."""


def log_partition(where: tuple[str, int]) -> int:
    """The simulated partition of a data topic-partition."""
    return where[1] + 1


def identity_of(identity: ProducerIdentity) -> Identity:
    return Identity(
        identity.transactional_id, identity.producer_id, identity.producer_epoch, identity.transaction_version
    )


def end_version(identity: Identity) -> int:
    """As `EndTransaction.version`, whose 3 a coordinator treats as 4."""
    return 5 if identity.version >= 2 else 4


def requests_of(step: Any, rows: tuple[tuple[Any, int], ...]) -> tuple[Request, ...]:
    """The requests of a step. ``rows`` are (row, data partition) of the task that asks; other steps need none."""
    match step:
        case steps.ListOpenTransactions():
            return (("list", step.write_id),)
        case steps.DescribeTransactions():
            return (("describe", step.transactional_ids),)
        case steps.InitProducerId():
            return (("init", step.transactional_id, step.timeout_ms),)
        case steps.Append():
            return (("produce", None, LOG, -1, tuple((record.key, record.value) for record in step.records)),)
        case steps.AddPartitions():
            added = [LOG] if step.partitions is None else [log_partition(where) for where in step.partitions]
            return tuple(("add", identity_of(step.identity), partition) for partition in added)
        case steps.AppendInTransaction():
            records = tuple((record.key, record.value) for record in step.records)
            # A large decision's records are requests of their own, one after the other (`driver_requests.append`).
            batches = [records] if parse_key(records[0][0]).kind != "decision" else [(record,) for record in records]
            return tuple(
                ("produce", identity_of(step.identity), LOG, step.base_sequence + number, batch)
                for number, batch in enumerate(batches)
            )
        case steps.EndTransactions():
            return tuple(
                ("end", identity_of(end.identity), end.commit, end_version(identity_of(end.identity)))
                for end in step.ends
            )
        case steps.ReadLog():
            return (("read", step.offset),)
        case steps.LastStableOffsets():
            return (("stable", step.partitions),)
        case steps.DescribeProducers():
            return (("producers", step.partitions),)
        case steps.AbortedTransactions():
            return (("aborted", step.ranges, step.producer_ids),)
        case steps.AreCommitted():
            return (("are committed", tuple((identity.producer_id, part) for identity, part in step.written)),)
        case steps.WriteRows():
            identity = identity_of(step.identity)
            found: list[Request] = []
            for partition in sorted({partition for _, partition in rows}):
                found += _added(identity, partition)
                own = [row for row, where in rows if where == partition]
                found += [
                    ("produce", identity, partition, sequence, ((row, None),)) for sequence, row in enumerate(own)
                ]
            return tuple(found)
        case steps.AppendPart():
            return _part_requests(identity_of(step.identity), step.record)
        case steps.CopyRecords():
            return tuple(request for copy in step.copies for request in _copy_requests(copy))
    raise AssertionError(f"no request for {step}")


def _copy_requests(copy: steps.Copy) -> tuple[Request, ...]:
    identity = identity_of(copy.identity)
    source = (copy.source.producer_id, copy.source.producer_epoch)
    found: list[Request] = []
    for part in copy.ranges:
        partition = log_partition((part.topic, part.partition))
        found += _added(identity, partition)
        found.append(("copy", identity, partition, source, part.first_offset, part.last_offset))
    return (*found, *_part_requests(identity, copy.part))


def _added(identity: Identity, partition: int) -> list[Request]:
    return [("add", identity, partition)] if identity.version < 2 else []


def _part_requests(identity: Identity, record: steps.LogRecord) -> tuple[Request, ...]:
    return (*_added(identity, LOG), ("produce", identity, LOG, 0, ((record.key, record.value),)))


def changes_something(request: Request) -> bool:
    return request[0] in ("init", "produce", "add", "end", "copy")


def process(cluster: Cluster, request: Request) -> tuple[Cluster, Any]:
    """What the cluster makes of a request: the cluster after it and its plain answer, or BLOCKED."""
    match request:
        case ("list", write_id):
            return cluster, tuple(
                name
                for name, found in cluster.transactions
                if found.state == kafka.ONGOING and name.startswith(write_id + ".")
            )
        case ("describe", ids):
            known = dict(cluster.transactions)
            return cluster, tuple(
                (name, (*known[name][:4], _described_partitions(known[name])) if name in known else None)
                for name in ids
            )
        case ("init", transactional_id, timeout_ms):
            return kafka.init_producer_id(cluster, transactional_id, timeout_ms)
        case ("add", identity, partition):
            return kafka.add_partition(cluster, identity, partition)
        case ("produce", identity, partition, sequence, records):
            return kafka.produce(cluster, identity, partition, sequence, records)
        case ("copy", identity, partition, source, first, last):
            records = copied_records(cluster, partition, source, first, last)
            if not records:
                return cluster, (kafka.NONE, -1, 0)
            after, answer = kafka.produce(cluster, identity, partition, 0, records)
            return after, answer if answer is BLOCKED else (*answer, len(records))
        case ("end", identity, commit, version):
            return kafka.end_txn(cluster, identity, commit, version)
        case ("read", offset):
            return cluster, _read(cluster, offset)
        case ("stable", partitions):
            return cluster, tuple(
                (where, kafka.last_stable_offset(cluster, log_partition(where))) for where in partitions
            )
        case ("producers", partitions):
            return cluster, tuple((where, producers(cluster, log_partition(where))) for where in partitions)
        case ("aborted", ranges, producer_ids):
            return cluster, tuple(
                (part, _aborted(cluster, part, producer_id))
                for part, producer_id in zip(ranges, producer_ids, strict=True)
            )
        case ("are committed", written):
            return cluster, tuple(_is_committed(cluster, *each) for each in written)
    raise AssertionError(f"no such request: {request}")


def copied_records(
    cluster: Cluster, partition: int, source: tuple[int, int], first: int, last: int
) -> tuple[tuple[Any, Any], ...]:
    """What `RecordCopier` takes from a range: the records of one producer id and epoch that are still there."""
    return tuple(
        (entry.key, entry.value)
        for entry in cluster.logs[partition][first : last + 1]
        if isinstance(entry, Data) and (entry.producer_id, entry.producer_epoch) == source and not entry.gone
    )


def _is_committed(cluster: Cluster, producer_id: int, part: OffsetRange) -> bool | None:
    behind = cluster.logs[log_partition((part.topic, part.partition))][part.last_offset + 1 :]
    markers = [entry for entry in behind if isinstance(entry, Control) and entry.producer_id == producer_id]
    return markers[0].commit if markers else None


def _aborted(cluster: Cluster, part: OffsetRange, producer_id: int) -> tuple[tuple[int, int], ...] | steps.Unseen:
    partition = log_partition((part.topic, part.partition))
    own = [
        entry
        for entry in cluster.logs[partition][part.first_offset : part.last_offset + 1]
        if isinstance(entry, Data) and entry.producer_id == producer_id
    ]
    if all(entry.gone for entry in own):
        return steps.Unseen.GONE
    if kafka.last_stable_offset(cluster, partition) <= part.first_offset:
        return steps.Unseen.BLOCKED
    return kafka.aborted_transactions(cluster, partition, part.first_offset)


def _described_partitions(found: kafka.Transaction) -> frozenset[tuple[str, int]]:
    """Empty once the transaction is complete, as in TransactionMetadata."""
    if found.state not in (kafka.ONGOING, *kafka.PREPARING):
        return frozenset()
    return frozenset((TOPIC, partition - 1) if partition else (LOG_TOPIC, 0) for partition in found.partitions)


def _read(cluster: Cluster, offset: int) -> steps.LogChunk:
    entries: list[steps.ReadRecord | steps.Marker] = []
    log = cluster.logs[LOG]
    for position in range(offset, len(log)):
        entry = log[position]
        if isinstance(entry, Control):
            if entry.kept != "no":
                kind = steps.MarkerType.COMMIT if entry.commit else steps.MarkerType.ABORT
                entries.append(
                    steps.Marker(
                        offset=position,
                        producer_id=entry.producer_id,
                        producer_epoch=entry.producer_epoch,
                        type=steps.MarkerType.EMPTY if entry.kept == "batch" else kind,
                    )
                )
        elif not entry.gone:
            entries.append(
                steps.ReadRecord(
                    offset=position,
                    producer_id=entry.producer_id,
                    producer_epoch=entry.producer_epoch,
                    transactional=entry.transactional,
                    key=entry.key,
                    value=entry.value,
                )
            )
    return steps.LogChunk(
        entries=tuple(entries), next_offset=max(offset, len(log)), log_start_offset=0, end_offset=len(log)
    )


def producers(cluster: Cluster, partition: int) -> tuple[tuple[int, tuple[int, int]], ...]:
    opened = kafka.open_transactions(cluster, partition)
    found: dict[int, tuple[int, int]] = {}
    for entry in cluster.logs[partition]:
        if isinstance(entry, Control) or entry.transactional:
            found[entry.producer_id] = (entry.producer_epoch, opened.get(entry.producer_id, (-1, -1))[0])
    return tuple(sorted(found.items()))


def refused(step: Any, request: Request, answer: Any) -> bool:
    """Whether a step of several ordered requests ends with this one: the producer gives the attempt up."""
    several = (steps.WriteRows, steps.AppendPart, steps.CopyRecords, steps.AppendInTransaction, steps.AddPartitions)
    if not isinstance(step, several):
        return False
    return (answer if request[0] == "add" else answer[0]) != kafka.NONE


def unavailable(step: Any) -> Any:
    """The answer to a step whose requests got none before the deadline."""
    match step:
        case steps.AppendInTransaction():
            return steps.Appended(error=None)
        case steps.AddPartitions():
            return Answered(error=None)
        case steps.ListOpenTransactions(within_ms=int()):
            return ()
    return Throw(BrokerUnavailableError("UNAVAILABLE", "no answer before the deadline"))


def answer_of(step: Any, requests: tuple[Request, ...], answers: tuple[Any, ...], version: int) -> Any:
    """The step's answer from those of its requests; a `Throw` where the performer raises."""
    answer = answers[-1] if answers else None
    match step:
        case steps.ListOpenTransactions() | steps.ReadLog():
            return answer
        case steps.AddPartitions():
            return Answered(error=answer)
        case steps.DescribeTransactions():
            return {
                name: None
                if found is None
                else steps.TransactionDescription(
                    state=found[0],
                    producer_id=found[1],
                    producer_epoch=found[2],
                    timeout_ms=found[3],
                    start_time_ms=0,
                    partitions=found[4],
                )
                for name, found in answer
            }
        case steps.InitProducerId():
            return ProducerIdentity(
                transactional_id=step.transactional_id,
                producer_id=answer[0],
                producer_epoch=answer[1],
                transaction_version=version,
            )
        case steps.Append():
            return answer[1]
        case steps.AppendInTransaction():
            return steps.Appended(error=answer[0], offset=answers[0][1])
        case steps.EndTransactions():
            return tuple(
                steps.EndResult(error=None, has_lost_response=True)
                if one is None
                else steps.EndResult(
                    error=one[0], producer_id=one[1], producer_epoch=one[2], has_lost_response=one[-1] == UNANSWERED
                )
                for one in answers
            )
        case steps.LastStableOffsets():
            return dict(answer)
        case steps.DescribeProducers():
            return {where: dict(found) for where, found in answer}
        case steps.AbortedTransactions():
            return dict(answer)
        case steps.AreCommitted():
            return answer
        case steps.WriteRows():
            if refused(step, requests[len(answers) - 1], answer):
                return Throw(TransactionAbortedError("ATTEMPT_ABORTED", "a produce was refused"))
            return steps.WrittenRows(**_written(requests, answers))
        case steps.AppendPart():
            if refused(step, requests[len(answers) - 1], answer):
                return Throw(TransactionAbortedError("ATTEMPT_ABORTED", "the part record was refused"))
            return answer[1]
        case steps.CopyRecords():
            if refused(step, requests[len(answers) - 1], answer):
                return Throw(TransactionAbortedError("ATTEMPT_ABORTED", "a produce was refused"))
            copied, begin = [], 0
            for copy in step.copies:
                end = begin + len(_copy_requests(copy))
                written = steps.WrittenRows(**_written(requests[begin : end - 1], answers[begin : end - 1]))
                copied.append(steps.Copied(written=written, part_offset=answers[end - 1][1]))
                begin = end
            return tuple(copied)
    raise AssertionError(f"no answer for {step}")


def _written(requests: tuple[Request, ...], answers: tuple[Any, ...]) -> dict[str, Any]:
    """The rows and offsets of a transaction in the data partitions, from its Produce requests in order."""
    bounds: dict[int, tuple[int, int]] = {}
    counts: dict[int, int] = {}
    rows = 0
    for request, one in zip(requests, answers, strict=True):
        if request[0] == "add" or request[2] == LOG or one[1] < 0:
            continue
        count = len(request[4]) if request[0] == "produce" else one[2]
        first, _ = bounds.get(request[2], (one[1], 0))
        bounds[request[2]] = first, one[1] + count - 1
        rows += count
        counts[request[2]] = counts.get(request[2], 0) + count
    offsets = tuple(
        OffsetRange(topic=TOPIC, partition=partition - 1, first_offset=first, last_offset=last, rows=counts[partition])
        for partition, (first, last) in sorted(bounds.items())
    )
    return {"rows": rows, "offsets": offsets}


__all__ = ["BLOCKED", "AuthorizationError", "Data", "Request", "answer_of", "process", "requests_of"]
