"""What ``status`` and ``top`` show, and other commands before their question."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.commit.transactions import NEVER_TIMES_OUT_MS
from kafka_eos_sink.commit.versions import Versions
from kafka_eos_sink.commit.write_states import CommittedWrite
from kafka_eos_sink.operations.cluster_view import BlockedPartition, ClusterView, WriteLine
from kafka_eos_sink.operations.operator import OperatorSettings, Preview
from kafka_eos_sink.operations.transactions import times_ms
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.messages import TransactionState

Shown = Iterator[Table | Text]
Listed = Callable[..., Shown]
"""As `console.listed`, with its limit."""
MOST_ROWS, MOST_LIVE = 100, 10
"""Most rows of a table; the first ones need action first."""
_SHOWN_PARTITIONS = 8
_SHOWN_RANGES = 12
_SHOWN_VERSIONS = 100
_TRANSACTIONS = ("transactional id", "age", "times out in", "producer", "partitions")
_BLOCKED = ("blocked partition", "hidden offsets", "blocked by")
_WRITES = (
    *("write id", "version", "state", "finished", "finished (UTC)", "rows", "dead letters", "rows/s", "copied"),
    *("transactions", "partition: offsets"),
)
_STATE_STYLES = {
    "finished": "green",
    "decided": "bold yellow",
    "in-doubt": "bold yellow",
    "void": "bold yellow",
    "prepared": "yellow",
    "unreadable": "bold red",
}


def view(found: ClusterView, *, live: bool = False, with_offsets: bool = False) -> Shown:
    """Build the view: a line of numbers, then the tables that have rows.

    Args:
        live: Show the first rows only, and wrap them to the width of the terminal. Otherwise no line wraps, and ids can be copied.
        with_offsets: Show the time, the transactions, the offsets and the written versions of each write.
    """
    writes = {line.write.write_id for line in found.writes}
    shown = ((writes, "write"), (found.transactions, "open transaction"), (found.blocked, "blocked partition"))
    numbers = ", ".join(console.counted(len(each), noun) for each, noun in shown)
    yield console.line(f"{found.read_at[:19].replace('T', ' ')} UTC: {numbers}", "bold")
    most, rest = (MOST_LIVE, "kafka-eos status") if live else (MOST_ROWS, "--json, or --prefix W")
    listed = partial(console.listed, limit=most, rest=rest, wraps=live)
    yield from tables(found, listed, with_offsets=with_offsets)
    for each in found.writes if with_offsets else ():
        if each.write.written is not None:
            yield console.line(f"written versions: {_versions(each.write.written)}")


def tables(found: ClusterView, listed: Listed = console.listed, *, with_offsets: bool) -> Shown:
    """Build the tables that have rows, and a line for each unreadable write."""
    yield from listed(_TRANSACTIONS, found.transactions, partial(_transaction, found.now_ms))
    yield from listed(_BLOCKED, found.blocked, _blocked)
    yield from listed(_WRITES, found.writes, partial(_write, found.now_ms, with_offsets))
    for write in [each.write for each in found.writes if each.write.problem][:_SHOWN_VERSIONS]:
        yield console.line(f"{write.write_id}: {write.problem}", "red")


def require_consent(settings: OperatorSettings, found: Preview, effect: str, *, err: bool = False) -> None:
    """Show what a command finds and would do; require a confirmation if it acts.

    Args:
        err: Show it on standard error, because standard output is for JSON.

    Raises:
        typer.Exit: The command was not confirmed (status 1).
    """
    every = f"{settings.write.status_of_all} --prefix {shlex.quote(settings.write_id)} --json"
    shown = [*tables(found, partial(console.listed, limit=console.MOST, rest=every), with_offsets=True)]
    for part in (*shown, *([Text()] if shown else []), *(console.line(each, "bold red") for each in found.warnings)):
        console.show(part, err=err)
    console.echo(effect, err=err)
    if has_terminal():
        if typer.confirm("Do it?", err=True):
            return
        console.echo("Nothing was changed.", err=True)
    else:
        again = shlex.join(["kafka-eos", *sys.argv[1:], "--yes"])
        console.echo(f"Nothing was changed. To do it without a question: {again}", err=True)
    raise typer.Exit(EXIT_FAILURE)


def has_terminal() -> bool:
    """Whether somebody can read the question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _transaction(now_ms: int, state: TransactionState) -> console.Row:
    age, left = times_ms(state, now_ms)
    ends = "" if left is None else duration(left)
    if state.transaction_state != "Ongoing":
        ends = state.transaction_state
    elif state.transaction_timeout_ms == NEVER_TIMES_OUT_MS:
        ends = "never"
    producer = f"{state.producer_id}, epoch {state.producer_epoch}"
    return (
        state.transactional_id,
        "" if age is None else duration(age),
        ends,
        producer,
        _partition_lines(state.partitions),
    )


