"""Partitions, producers and transaction markers, as all packages name them."""

from __future__ import annotations

from dataclasses import dataclass

TopicPartition = tuple[str, int]
"""Topic name and partition index."""
ProducerIdAndEpoch = tuple[int, int]
"""What identifies a producer in a record batch; (-1, -1) for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """A transactional id under one producer id and epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int  # 2 under KIP-890


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMarker:
    """A marker for WriteTxnMarkers, with the epochs of DescribeProducers."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int = 0
