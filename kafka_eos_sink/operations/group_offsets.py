"""The offsets of a consumer group, as a query that continues at them needs them."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.commit.refusals import refused, text
from kafka_eos_sink.errors import BrokerUnavailableError
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
        BrokerRefusedError: NO_GROUP_OFFSETS if the group has none, or only in an open transaction.
        BrokerUnavailableError: An open transaction still holds some of them.
        AuthorizationError.
    """
    config, deadline = admin.client.config, admin.client.clock() + timeout_ms
    way_out = text("pending_offsets", connection=config.command_options)
    try:
        named = {topic for topic, _ in admin.group_offsets(group_id, None, deadline)}
        # Kafka removes the offsets of a topic that is deleted.
        topics = {name: topic for name in named if (topic := admin.topic(name, deadline)) is not None}
        where = sorted((name, each.partition_index) for name, topic in topics.items() for each in topic.partitions)
        # By name: the list of all offsets leaves out a partition whose first offset is in an open transaction. As EARLIEST, its rows would
        # be read a second time.
        committed = admin.group_offsets(group_id, where, deadline) if where else {}
    except BrokerUnavailableError as late:
        late.way_out = way_out
        raise
    if not where:
        raise refused(
            "NO_GROUP_OFFSETS",
            group_id=group_id,
            where=config.bootstrap_servers_text,
            connection=config.command_options,
        )
    found = []
    for name, partition in where:
        known = committed.get((name, partition))
        offset = EARLIEST if known is None else known.committed_offset
        write_id = None if known is None else marked_write(known.metadata)
        found.append(GroupOffset(topic=name, partition=partition, offset=offset, write_id=write_id))
    return found
