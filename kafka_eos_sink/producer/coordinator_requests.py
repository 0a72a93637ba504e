"""The requests of a transaction, each with its receiver and its API versions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, TopicPartition
from kafka_eos_sink.protocol.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
)

TRANSACTION: Final = 1
"""The key type of FindCoordinator for a transactional id."""
FIRST_END_TXN_THAT_BUMPS_THE_EPOCH: Final = 5
"""From this version on, EndTxn bumps the epoch and returns the new one (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRequest:
    """A request, its receiver (any broker or the coordinator), and its API versions."""

    request: Any
    to: Literal["any", "transaction"]
    max_version: int | None = None
    min_version: int | None = None


def find_coordinator(transactional_id: str) -> CoordinatorRequest:
    request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=(transactional_id,))
    return CoordinatorRequest(request=request, to="any")


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
        # Brokers use version 4 and later to verify partitions. Clients must not (KIP-890).
        max_version=3,
    )


def end_txn(
    transactional_id: str, identity: ProducerIdAndEpoch, committed: bool, implicit_partitions: bool
) -> CoordinatorRequest:
    request = EndTxnRequest(
        transactional_id=transactional_id, producer_id=identity[0], producer_epoch=identity[1], committed=committed
    )
    # The coordinator derives the transaction's protocol from the version. The version never changes within a transaction:
    # EndTxn v5 bumps the epoch, and the coordinator fences a retry in v4, which carries the old epoch (KIP-890).
    first = FIRST_END_TXN_THAT_BUMPS_THE_EPOCH
    if implicit_partitions:
        return CoordinatorRequest(request=request, to="transaction", max_version=first, min_version=first)
    return CoordinatorRequest(request=request, to="transaction", max_version=first - 1)
