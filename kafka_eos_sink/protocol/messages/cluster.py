"""Who is who in the cluster: brokers, topics, leaders and coordinators."""

from __future__ import annotations

from kafka_eos_sink.protocol.schema import Request, request, struct, versions
from kafka_eos_sink.protocol.wire_types import ZERO_UUID, Boolean, Int8, Int16, Int32, String, Uuid

UNKNOWN_AUTHORIZED_OPERATIONS = -(2**31)
"""The bit field of authorized operations where it was not asked for."""


@struct
class MetadataResponse:
    """Brokers, controller and topics. `error_code` (version 13): REBOOTSTRAP_REQUIRED (KIP-1102)."""

    @struct
    class Broker:
        """A broker and where the listener that was asked reaches it."""

        node_id: Int32
        host: String
        port: Int32
        rack: String | None = None

    @struct
    class Topic:
        """A topic; `name` may be null from version 12 on, where it was asked for by an id that does not exist."""

        @struct
        class Partition:
            """A partition; `leader_id` -1 where there is no leader."""

            error_code: Int16
            partition_index: Int32
            leader_id: Int32
            leader_epoch: Int32 = -1
            replica_nodes: tuple[Int32, ...]
            isr_nodes: tuple[Int32, ...]
            offline_replicas: tuple[Int32, ...]

        error_code: Int16
        name: String | None = versions(nullable_from=12)
        topic_id: Uuid = versions(10, default=ZERO_UUID, ignorable=True)
        is_internal: Boolean = False
        partitions: tuple[Partition, ...]
        topic_authorized_operations: Int32 = UNKNOWN_AUTHORIZED_OPERATIONS

    throttle_time_ms: Int32
    brokers: tuple[Broker, ...]
    cluster_id: String | None = None
    controller_id: Int32 = -1
    topics: tuple[Topic, ...]
    cluster_authorized_operations: Int32 = versions(0, 10, default=UNKNOWN_AUTHORIZED_OPERATIONS)
    error_code: Int16 = versions(13, default=0, ignorable=True)


@request(key=3, versions=range(9, 14))
class MetadataRequest(Request[MetadataResponse]):
    """Asks for topics: null for all of them, empty for none."""

    @struct
    class Topic:
        """A topic by name; by id, with a null name, only from version 12 on (earlier brokers do not do it)."""

        topic_id: Uuid = versions(10, default=ZERO_UUID, ignorable=True)
        name: String | None = versions(nullable_from=10)

    topics: tuple[Topic, ...] | None
    allow_auto_topic_creation: Boolean = True
    include_cluster_authorized_operations: Boolean = versions(0, 10, default=False)
    include_topic_authorized_operations: Boolean = False


@struct
class DescribeClusterResponse:
    """The cluster's id, controller and brokers. `endpoint_type`: 1 brokers, 2 controllers."""

    @struct
    class Broker:
        """A broker; `is_fenced` only where fenced brokers were asked for (KIP-1073)."""

        broker_id: Int32
        host: String
        port: Int32
        rack: String | None = None
        is_fenced: Boolean = versions(2, default=False)

    throttle_time_ms: Int32
    error_code: Int16
    error_message: String | None = None
    endpoint_type: Int8 = versions(1, default=1)
    cluster_id: String
    controller_id: Int32 = -1
    brokers: tuple[Broker, ...]
    cluster_authorized_operations: Int32 = UNKNOWN_AUTHORIZED_OPERATIONS


@request(key=60, versions=range(3))
class DescribeClusterRequest(Request[DescribeClusterResponse]):
    """Asks for the cluster (KIP-700)."""

    include_cluster_authorized_operations: Boolean = False
    endpoint_type: Int8 = versions(1, default=1)
    include_fenced_brokers: Boolean = versions(2, default=False)


@struct
class FindCoordinatorResponse:
    """One coordinator per key."""

    @struct
    class Coordinator:
        """The broker that coordinates `key`, or why there is none."""

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
    """Asks who coordinates these keys (KIP-699). `key_type`: 0 group, 1 transaction, 2 share group."""

    key_type: Int8 = 0
    coordinator_keys: tuple[String, ...]
