"""Transactions of producers (KIP-98, 447, 890), and their inspection (KIP-664)."""

from __future__ import annotations

from kafka_eos_sink.protocol.schema import Request, request, struct, versions
from kafka_eos_sink.protocol.wire_types import Boolean, Int8, Int16, Int32, Int64, String


@struct
class InitProducerIdResponse:
    """The producer id and epoch of the next transaction."""

    throttle_time_ms: Int32
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16


@request(key=22, versions=range(4, 6))
class InitProducerIdRequest(Request[InitProducerIdResponse]):
    """Get a producer id and epoch.

    With a transactional id, the coordinator also aborts the id's open transaction and fences older producers. Without
    one, the producer is only idempotent. Version 5 may return TRANSACTION_ABORTABLE. Kafka calls version 6 unstable (KIP-939).
    """

    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Int64 = -1  # the current id and epoch, or -1 (KIP-360)
    producer_epoch: Int16 = -1


@struct
class AddPartitionsToTxnResponse:
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: Int32
            partition_error_code: Int16

        name: String
        results_by_partition: tuple[Partition, ...]

    throttle_time_ms: Int32
    results_by_topic_v3_and_below: tuple[Topic, ...]  # all partitions are added, or none


@request(key=24, versions=range(3, 4))
class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnResponse]):
    """Add partitions before their first record (transaction versions 0 and 1).

    Brokers use version 4 and later to verify partitions. Clients must not (KIP-890).
    """

    @struct
    class Topic:
        name: String
        partitions: tuple[Int32, ...]

    v3_and_below_transactional_id: String
    v3_and_below_producer_id: Int64
    v3_and_below_producer_epoch: Int16
    v3_and_below_topics: tuple[Topic, ...]


@struct
class AddOffsetsToTxnResponse:
    throttle_time_ms: Int32
    error_code: Int16


@request(key=25, versions=range(3, 5))
class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse]):
    """Add a group's offsets to the transaction (transaction versions 0 and 1)."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


@struct
class TopicErrors:
    """The error codes of a topic's partitions."""

    @struct
    class Partition:
        partition_index: Int32
        error_code: Int16

    name: String
    partitions: tuple[Partition, ...]


@struct
class TxnOffsetCommitResponse:
    throttle_time_ms: Int32
    topics: tuple[TopicErrors, ...]


@request(key=28, versions=range(3, 6))
class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse]):
    """Commit a group's offsets with the transaction; sent to the group coordinator.

    From version 5 on, the request also adds the group to the transaction (KIP-890).
    Send that version only under transaction version 2.
    """

    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: Int32
            committed_offset: Int64  # the next record to read
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
class OffsetFetchResponse:
    @struct
    class Group:
        @struct
        class Topic:
            @struct
            class Partition:
                partition_index: Int32
                committed_offset: Int64  # -1: none
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
    """Read the committed offsets of groups; sent to the group coordinator."""

    @struct
    class Group:
        @struct
        class Topic:
            name: String
            partition_indexes: tuple[Int32, ...]

        group_id: String
        member_id: String | None = versions(9, default=None, ignorable=True)
        member_epoch: Int32 = versions(9, default=-1, ignorable=True)
        topics: tuple[Topic, ...] | None  # null: all that have an offset

    groups: tuple[Group, ...]
    require_stable: Boolean = False  # reject offsets whose transaction is open (KIP-447)


@struct
class EndTxnResponse:
    """Without an error, the outcome is durable, but markers may still be missing."""

    throttle_time_ms: Int32
    error_code: Int16
    producer_id: Int64 = versions(5, default=-1, ignorable=True)  # id and epoch of the next transaction (KIP-890)
    producer_epoch: Int16 = versions(5, default=-1, ignorable=True)


@request(key=26, versions=range(3, 6))
class EndTxnRequest(Request[EndTxnResponse]):
    """Commit or abort; version 5 bumps the epoch and requires transaction version 2."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Boolean


@struct
class TransactionState:
    """The coordinator's state of a transactional id."""

    @struct
    class Topic:
        topic: String
        partitions: tuple[Int32, ...]

    error_code: Int16
    transactional_id: String
    transaction_state: String  # Empty, Ongoing, Prepare{Commit,Abort,EpochFence}, Complete{Commit,Abort}, Dead
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64  # -1: no open transaction
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[Topic, ...]  # after EndTxn: partitions with a missing marker

    @property
    def partitions(self) -> tuple[tuple[str, int], ...]:
        """The (topic, partition) pairs of ``topics``."""
        return tuple((topic.topic, index) for topic in self.topics for index in topic.partitions)


@struct
class DescribeTransactionsResponse:
    throttle_time_ms: Int32
    transaction_states: tuple[TransactionState, ...]


@request(key=65, versions=range(1))
class DescribeTransactionsRequest(Request[DescribeTransactionsResponse]):
    """Describe transactional ids; sent to their coordinator."""

    transactional_ids: tuple[String, ...]


@struct
class ListTransactionsResponse:
    """One coordinator's transactions that the principal may describe."""

    @struct
    class Transaction:
        transactional_id: String
        producer_id: Int64
        transaction_state: String

    throttle_time_ms: Int32
    error_code: Int16
    unknown_state_filters: tuple[String, ...]
    transaction_states: tuple[Transaction, ...]


@request(key=66, versions=range(3))
class ListTransactionsRequest(Request[ListTransactionsResponse]):
    """List one coordinator's transactions; an empty filter matches all of them."""

    state_filters: tuple[String, ...] = ()
    producer_id_filters: tuple[Int64, ...] = ()
    duration_filter: Int64 = versions(1, default=-1)  # ms; transactions open for longer (KIP-994)
    transactional_id_pattern: String | None = versions(2, default=None)  # RE2, matches the whole id (KIP-1152)


@struct
class ProducerState:
    """The partition leader's entry for one producer."""

    producer_id: Int64
    producer_epoch: Int32  # int16 in all other messages
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1  # -1: no open transaction


@struct
class DescribeProducersResponse:
    @struct
    class Topic:
        @struct
        class Partition:
            partition_index: Int32
            error_code: Int16
            error_message: String | None = None
            active_producers: tuple[ProducerState, ...]

        name: String
        partitions: tuple[Partition, ...]

    throttle_time_ms: Int32
    topics: tuple[Topic, ...]


@struct
class TopicIndexes:
    """Partitions of a topic."""

    name: String
    partition_indexes: tuple[Int32, ...]


@request(key=61, versions=range(1))
class DescribeProducersRequest(Request[DescribeProducersResponse]):
    """List the producers that leaders know. Requires Read on the topics."""

    topics: tuple[TopicIndexes, ...]


@struct
class WriteTxnMarkersResponse:
    @struct
    class Marker:
        producer_id: Int64
        topics: tuple[TopicErrors, ...]

    markers: tuple[Marker, ...]


@request(key=27, versions=range(1, 3))
class WriteTxnMarkersRequest(Request[WriteTxnMarkersResponse]):
    """Write markers to partition logs. Requires ClusterAction or Alter on the cluster."""

    @struct
    class Marker:
        producer_id: Int64
        producer_epoch: Int16
        transaction_result: Boolean  # True: COMMIT
        topics: tuple[TopicIndexes, ...]
        coordinator_epoch: Int32
        transaction_version: Int8 = versions(2, default=0, ignorable=True)

    markers: tuple[Marker, ...]
