"""Topics, configurations, offsets and records as the driver sees them, outside the data path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kafka_eos_sink.client.coordinators import Coordinators
from kafka_eos_sink.client.metadata import TopicMetadata, topic_metadata
from kafka_eos_sink.client.retry import Retry, ask_any_node
from kafka_eos_sink.errors import BrokerRefusedError, KafkaEosError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TopicPartition, TransactionMarker
from kafka_eos_sink.protocol.messages import (
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeProducersRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
    ProducerState,
    WriteTxnMarkersRequest,
)
from kafka_eos_sink.protocol.reactions import Reaction, refusal
from kafka_eos_sink.protocol.schema import Request

Isolation = Literal["read_committed", "read_uncommitted"]
EARLIEST = -2
LATEST = -1

_RESOURCE_TYPES = {"topic": 2, "broker": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """A transaction that a read_committed reader must skip from `first_offset` up to its marker."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """One partition's answer to Fetch.

    `error` is a raw code: 0 or OFFSET_OUT_OF_RANGE. `records` are whole batches; only the last one may be cut off.
    """

    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted_transactions: tuple[AbortedTransaction, ...]
    records: bytes


class TopicsAdmin(Coordinators):
    """The half of `Admin` that is about topics and what lies in them."""

    def topic(self, name: str, deadline_ms: int) -> TopicMetadata | None:
        """The topic as a broker knows it now, None where it does not exist (or may not be described)."""
        retry = Retry(self.client, f"Metadata of topic {name!r}", deadline_ms)
        request = MetadataRequest(topics=(MetadataRequest.Topic(name=name),), allow_auto_topic_creation=False)
        while True:
            (answer,) = ask_any_node(self.client, request, retry).topics
            if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            if not answer.error_code:
                return topic_metadata(answer)
            retry.answered(MetadataRequest, answer.error_code)
            retry.pause()

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str], deadline_ms: int
    ) -> bool:
        """Create the topic and wait for its leaders; False where it already existed.

        `partitions` and `replication_factor` of -1 are the broker's defaults. False also where an earlier try, whose
        answer was lost, created it: check the configuration either way. A refusal says how to create it by hand.
        """
        retry = Retry(self.client, f"CreateTopics of {name!r}", deadline_ms)
        request = CreateTopicsRequest(
            topics=(
                CreateTopicsRequest.Topic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replication_factor,
                    configs=tuple(
                        CreateTopicsRequest.Topic.Config(name=key, value=value) for key, value in configs.items()
                    ),
                ),
            ),
            timeout_ms=self.client.config.request_timeout_ms,
        )
        while True:
            controller = self.client.metadata.controller
            node_id = controller if controller in self.client.metadata.brokers else self.client.any_node(deadline_ms)
            (response,) = self.client.call_all([(node_id, request, None)], deadline_ms)
            if isinstance(response, KafkaEosError):
                retry.failed(response)
            else:
                (created,) = response.topics
                code = created.error_code
                try:
                    done = not code or retry.answered(CreateTopicsRequest, code, None, created.error_message)
                except KafkaEosError as error:
                    command = _create_command(self.client.config.bootstrap_servers_text, request.topics[0])
                    raise type(error)(error.code, f"{error.message} To create it by hand: {command}") from None
                if done is True or done is Reaction.SUCCESS:
                    self._wait_for_leaders(name, deadline_ms)
                    return done is True
            retry.pause()

    def describe_configs(
        self,
        resource_type: Literal["topic", "broker"],
        name: str | None,
        keys: Sequence[str] | None,
        deadline_ms: int,
    ) -> dict[str, str]:
        """Configuration name -> value as the broker has it in effect; sensitive values are left out.

        For "broker" the name is a node id, None for any broker. Raises AuthorizationError; BrokerRefusedError
        UNKNOWN_TOPIC.
        """
        retry = Retry(
            self.client, f"DescribeConfigs of {resource_type} {name if name is not None else ''}", deadline_ms
        )
        while True:
            node_id = self._config_node(resource_type, name, deadline_ms)
            resource = DescribeConfigsRequest.Resource(
                resource_type=_RESOURCE_TYPES[resource_type],
                resource_name=str(node_id) if name is None else name,
                configuration_keys=None if keys is None else tuple(keys),
            )
            request = DescribeConfigsRequest(resources=(resource,))
            (response,) = self.client.call_all([(node_id, request, None)], deadline_ms)
            if isinstance(response, KafkaEosError):
                retry.failed(response)
            else:
                (result,) = response.results
                if not result.error_code:
                    return {entry.name: entry.value for entry in result.configs if entry.value is not None}
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise refusal(DescribeConfigsRequest, result.error_code, retry.what, result.error_message)
                retry.answered(DescribeConfigsRequest, result.error_code, None, result.error_message)
            retry.pause()

    def leaders(self, partitions: Iterable[TopicPartition], deadline_ms: int) -> dict[TopicPartition, int]:
        """(topic, partition) -> node id of the leader; waits for one to be elected.

        Raises BrokerRefusedError UNKNOWN_TOPIC where a topic or partition did not appear by the deadline,
        AuthorizationError, BrokerUnavailableError.
        """
        wanted = list(dict.fromkeys(partitions))
        topics = {topic for topic, _partition in wanted}
        self.client.want_topics(topics)
        if not topics <= self.client.metadata.topics.keys():
            self._refresh(f"metadata of {', '.join(sorted(topics))}", deadline_ms)
        while True:
            metadata = self.client.metadata
            found = {each: leader for each in wanted if (leader := metadata.leader(*each)) is not None}
            if len(found) == len(wanted):
                return found
            missing = next(each for each in wanted if each not in found)
            self._refuse_topic(missing[0])
            if not self.client.wait_for_metadata(deadline_ms):
                raise self._no_leader(*missing)

    def list_offsets(
        self,
        partitions: Iterable[TopicPartition],
        deadline_ms: int,
        *,
        isolation: Isolation = "read_committed",
        timestamp: int = LATEST,
    ) -> dict[TopicPartition, int]:
        """(topic, partition) -> offset by timestamp, -1 where there is none.

        LATEST under read_committed is the last stable offset, otherwise the high watermark; EARLIEST the log start.
        Raises BrokerRefusedError UNKNOWN_TOPIC, AuthorizationError, BrokerUnavailableError.
        """
        offsets: dict[TopicPartition, int] = {}

        def request_for(of_node: list[TopicPartition]) -> ListOffsetsRequest:
            return ListOffsetsRequest(
                isolation_level=_isolation_level(isolation),
                topics=tuple(
                    ListOffsetsRequest.Topic(
                        name=topic,
                        partitions=tuple(
                            ListOffsetsRequest.Topic.Partition(
                                partition_index=index,
                                current_leader_epoch=self._leader_epoch(topic, index),
                                timestamp=timestamp,
                            )
                            for index in indexes
                        ),
                    )
                    for topic, indexes in _by_topic(of_node).items()
                ),
                timeout_ms=self.client.config.request_timeout_ms,
            )

        def take(response: Any) -> Iterable[tuple[TopicPartition, int, str | None]]:
            for topic in response.topics:
                for partition in topic.partitions:
                    if not partition.error_code:
                        offsets[topic.name, partition.partition_index] = partition.offset
                    yield (topic.name, partition.partition_index), partition.error_code, None

        self._ask_leaders(partitions, ListOffsetsRequest, request_for, take, deadline_ms)
        return offsets

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        deadline_ms: int,
        isolation: Isolation = "read_committed",
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 4 << 20,
    ) -> FetchResult:
        """Records of one partition from `offset` on, from its leader, which may wait `max_wait_ms` for `min_bytes`.

        A batch larger than `max_bytes` is sent all the same where it is the first. Raises BrokerRefusedError
        UNKNOWN_TOPIC, AuthorizationError, BrokerUnavailableError.
        """
        results: list[FetchResult] = []

        def request_for(_of_node: list[TopicPartition]) -> FetchRequest:
            return FetchRequest(
                max_wait_ms=max(0, min(max_wait_ms, deadline_ms - self.client.clock())),
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                isolation_level=_isolation_level(isolation),
                topics=(
                    FetchRequest.Topic(
                        topic=topic,
                        partitions=(
                            FetchRequest.Topic.Partition(
                                partition=partition,
                                current_leader_epoch=self._leader_epoch(topic, partition),
                                fetch_offset=offset,
                                partition_max_bytes=max_bytes,
                            ),
                        ),
                    ),
                ),
            )

        def take(response: Any) -> Iterable[tuple[TopicPartition, int, str | None]]:
            if response.error_code:
                yield (topic, partition), response.error_code, None
                return
            (answer,) = response.responses[0].partitions
            leader = answer.current_leader
            if leader.leader_id >= 0:
                self.client.learn_leader(topic, partition, leader.leader_id, leader.leader_epoch)
            if answer.error_code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
                results.append(
                    FetchResult(
                        error=answer.error_code,
                        high_watermark=answer.high_watermark,
                        last_stable_offset=answer.last_stable_offset,
                        log_start_offset=answer.log_start_offset,
                        aborted_transactions=tuple(
                            AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
                            for each in answer.aborted_transactions or ()
                        ),
                        records=bytes(answer.records or b""),
                    )
                )
            yield (topic, partition), answer.error_code, None

        self._ask_leaders([(topic, partition)], FetchRequest, request_for, take, deadline_ms)
        return results[0]

    def describe_producers(
        self, partitions: Iterable[TopicPartition], deadline_ms: int
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """(topic, partition) -> the producers that its leader remembers; needs Read on the topic.

        Raises AuthorizationError, BrokerRefusedError UNKNOWN_TOPIC, BrokerUnavailableError.
        """
        producers: dict[TopicPartition, tuple[ProducerState, ...]] = {}

        def request_for(of_node: list[TopicPartition]) -> DescribeProducersRequest:
            return DescribeProducersRequest(
                topics=tuple(
                    DescribeProducersRequest.Topic(name=topic, partition_indexes=tuple(indexes))
                    for topic, indexes in _by_topic(of_node).items()
                )
            )

        def take(response: Any) -> Iterable[tuple[TopicPartition, int, str | None]]:
            for topic in response.topics:
                for answer in topic.partitions:
                    if not answer.error_code:
                        producers[topic.name, answer.partition_index] = answer.active_producers
                    yield (topic.name, answer.partition_index), answer.error_code, answer.error_message

        self._ask_leaders(partitions, DescribeProducersRequest, request_for, take, deadline_ms)
        return producers

    def write_txn_markers(self, markers: Sequence[TransactionMarker], deadline_ms: int) -> None:
        """Write transaction markers on the partitions' leaders; needs ClusterAction or Alter on the cluster.

        At most one marker per partition at a time: two for the same one are refused as ValueError. Raises
        AuthorizationError, BrokerRefusedError, BrokerUnavailableError.
        """
        by_partition = {(marker.topic, marker.partition): marker for marker in markers}
        if len(by_partition) < len(markers):
            raise ValueError("two markers for the same partition")

        def request_for(of_node: list[TopicPartition]) -> WriteTxnMarkersRequest:
            return WriteTxnMarkersRequest(markers=tuple(_writable(by_partition[each]) for each in of_node))

        def take(response: Any) -> Iterable[tuple[TopicPartition, int, str | None]]:
            for marker in response.markers:
                for topic in marker.topics:
                    for partition in topic.partitions:
                        yield (topic.name, partition.partition_index), partition.error_code, None

        self._ask_leaders(by_partition, WriteTxnMarkersRequest, request_for, take, deadline_ms)

    def offset_fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None, deadline_ms: int
    ) -> dict[TopicPartition, int]:
        """(topic, partition) -> the group's committed offset, without those that have none; None asks for all.

        Offsets of open transactions are waited for (KIP-447). Raises AuthorizationError, BrokerUnavailableError.
        """
        retry = Retry(self.client, f"OffsetFetch of group {group!r}", deadline_ms)
        topics = None if partitions is None else _by_topic(partitions)
        request = OffsetFetchRequest(
            groups=(
                OffsetFetchRequest.Group(
                    group_id=group,
                    topics=None
                    if topics is None
                    else tuple(
                        OffsetFetchRequest.Group.Topic(name=topic, partition_indexes=tuple(indexes))
                        for topic, indexes in topics.items()
                    ),
                ),
            ),
            require_stable=True,
        )
        node_id = self.find_group_coordinator(group, deadline_ms)
        while True:
            (response,) = self.client.call_all([(node_id, request, None)], deadline_ms)
            moved = isinstance(response, KafkaEosError)
            if isinstance(response, KafkaEosError):
                retry.failed(response)
            else:
                (answer,) = response.groups
                parts = [(topic.name, partition) for topic in answer.topics for partition in topic.partitions]
                codes = [answer.error_code, *(partition.error_code for _topic, partition in parts)]
                failures = [code for code in codes if code]
                if not failures:
                    return {
                        (topic, partition.partition_index): partition.committed_offset
                        for topic, partition in parts
                        if partition.committed_offset >= 0
                    }
                asked_for = {retry.answered(OffsetFetchRequest, code) for code in failures}
                moved = Reaction.FIND_COORDINATOR in asked_for
            retry.pause()
            if moved:
                node_id = self.find_group_coordinator(group, deadline_ms)

    # inside

    def _ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        api: type[Request[Any]],
        request_for: Callable[[list[TopicPartition]], Request[Any]],
        take: Callable[[Any], Iterable[tuple[TopicPartition, int, str | None]]],
        deadline_ms: int,
    ) -> None:
        """Ask the leader of each partition, again where it was not the leader, until all have answered.

        `take` keeps what a response holds and yields each partition's code and message.
        """
        remaining = list(dict.fromkeys(partitions))
        retry = Retry(self.client, api.__name__.removesuffix("Request"), deadline_ms)
        name = retry.what
        while remaining:
            by_leader: dict[int, list[TopicPartition]] = {}
            for partition, node_id in self.leaders(remaining, deadline_ms).items():
                by_leader.setdefault(node_id, []).append(partition)
            requests = [(node_id, request_for(of_node), None) for node_id, of_node in by_leader.items()]
            done: set[TopicPartition] = set()
            for response in self.client.call_all(requests, deadline_ms):
                if isinstance(response, KafkaEosError):
                    retry.failed(response)
                    continue
                for (topic, index), code, message in take(response):
                    about = f"{name} of {topic}-{index}"
                    if not code or retry.answered(api, code, about, message) is Reaction.OUT_OF_RANGE:
                        done.add((topic, index))
            remaining = [each for each in remaining if each not in done]
            if remaining:
                retry.pause()

    def _wait_for_leaders(self, topic: str, deadline_ms: int) -> None:
        self.client.want_topics([topic])
        while True:
            known = self.client.metadata.topics.get(topic)
            if known is not None and known.partitions and all(each.leader >= 0 for each in known.partitions):
                return
            if not self.client.wait_for_metadata(deadline_ms):
                raise self._no_leader(topic, 0)

    def _refuse_topic(self, topic: str) -> None:
        """Raise where metadata calls the topic wrong for good."""
        known = self.client.metadata.topics.get(topic)
        if known is not None and known.error and not known.error.retriable:
            raise refusal(MetadataRequest, known.error, f"metadata of topic {topic!r}")

    def _no_leader(self, topic: str, partition: int) -> KafkaEosError:
        known = self.client.metadata.topics.get(topic)
        answered = known is not None and (known.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or known.partitions)
        if known is not None and answered and known.partition(partition) is None:
            size = f"it has {len(known.partitions)} partitions" if known.partitions else "there is no such topic"
            return BrokerRefusedError(
                "UNKNOWN_TOPIC",
                f"{topic}-{partition} did not appear in the cluster in time: {size}; create it, or grant Describe on "
                "the topic if it exists",
            )
        return Retry(self.client, f"the election of a leader for {topic}-{partition}", 0).timeout()

    def _refresh(self, what: str, deadline_ms: int) -> None:
        if not self.client.wait_for_metadata(deadline_ms):
            self.client.any_node(deadline_ms)
            raise Retry(self.client, what, deadline_ms).timeout()

    def _config_node(self, resource_type: str, name: str | None, deadline_ms: int) -> int:
        if resource_type == "broker" and name:
            # Only the broker itself knows its static configuration.
            return int(name)
        node_id = self.client.any_node(deadline_ms)
        while name is None and node_id < 0:
            # A bootstrap server does not say which broker it is.
            self._refresh("metadata", deadline_ms)
            node_id = self.client.any_node(deadline_ms)
        return node_id

    def _leader_epoch(self, topic: str, partition: int) -> int:
        known = self.client.metadata.partition(topic, partition)
        return -1 if known is None else known.leader_epoch


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def _isolation_level(isolation: Isolation) -> int:
    return 1 if isolation == "read_committed" else 0


def _writable(marker: TransactionMarker) -> WriteTxnMarkersRequest.Marker:
    return WriteTxnMarkersRequest.Marker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.committed,
        topics=(WriteTxnMarkersRequest.Marker.Topic(name=marker.topic, partition_indexes=(marker.partition,)),),
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )


def _create_command(bootstrap_servers: str, topic: CreateTopicsRequest.Topic) -> str:
    configs = "".join(f" --config {config.name}={config.value}" for config in topic.configs)
    partitions = f" --partitions {topic.num_partitions}" if topic.num_partitions > 0 else ""
    replication = f" --replication-factor {topic.replication_factor}" if topic.replication_factor > 0 else ""
    return (
        f"kafka-topics.sh --bootstrap-server {bootstrap_servers} --create --topic {topic.name}"
        f"{partitions}{replication}{configs}"
    )
