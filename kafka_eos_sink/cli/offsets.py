"""``kafka-eos offsets``: where a consumer group is, as ``startingOffsets``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.values import Write
from kafka_eos_sink.operations.group_offsets import GroupOffset, read_group_offsets
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
    for writers, offsets in _by_query(found).items():
        console.echo(starting_offsets(offsets))
        if not writers:
            console.echo("Committed by another program, or a person.", err=True)
        for write_id in writers:
            recover = Write(write_id, console.COMMIT_LOG, config.command_options).command("recover")
            console.echo(f"Committed by {write_id}. To finish what that query left undone: {recover}", err=True)
    if len({each.topic for each in found}) > 1:
        console.echo(_LEAVE_OUT, err=True)


def _by_query(found: Sequence[GroupOffset]) -> dict[tuple[str, ...], dict[TopicPartition, int]]:
    """Group the topics by the writes that committed their offsets."""
    writers: dict[str, set[str]] = {}
    for each in found:
        writers.setdefault(each.topic, set()).update(filter(None, (each.write_id,)))
    offsets: dict[tuple[str, ...], dict[TopicPartition, int]] = {}
    for each in found:
        of_query = offsets.setdefault(tuple(sorted(writers[each.topic])), {})
        of_query[each.topic, each.partition] = each.offset
    return offsets
