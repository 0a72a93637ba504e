"""What a transactional producer says to its transaction coordinator (KIP-98, KIP-360, KIP-447, KIP-890)."""

from __future__ import annotations

from kafka_eos_sink.protocol.schema import Request, request, struct, versions
from kafka_eos_sink.protocol.wire_types import Boolean, Int16, Int32, Int64, String


@struct
class InitProducerIdResponse:
    """The producer id and the epoch to use from now on."""

    throttle_time_ms: Int32
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16


@request(key=22, versions=range(4, 6))
class InitProducerIdRequest(Request[InitProducerIdResponse]):
    """Asks for a producer id, and for a transactional id aborts what was open and fences older producers.

    `producer_id` and `producer_epoch`: the last known ones, or -1. Without a transactional id the producer is only
    idempotent. Version 5 may answer TRANSACTION_ABORTABLE.
    """

    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1


@struct
class AddPartitionsToTxnResponse:
    """All partitions were added, or none was."""

    @struct
    class Topic:
        """What became of the partitions of one topic."""

        @struct
        class Partition:
            """What became of one partition."""

            partition_index: Int32
            partition_error_code: Int16

        name: String
        results_by_partition: tuple[Partition, ...]

    throttle_time_ms: Int32
    results_by_topic_v3_and_below: tuple[Topic, ...]


@request(key=24, versions=range(3, 4))
class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnResponse]):
    """Adds partitions to the transaction before the first record goes there (transaction version 0 and 1)."""

    @struct
    class Topic:
        """Partitions of one topic."""

        name: String
        partitions: tuple[Int32, ...]

    v3_and_below_transactional_id: String
    v3_and_below_producer_id: Int64
    v3_and_below_producer_epoch: Int16
    v3_and_below_topics: tuple[Topic, ...]


@struct
class AddOffsetsToTxnResponse:
    """Whether the group's offsets are part of the transaction now."""

    throttle_time_ms: Int32
    error_code: Int16


@request(key=25, versions=range(3, 5))
class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse]):
    """Adds the offsets of a group to the transaction (transaction version 0 and 1)."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


@struct
class TxnOffsetCommitResponse:
    """What became of the offsets."""

    @struct
    class Topic:
        """What became of the offsets of one topic."""

        @struct
        class Partition:
            """What became of one partition's offset."""

            partition_index: Int32
            error_code: Int16

        name: String
        partitions: tuple[Partition, ...]

    throttle_time_ms: Int32
    topics: tuple[Topic, ...]


@request(key=28, versions=range(3, 6))
class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse]):
    """Commits a group's offsets with the transaction; goes to the group's coordinator.

    From version 5 on it adds the group to the transaction by itself (KIP-890), only for transaction version 2.
    """

    @struct
    class Topic:
        """Offsets of the partitions of one topic."""

        @struct
        class Partition:
            """The offset to commit: that of the next record to read."""

            partition_index: Int32
            committed_offset: Int64
            committed_leader_epoch: Int32 = -1
            committed_metadata: String | None = None

        name: String
        partitions: tuple[Partition, ...]

    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32 = -1
    member_id: String = ""
    group_instance_id: String | None = None
    topics: tuple[Topic, ...]


@struct
class EndTxnResponse:
    """The outcome is durable at the coordinator if there is no error; its markers may still be on their way.

    In version 5 `producer_id` and `producer_epoch` are those of the next transaction (KIP-890).
    """

    throttle_time_ms: Int32
    error_code: Int16
    producer_id: Int64 = versions(5, default=-1, ignorable=True)
    producer_epoch: Int16 = versions(5, default=-1, ignorable=True)


@request(key=26, versions=range(3, 6))
class EndTxnRequest(Request[EndTxnResponse]):
    """Commits or aborts a transaction. Version 5, with its epoch bump, is for transaction version 2."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Boolean
