"""``kafka-eos consume``: the rows of a topic as a consumer sees them."""

from __future__ import annotations

import base64
import json
from functools import partial
from itertools import islice
from typing import Annotated

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.client.committed_records import follow
from kafka_eos_sink.client.topics_admin import EARLIEST, LATEST, Isolation
from kafka_eos_sink.errors import one_line
from kafka_eos_sink.operations.transactions import partitions_of
from kafka_eos_sink.protocol.record_reader import Record


def consume(
    topic: Annotated[str, typer.Option(metavar="T", help="The topic to read.")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the first row of the topic. Default: at its end.")
    ] = False,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after N rows.")] = None,
    to_end: Annotated[
        bool, typer.Option("--to-end", help="Stop at the end that the topic has now. Default: wait for new rows.")
    ] = False,
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="Also show rows of open and aborted transactions (read_uncommitted).")
    ] = False,
    as_json: console.AsJson = False,
    bootstrap_servers: console.BootstrapServers = None,
    properties: console.PropertiesFile = None,
) -> None:
    """Print the rows of a topic, one per line, and follow it.

    Ctrl-C, --count or --to-end stops the command. It reads with isolation.level=read_committed, joins no consumer group, and commits no
    offsets. A line holds partition, offset, key and value, separated by tabs; a missing key or value is null. With --json,
    each line is an object, and bytes that are not UTF-8 appear in base64 as key_base64 or value_base64.

    Example: kafka-eos consume --topic orders --from-beginning --count 3

    To see which topics there are, and how much they hold: kafka-eos topics
    """
    if to_end and not from_beginning:
        raise typer.BadParameter("--to-end needs --from-beginning: without it, the command starts at the end")
    isolation: Isolation = "read_uncommitted" if uncommitted else "read_committed"
    with connected(console.client_config(bootstrap_servers, properties)) as admin:
        deadline = admin.client.clock() + console.TIMEOUT_MS
        offsets_at = partial(
            admin.list_offsets, partitions_of(admin, topic, None, deadline), deadline, isolation=isolation
        )
        offsets = offsets_at(timestamp=EARLIEST if from_beginning else LATEST)
        ends = offsets_at(timestamp=LATEST) if to_end else None
        try:
            for (_, number), record in islice(follow(admin, offsets, isolation, ends), count):
                console.echo(record_json(topic, number, record) if as_json else record_line(number, record))
        except KeyboardInterrupt:
            return


def record_line(partition: int, record: Record) -> str:
    """Return a record on one line, safe for a terminal: producers choose the content."""
    return f"{partition}\t{record.offset}\t{_shown(record.key)}\t{_shown(record.value)}"


def _shown(content: bytes | None) -> str:
    """Return content as text on one line, without control characters."""
    return "null" if content is None else one_line(content.decode("utf-8", "backslashreplace"))


def record_json(topic: str, partition: int, record: Record) -> str:
    """Return a record as an object on one line."""
    place = {"topic": topic, "partition": partition} | console.fields(record, "offset", "timestamp")
    headers = [{"key": key, **_field("value", value)} for key, value in record.headers]
    shown = place | _field("key", record.key) | _field("value", record.value) | {"headers": headers}
    return json.dumps(shown, separators=(",", ":"))


def _field(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
