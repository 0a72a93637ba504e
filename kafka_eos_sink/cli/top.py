"""``kafka-eos top``: a live view of writes, open transactions, blocked readers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console, Group, RenderableType, group
from rich.live import Live
from rich.text import Text

from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.status import STATE_STYLES
from kafka_eos_sink.cli.transactions import age_and_time_left, duration, partition_lines
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.errors import BrokerUnavailableError, one_line

if TYPE_CHECKING:
    from kafka_eos_sink.operations.cluster_view import BlockedPartition, ClusterView, ClusterWatch, WriteLine
    from kafka_eos_sink.protocol.messages import TransactionState

T = TypeVar("T")
_SHOWN = 10
"""Most rows of a table; the first ones need action first."""
_WRITES = ("write id", "version", "state", "finished", "rows", "rows/s", "copied")
_TRANSACTIONS = ("transactional id", "age", "times out in", "blocks")
_BLOCKED = ("blocked partition", "hidden offsets", "blocked by")


def top(
    interval: console.Interval = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the view once and end.")] = False,
    as_json: console.AsJson = False,
    prefix: console.Prefix = None,
    history_topic: console.HistoryTopic = console.HISTORY,
    commit_log_topic: console.CommitLogTopic = console.COMMIT_LOG,
    bootstrap_servers: console.BootstrapServers = None,
    properties: console.PropertiesFile = None,
) -> None:
    """Watch writes, open transactions, and which readers they block.

    The oldest open transaction comes first. A blocked partition shows how many offsets read_committed consumers do not see,
    and which transactions hide them. rows/s is the rate of the newest batches, from plan to verify; copied is how many
    aborted transactions the last batch copied. Everything is read from Kafka. Ctrl-C ends the command. Without a
    terminal it prints the view once. `--json` prints it once, as one object, with all rows and whole lists.

    Example: kafka-eos top --interval 5 --prefix kafka-eos/nightly-orders

    To end what a dead write left open: kafka-eos recover
    """
    # Imported here because it is slow, and other commands do not need it.
    from kafka_eos_sink.operations.cluster_view import ClusterWatch

    out = console.output_console()
    live = sys.stdout.isatty() and not out.is_dumb_terminal and not (once or as_json)
    try:
        # A terminal without its cursor must not be left behind by SIGTERM either.
        with console.signals_interrupt(), connected(console.client_config(bootstrap_servers, properties)) as admin:
            watch = ClusterWatch(admin, commit_log_topic, history_topic, prefix)
            if live:
                _follow(out, watch, interval)
            elif as_json:
                console.print_json(watch.look())
            else:
                out.print(view(watch.look()))
    except KeyboardInterrupt:
        if not live:
            raise


def _follow(out: Console, watch: ClusterWatch, interval_s: float) -> None:
    found = watch.look()
    with Live(view(found), console=out, auto_refresh=False) as screen:
        while True:
            screen.refresh()
            time.sleep(interval_s)
            try:
                found = watch.look()
                screen.update(view(found))
            except BrokerUnavailableError as unavailable:
                # Brokers restart. The last view stays, with its time.
                screen.update(Group(_line(str(unavailable), "bold red"), view(found)))


@group()
def view(found: ClusterView) -> Iterator[RenderableType]:
    """Build the view; it fits 80 columns."""
    writes = {line.write.write_id for line in found.writes}
    counted = ((writes, "write"), (found.transactions, "open transaction"), (found.blocked, "blocked partition"))
    numbers = ", ".join(f"{len(each)} {noun}{'s' * (len(each) != 1)}" for each, noun in counted)
    yield _line(f"{found.read_at[:19].replace('T', ' ')} UTC: {numbers}", "bold")
    for refused in found.not_read:
        yield _line(f"not shown: {refused}", "yellow")
    # Of thousands of rows, only those that are shown are built.
    yield from _table(_TRANSACTIONS, found.transactions, lambda state: _transaction(state, found))
    yield from _table(_BLOCKED, found.blocked, _blocked)
    yield from _table(_WRITES, found.writes, lambda line: _write(line, found.now_ms))


def _table(columns: Sequence[str], rows: Sequence[T], row: Callable[[T], console.Row]) -> Iterator[RenderableType]:
    if not rows:
        return
    right = ("age", "times out in", "hidden offsets", "version", "finished", "rows", "rows/s", "copied")
    yield Text()
    yield console.table(columns, map(row, rows[:_SHOWN]), right=right)
    if len(rows) > _SHOWN:
        yield _line(f"and {len(rows) - _SHOWN} more (--json)", "")


def _line(text: str, style: str) -> Text:
    return Text(one_line(text), style=style, overflow="fold")


def _transaction(state: TransactionState, found: ClusterView) -> console.Row:
    age, time_left = age_and_time_left(state, found.now_ms)
    ending = "" if state.transaction_state == "Ongoing" else state.transaction_state
    # No consumer reads the commit log under read_committed.
    blocks = {(each.topic, each.partition) for each in found.blocked}.intersection(state.partitions)
    return state.transactional_id, age, ending or time_left, partition_lines(blocks)


def _blocked(each: BlockedPartition) -> console.Row:
    hidden = "" if each.hidden_offsets is None else f"{each.hidden_offsets:,}"
    more = len(each.blocked_by) - 1
    return f"{each.topic}-{each.partition}", hidden, [each.blocked_by[0], *([f"and {more} more"] if more else [])]


def _write(line: WriteLine, now_ms: int) -> console.Row:
    write = line.write
    # A streaming query without a prefix has its query id in the write id.
    has_query = write.query_id != "batch" and write.query_id not in write.write_id
    return (
        [write.write_id, *([f"query {write.query_id}"] if has_query else [])],
        "" if write.version is None else str(write.version),
        Text(write.state, style=STATE_STYLES.get(write.state, "")),
        "" if write.finished_ms is None else f"{duration(max(0, now_ms - write.finished_ms))} ago",
        _number(write.rows),
        _number(line.rows_per_second),
        _number(line.parts_copied),
    )


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
