"""``kafka-eos consume``: the rows of a topic as a consumer sees them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.client.topics_admin import EARLIEST, LATEST, Isolation
from kafka_eos_sink.errors import BrokerRefusedError, one_line

if TYPE_CHECKING:
    from kafka_eos_sink.protocol.record_reader import Record


def consume(
    topic: Annotated[str, typer.Option(metavar="T", help="The topic to read.")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the first row of the topic. Default: at its end.")
    ] = False,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after N rows.")] = None,
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="Also show rows of open and aborted transactions (read_uncommitted).")
    ] = False,
    as_json: console.AsJson = False,
    bootstrap_servers: console.BootstrapServers = None,
    properties: console.PropertiesFile = None,
) -> None:
    """Print the rows of a topic, one per line, and follow it.

    Ctrl-C or --count stops the command. It reads with isolation.level=read_committed, joins no consumer group, and commits no
    offsets. A line holds partition, offset, key and value, separated by tabs; a missing key or value is null. With --json,
    each line is an object, and bytes that are not UTF-8 appear in base64 as key_base64 or value_base64.

    Example: kafka-eos consume --topic orders --from-beginning --count 3

    To see which topics there are, and how much they hold: kafka-eos topics
    """
    # Imported here because reading records is slow to import, and --help does not need it.
    from kafka_eos_sink.client.committed_records import follow

    isolation: Isolation = "read_uncommitted" if uncommitted else "read_committed"
    with connected(console.client_config(bootstrap_servers, properties)) as admin:
        offsets = _first_offsets(admin, topic, isolation, EARLIEST if from_beginning else LATEST)
        try:
            for partition, record in islice(follow(admin, topic, offsets, isolation), count):
                if as_json:
                    console.print_json_line(record_json(topic, partition, record))
                else:
                    console.echo(record_line(partition, record))
        except KeyboardInterrupt:
            return


def _first_offsets(admin: Admin, topic: str, isolation: Isolation, timestamp: int) -> Mapping[int, int]:
    deadline = admin.client.clock() + console.TIMEOUT_MS
    described = admin.topic(topic, deadline)
    if described is None:
        raise BrokerRefusedError(
            "UNKNOWN_TOPIC",
            f"there is no topic {topic!r}, or the Describe permission is missing; kafka-eos topics lists the topics",
        )
    where = [(topic, each.partition_index) for each in described.partitions]
    offsets = admin.list_offsets(where, deadline, isolation=isolation, timestamp=timestamp)
    return {partition: offset for (_, partition), offset in offsets.items()}


def record_line(partition: int, record: Record) -> str:
    """Return a record on one line, safe for a terminal: producers choose the content."""
    return f"{partition}\t{record.offset}\t{_shown(record.key)}\t{_shown(record.value)}"


def _shown(content: bytes | None) -> str:
    """Return content as text on one line, without control characters."""
    return "null" if content is None else one_line(content.decode("utf-8", "backslashreplace"))


def record_json(topic: str, partition: int, record: Record) -> dict[str, Any]:
    place = {"topic": topic, "partition": partition} | console.fields(record, "offset", "timestamp")
    headers = [{"key": key, **_field("value", value)} for key, value in record.headers]
    return place | _field("key", record.key) | _field("value", record.value) | {"headers": headers}


def _field(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
