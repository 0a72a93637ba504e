"""``kafka-eos check``: what of a cluster works for exactly-once writes and what does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.cli.cluster_connection import BootstrapServers, PropertiesFile, client_config
from kafka_eos_sink.cli.output import output_console
from kafka_eos_sink.cli.write_options import CommitLogTopic
from kafka_eos_sink.client.admin import connected

if TYPE_CHECKING:
    from kafka_eos_sink.cli.cluster_check import Finding

__all__ = ["check_table", "register"]

_TIMEOUT_MS = 30_000
_STYLES = {"ok": "green", "warning": "yellow", "fails": "bold red", "not known": ""}
_EXIT_FAILS = 1


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("check", short_help="Show what of a cluster works for exactly-once writes and what does not.")(check)


def check(
    bootstrap_servers: BootstrapServers = None,
    topic: Annotated[str | None, typer.Option(metavar="T", help="The topic that is to be written.")] = None,
    commit_log_topic: CommitLogTopic = "__kafka_eos_commits",
    properties: PropertiesFile = None,
) -> None:
    """Show what of a cluster works for exactly-once writes and what does not; changes nothing.

    Exit status 1 if something would make a write fail. A warning works, but promises less. Rights are shown as far as the
    brokers tell: those on transactional ids and groups come to light only in use.
    """
    from kafka_eos_sink.cli.cluster_check import Verdict, check_cluster

    with connected(client_config(bootstrap_servers, properties)) as admin:
        found = check_cluster(admin, topic=topic, commit_log_topic=commit_log_topic, timeout_ms=_TIMEOUT_MS)
    output_console().print(check_table(found))
    fails = sum(finding.verdict is Verdict.FAILS for finding in found)
    if fails:
        typer.echo(f"kafka-eos: {fails} of these would make a write fail", err=True)
        raise typer.Exit(_EXIT_FAILS)


def check_table(found: Sequence[Finding]) -> Table:
    """One line per question, those about a topic under its name."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("what", overflow="fold")
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("meaning", overflow="fold")
    about = ""
    for finding in found:
        if finding.about != about:
            about = finding.about
            table.add_row(Text(about, style="bold"), "", "", "")
        verdict = finding.verdict.value
        table.add_row(
            Text(finding.what), Text(verdict, style=_STYLES[verdict]), Text(finding.found), Text(finding.meaning)
        )
    return table
