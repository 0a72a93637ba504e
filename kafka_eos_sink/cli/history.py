"""``kafka-eos history``: the batches of a write, or the write of one row."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer
from rich.table import Table

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.refusals import text
from kafka_eos_sink.commit.values import letters_text
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.operations.row_origin import RowOrigin, find_origin
from kafka_eos_sink.runtime.batch_record import BatchRecord
from kafka_eos_sink.runtime.history_reading import read_history

_TEXT_WIDTH = 48


def history(
    write_id: console.OneWriteId = None,
    prefix: console.Prefix = None,
    topic: Annotated[str | None, typer.Option(metavar="T", help="The write of one row in this topic.")] = None,
    partition: Annotated[int | None, typer.Option(metavar="P", min=0, help="The row's partition.")] = None,
    offset: Annotated[int | None, typer.Option(metavar="O", min=0, help="The row's offset.")] = None,
    bootstrap_servers: console.BootstrapServers = None,
    limit: console.Limit = 20,
    as_json: console.AsJson = False,
    history_topic: console.HistoryTopic = console.HISTORY,
    properties: console.PropertiesFile = None,
) -> None:
    """Show the newest batches of a write, or which write a row belongs to.

    With --write-id or --prefix: the newest batches, the newest first; `--json` adds their offsets. With --topic, --partition and
    --offset: write id, version, application, time and user metadata of this row, by the producer of its record batch. The
    command reads that batch, and the history from its end.

    Exit status 1 if the history has no batch of W, or if no write is known for the row; the output says why.

    Example: kafka-eos history --write-id kafka-eos/nightly-orders/orders

    To see the newest version of every write: kafka-eos status
    """
    row = [each for each in (topic, partition, offset) if each is not None]
    ids = [each for each in (write_id, prefix) if each is not None]
    if len(ids) != (not row) or len(row) not in (0, 3):
        raise typer.BadParameter(text("history_one_of"))
    config = console.client_config(bootstrap_servers, properties)
    within = console.TIMEOUT_MS
    with connected(config) as admin:
        if topic is not None and partition is not None and offset is not None:
            found_row = find_origin(admin, (topic, partition), offset, history_topic=history_topic, timeout_ms=within)
            _show_row(found_row, as_json)
            return
        any_of, name = write_id is None, write_id or prefix or ""
        found = read_history(admin, history_topic, name, limit=limit, timeout_ms=within, is_prefix=any_of)
    console.present(found, as_json, partial(history_table, with_ids=any_of))
    whose = f"a write id that begins with {prefix!r}" if any_of else repr(write_id)
    console.require_found(found, f"batch of {whose}", history_topic, config, name)


def _show_row(row: RowOrigin, as_json: bool) -> None:
    """Print the write of a row; fail with the reason if none is known."""
    if as_json:
        console.print_json(row)
    elif row.reason is None:
        console.show(row_table(row))
    if row.reason is not None:
        notes = "".join(f"; {note}" for note in row.notes)
        name = f"{row.topic}-{row.partition} offset {row.offset}"
        raise KafkaEosError("UNKNOWN_ROW", f"no write is known for {name}: {row.reason}{notes}")


def row_table(row: RowOrigin) -> Table:
    of, producer = row.record, row.producer
    if of is None or producer is None:
        raise ValueError("the row has no known write")
    cells = {
        "write id": of.write_id,
        "query id": of.query_id,
        "version": str(of.version),
        "finished (UTC)": of.finished_at[:19].replace("T", " "),
        "recovered by": of.recovered_by,
        "application": of.application_id,
        "user metadata": textwrap.wrap(of.user_metadata or "", _TEXT_WIDTH),
        "producer": f"id {producer[0]}, epoch {producer[1]}",
        "note": list(row.notes),
    }
    rows = [(name, cell) for name, cell in cells.items() if cell]
    return console.table(("row", f"{row.topic}-{row.partition} offset {row.offset}"), rows)


def history_table(found: Sequence[BatchRecord], *, with_ids: bool = False) -> Table:
    columns = ("version", "finished (UTC)", "rows", "bytes", "transactions", "phases (ms)", "notes", "application")
    shown = ("write id", *columns) if with_ids else columns
    rows = ((each.write_id, *_row(each)) if with_ids else _row(each) for each in found)
    return console.table(shown, rows, unwrapped=shown)


def _row(record: BatchRecord) -> console.Row:
    notes = [
        f"recovered by {record.recovered_by}" if record.recovered_by else "",
        *textwrap.wrap(
            f"dead letters: {letters_text(record.dead_letters)}" if record.dead_letters else "", _TEXT_WIDTH
        ),
        f"{console.counted(record.transactions_copied, 'transaction')} copied" if record.transactions_copied else "",
        f"{console.counted(record.attempts_aborted, 'attempt')} aborted" if record.attempts_aborted else "",
        *textwrap.wrap(record.user_metadata or "", _TEXT_WIDTH),
    ]
    return (
        str(record.version),
        record.finished_at[:19].replace("T", " "),
        record.rows,
        record.written_bytes,
        record.transactions,
        ", ".join(f"{name} {ms}" for name, ms in record.phases_ms.items()),
        list(filter(None, notes)),
        record.application_id or "",
    )
