"""``kafka-eos resolve``: record the outcome of a version the sink cannot prove."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import typer

from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.view import require_consent
from kafka_eos_sink.commit import resolve as procedures
from kafka_eos_sink.commit.refusals import text
from kafka_eos_sink.commit.resolve import Resolved
from kafka_eos_sink.commit.steps import Procedure
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID
from kafka_eos_sink.commit.values import ResolveRequest, Run
from kafka_eos_sink.operations import operator
from kafka_eos_sink.operations.operator import OperatorSettings

_QueryId = Annotated[
    str | None,
    typer.Option(metavar="Q", help="The query id (batch for batch writes); required if W has several or none yet."),
]
_AllowDuplicates = Annotated[
    bool, typer.Option("--allow-duplicates", help="rewrite even if rows are visible; the topic then holds them twice.")
]


def resolve(
    write_id: console.WriteId,
    version: Annotated[
        int, typer.Option("--version", metavar="V", min=0, help="The version: txnVersion, or the batch id of a stream.")
    ],
    resolution: Annotated[
        Literal["committed", "rewrite"],
        typer.Option("--as", metavar="OUTCOME", help="The outcome to record: committed or rewrite, see above."),
    ],
    query_id: _QueryId = None,
    allow_duplicates: _AllowDuplicates = False,
    yes: console.Yes = False,
    bootstrap_servers: console.BootstrapServers = None,
    commit_log_topic: console.CommitLogTopic = console.COMMIT_LOG,
    history_topic: console.HistoryTopic = console.HISTORY,
    properties: console.PropertiesFile = None,
) -> None:
    """Record the outcome of a write's newest version, if the sink cannot prove it.

    The newest version is the last one that was decided, whatever its number: `kafka-eos status` shows it. Every other version is
    refused, because a correction of it is a new version. If the commit log has no decision of the write, you name the version.

    Run `kafka-eos recover` first, and read the rows in the topic with isolation.level=read_committed.

    committed: every row that matters is in the topic, and the next run skips the version. The command runs recovery first. If
    that finishes the version, there is nothing to record. Otherwise a warning shows the rows that stay missing, because
    recovery copies all lost rows or none. If V was finished before, the record lets the next run skip V even if it has another
    schema, topic, query or source offsets. A stream continues with the version after V, also if the commit log has only older
    versions.

    rewrite: none of its rows is in the topic, and the next run writes the version. Rejected if some of its rows are visible, or
    may become visible, or if Read is missing. --allow-duplicates skips this check: visible rows are then there twice.

    A job that still runs under the write id is fenced. The command shows its effect and asks for confirmation on a terminal;
    elsewhere it needs --yes. Read its warnings: a mistyped id is recorded as well. Exit status 1 without confirmation.

    Example: kafka-eos resolve --write-id kafka-eos/nightly-orders/orders --version 20261121 --as rewrite --allow-duplicates

    For a write whose outcome can be proven: kafka-eos recover
    """
    if allow_duplicates and resolution == "committed":
        raise typer.BadParameter("--allow-duplicates belongs to --as rewrite")
    settings = OperatorSettings(
        write_id=write_id,
        commit_log_topic=commit_log_topic,
        client=console.client_config(bootstrap_servers, properties),
        history_topic=history_topic,
        command="kafka-eos resolve",
    )
    asked = partial(ResolveRequest, query_id=query_id, version=version, resolution=resolution)

    def resolving(run: Run) -> Procedure[Resolved]:
        return procedures.resolve(asked(run=run, allow_duplicates=allow_duplicates))

    found = None if yes else operator.preview(settings, resolving)
    if found is not None:
        require_consent(settings, found, _effect(write_id, version, resolution, allow_duplicates=allow_duplicates))
    done = operator.perform(settings, resolving, found.warnings if found else ())
    console.echo(resolved_sentence(done, allow_duplicates=allow_duplicates))


def _effect(write_id: str, version: int, resolution: str, *, allow_duplicates: bool) -> str:
    if resolution == "committed":
        follows = "recovery commits what is open, and copies what was aborted if it can read all of it; "
        follows += "then the next run skips the version, and rows that are still missing stay missing"
    else:
        follows = "recovery commits what is open; if none of the version's rows is visible then, its next run writes it"
        follows = "its next run writes it; rows that are visible are then there twice" if allow_duplicates else follows
    return (
        f"resolve would fence every job or query that runs under {write_id}, and record version {version} as "
        f"{resolution}: {follows}."
    )


def resolved_sentence(done: Resolved, *, allow_duplicates: bool) -> str:
    """Describe what holds from now on."""
    decision, before = done.decision, done.superseded
    name = f"Version {decision.version} of {decision.write_id}, query id {decision.query_id},"
    if before is None or before.version != decision.version:
        # A mistyped id makes a new write or query instead of an error: only the user can notice it.
        known = "held no decision of this query id" if before is None else f"ended at version {before.version}"
        follows = (
            "and every version below it count as written: their next run is skipped"
            if decision.query_id == BATCH_QUERY_ID
            else f"and every batch below it count as written: the query continues with batch {decision.version + 1}"
        )
        return f"{name} {follows}. The commit log {known} before. If an id is wrong, other writes and queries are not affected."
    if before == decision:
        rows = console.counted(sum(prepared.rows for prepared in decision.transactions), "row")
        return f"{name} is finished, with {rows}. Its next run skips it, and nothing was recorded."
    if decision.resolution == "committed":
        gone = ", although none of its rows is in the topic" if before.is_void else ""
        return f"{name} is resolved as committed: it counts as written and will be skipped{gone}."
    rows = "rows of it that are visible are then there twice" if allow_duplicates else "none of its rows is visible"
    return f"{name} is resolved as rewrite: {text('run_again', decision=decision)}; {rows}."
