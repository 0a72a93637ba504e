"""``kafka-eos offsets``: where a consumer group is, as ``startingOffsets``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Annotated

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.commit.refusals import refused, text
from kafka_eos_sink.commit.values import Write
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.runtime.source_offsets import marked_write, starting_offsets


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


def offsets(
    group: Annotated[str, typer.Option("--group", metavar="G", help="The option source.offsets.group of the query.")],
    bootstrap_servers: console.BootstrapServers = None,
    as_json: console.AsJson = False,
    properties: console.PropertiesFile = None,
) -> None:
    """Print the offsets of a consumer group as Spark's startingOffsets.

    With them, a query that lost its checkpoint continues exactly where it was. A partition without an offset is -2, its earliest
    record. The output has one line for each query that committed offsets. Spark accepts only the topics that a query reads, so omit
    any others. `--json` adds the write that committed each offset. Exit status 1 if G has no offsets, or if an open transaction
    holds them.

    Example: kafka-eos offsets --group orders-lag

    To finish the open batch of the lost query: kafka-eos recover
    """
    config = console.client_config(bootstrap_servers, properties)
    with connected(config) as admin:
        found = read_group_offsets(admin, group, console.TIMEOUT_MS)
    if as_json:
        console.print_json(found)
        return
    by_topic = {name: [*of_topic] for name, of_topic in groupby(found, attrgetter("topic"))}
    by_query: dict[tuple[str, ...], dict[TopicPartition, int]] = {}
    for of_topic in by_topic.values():
        writers = tuple(sorted({each.write_id for each in of_topic if each.write_id is not None}))
        by_query.setdefault(writers, {}).update({(each.topic, each.partition): each.offset for each in of_topic})
    for writers, offsets in by_query.items():
        console.echo(starting_offsets(offsets))
        if not writers:
            console.echo("Committed by another program, or a person.", err=True)
        for write_id in writers:
            recover = Write(write_id, console.COMMIT_LOG, config.command_options).command("recover")
            console.echo(f"Committed by {write_id}. To finish what that query left undone: {recover}", err=True)
    if len(by_topic) > 1:
        console.echo(text("several_topics"), err=True)


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
