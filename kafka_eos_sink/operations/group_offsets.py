"""The offsets of a consumer group, as a query that continues at them needs them."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.errors import BrokerRefusedError
from kafka_eos_sink.runtime.source_offsets import marked_write


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """Where a group is in a partition.

    offset     of the next record; EARLIEST if the group has none there, because a query begins a new partition at its earliest record
    write_id   the write that committed the offset; None for another program, or a person
    """

    topic: str
    partition: int
    offset: int
    write_id: str | None


def read_group_offsets(admin: Admin, group_id: str, timeout_ms: int) -> list[GroupOffset]:
    """Return the offsets of a group in all partitions of its topics.

    Raises:
        BrokerRefusedError: NO_GROUP_OFFSETS if the group has none.
        AuthorizationError, BrokerUnavailableError.
    """
    deadline = admin.client.clock() + timeout_ms
    committed = admin.group_offsets(group_id, None, deadline)
    found: list[GroupOffset] = []
    for name in sorted({topic for topic, _ in committed}):
        topic = admin.topic(name, deadline)
        # Kafka removes the offsets of a topic that is deleted.
        for partition in sorted(each.partition_index for each in topic.partitions) if topic is not None else ():
            known = committed.get((name, partition))
            offset = EARLIEST if known is None else known.committed_offset
            write_id = None if known is None else marked_write(known.metadata)
            found.append(GroupOffset(topic=name, partition=partition, offset=offset, write_id=write_id))
    if not found:
        raise BrokerRefusedError(
            "NO_GROUP_OFFSETS",
            f"group {group_id!r} has no committed offsets on {admin.client.config.bootstrap_servers_text}: it never had any, or it was "
            "deleted, or they have expired (offsets.retention.minutes, 7 days by default)",
        )
    return found
