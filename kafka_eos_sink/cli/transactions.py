"""``kafka-eos transactions``: open transactions, ages, and blocked partitions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

from rich.table import Table

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.deadlines import NEVER_TIMES_OUT_MS
from kafka_eos_sink.operations.transactions import open_transactions, times_ms, transaction_json
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.messages import TransactionState

_SHOWN_PARTITIONS = 8


def transactions(
    bootstrap_servers: console.BootstrapServers = None,
    prefix: console.Prefix = None,
    as_json: console.AsJson = False,
    properties: console.PropertiesFile = None,
) -> None:
    """Show open transactions and their age, the oldest first.

    An open transaction blocks every read_committed consumer of its partitions. `kafka-eos recover`, or the next
    run of a dead write under its write id, ends the transactions of that write.

    Example: kafka-eos transactions --prefix kafka-eos/nightly-orders

    To end what a dead write left open: kafka-eos recover
    """
    with connected(console.client_config(bootstrap_servers, properties)) as admin:
        found = open_transactions(admin, prefix, console.TIMEOUT_MS)
    if as_json:
        console.print_json([transaction_json(state) for state in found])
    elif found:
        console.show(transactions_table(found, time.time_ns() // 1_000_000))
    else:
        console.echo("No transaction is open" + (f" under {prefix}" if prefix else "") + ".")


def transactions_table(states: Sequence[TransactionState], now_ms: int) -> Table:
    """Build a table with one row per transaction; ``now_ms`` is the wall clock in ms."""
    columns = ("transactional id", "state", "age", "times out in", "producer id", "epoch", "partitions")
    return console.table(columns, (_row(state, now_ms) for state in states), right=columns[2:6], unwrapped=columns)


def _row(state: TransactionState, now_ms: int) -> console.Row:
    numbers = str(state.producer_id), str(state.producer_epoch)
    partitions = partition_lines(state.partitions)
    return state.transactional_id, state.transaction_state, *age_and_time_left(state, now_ms), *numbers, partitions


def age_and_time_left(state: TransactionState, now_ms: int) -> tuple[str, str]:
    """Return age and time left as text; empty if unknown or not applicable."""
    age, left = times_ms(state, now_ms)
    never = state.transaction_state == "Ongoing" and state.transaction_timeout_ms == NEVER_TIMES_OUT_MS
    if age is None:
        return "", ""
    return duration(age), "never" if never else "" if left is None else duration(left)


def partition_lines(partitions: Iterable[TopicPartition]) -> list[str]:
    """List each topic with its partitions, or with their number if there are many."""
    lines = []
    for topic, group in groupby(sorted(partitions), itemgetter(0)):
        numbers = [str(number) for _, number in group]
        many = len(numbers) > _SHOWN_PARTITIONS
        lines.append(f"{topic} ({len(numbers)} partitions)" if many else f"{topic} {','.join(numbers)}")
    return lines


def duration(ms: int) -> str:
    """Format a duration: 0.4 s, 12 s, 3 min 20 s, 5 h 12 min, 2 d 3 h."""
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    seconds = ms // 1000
    for unit, name, part, part_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit:
            return f"{seconds // unit} {name} {seconds % unit // part} {part_name}"
    return f"{seconds} s"
