"""Steps of the protocol as requests to the simulated cluster, and their answers back into the protocol's types.

This stands where `runtime/executor.py` and `runtime/task_executor.py` stand in reality. A request is a hashable tuple, so that it can
be kept in a state: delayed, repeated identically, or processed after its sender died.
"""

from __future__ import annotations

from typing import Any

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.prepared_transaction import OffsetRange
from kafka_eos_sink.errors import AuthorizationError, BrokerUnavailableError, TransactionAbortedError
from kafka_eos_sink.protocol.identity import ProducerIdentity

from . import simulated_cluster as kafka
from .procedures import Throw
from .simulated_cluster import BLOCKED, LOG, Cluster, Control, Data, Identity

Request = tuple[Any, ...]
TOPIC = "t"
LOG_TOPIC = "__kafka_eos_commits"

LOCAL_STEPS = (steps.Now, steps.Wait, steps.Warn, steps.Reached, steps.HasRows)

UNORDERED = steps.EndTransactions
"""The one step whose requests go to several coordinators at once: they are processed in any order."""


def log_partition(where: tuple[str, int]) -> int:
    """The simulated partition of a data topic-partition."""
    return where[1] + 1


def identity_of(identity: ProducerIdentity) -> Identity:
    return Identity(
        identity.transactional_id, identity.producer_id, identity.producer_epoch, identity.transaction_version
    )


def end_version(identity: Identity) -> int:
    """As `executor.end_txn_version`."""
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
        case steps.AddPartition():
            return (("add", identity_of(step.identity), LOG),)
        case steps.AppendInTransaction():
            records = tuple((record.key, record.value) for record in step.records)
            return (("produce", identity_of(step.identity), LOG, step.base_sequence, records),)
        case steps.EndTransactions():
            return tuple(
                ("end", identity_of(end.identity), end.commit, end_version(identity_of(end.identity)))
                for end in step.ends
            )
        case steps.ReadLog():
            return (("read", step.offset),)
        case steps.LogPolicy():
            return (("policy",),)
        case steps.LastStableOffsets():
            return (("stable", step.partitions),)
        case steps.DescribeProducers():
            return (("producers", step.partitions),)
        case steps.AbortedTransactions():
            return (("aborted", step.ranges),)
        case steps.WriteRows():
            identity = identity_of(step.identity)
            found: list[Request] = []
            for partition in sorted({partition for _, partition in rows}):
                if identity.version < 2:
                    found.append(("add", identity, partition))
                records = tuple((row, None) for row, where in rows if where == partition)
                found.append(("produce", identity, partition, 0, records))
            return tuple(found)
        case steps.AppendPart():
            identity = identity_of(step.identity)
            append = ("produce", identity, LOG, 0, ((step.record.key, step.record.value),))
            return (("add", identity, LOG), append) if identity.version < 2 else (append,)
    raise AssertionError(f"no request for {step}")


def changes_something(request: Request) -> bool:
    return request[0] in ("init", "produce", "add", "end")


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
        case ("end", identity, commit, version):
            return kafka.end_txn(cluster, identity, commit, version)
        case ("read", offset):
            return cluster, _read(cluster, offset)
        case ("policy",):
            return cluster, "compact"
        case ("stable", partitions):
            return cluster, tuple(
                (where, kafka.last_stable_offset(cluster, log_partition(where))) for where in partitions
            )
        case ("producers", partitions):
            return cluster, tuple((where, producers(cluster, log_partition(where))) for where in partitions)
        case ("aborted", ranges):
            return cluster, tuple((part, _aborted(cluster, part)) for part in ranges)
    raise AssertionError(f"no such request: {request}")


def _aborted(cluster: Cluster, part: OffsetRange) -> tuple[tuple[int, int], ...] | steps.Unseen:
    partition = log_partition((part.topic, part.partition))
    if kafka.last_stable_offset(cluster, partition) <= part.first_offset:
        return steps.Unseen.HELD
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
    if not isinstance(step, (steps.WriteRows, steps.AppendPart)):
        return False
    return (answer if request[0] == "add" else answer[0]) != kafka.NONE


def unavailable(step: Any) -> Any:
    """The answer to a step whose requests got none before the deadline."""
    match step:
        case steps.AppendInTransaction():
            return steps.Appended(error=None)
        case steps.AddPartition():
            return None
    return Throw(BrokerUnavailableError("UNAVAILABLE", "no answer before the deadline"))


def answer_of(
    step: Any, requests: tuple[Request, ...], answers: tuple[Any, ...], version: int, may_read: bool = True
) -> Any:
    """The step's answer from those of its requests; a `Throw` where the performer raises."""
    answer = answers[-1] if answers else None
    match step:
        case steps.ListOpenTransactions() | steps.ReadLog() | steps.LogPolicy() | steps.AddPartition():
            return answer
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
            return steps.Appended(error=answer[0], offset=answer[1])
        case steps.EndTransactions():
            return tuple(
                steps.EndResult(error=None)
                if one is None
                else steps.EndResult(error=one[0], producer_id=one[1], producer_epoch=one[2])
                for one in answers
            )
        case steps.LastStableOffsets():
            return dict(answer)
        case steps.DescribeProducers():
            return {where: dict(found) if may_read else None for where, found in answer}
        case steps.AbortedTransactions():
            return dict(answer) if may_read else None
        case steps.WriteRows():
            if refused(step, requests[len(answers) - 1], answer):
                return Throw(TransactionAbortedError("ATTEMPT_ABORTED", "a produce was refused"))
            offsets = []
            rows = []
            for request, one in zip(requests, answers, strict=True):
                if request[0] == "produce":
                    rows += [row for row, _ in request[4]]
                    offsets.append(
                        OffsetRange(
                            topic=TOPIC,
                            partition=request[2] - 1,
                            first_offset=one[1],
                            last_offset=one[1] + len(request[4]) - 1,
                        )
                    )
            digest = sum(1 << (8 * row[-1]) for row in rows) if step.digest else None
            return steps.Written(rows=len(rows), digest=digest, offsets=tuple(offsets))
        case steps.AppendPart():
            if refused(step, requests[len(answers) - 1], answer):
                return Throw(TransactionAbortedError("ATTEMPT_ABORTED", "the part record was refused"))
            return answer[1]
    raise AssertionError(f"no answer for {step}")


__all__ = ["BLOCKED", "AuthorizationError", "Data", "Request", "answer_of", "process", "requests_of"]
