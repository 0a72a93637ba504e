"""The offsets of a consumer group, as a query that continues at them needs them."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.coordinator_topics import GROUPS
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.commit.refusals import some
from kafka_eos_sink.commit.transactional_id import write_id_of
from kafka_eos_sink.commit.values import DEFAULT_TOPIC, Write
from kafka_eos_sink.errors import (
    AuthorizationError,
    BrokerRefusedError,
    BrokerUnavailableError,
    KafkaEosError,
    peer_text,
)
from kafka_eos_sink.operations.transactions import open_transactions
from kafka_eos_sink.runtime.source_offsets import marked_write

_HOLDERS_MS = 10_000
"""For how long the brokers are queried for transactions that hold offsets."""


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
    try:
        found = _read(admin, group_id, admin.client.clock() + timeout_ms)
    except BrokerUnavailableError as late:
        if holders := _holders(admin, group_id):
            late.way_out = _end(admin, holders)
        raise
    if not found:
        raise _no_offsets(admin, group_id)
    return found


def _read(admin: Admin, group_id: str, deadline: int) -> list[GroupOffset]:
    names = sorted({topic for topic, _ in admin.group_offsets(group_id, None, deadline)})
    topics = {name: admin.topic(name, deadline) for name in names}
    # Kafka removes the offsets of a topic that is deleted.
    where = [
        (name, partition)
        for name, topic in topics.items()
        if topic is not None
        for partition in sorted(each.partition_index for each in topic.partitions)
    ]
    # By name: the list of all offsets leaves out a partition whose first offset is in an open transaction. As EARLIEST, its rows would be
    # read a second time.
    committed = admin.group_offsets(group_id, where, deadline) if where else {}
    found = []
    for name, partition in where:
        known = committed.get((name, partition))
        offset = EARLIEST if known is None else known.committed_offset
        write_id = None if known is None else marked_write(known.metadata)
        found.append(GroupOffset(topic=name, partition=partition, offset=offset, write_id=write_id))
    return found


def _no_offsets(admin: Admin, group_id: str) -> BrokerRefusedError:
    where = f"on {admin.client.config.bootstrap_servers_text}"
    if holders := _holders(admin, group_id):
        return BrokerRefusedError(
            "NO_GROUP_OFFSETS",
            f"group {group_id!r} has no committed offsets {where} yet: transactions that are open can hold its offsets",
            _end(admin, holders),
        )
    return BrokerRefusedError(
        "NO_GROUP_OFFSETS",
        f"group {group_id!r} has no committed offsets {where}: it never had any, or it was deleted, or they have expired "
        "(offsets.retention.minutes, 7 days by default)",
    )


def _holders(admin: Admin, group_id: str) -> list[str]:
    """Return the ids of open transactions with offsets in the group's partition."""
    deadline = admin.client.clock() + _HOLDERS_MS
    topic = None
    try:
        with suppress(AuthorizationError):
            topic = admin.topic(GROUPS.name, deadline)
        opened = open_transactions(admin, _HOLDERS_MS)
    except KafkaEosError:
        # The caller raises another error, which this list would only explain.
        return []
    # Without the right to describe the topic, each transaction with offsets counts.
    partition = None if topic is None else _partition_of(group_id, len(topic.partitions))
    return [
        each.transactional_id
        for each in opened
        if any(name == GROUPS.name and partition in (None, index) for name, index in each.partitions)
    ]


def _partition_of(group_id: str, partitions: int) -> int:
    """Return a group's partition as Kafka: ``Utils.abs(groupId.hashCode()) % n``."""
    encoded = group_id.encode("utf-16-be", "surrogatepass")
    code = 0
    for (unit,) in struct.iter_unpack(">H", encoded):
        code = (31 * code + unit) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def _end(admin: Admin, holders: list[str]) -> str:
    """Tell how the transactions end, with the command for each write of this sink."""
    options = admin.client.config.command_options
    writes = sorted({write_id for each in holders if (write_id := write_id_of(each)) is not None})
    commands = [Write(each, DEFAULT_TOPIC, options).command("recover") for each in writes]
    ends = f"If its query is dead, end it: {'; or '.join(commands)}" if commands else "Its program ends it"
    return f"Open: {some([peer_text(each) for each in holders])}. {ends}"
