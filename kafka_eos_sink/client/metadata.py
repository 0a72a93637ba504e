"""What is known of the cluster: an immutable snapshot, and the rules by which answers change it (features.md 23)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import MetadataResponse

NO_NODE = -1
NO_TOPIC_ID = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One broker's address; a bootstrap server has a negative id, as in Java."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        name = f"broker {self.node_id}" if self.node_id >= 0 else "bootstrap server"
        return f"{name} ({self.host}:{self.port})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """One partition: `leader` is a node id or -1 for none, `error` the partition's own code."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """One topic, partitions in order of their index; `partitions` is empty where `error` is not NONE."""

    name: str
    topic_id: uuid.UUID = NO_TOPIC_ID
    internal: bool = False
    error: ErrorCode = ErrorCode.NONE
    partitions: tuple[PartitionMetadata, ...] = ()

    def partition(self, index: int) -> PartitionMetadata | None:
        """The partition with this index, None where the topic has none."""
        if 0 <= index < len(self.partitions) and self.partitions[index].index == index:
            return self.partitions[index]
        return next((partition for partition in self.partitions if partition.index == index), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """A snapshot of the cluster; a change is a new snapshot with a higher `version`.

    `brokers` holds the bootstrap servers (negative ids) until the first answer. `controller` is the node that takes
    administrative requests, -1 where unknown.
    """

    version: int = 0
    cluster_id: str | None = None
    controller: int = NO_NODE
    brokers: Mapping[int, Broker] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicMetadata] = field(default_factory=lambda: MappingProxyType({}))

    def leader(self, topic: str, partition: int) -> int | None:
        """The node id of the partition's leader, None where it is unknown or there is none."""
        known = self.partition(topic, partition)
        return None if known is None or known.leader == NO_NODE else known.leader

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """What is known of the partition, None where nothing is."""
        known = self.topics.get(topic)
        return None if known is None else known.partition(partition)
