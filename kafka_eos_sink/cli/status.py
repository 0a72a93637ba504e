"""``kafka-eos status``: the newest version of each write, from the commit log."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import connected

if TYPE_CHECKING:
    from kafka_eos_sink.commit.write_states import CommittedWrite

_SHOWN_RANGES = 12
_PROBLEM_WIDTH = 48
STATE_STYLES = {
    "finished": "green",
    "decided": "bold yellow",
    "undecided": "bold yellow",
    "prepared": "yellow",
    "unreadable": "bold red",
}


def status(
    bootstrap_servers: console.BootstrapServers = None,
    write_id: Annotated[str | None, typer.Option(metavar="W", help="Only this write id.")] = None,
    as_json: console.AsJson = False,
    commit_log_topic: console.CommitLogTopic = console.COMMIT_LOG,
    properties: console.PropertiesFile = None,
) -> None:
    """Show the commit log: versions, rows, times and offsets.

    The table shows the newest version of each write id. A write without txnAppId has an entry only if it failed. Exit
    status 1 if the commit log holds nothing of W.

    finished: every row is visible. decided: the next run of W or `kafka-eos recover` finishes it. prepared: tasks wait for a
    decision. undecided: a decision was written and its transaction has not ended. resolved: an operator has recorded the
    outcome with `kafka-eos resolve`. void: none of its rows is visible, and it may be written again. unreadable: another
    program wrote into its records, or a piece is gone.

    Example: kafka-eos status --write-id kafka-eos/nightly-orders/orders

    To see what is open now, with its age: kafka-eos transactions
    """
    # Imported here because it is slow, and other commands do not need it.
    from kafka_eos_sink.operations.write_status import CommitLogWatch

    config = console.client_config(bootstrap_servers, properties)
    with connected(config) as admin:
        watch = CommitLogWatch(admin, commit_log_topic, timeout_ms=console.TIMEOUT_MS, write_id=write_id)
        writes = watch.writes()
    nothing = f"The commit log {commit_log_topic} holds no write."
    if write_id is not None:
        nothing = console.NO_DECISION.format(write_id=write_id) if watch.knows_write else ""
    console.present(writes, as_json, commits_table, nothing)
    if write_id is not None and not watch.knows_write:
        what = f"nothing of write id {write_id!r}"
        console.require_found(writes, "UNKNOWN_WRITE_ID", f"commit log {commit_log_topic!r}", what, config)


def commits_table(writes: Sequence[CommittedWrite]) -> Table:
    """Build a table of writes; offsets are inclusive, one line per topic-partition."""
    columns = ("write id", "version", "state", "finished (UTC)", "rows", "transactions", "partition: offsets")
    right = ("version", "rows", "transactions")
    return console.table(columns, map(_row, writes), right=right, unwrapped=columns)


def _row(write: CommittedWrite) -> console.Row:
    transactions = str(write.transactions)
    if write.state == "decided":
        aborted = f", {write.aborted} aborted" if write.aborted else ""
        transactions = f"{write.committed} of {write.transactions} committed{aborted}"
    state = f"resolved as {write.resolution}" if write.state == "resolved" else write.state
    return (
        [write.write_id, *([] if write.query_id in ("", "batch") else [f"query {write.query_id}"])],
        "" if write.version is None else str(write.version),
        Text(state, style=STATE_STYLES.get(write.state, "")),
        "" if write.finished_at is None else write.finished_at[:19].replace("T", " "),
        "" if write.rows is None else f"{write.rows:,}",
        transactions,
        textwrap.wrap(write.problem, _PROBLEM_WIDTH) if write.problem else _offsets(write),
    )


def _offsets(write: CommittedWrite) -> list[str]:
    lines = [f"{part.topic}-{part.partition}: {part.first_offset} to {part.last_offset}" for part in write.offsets]
    more = [f"and {len(lines) - _SHOWN_RANGES} more (--json)"] if len(lines) > _SHOWN_RANGES else []
    return [*lines[:_SHOWN_RANGES], *more]
