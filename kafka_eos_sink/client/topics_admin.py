"""Requests about topics and their records, one ``Call`` per method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import UUID

from kafka_eos_sink.client.metadata import TopicMetadata, topic_metadata
from kafka_eos_sink.client.requests import Call, Requests, Result, Route, single
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.identity import TopicPartition, by_topic
from kafka_eos_sink.protocol.schema import Request
from kafka_eos_sink.protocol.wire_types import ZERO_UUID

V = TypeVar("V")
FetchedPartition = m.FetchResponse.Topic.Partition
AbortedTransaction = FetchedPartition.AbortedTransaction
Isolation = Literal["read_committed", "read_uncommitted"]
EARLIEST = -2
LATEST = -1
LAST_FETCH_WITH_NAMES = 12

_NOTHING_FETCHED = FetchedPartition(
    partition_index=-1, error_code=-1, high_watermark=-1, aborted_transactions=None, records=None
)
"""Represents the partition in a Fetch response that rejects the whole request."""
_ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}
_RESOURCE_TYPES = {"topic": 2, "broker": 4}


class TopicsAdmin(Requests):
    """The half of `Admin` that is about topics and the records in them."""

    def topic(self, name: str, deadline_ms: int) -> TopicMetadata | None:
        """Return the topic, None if it does not exist or may not be described.

        The result holds what the principal may do with the topic, if the broker reports it.
        """
        # A check must not create the topic that it searches, even with auto.create.topics.enable on the broker.
        request = m.MetadataRequest(
            topics=(m.MetadataRequest.Topic(name=name),),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        call = single(
            request,
            Route.ANY,
            "topic",
            lambda response: (
                (each.error_code, None, None if each.error_code else topic_metadata(each)) for each in response.topics
            ),
        )
        return self.values(call, [name], deadline_ms)[name]

    def topics(self, deadline_ms: int) -> tuple[TopicMetadata, ...]:
        """Return all topics that the principal may describe, by name."""
        call = single(
            m.MetadataRequest(topics=None, allow_auto_topic_creation=False),
            Route.ANY,
            "topics of",
            lambda response: [
                (
                    response.error_code,
                    None,
                    tuple(map(topic_metadata, (t for t in response.topics if not t.error_code))),
                )
            ],
        )
        found: tuple[TopicMetadata, ...] = self.values(call, ["the cluster"], deadline_ms)["the cluster"]
        return tuple(sorted(found, key=lambda topic: topic.name or ""))

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        deadline_ms: int,
        *,
        validate_only: bool = False,
    ) -> m.CreateTopicsResponse.Topic | None:
        """Create the topic and wait for its leaders.

        Args:
            partitions, replication_factor: -1 for the broker's default.
            validate_only: Create nothing; the result is the same.

        Returns:
            The topic, None if it existed. An earlier try whose response was lost may have created it.

        Raises:
            TopicSettingsError: Other settings may be accepted.
            AuthorizationError, BrokerRefusedError, BrokerUnavailableError.
        """
        topic = m.CreateTopicsRequest.Topic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=tuple(m.CreateTopicsRequest.Topic.Config(name=key, value=value) for key, value in configs.items()),
        )
        timeout_ms = self.client.config.request_timeout_ms
        call = single(
            m.CreateTopicsRequest(topics=(topic,), timeout_ms=timeout_ms, validate_only=validate_only),
            Route.CONTROLLER,
            "topic",
            lambda response: (
                (each.error_code, each.error_message, None if each.error_code else each)
                for each in response.topics
                if each.name == name
            ),
        )
        created: m.CreateTopicsResponse.Topic | None = self.values(call, [name], deadline_ms)[name]
        if validate_only:
            return created
        self.leaders([(name, 0)], deadline_ms)
        # Metadata with the first partition's leader lists all partitions, also if the broker chose their number.
        count = len(self.client.metadata.topics[name].partitions)
        self.leaders([(name, partition) for partition in range(count)], deadline_ms)
        return created

    def describe_configs(
        self,
        resource_type: Literal["topic", "broker"],
        name: str | None,
        keys: Sequence[str] | None,
        deadline_ms: int,
    ) -> dict[str, str]:
        """Return configuration names with the values in effect, without sensitive values.

        Args:
            name: A topic, or the node id of a broker; None for any broker.
            keys: The configurations to read, None for all.

        Raises:
            BrokerRefusedError: UNKNOWN_TOPIC.
            AuthorizationError, BrokerUnavailableError.
        """
        # Only the broker itself knows its static configuration.
        node_id = int(name) if resource_type == "broker" and name else None
        any_broker = Route.ANY_IDENTIFIED if name is None else Route.ANY

        def request(_keys: Sequence[int | None], node: int) -> m.DescribeConfigsRequest:
            resource = m.DescribeConfigsRequest.Resource(
                resource_type=_RESOURCE_TYPES[resource_type],
                resource_name=str(node) if name is None else name,
                configuration_keys=None if keys is None else tuple(keys),
            )
            return m.DescribeConfigsRequest(resources=(resource,))

        call = Call(
            api=m.DescribeConfigsRequest,
            route=any_broker if node_id is None else Route.BROKER,
            request=request,
            read=lambda response, nodes: (
                (
                    nodes[0],
                    each.error_code,
                    each.error_message,
                    {entry.name: entry.value for entry in each.configs if entry.value is not None},
                )
                for each in response.results
                if name in (None, each.resource_name)
            ),
            about=lambda _node: f"{resource_type} {name or ''}".strip(),
        )
        return self.values(call, [node_id], deadline_ms)[node_id]

    def list_offsets(
        self,
        partitions: Iterable[TopicPartition],
        deadline_ms: int,
        *,
        isolation: Isolation = "read_committed",
        timestamp: int = LATEST,
    ) -> dict[TopicPartition, int]:
        """Return each partition's offset by timestamp, -1 if there is none.

        Args:
            timestamp: Ms since 1970, or EARLIEST for the log start, or LATEST for the end: the last stable offset under
                read_committed, else the high watermark.

        Raises:
            BrokerRefusedError: UNKNOWN_TOPIC.
            AuthorizationError, BrokerUnavailableError.
        """

        def topic_of(name: str, indexes: Sequence[int]) -> m.ListOffsetsRequest.Topic:
            return m.ListOffsetsRequest.Topic(
                name=name,
                partitions=tuple(
                    m.ListOffsetsRequest.Topic.Partition(
                        partition_index=index,
                        current_leader_epoch=self._leader_epoch(name, index),
                        timestamp=timestamp,
                    )
                    for index in indexes
                ),
            )

        def request(of_node: Sequence[TopicPartition], _node: int) -> m.ListOffsetsRequest:
            return m.ListOffsetsRequest(
                isolation_level=_ISOLATION_LEVELS[isolation],
                topics=by_topic(of_node, topic_of),
                timeout_ms=self.client.config.request_timeout_ms,
            )

        return self._from_leaders(
            m.ListOffsetsRequest, request, _read_partitions(lambda each: each.offset), partitions, deadline_ms
        )

    def fetch(
        self,
        where: TopicPartition,
        offset: int,
        deadline_ms: int,
        *,
        isolation: Isolation = "read_committed",
        max_wait_ms: int = 500,
        max_bytes: int = 4 << 20,
    ) -> FetchedPartition:
        """Fetch records of one partition from its leader.

        Args:
            offset: The first offset to fetch.
            max_wait_ms: For how long the leader may wait for a record.
            max_bytes: The first batch comes whole even if it is larger (KIP-74).

        Returns:
            The partition's part of the response, with ``error_code`` 0 or OFFSET_OUT_OF_RANGE.

        Raises:
            BrokerRefusedError: UNKNOWN_TOPIC.
            AuthorizationError, BrokerUnavailableError.
        """
        _, found = self.fetch_each(
            {where: offset}, deadline_ms, isolation=isolation, max_wait_ms=max_wait_ms, max_bytes=max_bytes
        )[where]
        return found

    def fetch_each(
        self,
        offsets: Mapping[TopicPartition, int],
        deadline_ms: int,
        *,
        isolation: Isolation,
        max_wait_ms: int,
        max_bytes: int,
        partition_max_bytes: int | None = None,
    ) -> dict[TopicPartition, tuple[UUID, FetchedPartition]]:
        """Fetch records of several partitions, with one request per leader.

        As `fetch`, but only the first partition with records gets a batch above ``partition_max_bytes`` (KIP-74); others then have none.

        Returns:
            Each part of the response with its topic's id, which changes if the topic is recreated; zero without topic ids (KIP-516).
        """
        self.leaders(offsets, deadline_ms)
        topics = self.client.metadata.topics
        has_ids = all(topics[name].topic_id != ZERO_UUID for name, _ in offsets)
        names: dict[UUID, str] = {}

        def topic_of(name: str, indexes: Sequence[int]) -> m.FetchRequest.Topic:
            # Looked up for every try: after UNKNOWN_TOPIC_ID the metadata are new.
            topic_id = self.client.metadata.topics[name].topic_id
            names[topic_id] = name
            return m.FetchRequest.Topic(
                topic=name,
                topic_id=topic_id,
                partitions=tuple(
                    m.FetchRequest.Topic.Partition(
                        partition=index,
                        current_leader_epoch=self._leader_epoch(name, index),
                        fetch_offset=offsets[name, index],
                        partition_max_bytes=partition_max_bytes or max_bytes,
                    )
                    for index in indexes
                ),
            )

        def request(of_node: Sequence[TopicPartition], _node: int) -> m.FetchRequest:
            return m.FetchRequest(
                max_wait_ms=max(0, min(max_wait_ms, deadline_ms - self.client.clock())),
                min_bytes=1,
                max_bytes=max_bytes,
                isolation_level=_ISOLATION_LEVELS[isolation],
                topics=by_topic(of_node, topic_of),
            )

        read = partial(self._read_fetched, names)
        max_version = None if has_ids else LAST_FETCH_WITH_NAMES
        return self._from_leaders(m.FetchRequest, request, read, offsets, deadline_ms, max_version)

    def describe_producers(
        self, partitions: Iterable[TopicPartition], deadline_ms: int
    ) -> dict[TopicPartition, tuple[m.ProducerState, ...]]:
        """Return the producers that each leader remembers; requires Read on the topic.

        Raises:
            BrokerRefusedError: UNKNOWN_TOPIC.
            AuthorizationError, BrokerUnavailableError.
        """
        return self._from_leaders(
            m.DescribeProducersRequest,
            lambda of_node, _node: m.DescribeProducersRequest(
                topics=by_topic(
                    of_node,
                    lambda name, indexes: m.TopicIndexes(name=name, partition_indexes=tuple(indexes)),
                )
            ),
            _read_partitions(lambda each: each.active_producers),
            partitions,
            deadline_ms,
        )

    def write_txn_marker(self, marker: m.WriteTxnMarkersRequest.Marker, deadline_ms: int) -> None:
        """Write a marker on the leader; requires ClusterAction or Alter on the cluster.

        Raises:
            AuthorizationError, BrokerRefusedError, BrokerUnavailableError.
        """

        def read(response: m.WriteTxnMarkersResponse, where: Any) -> Iterator[Result[TopicPartition, None]]:
            for each in response.markers:
                yield from _read_partitions(lambda _each: None)(each, where)

        request = m.WriteTxnMarkersRequest(markers=(marker,))
        where = [(topic.name, partition) for topic in marker.topics for partition in topic.partition_indexes]
        self._from_leaders(m.WriteTxnMarkersRequest, lambda _where, _node: request, read, where, deadline_ms)

    # inside

    def _from_leaders(
        self,
        api: type[Request[Any]],
        request: Callable[[Sequence[TopicPartition], int], Request[Any]],
        read: Callable[[Any, Sequence[TopicPartition]], Iterable[Result[TopicPartition, V]]],
        partitions: Iterable[TopicPartition],
        deadline_ms: int,
        max_version: int | None = None,
    ) -> dict[TopicPartition, V]:
        call = Call(
            api=api,
            route=Route.LEADER,
            request=request,
            read=read,
            about=lambda where: f"{where[0]}-{where[1]}",
            versions=lambda _where: (None, max_version),
        )
        return self.values(call, partitions, deadline_ms)

    def _read_fetched(
        self, names: Mapping[UUID, str], response: m.FetchResponse, of_node: Sequence[TopicPartition]
    ) -> Iterator[Result[TopicPartition, tuple[UUID, FetchedPartition]]]:
        if response.error_code:
            for where in of_node:
                yield where, response.error_code, None, (ZERO_UUID, _NOTHING_FETCHED)
            return
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for found in topic.partitions:
                leader = found.current_leader
                # The response contains the new leader (KIP-951), which saves a Metadata request.
                if leader.leader_id >= 0:
                    self.client.learn_leader(name, found.partition_index, leader.leader_id, leader.leader_epoch)
                yield (name, found.partition_index), found.error_code, None, (topic.topic_id, found)

    def _leader_epoch(self, topic: str, partition: int) -> int:
        # With an epoch the broker rejects a request that older metadata sent to a former leader (KIP-320).
        known = self.client.metadata.partition(topic, partition)
        return -1 if known is None else known.leader_epoch


def _read_partitions(value: Callable[[Any], V]) -> Callable[[Any, Any], Iterator[Result[TopicPartition, V]]]:
    """Read a response of topics with partitions, each with its own code."""

    def read(response: Any, _keys: Any) -> Iterator[Result[TopicPartition, V]]:
        for topic in response.topics:
            for each in topic.partitions:
                message = getattr(each, "error_message", None)
                yield (topic.name, each.partition_index), each.error_code, message, value(each)

    return read
