"""The client's view of the cluster: immutable snapshots, made from responses."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kafka_eos_sink.client.config import ExponentialBackoff
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import Broker, MetadataRequest, MetadataResponse
from kafka_eos_sink.protocol.wire_types import ZERO_UUID

log = logging.getLogger(__name__)

NO_NODE = -1

NEVER = 1 << 62
"""A wait in ms that never ends."""

TopicMetadata = MetadataResponse.Topic
PartitionMetadata = TopicMetadata.Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """A snapshot of the cluster.

    Each response and each new start from the bootstrap servers raises ``version``. ``brokers`` holds these servers (negative ids) until
    the first response. ``controller`` is the node for administrative requests, -1 if unknown. Partitions are in the order of their index.
    """

    version: int = 0
    cluster_id: str | None = None
    controller: int = NO_NODE
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the node id of the partition's leader, None without a known leader."""
        known = self.partition(topic, partition)
        return None if known is None or known.leader_id == NO_NODE else known.leader_id

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """Return the partition, None if it is unknown."""
        known = self.topics.get(topic)
        return None if known is None else partition_of(known, partition)


def partition_of(topic: TopicMetadata, index: int) -> PartitionMetadata | None:
    """Return the topic's partition with this index, None if there is none."""
    if 0 <= index < len(topic.partitions) and topic.partitions[index].partition_index == index:
        return topic.partitions[index]
    return next((partition for partition in topic.partitions if partition.partition_index == index), None)


