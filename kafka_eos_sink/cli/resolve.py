"""``kafka-eos resolve``: record what became of a version that the sink cannot prove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kafka_eos_sink.cli import console

if TYPE_CHECKING:
    from kafka_eos_sink.commit.operator.resolve import Resolved


def resolve(
    write_id: console.WriteId,
    version: Annotated[
        int, typer.Option("--version", metavar="V", min=0, help="The version: txnVersion, or the batch id of a stream.")
    ],
    resolution: Annotated[
        Literal["committed", "aborted", "rewrite"],
        typer.Option("--as", help="What the version counts as, see above."),
    ],
    query_id: Annotated[
        str | None,
        typer.Option(metavar="Q", help="The query id (batch for batch writes); required if W has several or none yet."),
    ] = None,
    bootstrap_servers: console.BootstrapServers = None,
    commit_log_topic: console.CommitLogTopic = "__kafka_eos_commits",
    properties: console.PropertiesFile = None,
) -> None:
    """Record what became of a version that the sink cannot prove.

    Look at the rows in the topic first.

    committed: the version counts as written, and the next run skips it. Its open transactions are committed; lost rows stay
    lost. If the commit log does not know the stream, or only older versions, the stream continues with the version after V.

    aborted: none of its rows is visible, and the next run writes them. Rejected if a part of the version is proven committed.

    rewrite: the next run writes the version even if some of its rows are visible. The topic then holds those rows twice.

    A job or query that still runs under the write id is fenced, and its batch fails.
    """
    from kafka_eos_sink.runtime import operator

    settings = console.operator_settings(bootstrap_servers, properties, write_id, commit_log_topic)
    done = operator.resolve_version(settings, query_id=query_id, version=version, answer=resolution)
    typer.echo(resolved_sentence(done))


def resolved_sentence(done: Resolved) -> str:
    """Describe what holds from now on."""
    decision, before = done.decision, done.superseded
    name = f"Version {decision.version} of {decision.write_id}, query id {decision.query_id},"
    if before is None:
        # A mistyped query id makes a new query instead of an error: only the user can notice it.
        return (
            f"{name} counts as written: the query begins with version {decision.version + 1}. The commit log did not know this query "
            "id before. If the query id is wrong, other queries are not affected."
        )
    if before.version != decision.version:
        return (
            f"{name} counts as written: the query continues with version {decision.version + 1}. The commit log ended at version "
            f"{before.version}; the versions in between count as written elsewhere."
        )
    # "aborted" and "rewrite" both end open transactions with an abort; only visible rows distinguish them.
    ended = "committed" if decision.resolution == "committed" else "aborted"
    meaning = "counts as written and will be skipped" if ended == "committed" else "is void: its next run writes it"
    if decision.resolution == "rewrite":
        meaning += ", and the topic then holds its visible rows twice"
    if not done.ended:
        return f"{name} {meaning}."
    return f"{name} {meaning}. {len(done.ended)} of its {len(before.transactions)} transactions were still open and are {ended} now."
