"""``kafka-eos check``: whether a cluster works for exactly-once writes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.operations.cluster_check import CheckLine, CheckResult, check_cluster

_STYLES = {"ok": "green", "warning": "yellow", "fails": "bold red", "not known": ""}


def check(
    bootstrap_servers: console.BootstrapServers = None,
    topic: Annotated[str | None, typer.Option(metavar="T", help="The topic to write to.")] = None,
    as_json: console.AsJson = False,
    commit_log_topic: console.CommitLogTopic = console.COMMIT_LOG,
    history_topic: console.HistoryTopic = console.HISTORY,
    properties: console.PropertiesFile = None,
) -> None:
    """Check whether a cluster works for exactly-once writes.

    The command changes nothing. Exit status 1 means that a write would fail. A warning means that a write works with a weaker
    guarantee. The command shows the rights that brokers report; rights on transactional ids and groups appear only when a write
    uses them.

    Example: kafka-eos check --topic orders

    To see what blocks readers now: kafka-eos status
    """
    with connected(console.client_config(bootstrap_servers, properties)) as admin:
        found = check_cluster(
            admin,
            topic=topic,
            commit_log_topic=commit_log_topic,
            history_topic=history_topic,
            timeout_ms=console.TIMEOUT_MS,
        )
    console.present(found, as_json, check_table)
    if fails := sum(finding.result is CheckResult.FAILS for finding in found):
        console.echo(f"kafka-eos: {fails} of these would make a write fail", err=True)
        raise typer.Exit(EXIT_FAILURE)


def check_table(found: Sequence[CheckLine]) -> Table:
    """Build a table with one line per finding; a topic's findings follow its name."""
    rows: list[console.Row] = []
    for about, findings in groupby(found, lambda finding: finding.about):
        # The cluster has no name: an empty line separates its last findings from the findings on topics.
        if about or rows:
            rows.append((Text(about, style="bold"), "", "", ""))
        for each in findings:
            rows.append((each.what, Text(each.result, style=_STYLES[each.result]), each.found, each.meaning))
    return console.table(("what", "", "found", "meaning"), rows, unwrapped=("",))
