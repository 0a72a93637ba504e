"""Inspecting transactions, and ending those that hang (KIP-664)."""

from __future__ import annotations

from kafka_eos_sink.protocol.schema import Request, request, struct, versions
from kafka_eos_sink.protocol.wire_types import Boolean, Int8, Int16, Int32, Int64, String


@struct
class TransactionState:
    """A transactional id as its coordinator sees it."""

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
    topics: tuple[Topic, ...]  # after the end of a transaction: partitions whose marker is still missing

    @property
    def partitions(self) -> tuple[tuple[str, int], ...]:
        """The (topic, partition) pairs of `topics`."""
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
    """The transactions of one coordinator that the principal may describe."""

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
    """List the transactions of one coordinator. An empty filter matches every transaction."""

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


@request(key=61, versions=range(1))
class DescribeProducersRequest(Request[DescribeProducersResponse]):
    """List the producers that the leader of each partition knows. Requires Read on the topics."""

    @struct
    class Topic:
        name: String
        partition_indexes: tuple[Int32, ...]

    topics: tuple[Topic, ...]


@struct
class WriteTxnMarkersResponse:
    @struct
    class Marker:
        @struct
        class Topic:
            @struct
            class Partition:
                partition_index: Int32
                error_code: Int16

            name: String
            partitions: tuple[Partition, ...]

        producer_id: Int64
        topics: tuple[Topic, ...]

    markers: tuple[Marker, ...]


@request(key=27, versions=range(1, 3))
class WriteTxnMarkersRequest(Request[WriteTxnMarkersResponse]):
    """Write markers at the partition leaders, without the coordinator. Requires ClusterAction or Alter."""

    @struct
    class Marker:
        @struct
        class Topic:
            name: String
            partition_indexes: tuple[Int32, ...]

        producer_id: Int64
        producer_epoch: Int16
        transaction_result: Boolean  # True: COMMIT
        topics: tuple[Topic, ...]
        coordinator_epoch: Int32
        transaction_version: Int8 = versions(2, default=0, ignorable=True)

    markers: tuple[Marker, ...]
