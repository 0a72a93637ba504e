"""Looking at transactions from outside, and mending those that hang (KIP-664)."""

from __future__ import annotations

from kafka_eos_sink.protocol.schema import Request, request, struct, versions
from kafka_eos_sink.protocol.wire_types import Boolean, Int8, Int16, Int32, Int64, String


@struct
class TransactionState:
    """A transactional id as its coordinator sees it.

    `transaction_state`: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead,
    PrepareEpochFence. `transaction_start_time_ms` is -1 where nothing is open.
    """

    @struct
    class Topic:
        """Partitions of one topic that are part of a transaction; once it ends, those still without a marker."""

        topic: String
        partitions: tuple[Int32, ...]

    error_code: Int16
    transactional_id: String
    transaction_state: String
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: tuple[Topic, ...]

    @property
    def partitions(self) -> tuple[tuple[str, int], ...]:
        """The (topic, partition) pairs of `topics`."""
        return tuple((topic.topic, index) for topic in self.topics for index in topic.partitions)


@struct
class DescribeTransactionsResponse:
    """One state per transactional id."""

    throttle_time_ms: Int32
    transaction_states: tuple[TransactionState, ...]


@request(key=65, versions=range(1))
class DescribeTransactionsRequest(Request[DescribeTransactionsResponse]):
    """Asks the coordinator of these transactional ids for their states."""

    transactional_ids: tuple[String, ...]


@struct
class ListTransactionsResponse:
    """The transactions of the coordinator that was asked, without those that the principal may not see."""

    @struct
    class Transaction:
        """A transaction that one coordinator knows."""

        transactional_id: String
        producer_id: Int64
        transaction_state: String

    throttle_time_ms: Int32
    error_code: Int16
    unknown_state_filters: tuple[String, ...]
    transaction_states: tuple[Transaction, ...]


@request(key=66, versions=range(3))
class ListTransactionsRequest(Request[ListTransactionsResponse]):
    """Asks one coordinator for its transactions; a filter that is empty lets all through.

    `duration_filter`: only those open for longer than this many milliseconds (KIP-994).
    `transactional_id_pattern`: an RE2 expression for the whole transactional id (KIP-1152).
    """

    state_filters: tuple[String, ...] = ()
    producer_id_filters: tuple[Int64, ...] = ()
    duration_filter: Int64 = versions(1, default=-1)
    transactional_id_pattern: String | None = versions(2, default=None)


@struct
class ProducerState:
    """What a partition leader remembers of a producer.

    `current_txn_start_offset` is -1 where no transaction is open. The epoch is wider here than elsewhere.
    """

    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


@struct
class DescribeProducersResponse:
    """The producers of the partitions that were asked for."""

    @struct
    class Topic:
        """The producers of the partitions of one topic."""

        @struct
        class Partition:
            """The producers of one partition."""

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
    """Asks the leader of these partitions which producers it remembers. Needs Read on the topics."""

    @struct
    class Topic:
        """Partitions of one topic."""

        name: String
        partition_indexes: tuple[Int32, ...]

    topics: tuple[Topic, ...]


@struct
class WriteTxnMarkersResponse:
    """What became of the markers."""

    @struct
    class Marker:
        """What became of the markers of one producer."""

        @struct
        class Topic:
            """What became of the markers for one topic."""

            @struct
            class Partition:
                """What became of the marker for one partition."""

                partition_index: Int32
                error_code: Int16

            name: String
            partitions: tuple[Partition, ...]

        producer_id: Int64
        topics: tuple[Topic, ...]

    markers: tuple[Marker, ...]


@request(key=27, versions=range(1, 3))
class WriteTxnMarkersRequest(Request[WriteTxnMarkersResponse]):
    """Writes markers past the coordinator, to the leader of the partitions. Needs ClusterAction or Alter."""

    @struct
    class Marker:
        """The end of one producer's transaction; `transaction_result` is true for COMMIT, false for ABORT."""

        @struct
        class Topic:
            """Partitions of one topic that shall get the marker."""

            name: String
            partition_indexes: tuple[Int32, ...]

        producer_id: Int64
        producer_epoch: Int16
        transaction_result: Boolean
        topics: tuple[Topic, ...]
        coordinator_epoch: Int32
        transaction_version: Int8 = versions(2, default=0, ignorable=True)

    markers: tuple[Marker, ...]
