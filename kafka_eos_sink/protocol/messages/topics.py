"""Topics and configurations: CreateTopics, DescribeConfigs."""

from __future__ import annotations

from kafka_eos_sink.protocol.schema import Request, request, struct, tagged, versions
from kafka_eos_sink.protocol.wire_types import ZERO_UUID, Boolean, Int8, Int16, Int32, String, Uuid


@struct
class CreateTopicsResponse:
    @struct
    class Topic:
        @struct
        class Config:
            name: String
            value: String | None
            read_only: Boolean
            config_source: Int8 = -1
            is_sensitive: Boolean

        name: String
        topic_id: Uuid = versions(7, default=ZERO_UUID, ignorable=True)
        error_code: Int16
        error_message: String | None
        topic_config_error_code: Int16 = tagged(0, default=0)  # why `configs` is null
        num_partitions: Int32 = -1
        replication_factor: Int16 = -1
        configs: tuple[Config, ...] | None

    throttle_time_ms: Int32
    topics: tuple[Topic, ...]


@request(key=19, versions=range(5, 8))
class CreateTopicsRequest(Request[CreateTopicsResponse]):
    """Create topics."""

    @struct
    class Topic:
        @struct
        class Assignment:
            partition_index: Int32
            broker_ids: tuple[Int32, ...]

        @struct
        class Config:
            name: String
            value: String | None

        name: String
        num_partitions: Int32  # -1: the broker's default (KIP-464)
        replication_factor: Int16
        assignments: tuple[Assignment, ...] = ()
        configs: tuple[Config, ...] = ()

    topics: tuple[Topic, ...]
    timeout_ms: Int32 = 60000
    validate_only: Boolean = False  # check the request, create nothing


@struct
class DescribeConfigsResponse:
    @struct
    class Result:
        @struct
        class Config:
            @struct
            class Synonym:
                """A source of the value; the first one wins."""

                name: String
                value: String | None
                source: Int8

            name: String
            value: String | None  # null if sensitive
            read_only: Boolean
            config_source: Int8 = -1  # 5: Kafka's own default
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
    """Describe configurations. Only the broker itself knows the configuration of a broker."""

    @struct
    class Resource:
        resource_type: Int8  # 2 topic, 4 broker
        resource_name: String
        configuration_keys: tuple[String, ...] | None  # null: all keys

    resources: tuple[Resource, ...]
    include_synonyms: Boolean = False
    include_documentation: Boolean = False
