"""``kafka-eos offsets``: where a consumer group is, as ``startingOffsets``."""

from __future__ import annotations

from typing import Annotated

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.values import Write


def offsets(
    group: Annotated[str, typer.Option("--group", metavar="G", help="The option source.offsets.group of the query.")],
    bootstrap_servers: console.BootstrapServers = None,
    as_json: console.AsJson = False,
    properties: console.PropertiesFile = None,
) -> None:
    """Print the offsets of a consumer group as Spark's startingOffsets.

    A query that lost its checkpoint continues exactly there. A partition without an offset is -2, its earliest record. `--json`
    adds the write that committed each offset. Exit status 1 if G has no offsets.

    Example: kafka-eos offsets --group orders-lag

    To finish the open batch of the lost query: kafka-eos recover
    """
    # Imported here because it is slow, and other commands do not need it.
    from kafka_eos_sink.operations.group_offsets import read_group_offsets
    from kafka_eos_sink.runtime.source_offsets import starting_offsets

    config = console.client_config(bootstrap_servers, properties)
    with connected(config) as admin:
        found = read_group_offsets(admin, group, console.TIMEOUT_MS)
    if as_json:
        console.print_json(found)
        return
    console.echo(starting_offsets({(each.topic, each.partition): each.offset for each in found}))
    for write_id in sorted({each.write_id for each in found if each.write_id is not None}):
        recover = Write(write_id, console.COMMIT_LOG, config.command_options).command("recover")
        console.echo(f"Committed by {write_id}. To finish what that query left undone: {recover}", err=True)
