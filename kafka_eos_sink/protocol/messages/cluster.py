"""Connections (KIP-35, KIP-43), metadata, coordinators, topics, configurations."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from kafka_eos_sink.errors import peer_text
from kafka_eos_sink.protocol.schema import NEVER_FLEXIBLE, Request, request, struct, tagged, versions
from kafka_eos_sink.protocol.wire_types import ZERO_UUID, Boolean, Bytes, Int8, Int16, Int32, Int64, String, Uuid

# The value of authorized operations if the request did not include them.
UNKNOWN_AUTHORIZED_OPERATIONS = -(2**31)


class AclOperation(IntEnum):
    """Bits of the authorized operations (org.apache.kafka.common.acl.AclOperation)."""

    READ = 3
    WRITE = 4
    DESCRIBE = 8

    def is_in(self, operations: int) -> bool:
        """Return whether the principal may do this; False if the operations are unknown."""
        return bool(operations & (1 << self))


@struct
class Broker:
    """A broker's address on the listener used; a bootstrap server has a negative id."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None

    def __str__(self) -> str:
        name = f"broker {self.node_id}" if self.node_id >= 0 else "bootstrap server"
        return f"{name} ({peer_text(self.host)}:{self.port})"


@struct
class MetadataResponse:
    @struct
    class Topic:
        @struct
        class Partition:
            error_code: Int16
            partition_index: Int32
            leader_id: Int32  # -1: no leader
            leader_epoch: Int32 = -1
            replica_nodes: tuple[Int32, ...]
            isr_nodes: tuple[Int32, ...]
            offline_replicas: tuple[Int32, ...]

        error_code: Int16
        name: String | None = versions(nullable_from=12)  # null for an unknown topic id
        topic_id: Uuid = versions(10, default=ZERO_UUID, ignorable=True)
        is_internal: Boolean = False
        partitions: tuple[Partition, ...]
        topic_authorized_operations: Int32 = UNKNOWN_AUTHORIZED_OPERATIONS

        @property
        def replication_factor(self) -> int:
            """The smallest number of replicas that a partition has."""
            return min((len(each.replica_nodes) for each in self.partitions), default=0)

    throttle_time_ms: Int32
    brokers: tuple[Broker, ...]
    cluster_id: String | None = None
    controller_id: Int32 = -1
    topics: tuple[Topic, ...]
    cluster_authorized_operations: Int32 = versions(0, 10, default=UNKNOWN_AUTHORIZED_OPERATIONS)
    error_code: Int16 = versions(13, default=0, ignorable=True)  # REBOOTSTRAP_REQUIRED (KIP-1102)


@request(key=3, versions=range(9, 14))
class MetadataRequest(Request[MetadataResponse]):
    """Describe topics: null means all topics, an empty array none."""

    @struct
    class Topic:
        topic_id: Uuid = versions(10, default=ZERO_UUID, ignorable=True)
        name: String | None = versions(nullable_from=10)  # before version 12, brokers reject null even with an id

    topics: tuple[Topic, ...] | None
    allow_auto_topic_creation: Boolean = True  # Kafka's default; this client never allows it
    include_cluster_authorized_operations: Boolean = versions(0, 10, default=False)
    include_topic_authorized_operations: Boolean = False


@struct
class FindCoordinatorResponse:
    @struct
    class Coordinator:
        key: String
        node_id: Int32
        host: String
        port: Int32
        error_code: Int16
        error_message: String | None

    throttle_time_ms: Int32
    coordinators: tuple[Coordinator, ...]


@request(key=10, versions=range(4, 7))
class FindCoordinatorRequest(Request[FindCoordinatorResponse]):
    """Find the coordinators of these keys (KIP-699)."""

    key_type: Int8 = 0  # 0 group, 1 transaction, 2 share group
    coordinator_keys: tuple[String, ...]


@struct
class ApiVersionsResponse:
    """The APIs and features of a broker.

    A broker that does not support the request's version responds in version 0 with UNSUPPORTED_VERSION (KIP-511).
    """

    @struct
    class ApiVersion:
        api_key: Int16
        min_version: Int16
        max_version: Int16  # inclusive

    @struct
    class SupportedFeature:
        name: String
        min_version: Int16
        max_version: Int16

    @struct
    class FinalizedFeature:
        name: String
        max_version_level: Int16
        min_version_level: Int16

    FIRST_FLEXIBLE: ClassVar[int] = 3

    error_code: Int16
    api_keys: tuple[ApiVersion, ...]
    throttle_time_ms: Int32 = versions(1, default=0, ignorable=True)
    supported_features: tuple[SupportedFeature, ...] = tagged(0, 3, default=(), ignorable=True)
    finalized_features_epoch: Int64 = tagged(1, 3, default=-1, ignorable=True)
    # Levels of features, such as ``transaction.version`` (KIP-584, KIP-890).
    finalized_features: tuple[FinalizedFeature, ...] = tagged(2, 3, default=(), ignorable=True)
    zk_migration_ready: Boolean = tagged(3, 3, default=False, ignorable=True)


@request(key=18, versions=range(3, 5))
class ApiVersionsRequest(Request[ApiVersionsResponse]):
    """List the broker's APIs; the first request on every connection."""

    FIRST_FLEXIBLE: ClassVar[int] = 3

    client_software_name: String
    client_software_version: String


@struct
class SaslHandshakeResponse:
    FIRST_FLEXIBLE: ClassVar[int] = NEVER_FLEXIBLE

    error_code: Int16
    mechanisms: tuple[String, ...]


@request(key=17, versions=range(1, 2))
class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    """Select the SASL mechanism; SaslAuthenticate requests follow (KIP-152)."""

    FIRST_FLEXIBLE: ClassVar[int] = NEVER_FLEXIBLE

    mechanism: String


@struct
class SaslAuthenticateResponse:
    error_code: Int16
    error_message: String | None
    auth_bytes: Bytes
    session_lifetime_ms: Int64 = 0  # 0: the session does not expire (KIP-368)


@request(key=36, versions=range(2, 3))
class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    """Send a token of the mechanism that the handshake selected."""

    auth_bytes: Bytes


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
        topic_config_error_code: Int16 = tagged(0, default=0)  # why ``configs`` is null
        num_partitions: Int32 = -1
        replication_factor: Int16 = -1
        configs: tuple[Config, ...] | None

    throttle_time_ms: Int32
    topics: tuple[Topic, ...]


@request(key=19, versions=range(5, 8))
class CreateTopicsRequest(Request[CreateTopicsResponse]):
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
                name: String
                value: String | None
                source: Int8

            name: String
            value: String | None  # null if sensitive
            read_only: Boolean
            config_source: Int8 = -1  # 5: Kafka's own default
            is_sensitive: Boolean
            synonyms: tuple[Synonym, ...] = ()  # sources of the value; the first one wins
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
    """Describe configurations; send a broker's own to that broker."""

    @struct
    class Resource:
        resource_type: Int8  # 2 topic, 4 broker
        resource_name: String
        configuration_keys: tuple[String, ...] | None  # null: all keys

    resources: tuple[Resource, ...]
    include_synonyms: Boolean = False
    include_documentation: Boolean = False