def _partition_lines(partitions: Iterable[TopicPartition]) -> list[str]:
    """List each topic with its partitions, or with their number if there are many."""
    lines = []
    for topic, group in groupby(sorted(partitions), itemgetter(0)):
        numbers = [str(number) for _, number in group]
        many = len(numbers) > _SHOWN_PARTITIONS
        lines.append(
            f"{topic} ({console.counted(len(numbers), 'partition')})" if many else f"{topic} {','.join(numbers)}"
        )
    return lines


def _blocked(each: BlockedPartition) -> console.Row:
    more = len(each.blocked_by) - 1
    by = [*each.blocked_by[:1], *([f"and {more} more"] if more > 0 else [])]
    if each.hanging is not None:
        by.append(f"producer id {each.hanging.producer_id} from offset {each.hanging.start_offset}:")
        by.append("no coordinator lists it")
    return f"{each.topic}-{each.partition}", each.hidden_offsets, by


def _write(now_ms: int, with_offsets: bool, line: WriteLine) -> console.Row:
    write = line.write
    # A streaming query without a prefix has its query id in the write id.
    has_query = write.query_id not in ("", "batch") and write.query_id not in write.write_id
    state = f"resolved as {write.resolution}" if write.state == "resolved" else write.state
    age = "" if write.finished_ms is None else f"{duration(max(0, now_ms - write.finished_ms))} ago"
    return (
        [write.write_id, *([f"query {write.query_id}"] if has_query else [])],
        "" if write.version is None else str(write.version),
        Text(state, style=_STATE_STYLES.get(write.state, "")),
        "" if with_offsets else age,
        (write.finished_at or "")[:19].replace("T", " ") if with_offsets else "",
        write.rows,
        sum(each.rows for each in write.dead_letters or ()) or None,
        line.rows_per_second,
        line.transactions_copied,
        write.transactions if with_offsets else None,
        _offsets(write) if with_offsets else "",
    )


def _offsets(write: CommittedWrite) -> list[str]:
    """List inclusive offsets, one line per topic-partition."""
    lines = [f"{part.topic}-{part.partition}: {part.first_offset} to {part.last_offset}" for part in write.offsets]
    more = [f"and {len(lines) - _SHOWN_RANGES} more (kafka-eos status --json)"] if len(lines) > _SHOWN_RANGES else []
    return [*lines[:_SHOWN_RANGES], *more]


def _versions(written: Versions) -> str:
    """List the highest ranges of versions, and what the commit log no longer shows."""
    ranges = [str(each) for each in written.ranges[-_SHOWN_VERSIONS:]]
    more = len(written.ranges) - len(ranges)
    lower = [f"{console.counted(more, 'lower range')} (--json)"] if more else []
    unknown = f"; below {written.floor} the commit log does not show them" if written.floor else ""
    return (", ".join([*lower, *ranges]) or "none") + unknown


def duration(ms: int) -> str:
    """Format a duration: 0.4 s, 12 s, 3 min 20 s, 5 h 12 min, 2 d 3 h."""
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    seconds = ms // 1000
    for unit, name, part, part_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit:
            return f"{seconds // unit} {name} {seconds % unit // part} {part_name}"
    return f"{seconds} s"
