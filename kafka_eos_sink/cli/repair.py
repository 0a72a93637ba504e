"""``kafka-eos repair``: write missing COMMIT markers (KAFKA-20734)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.cli.confirmation import agrees
from kafka_eos_sink.commit.missing_markers import Finding
from kafka_eos_sink.commit.transactional_id import is_random_write_id

if TYPE_CHECKING:
    from kafka_eos_sink.operations.operator import OperatorSettings, Repaired

_STYLES = {"missing": "bold yellow", "unproven": "bold red", "running": ""}


def repair(
    write_id: console.WriteId,
    yes: console.Yes = False,
    as_json: console.AsJson = False,
    bootstrap_servers: console.BootstrapServers = None,
    commit_log_topic: console.CommitLogTopic = console.COMMIT_LOG,
    properties: console.PropertiesFile = None,
) -> None:
    """Write the missing COMMIT markers of a committed write.

    Kafka 4.3 and newer can omit a marker (KAFKA-20734). The command writes a marker only if the partition leader still holds
    the transaction open, the transaction is decided, and its coordinator or its marker in the commit log proves that it is
    committed. For other open transactions it prints the command of Kafka's own tool that aborts them.

    The command shows its effect and asks for confirmation on a terminal; elsewhere it needs --yes. It fences no driver. It
    needs Read on the topics, and Alter or ClusterAction on the cluster. Exit status 1 if a transaction is unproven or a partition
    could not be checked.

    Example: kafka-eos repair --write-id kafka-eos/nightly-orders/orders

    To finish or abort a dead write: kafka-eos recover
    """
    from kafka_eos_sink.operations import operator

    settings = console.operator_settings(bootstrap_servers, properties, write_id, commit_log_topic)
    done = operator.repair(settings, write=yes)
    _show(done, as_json)
    is_missing = any(each.verdict.value == "missing" for each in done.findings)
    if not yes and is_missing and agrees("Write the missing markers?"):
        done = operator.repair(settings, write=True)
        _show(done, as_json)
    warnings = [*_unchecked(done), *_about_unproven(done, settings, properties)]
    if as_json:
        console.print_json(repaired_json(write_id, done))
    elif sentence := _result(write_id, done, is_certain=not warnings):
        console.echo(sentence)
    # After the result, because a warning limits what the result covers.
    for warning in warnings:
        console.echo(warning, err=True)
    if warnings:
        raise typer.Exit(EXIT_FAILURE)


def _result(write_id: str, done: Repaired, *, is_certain: bool) -> str | None:
    verdicts = [each.verdict.value for each in done.findings]
    missing, running = verdicts.count("missing"), verdicts.count("running")
    if done.written:
        again = "" if is_random_write_id(write_id) else ", or run it again"
        return f"{missing} markers were written. Finish the write: run kafka-eos recover{again}."
    if missing:
        return f"{missing} markers are missing. Run the command again with --yes to write them."
    if running:
        return (
            f"No marker of {write_id} is known to be missing. {running} running transactions are open, or their coordinator is "
            "about to end them. Run the command again if they stay."
        )
    if not is_certain:
        return None
    examined = f" (examined: {', '.join(('the commit log', *done.topics))})"
    unknown = ": the commit log holds no decision of it (kafka-eos status lists the write ids)"
    return f"Nothing to repair under {write_id}{examined if done.knows_decisions else unknown}."


def repaired_json(write_id: str, done: Repaired) -> dict[str, Any]:
    """Build the result for ``--json``; ``version`` is null without a newest decision."""
    findings = [
        console.fields(each, "transactional_id", "start_offset", "version", "reason")
        | {"topic": each.where[0], "partition": each.where[1], "marker": each.verdict.value}
        for each in done.findings
    ]
    names = ("written", "topics", "no_response", "unreadable")
    return {"write_id": write_id, "findings": findings} | console.fields(done, *names)


def _show(done: Repaired, err: bool) -> None:
    if done.findings:
        console.show(findings_table(done.findings), err=err)
        console.echo("", err=err)


def _about_unproven(done: Repaired, settings: OperatorSettings, properties: Path | None) -> Iterator[str]:
    """Warn about transactions that are not proven committed, and describe what to do."""
    unproven = [each for each in done.findings if each.verdict.value == "unproven"]
    if not unproven:
        return
    tool = ["kafka-transactions.sh", "--bootstrap-server", settings.client.bootstrap_servers_text]
    if properties is not None:
        tool += ["--command-config", str(properties)]
    aborts = []
    for finding in unproven:
        (topic, partition), start = finding.where, finding.start_offset
        where = ["--topic", topic, "--partition", str(partition), "--start-offset", str(start)]
        # An ABORT marker behind a decided part in the commit log would look like the coordinator's. That part blocks no reader.
        if finding.version is None or finding.where != settings.commit_log:
            aborts.append(f"\n    {shlex.join([*tool, 'abort', *where])}")
    # Without Read, a batch can commit without this marker, and the next decision then replaces the one that names the transaction.
    how = (
        " If they still block readers then, look at their records from the start offset on, with isolation.level=read_uncommitted: a job "
        "without Read on the topic may have committed them. Kafka's own tool aborts them, which discards these records on the partition. "
        + ("" if is_random_write_id(settings.write_id) else "Then run the job, which writes what is not decided. ")
        + f"Write by hand only the rows that the topic lacks after that:{''.join(aborts)}"
    )
    yield (
        f"{len(unproven)} transactions are open on a partition, and nothing proves that they are committed or aborted. First run "
        f"kafka-eos recover: it finishes what is decided, or names what to do.{how if aborts else ''}"
    )


def _unchecked(done: Repaired) -> Iterator[str]:
    """Warn about partitions and topics that could not be checked."""
    if done.no_response:
        silent = f"{', '.join(done.no_response)} (no response from the leader)"
        yield f"Not checked: {silent}. Run the command again when the leaders are back."
    if done.unreadable:
        hidden = f"{', '.join(done.unreadable)} (missing Read permission)"
        yield f"Not checked: {hidden}. Grant Read and run the command again."


def findings_table(findings: tuple[Finding, ...]) -> Table:
    """Build a table with one row per transaction and partition that is still open."""

    def row(finding: Finding) -> console.Row:
        (topic, partition), verdict = finding.where, finding.verdict.value
        owner = "an attempt" if finding.version is None else f"version {finding.version}"
        where = [finding.transactional_id, f"on {topic}-{partition}, {owner}"]
        return Text(verdict, style=_STYLES[verdict]), where, finding.reason

    return console.table(("marker", "transaction and partition", "why"), map(row, findings))
