"""``kafka-eos commits``: the commit log as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.cli.cluster_connection import BootstrapServers, PropertiesFile, client_config
from kafka_eos_sink.cli.output import output_console
from kafka_eos_sink.client.admin import connected

if TYPE_CHECKING:
    from kafka_eos_sink.runtime.commit_history import CommittedWrite

__all__ = ["commits_table", "register"]

_TIMEOUT_MS = 30_000
_SHOWN_RANGES = 12
_STYLES = {"finished": "green", "decided": "bold yellow", "undecided": "bold yellow", "prepared": "yellow"}


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("commits", short_help="Show the commit log: what was written, when, which offsets.")(commits)


def commits(
    bootstrap_servers: BootstrapServers = None,
    write_id: Annotated[str | None, typer.Option(metavar="W", help="Only this write id.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all offsets.")] = False,
    commit_log_topic: Annotated[
        str, typer.Option(metavar="TOPIC", help="The writes' commit.log.topic.")
    ] = "__kafka_eos_commits",
    properties: PropertiesFile = None,
) -> None:
    """Show the commit log: per write id the newest version, its rows, when it was finished, and where they lie.

    finished: every row is visible. decided: to be finished by the next run or by `kafka-eos recover`. prepared: tasks
    wait for a decision. Writes without txnAppId leave nothing here.
    """
    # Here, as it takes a moment that other commands need not wait for.
    from kafka_eos_sink.runtime.commit_history import read_commit_history

    with connected(client_config(bootstrap_servers, properties)) as admin:
        writes = read_commit_history(
            admin, timeout_ms=_TIMEOUT_MS, commit_log_topic=commit_log_topic, write_id=write_id
        )
    if as_json:
        typer.echo(json.dumps([write.as_json() for write in writes], indent=2))
    elif writes:
        output_console().print(commits_table(writes))
    else:
        typer.echo(f"The commit log {commit_log_topic} holds no write{f' of {write_id}' if write_id else ''}.")


def commits_table(writes: Sequence[CommittedWrite]) -> Table:
    """One line per write; the offsets are inclusive, one line per topic-partition."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("write id", overflow="fold")
    table.add_column("version", justify="right")
    table.add_column("state")
    table.add_column("finished (UTC)")
    table.add_column("rows", justify="right")
    table.add_column("transactions", justify="right")
    table.add_column("partition: offsets", no_wrap=True)
    for write in writes:
        name = write.write_id if write.query_id in ("", "batch") else f"{write.write_id}\nquery {write.query_id}"
        state = f"resolved as {write.resolution}" if write.state == "resolved" else write.state
        transactions = str(write.transactions)
        if write.state == "decided":
            transactions = f"{write.committed} of {write.transactions} committed"
        table.add_row(
            Text(name),
            "" if write.version is None else str(write.version),
            Text(state, style=_STYLES.get(write.state, "")),
            "" if write.finished_at is None else write.finished_at[:19].replace("T", " "),
            "" if write.rows is None else f"{write.rows:,}",
            transactions,
            Text(_offsets(write)),
        )
    return table


def _offsets(write: CommittedWrite) -> str:
    lines = [
        f"{part.topic}-{part.partition}: {part.first_offset} to {part.last_offset}"
        for part in write.offsets[:_SHOWN_RANGES]
    ]
    if len(write.offsets) > _SHOWN_RANGES:
        lines.append(f"and {len(write.offsets) - _SHOWN_RANGES} more (--json)")
    return "\n".join(lines)
