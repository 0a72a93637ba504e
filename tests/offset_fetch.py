"""OffsetFetch, which the product never sends: tests read the offsets of a group with it."""

from __future__ import annotations

from kafka_eos_sink.protocol import messages
from kafka_eos_sink.protocol.schema import Request, request, struct, versions
from kafka_eos_sink.protocol.wire_types import Boolean, Int16, Int32, Int64, String


@struct
class OffsetFetchResponse:
    """The committed offsets of the groups."""

    @struct
    class Group:
        """The committed offsets of one group."""

        @struct
        class Topic:
            """The committed offsets of one topic."""

            @struct
            class Partition:
                """The committed offset of one partition, -1 where there is none."""

                partition_index: Int32
                committed_offset: Int64
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
    """Asks a group coordinator for offsets; `require_stable` refuses those in an open transaction (KIP-447)."""

    @struct
    class Group:
        """A group, and null topics for all that it has offsets of."""

        @struct
        class Topic:
            """Partitions of one topic."""

            name: String
            partition_indexes: tuple[Int32, ...]

        group_id: String
        member_id: String | None = versions(9, default=None, ignorable=True)
        member_epoch: Int32 = versions(9, default=-1, ignorable=True)
        topics: tuple[Topic, ...] | None

    groups: tuple[Group, ...]
    require_stable: Boolean = False


REQUESTS = (*messages.REQUESTS, OffsetFetchRequest)
"""All requests of the product, and this one."""
