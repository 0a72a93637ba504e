"""The requests of the driver's own transaction on the commit log. Each is one `Call` of the client's engine.

A code that no retry can mend is returned, because the procedures in ``commit/`` decide what it means. What configuration or a
missing right must mend is raised. None stands for a request whose response was lost until the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.requests import MARKERS_FIRST_BACKOFF_MS, Call, OnCode, Outcome, Route
from kafka_eos_sink.commit.steps import Appended, LogRecord
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.record_batch import encode_rows, seal
from kafka_eos_sink.protocol.schema import Request

MAX_BATCH_BYTES = 500_000
"""Records whose values are larger together go into one batch each: brokers take batches up to about 1 MB by default."""
PRODUCE_TIMEOUT_MS = 30_000
NO_PRODUCER = ProducerIdentity(transactional_id="", producer_id=-1, producer_epoch=-1, transaction_version=0)
"""The identity of a batch without a transaction."""


def add_partition(admin: Admin, identity: ProducerIdentity, where: TopicPartition, deadline_ms: int) -> int | None:
    """Add a partition to the transaction (AddPartitionsToTxn); return the error code."""
    topic = m.AddPartitionsToTxnTopic(name=where[0], partitions=(where[1],))
    request = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=identity.transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=(topic,),
    )

    def code(response: m.AddPartitionsToTxnResponse) -> int:
        return response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    return _of_coordinator(admin, identity, request, code, deadline_ms)


def commit_group_offsets(
    admin: Admin,
    identity: ProducerIdentity,
    group_id: str,
    offsets: Sequence[tuple[str, int, int]],
    deadline_ms: int,
) -> int | None:
    """Commit a group's offsets in the transaction (AddOffsetsToTxn, TxnOffsetCommit); return the error code.

    Args:
        offsets: (topic, partition, offset of the next record to read).
    """
    implicit = identity.transaction_version >= 2
    if not implicit:
        add = m.AddOffsetsToTxnRequest(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            group_id=group_id,
        )
        error = _of_coordinator(admin, identity, add, lambda response: int(response.error_code), deadline_ms)
        if error != ErrorCode.NONE:
            return error
    topics: dict[str, list[m.TxnOffsetCommitRequestPartition]] = {}
    for topic, partition, offset in offsets:
        committed = m.TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topics.setdefault(topic, []).append(committed)
    request = m.TxnOffsetCommitRequest(
        transactional_id=identity.transactional_id,
        group_id=group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        topics=tuple(
            m.TxnOffsetCommitRequestTopic(name=topic, partitions=tuple(partitions))
            for topic, partitions in topics.items()
        ),
    )

    def first_error(response: m.TxnOffsetCommitResponse) -> int:
        codes = [each.error_code for topic in response.topics for each in topic.partitions]
        return next((code for code in codes if code), ErrorCode.NONE.value)

    call: Call[str, None] = Call(
        api=m.TxnOffsetCommitRequest,
        route=Route.GROUP_COORDINATOR,
        request=lambda _groups, _node: request,
        read=lambda response, groups: [(groups[0], first_error(response), None, None)],
        about=lambda group: f"consumer group {group!r} (source.offsets.group)",
        first_backoff_ms=MARKERS_FIRST_BACKOFF_MS,
        on_code=OnCode.RAISE_CONFIGURATION,
        # From version 5 on the broker adds the group to the transaction by itself, which needs transaction version 2.
        max_version=5 if implicit else 4,
    )
    return admin.perform(call, [group_id], deadline_ms)[group_id].code


def append(
    admin: Admin,
    identity: ProducerIdentity,
    base_sequence: int,
    records: Sequence[LogRecord],
    where: TopicPartition,
    deadline_ms: Callable[[], int],
) -> Appended:
    """Append records to a partition, in the transaction of ``identity`` or, for `NO_PRODUCER`, without one.

    Args:
        deadline_ms: Returns the deadline of the next batch.

    Returns:
        The offset of the first record; or the error, without the batches behind it.
    """
    first = -1
    size = sum(len(record.value or b"") for record in records)
    batches = [records] if size < MAX_BATCH_BYTES else [(record,) for record in records]
    for batch in batches:
        outcome = _append_batch(admin, identity, base_sequence, batch, where, deadline_ms())
        if outcome.code != ErrorCode.NONE:
            return Appended(error=outcome.code)
        first = outcome.value if first < 0 and outcome.value is not None else first
        base_sequence += len(batch)
    return Appended(error=ErrorCode.NONE.value, offset=first)


def _append_batch(
    admin: Admin,
    identity: ProducerIdentity,
    base_sequence: int,
    records: Sequence[LogRecord],
    where: TopicPartition,
    deadline_ms: int,
) -> Outcome[int]:
    transactional = identity is not NO_PRODUCER
    rows = [(record.key, record.value, ()) for record in records]
    batch = seal(
        encode_rows(rows, timestamp_ms=time.time_ns() // 1_000_000),
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=base_sequence if transactional else -1,
        transactional=transactional,
    )
    data = m.PartitionProduceData(index=where[1], records=b"".join(batch))
    request = m.ProduceRequest(
        transactional_id=identity.transactional_id if transactional else None,
        acks=-1,
        timeout_ms=max(0, min(deadline_ms - admin.client.clock(), PRODUCE_TIMEOUT_MS)),
        topic_data=(m.TopicProduceData(name=where[0], partition_data=(data,)),),
    )

    def read(response: m.ProduceResponse, keys: Sequence[TopicPartition]) -> Any:
        (result,) = response.responses[0].partition_responses
        yield keys[0], result.error_code, result.error_message, result.base_offset

    call: Call[TopicPartition, int] = Call(
        api=m.ProduceRequest,
        route=Route.LEADER,
        request=lambda _keys, _node: request,
        read=read,
        about=lambda key: f"commit log {key[0]}-{key[1]}",
        first_backoff_ms=MARKERS_FIRST_BACKOFF_MS,
        on_code=OnCode.RAISE_CONFIGURATION,
        # From version 12 on the broker adds the partition to the transaction by itself, which needs transaction version 2.
        max_version=12 if identity.transaction_version >= 2 else 11,
    )
    return admin.perform(call, [where], deadline_ms)[where]


def _of_coordinator(
    admin: Admin,
    identity: ProducerIdentity,
    request: Request[Any],
    code_of: Callable[[Any], int],
    deadline_ms: int,
) -> int | None:
    """Send one request to the transaction's coordinator; return the error code."""
    call: Call[str, None] = Call(
        api=type(request),
        route=Route.TRANSACTION_COORDINATOR,
        request=lambda _ids, _node: request,
        read=lambda response, ids: [(ids[0], code_of(response), None, None)],
        about=lambda each: f"transactional id {each!r}",
        first_backoff_ms=MARKERS_FIRST_BACKOFF_MS,
        on_code=OnCode.RAISE_CONFIGURATION,
    )
    return admin.perform(call, [identity.transactional_id], deadline_ms)[identity.transactional_id].code
