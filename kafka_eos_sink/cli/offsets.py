"""``kafka-eos offsets``: where a consumer group is, as ``startingOffsets``."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Annotated

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.values import Write
from kafka_eos_sink.operations.group_offsets import read_group_offsets
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.runtime.source_offsets import starting_offsets

_LEAVE_OUT = (
    "The group has several topics. Spark accepts only a value with exactly the topics that the query reads: leave out the topics that it "
    "does not read any more."
)


def offsets(
    group: Annotated[str, typer.Option("--group", metavar="G", help="The option source.offsets.group of the query.")],
    bootstrap_servers: console.BootstrapServers = None,
    as_json: console.AsJson = False,
    properties: console.PropertiesFile = None,
) -> None:
    """Print the offsets of a consumer group as Spark's startingOffsets.

    A query that lost its checkpoint continues exactly there. A partition without an offset is -2, its earliest record. The output
    has one line for each query that committed offsets. Spark accepts only the topics that a query reads: leave out any others.
    `--json` adds the write that committed each offset. Exit status 1 if G has no offsets, or if an open transaction holds them.

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
        console.echo(_LEAVE_OUT, err=True)
