"""``kafka-eos history``: rows, time and duration of each batch of a write."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial

from rich.table import Table

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.runtime.batch_record import BatchRecord

_METADATA_WIDTH = 48


def history(
    write_id: console.OneWriteId = None,
    prefix: console.OfPrefix = None,
    bootstrap_servers: console.BootstrapServers = None,
    limit: console.Limit = 20,
    as_json: console.AsJson = False,
    history_topic: console.HistoryTopic = console.HISTORY,
    properties: console.PropertiesFile = None,
) -> None:
    """Show the newest batches of a write, or of a prefix, the newest first.

    `--json` adds the offsets of each batch. Exit status 1 if the history holds no batch of W.

    Example: kafka-eos history --write-id kafka-eos/nightly-orders/orders --limit 5

    To see the newest version of every write: kafka-eos status
    """
    # Imported here because it is slow, and other commands do not need it.
    from kafka_eos_sink.runtime.history_reading import read_history

    console.require_one(write_id, prefix)
    config = console.client_config(bootstrap_servers, properties)
    with connected(config) as admin:
        found = read_history(
            admin,
            history_topic,
            write_id or prefix or "",
            limit=limit,
            timeout_ms=console.TIMEOUT_MS,
            is_prefix=write_id is None,
        )
    console.present(found, as_json, partial(history_table, with_ids=write_id is None))
    whose = repr(write_id) if write_id is not None else f"a write id that begins with {prefix!r}"
    console.require_found(found, "NO_HISTORY", f"history {history_topic!r}", f"no batch of {whose}", config)


def history_table(found: Sequence[BatchRecord], *, with_ids: bool = False) -> Table:
    columns = ("version", "finished (UTC)", "rows", "bytes", "transactions", "phases (ms)", "notes", "application")
    right = ("version", "rows", "bytes", "transactions")
    shown = ("write id", *columns) if with_ids else columns
    rows = ((each.write_id, *_row(each)) if with_ids else _row(each) for each in found)
    return console.table(shown, rows, right=right, unwrapped=shown)


def _row(record: BatchRecord) -> console.Row:
    notes = [
        f"recovered by {record.recovered_by}" if record.recovered_by else "",
        f"{record.parts_copied} parts copied" if record.parts_copied else "",
        f"{record.attempts_ended} attempts ended" if record.attempts_ended else "",
        *textwrap.wrap(record.user_metadata or "", _METADATA_WIDTH),
    ]
    return (
        str(record.version),
        record.finished_at[:19].replace("T", " "),
        f"{record.rows:,}",
        "" if record.written_bytes is None else f"{record.written_bytes:,}",
        str(record.transactions),
        ", ".join(f"{name} {ms}" for name, ms in record.phases_ms.items()),
        list(filter(None, notes)),
        record.application_id or "",
    )
