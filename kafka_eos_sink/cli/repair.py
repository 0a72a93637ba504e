"""``kafka-eos repair``: write the transaction markers that a broker failed to write (KAFKA-20734)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from kafka_eos_sink.cli import EXIT_FAILURE, console

if TYPE_CHECKING:
    from rich.table import Table

    from kafka_eos_sink.commit.operator.missing_markers import Finding, Part
    from kafka_eos_sink.runtime.operator import Repaired

_STYLES = {"missing": "bold yellow", "unproven": "bold red", "running": ""}


def repair(
    write_id: console.WriteId,
    yes: Annotated[bool, typer.Option("--yes", help="Write the markers; without it they are only shown.")] = False,
    bootstrap_servers: console.BootstrapServers = None,
    commit_log_topic: console.CommitLogTopic = "__kafka_eos_commits",
    properties: console.PropertiesFile = None,
) -> None:
    """Write the missing transaction markers of a committed write.

    Kafka 4.3.0 and 4.3.1 can skip a marker (KAFKA-20734). The command writes a marker only if the partition leader still
    holds the transaction open and its end is proven. COMMIT: the transaction is decided, and its coordinator or its marker in
    the commit log proves that it is committed. ABORT: they prove that this decided part was lost, or the coordinator proves
    that an undecided attempt was aborted.

    Without --yes the command only shows what it would write. It fences nobody. Needs Read on the topics, and Alter or
    ClusterAction on the cluster. Exit status 1 if something is not proven or could not be checked.
    """
    from kafka_eos_sink.runtime import operator

    settings = console.operator_settings(bootstrap_servers, properties, write_id, commit_log_topic)
    done = operator.repair(settings, write=yes)
    if done.findings:
        console.output_console().print(findings_table(done.findings))
        typer.echo("")
    parts = {
        verdict: [finding.part for finding in done.findings if finding.verdict.value == verdict] for verdict in _STYLES
    }
    missing, running = len(parts["missing"]), len(parts["running"])
    warnings = [*_unproven(parts["unproven"]), *_unchecked(done, missing=bool(missing))]
    if done.written:
        typer.echo(f"{missing} markers were written. Finish the write: run it again, or run kafka-eos recover.")
    elif missing:
        typer.echo(f"{missing} markers are missing. Run the command again with --yes to write them.")
    elif running:
        typer.echo(
            f"No marker of {write_id} is known to be missing. {running} running transactions are open, or their coordinator is "
            "about to end them. Run the command again if they stay."
        )
    elif not warnings:
        unknown = ": the commit log holds no decision of it (kafka-eos commits lists the write ids)"
        typer.echo(f"Nothing to repair under {write_id}{'' if done.knows_decisions else unknown}.")
    # After the result, because a warning limits what the result covers.
    for warning in warnings:
        typer.echo(warning, err=True)
    if warnings:
        raise typer.Exit(EXIT_FAILURE)


def _unproven(parts: list[Part]) -> Iterator[str]:
    """Warn about open transactions whose end nothing proves."""
    # A marker without proof could hide committed rows or show aborted ones, so the user decides about these.
    if any(part.version is not None and not part.finished for part in parts):
        yield (
            "Unproven transactions were left alone: nothing proves whether they are committed. Run kafka-eos recover first. If it "
            "fails, decide yourself: kafka-eos resolve --as rewrite writes the whole version again, and the topic then holds its "
            "visible rows twice."
        )
    # Writing a version again would not end these: they belong to no version that is still to be finished.
    if any(part.version is None or part.finished for part in parts):
        yield (
            "Unproven transactions of no unfinished version were left alone. They block the readers of their partitions. Run the write "
            "again, or kafka-eos recover. If they stay, find out whose records they hold and end them with Kafka's own "
            "kafka-transactions.sh."
        )


def _unchecked(done: Repaired, *, missing: bool) -> Iterator[str]:
    """Warn about partitions, topics and attempts that could not be checked."""
    if done.unasked:
        silent = f"{', '.join(done.unasked)} (no response from the leader)"
        yield f"Not checked: {silent}. Run the command again when the leaders are back."
    if done.unreadable:
        hidden = f"{', '.join(done.unreadable)} (missing Read permission)"
        yield f"Not checked: {hidden}. Grant Read and run the command again."
    if done.nowhere and not missing:
        yield (
            f"Not checked: attempts of query id {', '.join(done.nowhere)}. Its newest version names no partition and no topic: it wrote "
            "no row, an operator resolved it, or it is not decided yet. To find transactions that block the readers of a topic, run "
            "Kafka's own kafka-transactions.sh find-hanging."
        )


def findings_table(findings: tuple[Finding, ...]) -> Table:
    """Build a table with one row per transaction and partition that is still open."""

    def row(finding: Finding) -> console.Row:
        part, verdict = finding.part, finding.verdict.value
        topic, partition = part.where
        decision = "a decision" if part.version is None else f"version {part.version}"
        owner = "an attempt" if part.query_id is None else decision
        where = f"{part.identity.transactional_id}\non {topic}-{partition}, {owner}"
        return Text(verdict, style=_STYLES[verdict]), where, finding.reason

    return console.table(("marker", "transaction and partition", "why"), map(row, findings))
