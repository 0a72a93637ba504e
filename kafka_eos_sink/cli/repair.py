"""``kafka-eos repair``: write the markers that a broker left out of a transaction that is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.cli.cluster_connection import BootstrapServers, PropertiesFile
from kafka_eos_sink.cli.output import output_console
from kafka_eos_sink.cli.write_options import CommitLogTopic, WriteId, operator_settings

if TYPE_CHECKING:
    from kafka_eos_sink.commit.operator.missing_markers import Finding

__all__ = ["findings_table", "register"]

_STYLES = {"missing": "bold yellow", "unproven": "bold red", "running": ""}
_EXIT_UNPROVEN = 1


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("repair", short_help="Write the markers that a broker left out of a committed transaction.")(repair)


def repair(
    write_id: WriteId,
    yes: Annotated[bool, typer.Option("--yes", help="Write the markers; without it they are only shown.")] = False,
    bootstrap_servers: BootstrapServers = None,
    commit_log_topic: CommitLogTopic = "__kafka_eos_commits",
    properties: PropertiesFile = None,
) -> None:
    """Write the markers that a broker left out of a transaction that is committed (KAFKA-20734, Kafka 4.3.0 and 4.3.1).

    A marker is written only where the leader of the partition still holds the transaction open: COMMIT where it is decided
    and its coordinator or its marker in the commit log says that exactly this one is committed; ABORT where they say so of
    a decided part that was lost, or the coordinator of an attempt that no decision names. Everything else is shown and left
    alone, and what cannot be asked or looked for is named (status 1). Shows what it would do unless
    --yes is given. Needs Read on the topics and Alter or ClusterAction on the cluster; fences nobody.
    """
    from kafka_eos_sink.commit.operator.missing_markers import Verdict
    from kafka_eos_sink.runtime import operator

    settings = operator_settings(bootstrap_servers, properties, write_id, commit_log_topic)
    done = operator.repair(settings, write=yes)
    if done.findings:
        output_console().print(findings_table(done.findings))
        typer.echo("")
    missing = sum(finding.verdict is Verdict.MISSING for finding in done.findings)
    running = sum(finding.verdict is Verdict.RUNNING for finding in done.findings)
    unproven = [finding.part for finding in done.findings if finding.verdict is Verdict.UNPROVEN]
    unknown = bool(done.unasked or done.unreadable or (done.nowhere and not missing))
    if done.written:
        typer.echo(f"{missing} markers were written. Now finish the write: run it again, or kafka-eos recover.")
    elif missing:
        typer.echo(f"{missing} markers are missing and would be written: say it again with --yes.")
    elif running:
        typer.echo(
            f"No marker of {write_id} is known to be missing. What is running ({running}) is open, or about to be ended by its "
            "coordinator: look again if it stays."
        )
    elif not unknown and not unproven:
        # Where nothing was ever decided, nor attempted, there is nothing to look for.
        none = (
            ""
            if done.knows_decisions
            else ": the commit log holds no decision of it (kafka-eos commits lists the write ids)"
        )
        typer.echo(f"Nothing to repair under {write_id}{none}.")
    if any(part.version is not None and not part.finished for part in unproven):
        typer.echo(
            "Unproven transactions were left alone: whether they are committed cannot be told from here. kafka-eos recover ends what "
            "can be ended; where it fails, the decision is yours: kafka-eos resolve --as rewrite has the whole version written anew, and "
            "those of its rows that are visible are in the topic twice then.",
            err=True,
        )
    if any(part.version is None or part.finished for part in unproven):
        typer.echo(
            "What is unproven and belongs to no unfinished version was left alone: writing a version anew does not end it. It holds up "
            "the readers of its partition. Run the write again, or kafka-eos recover; if it is still there then, it is for somebody who "
            "knows whose records those are, and Kafka's own kafka-transactions.sh.",
            err=True,
        )
    if done.unasked:
        typer.echo(
            f"Could not be asked: {', '.join(done.unasked)}; say it again when their leaders are back.", err=True
        )
    if done.unreadable:
        typer.echo(
            f"May not be looked at: {', '.join(done.unreadable)}; say it again with the right to Read them.", err=True
        )
    if done.nowhere and not missing:
        typer.echo(
            f"Could not be looked for: attempts of query id {', '.join(done.nowhere)}. The newest version names no partition and no topic: "
            "it wrote no row, or was answered by an operator, or nothing was decided yet. What holds up the readers of a topic is shown by "
            "Kafka's own kafka-transactions.sh find-hanging.",
            err=True,
        )
    if unproven or unknown:
        raise typer.Exit(_EXIT_UNPROVEN)


def findings_table(findings: tuple[Finding, ...]) -> Table:
    """One line per transaction and partition that holds it open although it is decided."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("marker")
    table.add_column("transaction and partition", overflow="fold")
    table.add_column("why", overflow="fold")
    for finding in findings:
        part = finding.part
        topic, partition = part.where
        of = (
            "an attempt"
            if part.query_id is None
            else "a decision"
            if part.version is None
            else f"version {part.version}"
        )
        table.add_row(
            Text(finding.verdict.value, style=_STYLES[finding.verdict.value]),
            Text(f"{part.identity.transactional_id}\non {topic}-{partition}, {of}"),
            Text(finding.reason),
        )
    return table
