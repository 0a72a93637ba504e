"""``kafka-eos check``: whether a cluster works for exactly-once writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import connected

if TYPE_CHECKING:
    from rich.table import Table

    from kafka_eos_sink.cli.cluster_check import Finding

_STYLES = {"ok": "green", "warning": "yellow", "fails": "bold red", "not known": ""}
_EXIT_FAILS = 1


def check(
    bootstrap_servers: console.BootstrapServers = None,
    topic: Annotated[str | None, typer.Option(metavar="T", help="The topic to write to.")] = None,
    commit_log_topic: console.CommitLogTopic = "__kafka_eos_commits",
    properties: console.PropertiesFile = None,
) -> None:
    """Check whether a cluster works for exactly-once writes.

    The command changes nothing. Exit status 1 means that a write would fail. A warning means that a write works with a
    weaker guarantee. The command shows the rights that brokers report; rights on transactional ids and groups appear only
    when a write uses them.
    """
    # Imported here because the module imports the commit protocol, which ``--help`` does not need.
    from kafka_eos_sink.cli.cluster_check import Verdict, check_cluster

    with connected(console.client_config(bootstrap_servers, properties)) as admin:
        found = check_cluster(admin, topic=topic, commit_log_topic=commit_log_topic, timeout_ms=console.TIMEOUT_MS)
    console.output_console().print(check_table(found))
    fails = sum(finding.verdict is Verdict.FAILS for finding in found)
    if fails:
        typer.echo(f"kafka-eos: {fails} of these would make a write fail", err=True)
        raise typer.Exit(_EXIT_FAILS)


def check_table(found: Sequence[Finding]) -> Table:
    """Build a console.table with one line per finding; findings on a topic stand under its name."""

    def rows() -> Iterator[tuple[str | Text, ...]]:
        about = ""
        for finding in found:
            if finding.about != about:
                about = finding.about
                yield Text(about, style="bold"), "", "", ""
            verdict = finding.verdict.value
            yield finding.what, Text(verdict, style=_STYLES[verdict]), finding.found, finding.meaning

    return console.table(("what", "", "found", "meaning"), rows(), unwrapped=("",))
