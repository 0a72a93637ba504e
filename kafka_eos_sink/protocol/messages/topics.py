"""Creating topics, reading configurations, and reading the offsets of groups."""

from __future__ import annotations

from typing import ClassVar

from kafka_eos_sink.protocol.schema import Request, struct, tagged, versions
from kafka_eos_sink.protocol.wire_types import ZERO_UUID, Boolean, Int8, Int16, Int32, Int64, String, Uuid

# CreateTopics


@struct
class CreatableTopicConfigs:
    """A configuration value of the new topic."""

    name: String
    value: String | None
    read_only: Boolean
    config_source: Int8 = -1
    is_sensitive: Boolean


@struct
class CreatableTopicResult:
    """What became of one topic; `topic_config_error_code` tells why `configs` is null."""

    name: String
    topic_id: Uuid = versions(7, default=ZERO_UUID, ignorable=True)
    error_code: Int16
    error_message: String | None
    topic_config_error_code: Int16 = tagged(0, default=0)
    num_partitions: Int32 = -1
    replication_factor: Int16 = -1
    configs: tuple[CreatableTopicConfigs, ...] | None


@struct
class CreateTopicsResponse:
    """What became of the topics."""

    throttle_time_ms: Int32
    topics: tuple[CreatableTopicResult, ...]


@struct
class CreatableReplicaAssignment:
    """The brokers that shall hold one partition."""

    partition_index: Int32
    broker_ids: tuple[Int32, ...]


@struct
class CreatableTopicConfig:
    """A configuration value to set."""

    name: String
    value: String | None


@struct
class CreatableTopic:
    """A topic to create; -1 leaves the number of partitions or replicas to the broker (KIP-464)."""

    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: tuple[CreatableReplicaAssignment, ...] = ()
    configs: tuple[CreatableTopicConfig, ...] = ()


@struct
class CreateTopicsRequest(Request[CreateTopicsResponse]):
    """Creates topics, or with `validate_only` tells whether it would."""

    API_KEY: ClassVar[int] = 19
    VERSIONS: ClassVar[range] = range(5, 8)
    RESPONSE: ClassVar[type[CreateTopicsResponse]] = CreateTopicsResponse

    topics: tuple[CreatableTopic, ...]
    timeout_ms: Int32 = 60000
    validate_only: Boolean = False


# DescribeConfigs


@struct
class DescribeConfigsSynonym:
    """A place that the value could come from, the strongest first."""

    name: String
    value: String | None
    source: Int8


@struct
class DescribeConfigsResourceResult:
    """A configuration value; null where it is sensitive. `config_source`: 5 is Kafka's default."""

    name: String
    value: String | None
    read_only: Boolean
    config_source: Int8 = -1
    is_sensitive: Boolean
    synonyms: tuple[DescribeConfigsSynonym, ...] = ()
    config_type: Int8 = 0
    documentation: String | None = None


@struct
class DescribeConfigsResult:
    """The configuration of one resource."""

    error_code: Int16
    error_message: String | None
    resource_type: Int8
    resource_name: String
    configs: tuple[DescribeConfigsResourceResult, ...]


@struct
class DescribeConfigsResponse:
    """The configurations of the resources."""

    throttle_time_ms: Int32
    results: tuple[DescribeConfigsResult, ...]


@struct
class DescribeConfigsResource:
    """A resource, `resource_type` 2 a topic and 4 a broker; null keys for all."""

    resource_type: Int8
    resource_name: String
    configuration_keys: tuple[String, ...] | None


@struct
class DescribeConfigsRequest(Request[DescribeConfigsResponse]):
    """Asks for configurations. Those of a broker only that broker knows."""

    API_KEY: ClassVar[int] = 32
    VERSIONS: ClassVar[range] = range(4, 5)
    RESPONSE: ClassVar[type[DescribeConfigsResponse]] = DescribeConfigsResponse

    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: Boolean = False
    include_documentation: Boolean = False


# OffsetFetch


@struct
class OffsetFetchResponsePartitions:
    """The committed offset of one partition, -1 where there is none."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    metadata: String | None
    error_code: Int16


@struct
class OffsetFetchResponseTopics:
    """The committed offsets of one topic."""

    name: String
    partitions: tuple[OffsetFetchResponsePartitions, ...]


@struct
class OffsetFetchResponseGroup:
    """The committed offsets of one group."""

    group_id: String
    topics: tuple[OffsetFetchResponseTopics, ...]
    error_code: Int16 = 0


@struct
class OffsetFetchResponse:
    """The committed offsets of the groups."""

    throttle_time_ms: Int32
    groups: tuple[OffsetFetchResponseGroup, ...]


@struct
class OffsetFetchRequestTopics:
    """Partitions of one topic."""

    name: String
    partition_indexes: tuple[Int32, ...]


@struct
class OffsetFetchRequestGroup:
    """A group, and null topics for all that it has offsets of."""

    group_id: String
    member_id: String | None = versions(9, default=None, ignorable=True)
    member_epoch: Int32 = versions(9, default=-1, ignorable=True)
    topics: tuple[OffsetFetchRequestTopics, ...] | None


@struct
class OffsetFetchRequest(Request[OffsetFetchResponse]):
    """Asks a group coordinator for offsets; `require_stable` refuses those in an open transaction (KIP-447)."""

    API_KEY: ClassVar[int] = 9
    VERSIONS: ClassVar[range] = range(8, 10)
    RESPONSE: ClassVar[type[OffsetFetchResponse]] = OffsetFetchResponse

    groups: tuple[OffsetFetchRequestGroup, ...]
    require_stable: Boolean = False
