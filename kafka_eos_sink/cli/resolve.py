"""``kafka-eos resolve``: the operator's answer to a loud failure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_eos_sink.cli.cluster_connection import BootstrapServers, PropertiesFile
from kafka_eos_sink.cli.write_options import CommitLogTopic, WriteId, operator_settings

if TYPE_CHECKING:
    from kafka_eos_sink.commit.operator.resolve import Resolved

__all__ = ["ResolveAs", "register", "resolved_sentence"]


class ResolveAs(Enum):
    """The three answers."""

    committed = "committed"
    aborted = "aborted"
    rewrite = "rewrite"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("resolve", short_help="Say what became of a version where that cannot be proven.")(resolve)


def resolve(
    write_id: WriteId,
    version: Annotated[
        int, typer.Option("--version", metavar="V", min=0, help="The version: txnVersion, or the stream's batch id.")
    ],
    answer: Annotated[ResolveAs, typer.Option("--as", help="What the version counts as, see above.")],
    query_id: Annotated[
        str | None,
        typer.Option(
            metavar="Q", help="The query id (batch for batch writes); needed where W has several or none yet."
        ),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    commit_log_topic: CommitLogTopic = "__kafka_eos_commits",
    properties: PropertiesFile = None,
) -> None:
    """Say what became of a version, where the sink fails loudly because it cannot prove it. Look at the topic first.

    committed: it counts as written, and the next run skips it; what is still open of it is committed, rows that are lost
    stay lost. For a stream that the commit log knows nothing of, or only older versions, it says where to go on: with the
    version after V.

    aborted: none of its rows is visible, the next run writes it anew. Refused where a part of it is proven committed.

    rewrite: the next run writes it anew even if rows of it are visible; those are in the topic twice then.

    It takes the write id over: a job or query that still runs under it is fenced and its batch fails.
    """
    from kafka_eos_sink.runtime import operator

    settings = operator_settings(bootstrap_servers, properties, write_id, commit_log_topic)
    done = operator.resolve_version(settings, query_id=query_id, version=version, answer=answer.value)
    typer.echo(resolved_sentence(done))


def resolved_sentence(done: Resolved) -> str:
    """What holds from now on."""
    decision, before = done.decision, done.superseded
    name = f"Version {decision.version} of {decision.write_id}, query id {decision.query_id},"
    if before is None:
        return (
            f"{name} counts as written: the query begins with version {decision.version + 1}. The commit log knew nothing of this query "
            "id before; if that is a slip of the pen, it changes nothing for other queries."
        )
    if before.version != decision.version:
        return (
            f"{name} counts as written: the query goes on with version {decision.version + 1}. The commit log ended at version "
            f"{before.version}; what lies between counts as written elsewhere."
        )
    if decision.resolution == "committed":
        follows = "counts as written and will be skipped"
    else:
        follows = "is void and will be written anew by its next run"
        if decision.resolution == "rewrite":
            follows += "; rows of it that are visible will be there twice"
    ended = len(done.ended)
    what = "committed" if decision.resolution == "committed" else "aborted"
    ends = (
        f" {ended} of its {len(before.transactions)} transactions were still open and are {what} now." if ended else ""
    )
    return f"{name} {follows}.{ends}"
