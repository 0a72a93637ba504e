"""``kafka-eos transactions``: which transactions are open on a cluster, since when, and what they hold up."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.cli.cluster_connection import BootstrapServers, PropertiesFile, client_config
from kafka_eos_sink.cli.output import output_console
from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.protocol.messages import TransactionState

__all__ = ["open_transactions", "register", "transactions_table"]

_TIMEOUT_MS = 30_000
_NEVER_MS = 2**31 - 1
_OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("transactions", short_help="Show open transactions and their age.")(transactions)


def transactions(
    bootstrap_servers: BootstrapServers = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="W", help="Only transactional ids that begin with this, e.g. a write id.")
    ] = None,
    properties: PropertiesFile = None,
) -> None:
    """Show open transactions and their age, the oldest first.

    An open transaction holds up every read_committed consumer of its partitions. Those of a dead write are ended by
    its next run or by `kafka-eos recover`.
    """
    with connected(client_config(bootstrap_servers, properties)) as admin:
        found = open_transactions(admin, prefix, _TIMEOUT_MS)
    if found:
        output_console().print(transactions_table(found, time.time_ns() // 1_000_000))
    else:
        typer.echo("No transaction is open" + (f" under {prefix}" if prefix else "") + ".")


def open_transactions(admin: Admin, prefix: str | None, timeout_ms: int) -> tuple[TransactionState, ...]:
    """Transactions that have begun and not ended, the oldest first; those whose id begins with `prefix`, if given."""
    deadline = admin.client.clock() + timeout_ms
    admin.client.any_node(deadline)  # which names the brokers that nobody reaches
    # The text is literal: "." and "/" of a write id must not match anything else. RE2 knows no flags needed here.
    pattern = None if prefix is None else f"{re.escape(prefix)}.*"
    listed = admin.list_transactions(states=_OPEN_STATES, id_pattern=pattern, deadline_ms=deadline)
    described = admin.describe_transactions([entry.transactional_id for entry in listed], deadline)
    # What ended between the two questions is no longer of interest.
    still_open = [
        state for state in described.values() if state is not None and state.transaction_state in _OPEN_STATES
    ]
    return tuple(sorted(still_open, key=lambda state: state.transaction_start_time_ms))


def transactions_table(states: Sequence[TransactionState], now_ms: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("transactional id", overflow="fold")
    table.add_column("state")
    table.add_column("age", justify="right")
    table.add_column("times out in", justify="right")
    table.add_column("producer id", justify="right")
    table.add_column("epoch", justify="right")
    table.add_column("partitions", overflow="fold")
    for state in states:
        age_ms = max(0, now_ms - state.transaction_start_time_ms) if state.transaction_start_time_ms >= 0 else None
        table.add_row(
            Text(state.transactional_id),
            state.transaction_state,
            "" if age_ms is None else duration(age_ms),
            _time_left(state, age_ms),
            str(state.producer_id),
            str(state.producer_epoch),
            Text(_partitions(state)),
        )
    return table


def _time_left(state: TransactionState, age_ms: int | None) -> str:
    if state.transaction_state != "Ongoing" or age_ms is None:
        return ""  # it is ending already
    if state.transaction_timeout_ms == _NEVER_MS:
        return "never"
    return duration(max(0, state.transaction_timeout_ms - age_ms))


def _partitions(state: TransactionState) -> str:
    """Topics with the numbers of their partitions."""
    counted = Counter(topic for topic, _ in state.partitions)
    return "\n".join(
        f"{topic} {','.join(str(number) for name, number in sorted(state.partitions) if name == topic)}"
        if count <= 8
        else f"{topic} ({count} partitions)"
        for topic, count in sorted(counted.items())
    )


def duration(ms: int) -> str:
    """A duration for people: 0.4 s, 12 s, 3 min 20 s, 5 h 12 min, 2 d 3 h."""
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    seconds = ms // 1000
    for unit, name, part, part_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit:
            return f"{seconds // unit} {name} {seconds % unit // part} {part_name}"
    return f"{seconds} s"
