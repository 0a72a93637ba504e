"""Writing records and reading them: Produce, Fetch, ListOffsets.

Topics go by name here; Produce from version 13 and Fetch from version 13 on go by topic id (KIP-516).
"""

from __future__ import annotations

from kafka_eos_sink.protocol.schema import Request, request, struct, tagged, versions
from kafka_eos_sink.protocol.wire_types import Int8, Int16, Int32, Int64, RecordParts, Records, String


@struct
class LeaderIdAndEpoch:
    """The leader that the answering broker knows of, -1 for none (KIP-951)."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@struct
class ProduceResponse:
    """What became of the batches."""

    @struct
    class Topic:
        """What became of one topic's batches."""

        @struct
        class Partition:
            """What became of one partition's batch; `base_offset` is that of its first record, -1 on an error."""

            @struct
            class RecordError:
                """A record that made the broker refuse its batch, by its index in it (KIP-467)."""

                batch_index: Int32
                batch_index_error_message: String | None = None

            index: Int32
            error_code: Int16
            base_offset: Int64
            log_append_time_ms: Int64 = -1
            log_start_offset: Int64 = -1
            record_errors: tuple[RecordError, ...] = ()
            error_message: String | None = None
            current_leader: LeaderIdAndEpoch = tagged(0, 10, default=LeaderIdAndEpoch())

        name: String
        partition_responses: tuple[Partition, ...]

    @struct
    class NodeEndpoint:
        """Where a leader that `LeaderIdAndEpoch` names is reached."""

        node_id: Int32
        host: String
        port: Int32
        rack: String | None = None

    responses: tuple[Topic, ...]
    throttle_time_ms: Int32 = 0
    node_endpoints: tuple[NodeEndpoint, ...] = tagged(0, 10, default=())


@request(key=0, versions=range(9, 13))
class ProduceRequest(Request[ProduceResponse]):
    """Appends record batches. `acks`: -1 all in-sync replicas, 1 the leader, 0 nobody (there is no answer then).

    From version 12 on it adds the partitions to the transaction by itself (KIP-890), only for transaction version 2.
    """

    @struct
    class Topic:
        """Batches for the partitions of one topic."""

        @struct
        class Partition:
            """One record batch for one partition, in one buffer or in several in a row."""

            index: Int32
            records: RecordParts | None

        name: String
        partition_data: tuple[Partition, ...]

    transactional_id: String | None = None
    acks: Int16
    timeout_ms: Int32
    topic_data: tuple[Topic, ...]


@struct
class FetchResponse:
    """What was fetched."""

    @struct
    class Topic:
        """What was fetched from one topic."""

        @struct
        class Partition:
            """What was fetched from one partition.

            The offsets: the end of what is replicated, the end of what is decided, the first that is still kept.
            `aborted_transactions` is null unless read_committed was asked for. The last batch may be cut off.
            """

            @struct
            class EpochEndOffset:
                """The largest epoch before the log and the reader's position part, and where it ends."""

                epoch: Int32 = -1
                end_offset: Int64 = -1

            @struct
            class SnapshotId:
                """A snapshot of the metadata log; only its replicas meet it."""

                end_offset: Int64 = -1
                epoch: Int32 = -1

            @struct
            class AbortedTransaction:
                """An aborted transaction with records in what was fetched, and the offset of its first one."""

                producer_id: Int64
                first_offset: Int64

            partition_index: Int32
            error_code: Int16
            high_watermark: Int64
            last_stable_offset: Int64 = -1
            log_start_offset: Int64 = -1
            diverging_epoch: EpochEndOffset = tagged(0, default=EpochEndOffset())
            current_leader: LeaderIdAndEpoch = tagged(1, default=LeaderIdAndEpoch())
            snapshot_id: SnapshotId = tagged(2, default=SnapshotId())
            aborted_transactions: tuple[AbortedTransaction, ...] | None
            preferred_read_replica: Int32 = -1
            records: Records | None

        topic: String
        partitions: tuple[Partition, ...]

    throttle_time_ms: Int32
    error_code: Int16
    session_id: Int32 = 0
    responses: tuple[Topic, ...]


@request(key=1, versions=range(12, 13))
class FetchRequest(Request[FetchResponse]):
    """Fetches records. `isolation_level`: 0 read_uncommitted, 1 read_committed. Epoch -1: no fetch session."""

    @struct
    class Topic:
        """Partitions of one topic to fetch from."""

        @struct
        class Partition:
            """From where to fetch in one partition, and how much."""

            partition: Int32
            current_leader_epoch: Int32 = -1
            fetch_offset: Int64
            last_fetched_epoch: Int32 = -1
            log_start_offset: Int64 = -1
            partition_max_bytes: Int32

        topic: String
        partitions: tuple[Partition, ...]

    @struct
    class ForgottenTopic:
        """Partitions that a fetch session shall leave out from now on (KIP-227)."""

        topic: String
        partitions: tuple[Int32, ...]

    cluster_id: String | None = tagged(0, default=None)
    replica_id: Int32 = -1
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Int32 = 0
    session_epoch: Int32 = -1
    topics: tuple[Topic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...] = ()
    rack_id: String = ""


@struct
class ListOffsetsResponse:
    """The offsets found."""

    @struct
    class Topic:
        """The offsets found in one topic."""

        @struct
        class Partition:
            """The offset found in one partition, -1 where there is none."""

            partition_index: Int32
            error_code: Int16
            timestamp: Int64 = -1
            offset: Int64 = -1
            leader_epoch: Int32 = -1

        name: String
        partitions: tuple[Partition, ...]

    throttle_time_ms: Int32
    topics: tuple[Topic, ...]


@request(key=2, versions=range(7, 11))
class ListOffsetsRequest(Request[ListOffsetsResponse]):
    """Asks leaders for offsets. The end under `isolation_level` 1 is the last stable offset."""

    @struct
    class Topic:
        """What to look for in the partitions of one topic."""

        @struct
        class Partition:
            """What to look for: a time in ms since 1970, or -1 for the end and -2 for the beginning of the log."""

            partition_index: Int32
            current_leader_epoch: Int32 = -1
            timestamp: Int64

        name: String
        partitions: tuple[Partition, ...]

    replica_id: Int32 = -1
    isolation_level: Int8
    topics: tuple[Topic, ...]
    timeout_ms: Int32 = versions(10, default=0, ignorable=True)
