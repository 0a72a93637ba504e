"""The requests of a transaction, each with the broker that it is for and the versions that it may be sent in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, TopicPartition
from kafka_eos_sink.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

GROUP: Final = 0
TRANSACTION: Final = 1
FIRST_VERSION_WITH_IMPLICIT_PARTITIONS: Final = 5
"""From this version on TxnOffsetCommit adds its group to the transaction, and EndTxn returns the next epoch (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRequest:
    """A request, the broker it is for, and the API versions that it may be sent in."""

    request: Any
    to: Literal["any", "transaction", "group"]
    max_version: int | None = None
    min_version: int | None = None


def find_coordinator(key_type: int, key: str) -> CoordinatorRequest:
    return CoordinatorRequest(request=FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,)), to="any")


def init_producer_id(transactional_id: str | None, timeout_ms: int) -> CoordinatorRequest:
    return CoordinatorRequest(
        request=InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms),
        to="any" if transactional_id is None else "transaction",
    )


def add_partitions_to_txn(
    transactional_id: str, identity: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
) -> CoordinatorRequest:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return CoordinatorRequest(
        request=AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=identity[0],
            v3_and_below_producer_epoch=identity[1],
            v3_and_below_topics=tuple(
                AddPartitionsToTxnRequest.Topic(name=topic, partitions=tuple(indexes))
                for topic, indexes in by_topic.items()
            ),
        ),
        to="transaction",
        # Versions 4 and above are for brokers that verify partitions, not for clients.
        max_version=3,
    )


def add_offsets_to_txn(transactional_id: str, identity: ProducerIdAndEpoch, group: str) -> CoordinatorRequest:
    return CoordinatorRequest(
        request=AddOffsetsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=identity[0],
            producer_epoch=identity[1],
            group_id=group,
        ),
        to="transaction",
    )


def txn_offset_commit(
    transactional_id: str,
    identity: ProducerIdAndEpoch,
    group: str,
    offsets: Mapping[TopicPartition, int],
    implicit_partitions: bool,
) -> CoordinatorRequest:
    by_topic: dict[str, list[TxnOffsetCommitRequest.Topic.Partition]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append(
            TxnOffsetCommitRequest.Topic.Partition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
        )
    return _versioned(
        TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group,
            producer_id=identity[0],
            producer_epoch=identity[1],
            topics=tuple(
                TxnOffsetCommitRequest.Topic(name=topic, partitions=tuple(partitions))
                for topic, partitions in by_topic.items()
            ),
        ),
        "group",
        implicit_partitions,
    )


def end_txn(
    transactional_id: str, identity: ProducerIdAndEpoch, committed: bool, implicit_partitions: bool
) -> CoordinatorRequest:
    return _versioned(
        EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=identity[0],
            producer_epoch=identity[1],
            committed=committed,
        ),
        "transaction",
        implicit_partitions,
    )


def _versioned(request: Any, to: Literal["transaction", "group"], implicit_partitions: bool) -> CoordinatorRequest:
    # The version tells the coordinator which protocol the transaction follows, so it never changes within one.
    first = FIRST_VERSION_WITH_IMPLICIT_PARTITIONS
    if implicit_partitions:
        return CoordinatorRequest(request=request, to=to, max_version=first, min_version=first)
    return CoordinatorRequest(request=request, to=to, max_version=first - 1)
