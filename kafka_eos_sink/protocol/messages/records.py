"""Messages to write and read records: Produce, Fetch, ListOffsets.

From version 13 on, Fetch and Produce have topic ids instead of names (KIP-516). Here, Produce ends with version 12.
"""

from __future__ import annotations

from kafka_eos_sink.protocol.messages.cluster import Broker
from kafka_eos_sink.protocol.schema import Request, request, struct, tagged, versions
from kafka_eos_sink.protocol.wire_types import ZERO_UUID, Int8, Int16, Int32, Int64, RecordParts, Records, String, Uuid


@struct
class LeaderIdAndEpoch:
    """The partition's leader according to the responding broker (KIP-951)."""

    leader_id: Int32 = -1  # -1: none
    leader_epoch: Int32 = -1


@struct
class ProduceResponse:
    @struct
    class Topic:
        @struct
        class Partition:
            @struct
            class RecordError:
                batch_index: Int32
                batch_index_error_message: String | None = None

            index: Int32
            error_code: Int16
            base_offset: Int64  # of the first record; -1 on an error
            log_append_time_ms: Int64 = -1
            log_start_offset: Int64 = -1
            record_errors: tuple[RecordError, ...] = ()  # why the leader rejected the batch (KIP-467)
            error_message: String | None = None
            current_leader: LeaderIdAndEpoch = tagged(0, 10, default=LeaderIdAndEpoch())

        name: String
        partition_responses: tuple[Partition, ...]

    responses: tuple[Topic, ...]
    throttle_time_ms: Int32 = 0
    node_endpoints: tuple[Broker, ...] = tagged(0, 10, default=())


@request(key=0, versions=range(9, 13))
class ProduceRequest(Request[ProduceResponse]):
    """Append record batches.

    From version 12 on, Produce also adds the partitions to the transaction (KIP-890).
    A transactional producer sends those versions only under transaction version 2.
    """

    @struct
    class Topic:
        @struct
        class Partition:
            index: Int32
            records: RecordParts | None  # one record batch, in one or more buffers

        name: String
        partition_data: tuple[Partition, ...]

    transactional_id: String | None = None
    acks: Int16  # -1 all in-sync replicas; 1 the leader; 0: the broker sends no response
    timeout_ms: Int32
    topic_data: tuple[Topic, ...]


@struct
class FetchResponse:
    @struct
    class Topic:
        @struct
        class Partition:
            @struct
            class EpochEndOffset:
                epoch: Int32 = -1
                end_offset: Int64 = -1

            @struct
            class SnapshotId:
                end_offset: Int64 = -1
                epoch: Int32 = -1

            @struct
            class AbortedTransaction:
                producer_id: Int64
                first_offset: Int64

            partition_index: Int32
            error_code: Int16
            high_watermark: Int64  # end of the replicated log
            last_stable_offset: Int64 = -1  # before the first open transaction
            log_start_offset: Int64 = -1  # first offset after retention
            diverging_epoch: EpochEndOffset = tagged(0, default=EpochEndOffset())  # end of the common log
            current_leader: LeaderIdAndEpoch = tagged(1, default=LeaderIdAndEpoch())
            snapshot_id: SnapshotId = tagged(2, default=SnapshotId())  # for replicas of the metadata log
            aborted_transactions: tuple[AbortedTransaction, ...] | None  # null under read_uncommitted
            preferred_read_replica: Int32 = -1
            records: Records | None  # the last batch may be incomplete

        topic: String = versions(last=12, default="", ignorable=True)
        topic_id: Uuid = versions(13, default=ZERO_UUID, ignorable=True)
        partitions: tuple[Partition, ...]

    throttle_time_ms: Int32
    error_code: Int16
    session_id: Int32 = 0
    responses: tuple[Topic, ...]


@request(key=1, versions=range(12, 14))
class FetchRequest(Request[FetchResponse]):
    @struct
    class Topic:
        @struct
        class Partition:
            partition: Int32
            current_leader_epoch: Int32 = -1
            fetch_offset: Int64
            last_fetched_epoch: Int32 = -1
            log_start_offset: Int64 = -1
            partition_max_bytes: Int32

        topic: String = versions(last=12, default="", ignorable=True)
        topic_id: Uuid = versions(13, default=ZERO_UUID, ignorable=True)
        partitions: tuple[Partition, ...]

    @struct
    class ForgottenTopic:
        topic: String = versions(last=12, default="", ignorable=True)
        topic_id: Uuid = versions(13, default=ZERO_UUID, ignorable=True)
        partitions: tuple[Int32, ...]

    cluster_id: String | None = tagged(0, default=None)
    replica_id: Int32 = -1
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0  # 0 read_uncommitted, 1 read_committed
    session_id: Int32 = 0
    session_epoch: Int32 = -1  # -1: no fetch session
    topics: tuple[Topic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...] = ()  # removed from the fetch session (KIP-227)
    rack_id: String = ""


@struct
class ListOffsetsResponse:
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: Int32
            error_code: Int16
            timestamp: Int64 = -1
            offset: Int64 = -1  # -1: not found
            leader_epoch: Int32 = -1

        name: String
        partitions: tuple[Partition, ...]

    throttle_time_ms: Int32
    topics: tuple[Topic, ...]


@request(key=2, versions=range(7, 11))
class ListOffsetsRequest(Request[ListOffsetsResponse]):
    """Find offsets by time."""

    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: Int32
            current_leader_epoch: Int32 = -1
            timestamp: Int64  # ms since 1970; -1 end, -2 beginning of the log

        name: String
        partitions: tuple[Partition, ...]

    replica_id: Int32 = -1
    isolation_level: Int8  # 1: the end of the log is the last stable offset
    topics: tuple[Topic, ...]
    timeout_ms: Int32 = versions(10, default=0, ignorable=True)
