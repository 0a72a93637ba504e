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
        case = "duplicates" if allow_duplicates else resolution
        require_consent(settings, found, text(f"effect_resolve_{case}", write_id=write_id, version=version))
    done = operator.perform(settings, resolving, found.warnings if found else ())
    console.echo(resolved_sentence(done, allow_duplicates=allow_duplicates))


def resolved_sentence(done: Resolved, *, allow_duplicates: bool) -> str:
    """Describe what holds from now on."""
    decision, before = done.decision, done.superseded
    if before is None or before.version != decision.version:
        # A mistyped id makes a new write or query instead of an error: only the user can notice it.
        known = "held no decision of this query id" if before is None else f"ended at version {before.version}"
        case = "batch" if decision.query_id == BATCH_QUERY_ID else "stream"
        return text(f"resolved_first_{case}", decision=decision, next_version=decision.version + 1, known=known)
    if before == decision:
        rows = console.counted(sum(prepared.rows for prepared in decision.transactions), "row")
        return text("resolved_finished", decision=decision, rows=rows)
    if decision.resolution == "committed":
        return text("resolved_committed" + "_void" * before.is_void, decision=decision)
    return text("resolved_rewrite" + "_duplicates" * allow_duplicates, decision=decision)
