"""Creating topics, reading configurations, and reading the offsets of groups."""

from __future__ import annotations

from kafka_eos_sink.protocol.schema import Request, request, struct, tagged, versions
from kafka_eos_sink.protocol.wire_types import ZERO_UUID, Boolean, Int8, Int16, Int32, Int64, String, Uuid


@struct
class CreateTopicsResponse:
    """What became of the topics."""

    @struct
    class Topic:
        """What became of one topic; `topic_config_error_code` tells why `configs` is null."""

        @struct
        class Config:
            """A configuration value of the new topic."""

            name: String
            value: String | None
            read_only: Boolean
            config_source: Int8 = -1
            is_sensitive: Boolean

        name: String
        topic_id: Uuid = versions(7, default=ZERO_UUID, ignorable=True)
        error_code: Int16
        error_message: String | None
        topic_config_error_code: Int16 = tagged(0, default=0)
        num_partitions: Int32 = -1
        replication_factor: Int16 = -1
        configs: tuple[Config, ...] | None

    throttle_time_ms: Int32
    topics: tuple[Topic, ...]


@request(key=19, versions=range(5, 8))
class CreateTopicsRequest(Request[CreateTopicsResponse]):
    """Creates topics, or with `validate_only` tells whether it would."""

    @struct
    class Topic:
        """A topic to create; -1 leaves the number of partitions or replicas to the broker (KIP-464)."""

        @struct
        class Assignment:
            """The brokers that shall hold one partition."""

            partition_index: Int32
            broker_ids: tuple[Int32, ...]

        @struct
        class Config:
            """A configuration value to set."""

            name: String
            value: String | None

        name: String
        num_partitions: Int32
        replication_factor: Int16
        assignments: tuple[Assignment, ...] = ()
        configs: tuple[Config, ...] = ()

    topics: tuple[Topic, ...]
    timeout_ms: Int32 = 60000
    validate_only: Boolean = False


@struct
class DescribeConfigsResponse:
    """The configurations of the resources."""

    @struct
    class Result:
        """The configuration of one resource."""

        @struct
        class Config:
            """A configuration value; null where it is sensitive. `config_source`: 5 is Kafka's default."""

            @struct
            class Synonym:
                """A place that the value could come from, the strongest first."""

                name: String
                value: String | None
                source: Int8

            name: String
            value: String | None
            read_only: Boolean
            config_source: Int8 = -1
            is_sensitive: Boolean
            synonyms: tuple[Synonym, ...] = ()
            config_type: Int8 = 0
            documentation: String | None = None

        error_code: Int16
        error_message: String | None
        resource_type: Int8
        resource_name: String
        configs: tuple[Config, ...]

    throttle_time_ms: Int32
    results: tuple[Result, ...]


@request(key=32, versions=range(4, 5))
class DescribeConfigsRequest(Request[DescribeConfigsResponse]):
    """Asks for configurations. Those of a broker only that broker knows."""

    @struct
    class Resource:
        """A resource, `resource_type` 2 a topic and 4 a broker; null keys for all."""

        resource_type: Int8
        resource_name: String
        configuration_keys: tuple[String, ...] | None

    resources: tuple[Resource, ...]
    include_synonyms: Boolean = False
    include_documentation: Boolean = False


@struct
class OffsetFetchResponse:
    """The committed offsets of the groups."""

    @struct
    class Group:
        """The committed offsets of one group."""

        @struct
        class Topic:
            """The committed offsets of one topic."""

            @struct
            class Partition:
                """The committed offset of one partition, -1 where there is none."""

                partition_index: Int32
                committed_offset: Int64
                committed_leader_epoch: Int32 = -1
                metadata: String | None
                error_code: Int16

            name: String
            partitions: tuple[Partition, ...]

        group_id: String
        topics: tuple[Topic, ...]
        error_code: Int16 = 0

    throttle_time_ms: Int32
    groups: tuple[Group, ...]


@request(key=9, versions=range(8, 10))
class OffsetFetchRequest(Request[OffsetFetchResponse]):
    """Asks a group coordinator for offsets; `require_stable` refuses those in an open transaction (KIP-447)."""

    @struct
    class Group:
        """A group, and null topics for all that it has offsets of."""

        @struct
        class Topic:
            """Partitions of one topic."""

            name: String
            partition_indexes: tuple[Int32, ...]

        group_id: String
        member_id: String | None = versions(9, default=None, ignorable=True)
        member_epoch: Int32 = versions(9, default=-1, ignorable=True)
        topics: tuple[Topic, ...] | None

    groups: tuple[Group, ...]
    require_stable: Boolean = False
