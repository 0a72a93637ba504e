"""What is known of the cluster: an immutable snapshot, and the rules by which answers change it (features.md 23)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from kafka_eos_sink.client.backoff import ExponentialBackoff
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import MetadataRequest, MetadataResponse
from kafka_eos_sink.protocol.wire_types import ZERO_UUID

NO_NODE = -1


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
    topic_id: uuid.UUID = ZERO_UUID
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


NEVER = 1 << 62
"""A time to wait, in ms, that no clock reaches."""


@dataclass(slots=True)
class _WantedTopic:
    last_wanted_at: int
    allow_auto_creation: bool


class MetadataUpdater:
    """Keeps the snapshot: which topics are wanted, when to ask again, and what an answer changes.

    An answer of a broker that lags behind never takes a partition back to an older leader epoch; a topic that was
    created anew (another topic id) or another cluster starts afresh. One request is under way at a time.
    """

    def __init__(
        self, bootstrap: Iterable[Broker], *, backoff: ExponentialBackoff, max_age_ms: int, max_idle_ms: int
    ) -> None:
        self.snapshot = Metadata(brokers=MappingProxyType({broker.node_id: broker for broker in bootstrap}))
        self.in_progress = False
        self.answered = 0
        """The number of the newest request whose answer made a snapshot."""
        self._asked = 0
        """How many requests there were."""
        self._backoff = backoff
        self._max_age_ms = max_age_ms
        self._max_idle_ms = max_idle_ms
        self._wanted: dict[str, _WantedTopic] = {}
        self._unasked: set[str] = set()
        self._update_requested = True
        self._troubled = False
        """Whether the last answer told of something that will pass, like a missing leader."""
        self._attempts = 0
        """How many answers in a row were missing or troubled."""
        self._soonest_at = 0
        """Not before this is asked again on request."""
        self._again_at = 0
        """When is asked again after a missing or a troubled answer."""
        self._expires_at = 0
        """When the last answer is too old."""
        self._failing_since: int | None = None
        self._asked_to_create = False

    # what is wanted, and when

    def want_topics(self, topics: Iterable[str], now: int, *, allow_auto_creation: bool = False) -> None:
        """Keep these topics in the snapshot; one that is new is asked for at once."""
        for topic in topics:
            wanted = self._wanted.get(topic)
            if wanted is None:
                self._wanted[topic] = _WantedTopic(now, allow_auto_creation)
                self._unasked.add(topic)
                self._attempts = 0 if self._failing_since is None else self._attempts
            else:
                wanted.last_wanted_at = now
                wanted.allow_auto_creation |= allow_auto_creation

    def request_update(self) -> int:
        """Ask again as soon as the backoff since the last time has passed.

        Returns the number of that request. One that is under way does not count: it may have been answered already, and what the
        caller has seen since would not be in it.
        """
        self._update_requested = True
        return self._asked + 1

    def time_to_next_update(self, now: int) -> int:
        """How long to wait before `next_request`, in ms; NEVER while an answer is awaited."""
        if self.in_progress:
            return NEVER
        if self._failing_since is not None:
            due_at = self._again_at
        elif self._unasked:
            due_at = now
        elif self._update_requested:
            # Somebody saw a leader move: a topic that stays troubled must not slow this down.
            due_at = self._soonest_at
        else:
            due_at = self._again_at if self._troubled else self._expires_at
        return max(0, due_at - now)

    def failing_for_ms(self, now: int) -> int:
        """For how long no request has been answered although one was due (KIP-1102)."""
        return 0 if self._failing_since is None else now - self._failing_since

    def next_request(self, now: int) -> MetadataRequest:
        """The request to send now; `handle_response` or `handle_failure` must follow."""
        for topic in [name for name, wanted in self._wanted.items() if self._is_idle(wanted, now)]:
            del self._wanted[topic]
        self.in_progress = True
        self._asked += 1
        # The permission to create holds for a whole request, and a topic like the commit log must never come into being
        # with the broker's defaults: so missing topics that may be created are asked for in a request of their own.
        creatable = [
            name
            for name, wanted in self._wanted.items()
            if wanted.allow_auto_creation and not self._is_known(name) and name not in self._unasked
        ]
        # In turns: a topic that nobody creates must not keep the others from being asked for.
        self._asked_to_create = bool(creatable) and not self._asked_to_create
        topics = creatable if self._asked_to_create else list(self._wanted)
        self._unasked.difference_update(topics)
        self._update_requested = False
        return MetadataRequest(
            topics=tuple(MetadataRequest.Topic(name=name) for name in topics),
            allow_auto_topic_creation=self._asked_to_create,
        )

    def handle_failure(self, now: int) -> None:
        """The request was not answered, or could not be sent."""
        self.in_progress = False
        self._again_at = now + self._backoff.delay_ms(self._attempts)
        self._attempts += 1
        if self._failing_since is None:
            self._failing_since = now

    # what answers change

    def handle_response(self, response: MetadataResponse, now: int) -> None:
        """Make the snapshot that the answer leads to."""
        if not response.brokers:
            # A broker that is starting can answer without any; going on with nobody to ask would be the end.
            self.handle_failure(now)
            return
        self.in_progress = False
        old = self.snapshot
        same_cluster = old.cluster_id in (None, response.cluster_id)
        answered = {
            topic.name: topic_metadata(topic, old.topics.get(topic.name) if same_cluster else None)
            for topic in response.topics
            if topic.name is not None
        }
        topics = {
            name: topic
            for name in self._wanted
            if (topic := answered.get(name) or (old.topics.get(name) if same_cluster else None)) is not None
        }
        brokers = {
            broker.node_id: Broker(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in response.brokers
        }
        self._install(
            cluster_id=response.cluster_id,
            controller=response.controller_id,
            brokers=MappingProxyType(brokers),
            topics=MappingProxyType(topics),
        )
        self.answered = self._asked
        self._expires_at = now + self._max_age_ms
        self._failing_since = None
        self._soonest_at = now + self._backoff.delay_ms(0)
        self._troubled = any(_wants_another_answer(topic) for topic in topics.values())
        self._again_at = now + self._backoff.delay_ms(self._attempts)
        self._attempts = self._attempts + 1 if self._troubled else 0

    def learn_leader(
        self, topic: str, partition: int, leader: int, leader_epoch: int, endpoints: Iterable[Any] = ()
    ) -> bool:
        """Take over a leader hint (KIP-951) if its epoch is newer than the known one."""
        known_topic = self.snapshot.topics.get(topic)
        known = None if known_topic is None else known_topic.partition(partition)
        if known_topic is None or known is None or leader < 0 or leader_epoch <= known.leader_epoch:
            return False
        brokers = dict(self.snapshot.brokers)
        for endpoint in endpoints:
            brokers[endpoint.node_id] = Broker(
                node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack
            )
        if leader not in brokers:
            return False
        moved = replace(known, leader=leader, leader_epoch=leader_epoch, error=ErrorCode.NONE)
        partitions = tuple(moved if each is known else each for each in known_topic.partitions)
        topics = {**self.snapshot.topics, topic: replace(known_topic, partitions=partitions)}
        self._install(brokers=MappingProxyType(brokers), topics=MappingProxyType(topics))
        return True

    def learn_broker(self, broker: Broker) -> None:
        """Take over one broker's address."""
        known = self.snapshot.brokers.get(broker.node_id)
        if known is None or (known.host, known.port) != (broker.host, broker.port):
            self._install(brokers=MappingProxyType({**self.snapshot.brokers, broker.node_id: broker}))

    def rebootstrap(self, bootstrap: Iterable[Broker], now: int) -> None:
        """Start again from the bootstrap servers (KIP-899); topics stay as known until an answer comes."""
        self._install(brokers=MappingProxyType({broker.node_id: broker for broker in bootstrap}), controller=NO_NODE)
        self.in_progress = False
        self._update_requested = True
        self._attempts = 0
        self._soonest_at = self._again_at = now
        self._failing_since = now if self._failing_since is not None else None

    # inside

    def _install(self, **changes: Any) -> None:
        self.snapshot = replace(self.snapshot, version=self.snapshot.version + 1, **changes)

    def _is_idle(self, wanted: _WantedTopic, now: int) -> bool:
        return now - wanted.last_wanted_at > self._max_idle_ms

    def _is_known(self, topic: str) -> bool:
        known = self.snapshot.topics.get(topic)
        return known is not None and known.error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _wants_another_answer(topic: TopicMetadata) -> bool:
    return topic.error.retriable or any(partition.error.retriable for partition in topic.partitions)


def topic_metadata(answer: Any, known: TopicMetadata | None = None) -> TopicMetadata:
    """The topic as answered, but for partitions of which a newer leader epoch is known."""
    epochs = {}
    # Topic ids came with Metadata 10: without one on either side the name must do.
    if known is not None and (known.topic_id == answer.topic_id or ZERO_UUID in (known.topic_id, answer.topic_id)):
        epochs = {partition.index: partition for partition in known.partitions}
    partitions = []
    for partition in sorted(answer.partitions, key=lambda each: int(each.partition_index)):
        newer = epochs.get(partition.partition_index)
        if newer is not None and newer.leader_epoch > partition.leader_epoch:
            partitions.append(newer)
            continue
        partitions.append(
            PartitionMetadata(
                index=partition.partition_index,
                leader=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                replicas=tuple(partition.replica_nodes),
                isr=tuple(partition.isr_nodes),
                error=ErrorCode.of(partition.error_code),
            )
        )
    return TopicMetadata(
        name=answer.name,
        topic_id=answer.topic_id,
        internal=answer.is_internal,
        error=ErrorCode.of(answer.error_code),
        partitions=tuple(partitions),
    )
