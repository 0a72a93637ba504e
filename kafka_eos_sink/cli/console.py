"""Shared by the commands: options, the client that they configure, tables, JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.commit import values
from kafka_eos_sink.commit.refusals import refused, text
from kafka_eos_sink.errors import counted as counted
from kafka_eos_sink.errors import one_line, printable
from kafka_eos_sink.runtime import batch_record

COMMIT_LOG, HISTORY = values.DEFAULT_TOPIC, batch_record.DEFAULT_HISTORY_TOPIC

TIMEOUT_MS = 30_000
"""Time limit in ms for a command that only reads."""

Cell = str | int | Text | list[str] | None
"""A ``Text`` carries its own style, a list has a line per element, and a column with a number is aligned right."""
Row = Sequence[Cell]
T = TypeVar("T")
_RIGHT = frozenset({"version", "producer id", "age", "times out in", "finished"})
"""Headings of the other columns that are aligned right."""

# Wide enough that a table in a file or a pipe keeps one line per row.
_WIDTH_WITHOUT_TERMINAL = 140
WIDEST = 4_000
"""Characters. Another program may choose an id of 32,767, and each row of a table is as wide as the longest one."""

MOST = 20
"""Rows of a table that a person reads before or after a command acts; a dead write may have hundreds of transactions."""

STOP_SIGNALS = signal.SIGINT, signal.SIGTERM

SERVERS_VARIABLE, PROPERTIES_VARIABLE = "KAFKA_EOS_BOOTSTRAP_SERVERS", "KAFKA_EOS_PROPERTIES"


BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        metavar="S",
        help=f"Brokers as host:port, comma-separated. Default: {SERVERS_VARIABLE}.",
        show_default=False,
    ),
]
PropertiesFile = Annotated[
    Path | None,
    typer.Option(
        "--properties",
        metavar="FILE",
        help=f"A Java-style client properties file. Default: {PROPERTIES_VARIABLE}.",
        show_default=False,
    ),
]
_WRITE_ID = typer.Option("--write-id", metavar="W", help="The write id, as error messages and `status` show it.")
WriteId = Annotated[str, _WRITE_ID]
OneWriteId = Annotated[str | None, _WRITE_ID]
CommitLogTopic = Annotated[
    str, typer.Option("--commit-log-topic", metavar="T", help="The option commit.log.topic of the write.")
]
HistoryTopic = Annotated[
    str, typer.Option("--history-topic", metavar="T", help="The option history.topic of the write.")
]
Prefix = Annotated[str | None, typer.Option("--prefix", metavar="W", help="Only ids that begin with this text.")]
Interval = Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="Seconds between two readings of Kafka.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="How many batches.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without a confirmation.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def client_config(bootstrap_servers: str | None, properties: Path | None) -> ClientConfig:
    """Build the client's settings.

    ``--bootstrap-servers`` overrides the properties file, which overrides KAFKA_EOS_BOOTSTRAP_SERVERS.

    Raises:
        ConfigurationError: The file or the servers are not valid.
        typer.BadParameter: No option lists a broker, or a forgotten variable points to a file with others (exit status 2).
    """
    of_environment = os.environ.get(SERVERS_VARIABLE) or None
    file = properties or (Path(named) if (named := os.environ.get(PROPERTIES_VARIABLE)) else None)
    if file is None:
        servers = bootstrap_servers or of_environment
        if servers is None:
            raise typer.BadParameter(text("no_servers"))
        return ClientConfig(bootstrap_servers=parse_bootstrap_servers(servers), client_id="kafka-eos-cli")
    # A command without a properties file does not need its parser.
    from kafka_eos_sink.settings.kafka_properties import client_part, kafka_properties_from_file

    of_file = client_part(file)[0].get("bootstrap.servers")
    # A command with the credentials of one cluster must not act on another one because of a forgotten variable.
    if properties is None and bootstrap_servers and of_file not in (None, bootstrap_servers):
        raise typer.BadParameter(text("other_servers", file=file))
    servers = bootstrap_servers or (of_environment if of_file is None else None)
    found = kafka_properties_from_file(file, {} if servers is None else {"bootstrap.servers": servers})
    for warning in found.warnings:
        typer.echo(f"kafka-eos: {warning}", err=True)
    return found.client


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt in the block."""
    # A shell starts a background command with SIGINT ignored, so Python's own handler must be set here too.
    handlers = {number: signal.signal(number, signal.default_int_handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def output_console(*, stderr: bool = False) -> Console:
    """Open the terminal at its own width, or a file or pipe at 140 columns."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    return console


def table(columns: Sequence[str], rows: Iterable[Row], *, unwrapped: Collection[str] = ()) -> Table:
    """Build the table style of all commands; long words are folded, never cut.

    Args:
        unwrapped: Headings of the columns whose lines never wrap.
    """
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    held = [*rows]
    for at, name in enumerate(columns):
        right = name in _RIGHT or any(isinstance(row[at], int) for row in held)
        made.add_column(name, overflow="fold", justify="right" if right else "left", no_wrap=name in unwrapped)
    for row in held:
        made.add_row(*map(_cell, row))
    return made


def listed(
    columns: Sequence[str],
    found: Sequence[T],
    row: Callable[[T], Row],
    *,
    limit: int | None = None,
    rest: str = "--json",
    wraps: bool = False,
) -> Iterator[Table | Text]:
    """Build a table below an empty line; nothing without rows.

    It leaves out the columns that are empty in all rows.

    Args:
        limit: The most rows; a line below says how many more there are, and how to see them: ``rest``.
    """
    # Of thousands of rows, only those that are shown are built.
    rows = [row(each) for each in found[:limit]]
    filled = [at for at in range(len(columns)) if any(each[at] not in ("", None, []) for each in rows)]
    if rows:
        names = [columns[at] for at in filled]
        yield Text()
        yield table(names, ([each[at] for at in filled] for each in rows), unwrapped=() if wraps else names)
    if more := len(found) - len(rows):
        yield line(f"and {more} more ({rest})")


def line(text: str, style: str = "") -> Text:
    return Text(one_line(text), style=style, overflow="fold")


def show(table: RenderableType, *, err: bool = False) -> None:
    """Print a table, in its own width if no column wraps; or a text or Markdown.

    A narrower terminal wraps its lines, and ids can be copied. A table wider than `WIDEST` folds its cells.
    """
    out = output_console(stderr=err)
    if isinstance(table, Table) and all(column.no_wrap for column in table.columns):
        natural = Measurement.get(out, out.options.update_width(2**31), table).maximum
        for column in table.columns:
            column.no_wrap = natural <= WIDEST
        if natural <= WIDEST:
            # With its height, because a dumb terminal ignores a width alone.
            out.size = max(out.width, natural), out.height
    if out.is_terminal:
        out.print(table)
        return
    # In a file, the blanks that fill a table's last column would only be in the way.
    with out.capture() as printed:
        out.print(table)
    typer.echo("\n".join(map(str.rstrip, printed.get().splitlines())), err=err)


def _cell(cell: Cell) -> Text:
    # As Text, because Rich would read "[...]" in a topic name or an id as markup. A line feed in one could add a false row.
    if isinstance(cell, Text):
        return Text(one_line(cell.plain), style=cell.style)
    if isinstance(cell, int):
        return Text(f"{cell:,}")
    return Text("\n".join(map(one_line, cell if isinstance(cell, list) else [cell or ""])))


def no_decision(write: values.Write, *, is_unfinished: bool = False) -> str:
    """What `status` and `recover` print of a write id without a decision in the log."""
    may_be_finished = write.is_random and not is_unfinished
    gone = f" {text('finished_or_not_begun')}. {text('read_topic', write=write)}." if may_be_finished else ""
    return f"The commit log holds no decision of {write.id}.{gone}"


def require_found(found: Sequence[Any], what: str, history_topic: str, config: ClientConfig, write_id: str) -> None:
    """Raise NO_HISTORY if the history lacks what the command was to show."""
    if not found:
        write = values.Write(write_id, COMMIT_LOG, config.command_options)
        raise refused("NO_HISTORY", write=write, topic=history_topic, where=config.bootstrap_servers_text, found=what)


def echo(text: str, *, err: bool = False) -> None:
    """Print text that may hold names from the cluster."""
    typer.echo(printable(text), err=err)


def fields(value: Any, *names: str) -> dict[str, Any]:
    """Return these fields of a dataclass, all if none is named."""
    return {name: getattr(value, name) for name in names or value.__dataclass_fields__}


def present(found: Sequence[Any], as_json: bool, table_of: Callable[[Any], Table], nothing: str = "") -> None:
    """Print what a command found, as JSON or a table; ``nothing`` if it found none."""
    if as_json:
        print_json(found)
    elif found:
        show(table_of(found))
    elif nothing:
        echo(nothing)


def print_json(value: Any) -> None:
    """Print indented JSON; a dataclass by its ``as_json`` or its fields, sets sorted."""
    # In pieces: as one text, ten thousand writes take 150 MB.
    sys.stdout.writelines(json.JSONEncoder(indent=2, default=_plain).iterencode(value))
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    if hasattr(value, "as_json"):
        return value.as_json()
    # Not asdict(): it would convert nested values without their as_json.
    return fields(value) if is_dataclass(value) else sorted(value)