class MetadataUpdater:
    """Keeps the snapshot: wanted topics, the next request, what a response changes.

    A lagging broker's response never moves a partition back to an older leader epoch. For a recreated topic (another topic id)
    or another cluster, the known epochs do not count. One request is in flight at a time.

    No request lets a broker create a topic. With ``auto.create.topics.enable``, Kafka's default, a misspelled name would become a topic
    with the broker's defaults, and swallow rows.

    The first of these rules that applies decides when the next request is due:

    - after a failed request: ``_retry_at``, with exponential backoff;
    - for a topic that was never requested: at once;
    - on request (a leader moved, a connection broke): ``_update_allowed_at``, one backoff after the last response;
    - otherwise ``_retry_at`` while a topic lacks a leader, else ``_expires_at`` (``metadata.max.age.ms``).
    """

    def __init__(
        self, bootstrap: Iterable[Broker], *, backoff: ExponentialBackoff, max_age_ms: int, max_idle_ms: int
    ) -> None:
        self.snapshot = Metadata(brokers=_by_id(bootstrap))
        self.in_progress = False
        self.completed = 0
        """Number of the newest request whose response the updater installed."""
        self._sent = 0
        """The number of requests so far."""
        self._backoff = backoff
        self._max_age_ms = max_age_ms
        self._max_idle_ms = max_idle_ms
        self._wanted: dict[str, int] = {}
        """Topics, and when they were last wanted."""
        self._never_requested: set[str] = set()
        self._update_requested = True
        self._incomplete = False
        """Whether the last response had a retriable error, such as a missing leader."""
        self._attempts = 0
        """The number of failed or incomplete responses in a row."""
        self._update_allowed_at = 0
        self._retry_at = 0
        self._expires_at = 0
        self._failing_since: int | None = None

    # what to request, and when

    def want_topics(self, topics: Iterable[str], now: int) -> None:
        """Keep these topics in the snapshot; a new topic makes a request due at once."""
        for topic in topics:
            if topic not in self._wanted:
                self._never_requested.add(topic)
                # A new topic restarts the backoff of incomplete responses, but not the backoff of unreachable brokers.
                self._attempts = 0 if self._failing_since is None else self._attempts
            self._wanted[topic] = now

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Request these topics no more, until `want_topics` adds them again."""
        for topic in topics:
            self._wanted.pop(topic, None)
            self._never_requested.discard(topic)

    def request_update(self) -> int:
        """Make a request due as soon as the backoff since the last response has passed.

        Returns:
            The number of that request, to compare with ``completed``. A request already in flight does not count: its
            response may be older than what the caller has observed.
        """
        self._update_requested = True
        return self._sent + 1

    def time_to_next_update(self, now: int) -> int:
        """Return the ms until ``next_request`` is due, NEVER while a request is in flight."""
        if self.in_progress:
            return NEVER
        if self._failing_since is not None:
            # This comes first: a new topic or a requested update does not make an unreachable cluster reachable.
            due_at = self._retry_at
        elif self._never_requested:
            due_at = now
        elif self._update_requested:
            # Not `_retry_at`: a leaderless topic must not delay the update that reveals another topic's new leader.
            due_at = self._update_allowed_at
        else:
            due_at = self._retry_at if self._incomplete else self._expires_at
        return max(0, due_at - now)

    def failing_for_ms(self, now: int) -> int:
        """Return for how many ms all requests have failed, 0 after a success (KIP-1102)."""
        return 0 if self._failing_since is None else now - self._failing_since

    def next_request(self, now: int) -> MetadataRequest:
        """Return the next request; ``handle_response`` or ``handle_failure`` must follow."""
        self._wanted = {name: last for name, last in self._wanted.items() if now - last <= self._max_idle_ms}
        self._never_requested.clear()
        self.in_progress = True
        self._sent += 1
        # From now on an update needs a later request: the broker may build this response before the caller's observation.
        self._update_requested = False
        return MetadataRequest(
            topics=tuple(MetadataRequest.Topic(name=name) for name in self._wanted),
            allow_auto_topic_creation=False,
        )

    def handle_failure(self, now: int) -> None:
        """Handle a request that was lost or could not be sent."""
        self.in_progress = False
        self._retry_at = now + self._backoff.delay_ms(self._attempts)
        self._attempts += 1
        if self._failing_since is None:
            self._failing_since = now

    # what responses change

    def handle_response(self, response: MetadataResponse, now: int) -> None:
        """Install the snapshot that follows from the response."""
        if not response.brokers:
            # A starting broker can return no brokers. With such a snapshot the client could not send another request.
            self.handle_failure(now)
            return
        self.in_progress = False
        old = self.snapshot
        # Leader epochs of two clusters are not comparable: a restored cluster may begin with lower ones.
        same_cluster = old.cluster_id in (None, response.cluster_id)
        received = {
            topic.name: topic_metadata(topic, old.topics.get(topic.name) if same_cluster else None)
            for topic in response.topics
            if topic.name is not None
        }
        topics = {
            name: topic
            for name in self._wanted
            if (topic := received.get(name) or (old.topics.get(name) if same_cluster else None)) is not None
        }
        if not same_cluster:
            log.warning(
                "metadata: cluster %r replaces cluster %r: the bootstrap servers lead to another cluster now",
                response.cluster_id,
                old.cluster_id,
            )
        self.snapshot = replace(
            old,
            version=old.version + 1,
            cluster_id=response.cluster_id,
            controller=response.controller_id,
            brokers=_by_id(response.brokers),
            topics=MappingProxyType(topics),
        )
        # `wait_for_metadata` compares this number: an older response may not contain what the caller has observed.
        self.completed = self._sent
        self._expires_at = now + self._max_age_ms
        self._failing_since = None
        self._update_allowed_at = now + self._backoff.delay_ms(0)
        self._incomplete = any(_is_incomplete(topic) for topic in topics.values())
        self._retry_at = now + self._backoff.delay_ms(self._attempts)
        self._attempts = self._attempts + 1 if self._incomplete else 0

    def learn_leader(
        self, topic: str, partition: int, leader: int, leader_epoch: int, endpoints: Iterable[Broker] = ()
    ) -> bool:
        """Install a leader of a Produce or Fetch response (KIP-951) if its epoch is newer."""
        known = self.snapshot.partition(topic, partition)
        if known is None or leader < 0 or leader_epoch <= known.leader_epoch:
            return False
        brokers = _by_id([*self.snapshot.brokers.values(), *endpoints])
        if leader not in brokers:
            # Without an address the client could not connect. The next Metadata response names leader and address.
            return False
        moved = replace(known, leader_id=leader, leader_epoch=leader_epoch, error_code=ErrorCode.NONE.value)
        _log_leader(topic, moved, " (KIP-951)")
        known_topic = self.snapshot.topics[topic]
        partitions = tuple(moved if each is known else each for each in known_topic.partitions)
        topics = {**self.snapshot.topics, topic: replace(known_topic, partitions=partitions)}
        self.snapshot = replace(self.snapshot, brokers=brokers, topics=MappingProxyType(topics))
        return True

    def learn_broker(self, broker: Broker) -> None:
        """Install one broker's address, such as a coordinator's."""
        known = self.snapshot.brokers.get(broker.node_id)
        if known is None or (known.host, known.port) != (broker.host, broker.port):
            self.snapshot = replace(self.snapshot, brokers=_by_id([*self.snapshot.brokers.values(), broker]))

    def rebootstrap(self, bootstrap: Iterable[Broker], now: int) -> None:
        """Start again from the bootstrap servers (KIP-899); topics stay until a response."""
        self.snapshot = replace(
            self.snapshot, version=self.snapshot.version + 1, brokers=_by_id(bootstrap), controller=NO_NODE
        )
        self.in_progress = False
        self._update_requested = True
        self._attempts = 0
        self._update_allowed_at = self._retry_at = now
        # Restart the trigger time: the next rebootstrap must not follow at once.
        self._failing_since = now if self._failing_since is not None else None


def _is_incomplete(topic: TopicMetadata) -> bool:
    codes = [topic.error_code, *(partition.error_code for partition in topic.partitions)]
    return any(ErrorCode.of(code).retriable for code in codes)


def _by_id(brokers: Iterable[Broker]) -> Mapping[int, Broker]:
    return MappingProxyType({broker.node_id: broker for broker in brokers})


def topic_metadata(found: TopicMetadata, known: TopicMetadata | None = None) -> TopicMetadata:
    """Return ``found`` with sorted partitions; a newer epoch of ``known`` stays."""
    before: dict[int, PartitionMetadata] = {}
    # Topic ids exist since Metadata 10. If either side has none, the name identifies the topic.
    if known is not None and (known.topic_id == found.topic_id or ZERO_UUID in (known.topic_id, found.topic_id)):
        before = {partition.partition_index: partition for partition in known.partitions}
    partitions = []
    # Brokers list partitions in any order.
    for partition in sorted(found.partitions, key=lambda each: int(each.partition_index)):
        old = before.get(partition.partition_index, partition)
        # A lagging broker still reports the leader of an older epoch. Java's client also ignores it (KAFKA-7738).
        newest = old if old.leader_epoch > partition.leader_epoch else partition
        if newest.leader_id != old.leader_id:
            _log_leader(str(found.name), newest)
        partitions.append(newest)
    return replace(found, partitions=tuple(partitions))


def _log_leader(topic: str, partition: PartitionMetadata, source: str = "") -> None:
    where, leader, epoch = f"{topic}-{partition.partition_index}", partition.leader_id, partition.leader_epoch
    log.debug("%s: broker %d leads from epoch %d on%s", where, leader, epoch, source)
