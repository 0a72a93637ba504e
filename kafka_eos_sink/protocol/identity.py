"""Names that client, producer and commit share: a partition, a producer, and the marker that ends a transaction."""

from __future__ import annotations

from dataclasses import dataclass

TopicPartition = tuple[str, int]
"""Topic name and partition index."""
ProducerIdAndEpoch = tuple[int, int]
"""What identifies a producer in a record batch; (-1, -1) for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """A transactional id under one producer id and epoch, and its transaction version (KIP-890: 2)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMarker:
    """A marker to write by hand on one partition (WriteTxnMarkers); its epochs come from DescribeProducers."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int = 0
