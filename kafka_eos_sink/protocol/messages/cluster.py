"""Brokers, topics, leaders and coordinators: Metadata, DescribeCluster, FindCoordinator."""

from __future__ import annotations

from kafka_eos_sink.protocol.schema import Request, request, struct, versions
from kafka_eos_sink.protocol.wire_types import ZERO_UUID, Boolean, Int8, Int16, Int32, String, Uuid

# The bit field of authorized operations if the request does not include it.
UNKNOWN_AUTHORIZED_OPERATIONS = -(2**31)


@struct
class MetadataResponse:
    """Brokers, controller and topics."""

    @struct
    class Broker:
        node_id: Int32
        host: String  # of the listener that received the request
        port: Int32
        rack: String | None = None

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
        name: String | None = versions(nullable_from=12)  # null for a requested id that does not exist
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
    error_code: Int16 = versions(13, default=0, ignorable=True)  # REBOOTSTRAP_REQUIRED (KIP-1102)


@request(key=3, versions=range(9, 14))
class MetadataRequest(Request[MetadataResponse]):
    """Describe topics: null means all topics, an empty array means none."""

    @struct
    class Topic:
        topic_id: Uuid = versions(10, default=ZERO_UUID, ignorable=True)
        name: String | None = versions(nullable_from=10)  # brokers before version 12 reject a null name with an id

    topics: tuple[Topic, ...] | None
    allow_auto_topic_creation: Boolean = True
    include_cluster_authorized_operations: Boolean = versions(0, 10, default=False)
    include_topic_authorized_operations: Boolean = False


@struct
class DescribeClusterResponse:
    """The cluster's id, controller and brokers."""

    @struct
    class Broker:
        broker_id: Int32
        host: String
        port: Int32
        rack: String | None = None
        is_fenced: Boolean = versions(2, default=False)  # only if the request includes fenced brokers (KIP-1073)

    throttle_time_ms: Int32
    error_code: Int16
    error_message: String | None = None
    endpoint_type: Int8 = versions(1, default=1)  # 1 brokers, 2 controllers
    cluster_id: String
    controller_id: Int32 = -1
    brokers: tuple[Broker, ...]
    cluster_authorized_operations: Int32 = UNKNOWN_AUTHORIZED_OPERATIONS


@request(key=60, versions=range(3))
class DescribeClusterRequest(Request[DescribeClusterResponse]):
    """Describe the cluster (KIP-700)."""

    include_cluster_authorized_operations: Boolean = False
    endpoint_type: Int8 = versions(1, default=1)
    include_fenced_brokers: Boolean = versions(2, default=False)


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
