"""Types of all packages for partitions and producers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from kafka_eos_sink.pickling import PickledByName

T = TypeVar("T")
TopicPartition = tuple[str, int]
"""Topic name and partition index."""
ProducerIdAndEpoch = tuple[int, int]
"""A producer's identity in a record batch; (-1, -1) without idempotence."""
LONGEST_STRING = 2**15 - 1
"""Bytes of a string in UTF-8. Kafka's classic and compact strings have the same limit, and brokers close the connection above it."""
TOPIC_NAME_RULE = "1 to 249 letters, digits, '.', '_' and '-'"
_TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}", re.ASCII)


def is_topic_name(text: str) -> bool:
    """Return whether Kafka accepts the text as a topic name (Kafka's class Topic)."""
    return _TOPIC_NAME.fullmatch(text) is not None


def by_topic(partitions: Iterable[TopicPartition], topic_of: Callable[[str, list[int]], T]) -> tuple[T, ...]:
    """Group partitions by topic, in order, as most requests do."""
    indexes: dict[str, list[int]] = {}
    for topic, partition in partitions:
        indexes.setdefault(topic, []).append(partition)
    return tuple(topic_of(topic, each) for topic, each in indexes.items())


def bumps_epoch(transaction_version: int) -> bool:
    """Whether EndTxn raises the epoch: from transaction.version 2 on (KIP-890).

    Then Produce also adds its partition to the transaction itself, and EndTxn returns the next producer id and epoch.
    """
    return transaction_version >= 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity(PickledByName):
    """A transactional id with one producer id and epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    transaction_version: int

    @property
    def carrier(self) -> ProducerIdAndEpoch:
        """What a listed transaction and a decided one have in common."""
        return self.producer_id, self.producer_epoch

    @property
    def bumps_epoch(self) -> bool:
        """As the function of this name."""
        return bumps_epoch(self.transaction_version)

    @property
    def after_end(self) -> ProducerIdentity:
        """The identity after EndTxn, unless the epoch is exhausted."""
        return replace(self, producer_epoch=self.producer_epoch + self.bumps_epoch)
