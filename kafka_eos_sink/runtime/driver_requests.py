"""The requests of the driver's own transaction on the commit log.

Each is one `Call` of the client's engine (``client/requests.py``), which retries and raises errors of configuration and
permission. A procedure in ``commit/`` gets any other code and decides its meaning. None stands for a response lost until the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.requests import MARKERS_FIRST_BACKOFF_MS, KeyResult, OnCode, Route, single
from kafka_eos_sink.commit.log_records import LARGEST_BATCH_RECORDS
from kafka_eos_sink.commit.refusals import refused, some
from kafka_eos_sink.commit.steps import Answered, Appended, AppendInTransaction, CommitGroupOffsets, LogRecord
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.producer.produce_errors import clock_skew_error
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.record_batch import encode_rows, seal
from kafka_eos_sink.runtime.source_offsets import beside_members, mark_of

MAX_BATCH_BYTES = 500_000
"""Limit of several records together: brokers accept batches up to about 1 MB by default."""
RECORD_OVERHEAD = 20
"""Largest overhead of a record besides key and value, in bytes."""
PRODUCE_TIMEOUT_MS = 30_000
TOPIC_GONE_MS = 5_000
"""For how long a group coordinator may not know a topic that the query has read. Its metadata may lag."""
UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
OUTSIDER = "kafka-eos"
"""A member id that no group has. Coordinators accept offsets from it only for a group without members."""
NO_PRODUCER = ProducerIdentity(transactional_id="", producer_id=-1, producer_epoch=-1, transaction_version=0)
"""The identity of a batch without a transaction."""
_Read = tuple[int, str | None, Any]
_OPTIONS: dict[str, Any] = {"first_backoff_ms": MARKERS_FIRST_BACKOFF_MS, "on_code": OnCode.RAISE_CONFIGURATION}


def add_partitions(
    admin: Admin, identity: ProducerIdentity, partitions: Collection[TopicPartition], deadline_ms: int
) -> Answered:
    """Add partitions to the transaction (AddPartitionsToTxn); return the first error."""
    outcome, _ = admin.add_partitions(identity, partitions, deadline_ms, OnCode.RAISE_CONFIGURATION)
    return _answered(outcome)


def _answered(outcome: KeyResult[Any]) -> Answered:
    return Answered(error=outcome.error_code, earlier_error=outcome.earlier_code)


def commit_group_offsets(
    admin: Admin, step: CommitGroupOffsets, deadline_ms: int, *, first_batch: bool = False
) -> Answered:
    """Commit a group's offsets in the transaction.

    Args:
        first_batch: Whether to refuse a group with members. Later, a stranger's consumer must not stop the query.

    Raises:
        ConfigurationError: SOURCE_OFFSETS if ``first_batch`` and the group has members, or if it is no consumer group.
    """
    identity = step.identity
    producer: dict[str, Any] = {
        "transactional_id": identity.transactional_id,
        "group_id": step.group_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.producer_epoch,
    }
    # From version 5 on TxnOffsetCommit adds the group to the transaction by itself, which needs transaction version 2.
    implicit = identity.bumps_epoch
    if not implicit:
        add = m.AddOffsetsToTxnRequest(**producer)
        call = single(
            add,
            Route.TRANSACTION_COORDINATOR,
            "transactional id",
            lambda response: [(response.error_code, None, None)],
            **_OPTIONS,
        )
        added = admin.perform(call, [identity.transactional_id], deadline_ms)[identity.transactional_id]
        if added.error_code != ErrorCode.NONE:
            return _answered(added)
    # A coordinator accepts a transactional commit without a member id for every group (KIP-447: older clients send none). With a member
    # id, it applies the rule of all other commits: only members commit to a group that has some (validateOffsetCommit).
    outcome = _commit_offsets(admin, step, producer, OUTSIDER, deadline_ms)
    if outcome.value == ErrorCode.UNKNOWN_MEMBER_ID:
        beside_members(step.group_id, admin.client.config.bootstrap_servers_text, first_batch=first_batch)
        outcome = _commit_offsets(admin, step, producer, "", deadline_ms)
    return _answered(outcome)


def _commit_offsets(
    admin: Admin, step: CommitGroupOffsets, producer: Mapping[str, Any], member_id: str, deadline_ms: int
) -> KeyResult[ErrorCode]:
    """Send TxnOffsetCommit; the value is UNKNOWN_MEMBER_ID if the group has members."""
    topics: dict[str, list[m.TxnOffsetCommitRequest.Topic.Partition]] = {}
    mark = mark_of(step.identity.transactional_id)
    for topic, partition, offset in step.offsets:
        committed = m.TxnOffsetCommitRequest.Topic.Partition(
            partition_index=partition, committed_offset=offset, committed_metadata=mark
        )
        topics.setdefault(topic, []).append(committed)
    request = m.TxnOffsetCommitRequest(
        **producer,
        member_id=member_id,
        topics=tuple(
            m.TxnOffsetCommitRequest.Topic(name=name, partitions=tuple(each)) for name, each in topics.items()
        ),
    )
    gone_at = admin.client.clock() + TOPIC_GONE_MS

    def read(response: m.TxnOffsetCommitResponse) -> list[_Read]:
        found = {
            (topic.name, each.partition_index): each.error_code
            for topic in response.topics
            for each in topic.partitions
        }
        asked, codes = {(topic, partition) for topic, partition, _ in step.offsets}, set(found.values())
        # The checkpoint contains a deleted topic in every run of this batch. The offsets of the other topics are in the transaction.
        if codes == {ErrorCode.NONE, UNKNOWN_TOPIC} and admin.client.clock() >= gone_at:
            gone = sorted({topic for (topic, _), code in found.items() if code == UNKNOWN_TOPIC})
            warn_once(f"group {step.group_id!r} gets no offsets of {', '.join(gone)}, which the cluster does not know")
            codes = {ErrorCode.NONE.value}
        if ErrorCode.GROUP_ID_NOT_FOUND in codes:
            raise refused("SOURCE_OFFSETS.no_consumer_group", group_id=step.group_id)
        if ErrorCode.UNKNOWN_MEMBER_ID in codes and member_id:
            return [(ErrorCode.NONE.value, None, ErrorCode.UNKNOWN_MEMBER_ID)]
        # A response without one of the partitions counts as lost. UNKNOWN_TOPIC, which is retried, is the least of the codes.
        return [(max(codes, key=abs), None, None)] if asked <= found.keys() else []

    about = f"{some(sorted(topics))} for source.offsets.group"
    versions = None, 5 if step.identity.bumps_epoch else 4
    call = single(request, Route.GROUP_COORDINATOR, about, read, versions=lambda _: versions, **_OPTIONS)
    return admin.perform(call, [step.group_id], deadline_ms)[step.group_id]


def append(admin: Admin, step: AppendInTransaction, where: TopicPartition, timeout_ms: int) -> Appended:
    """Append records to a partition, without a transaction for `NO_PRODUCER`.

    Args:
        timeout_ms: Bounds each batch.

    Returns:
        The offset of the first record; or the error of a batch, after which none was sent.
    """
    first = -1
    identity, base_sequence, records = step.identity, step.base_sequence, step.records
    largest = max(len(record.key) + len(record.value or b"") for record in records) + RECORD_OVERHEAD
    count = max(1, min(LARGEST_BATCH_RECORDS, MAX_BATCH_BYTES // largest))
    # From version 12 on Produce adds the partition to the transaction by itself, which needs transaction version 2.
    versions = None, 12 if identity.bumps_epoch else 11
    for batch in (records[at : at + count] for at in range(0, len(records), count)):
        request = _produce_request(identity, base_sequence, batch, where, timeout_ms)
        read = partial(_read_produce, admin.client, where)
        call = single(request, Route.LEADER, "commit log", read, versions=lambda _: versions, **_OPTIONS)
        outcome = admin.perform(call, [where], admin.client.clock() + timeout_ms)[where]
        # The batches after a failed one would be rejected for a gap in their sequence.
        if outcome.error_code != ErrorCode.NONE:
            return Appended(error=outcome.error_code, earlier_error=outcome.earlier_code)
        first = first if first >= 0 else outcome.value or 0
        base_sequence += len(batch)
    return Appended(error=ErrorCode.NONE.value, offset=first)


def _produce_request(
    identity: ProducerIdentity, base_sequence: int, records: Sequence[LogRecord], where: TopicPartition, timeout_ms: int
) -> m.ProduceRequest:
    transactional = identity is not NO_PRODUCER
    batch = seal(
        encode_rows([(each.key, each.value, ()) for each in records], timestamp_ms=time.time_ns() // 1_000_000),
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=base_sequence if transactional else -1,
        transactional=transactional,
    )
    data = m.ProduceRequest.Topic.Partition(index=where[1], records=b"".join(batch))
    return m.ProduceRequest(
        transactional_id=identity.transactional_id if transactional else None,
        acks=-1,
        timeout_ms=min(timeout_ms, PRODUCE_TIMEOUT_MS),
        topic_data=(m.ProduceRequest.Topic(name=where[0], partition_data=(data,)),),
    )


def _read_produce(client: NetworkClient, where: TopicPartition, response: m.ProduceResponse) -> Iterator[_Read]:
    for topic in response.responses:
        for each in topic.partition_responses:
            if (topic.name, each.index) == where:
                if (skewed := clock_skew_error(where, each, client)) is not None:
                    raise skewed
                yield each.error_code, each.error_message, each.base_offset
