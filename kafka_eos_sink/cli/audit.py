"""``kafka-eos audit``: compare the history of a write with the rows in its topics."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.cli import console
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.refusals import refused, some
from kafka_eos_sink.commit.values import letters_text
from kafka_eos_sink.operations.audit import BatchAudit, audit_batch
from kafka_eos_sink.runtime.history_reading import read_history

_REASON_WIDTH = 48
_COLUMNS = ("version", "topic-partition", "offsets", "decided", "found", "missing", "not readable", "result")


def audit(
    write_id: console.WriteId,
    version: Annotated[int | None, typer.Option("--version", metavar="V", min=0, help="Only this version.")] = None,
    limit: console.Limit = 1,
    as_json: console.AsJson = False,
    bootstrap_servers: console.BootstrapServers = None,
    history_topic: console.HistoryTopic = console.HISTORY,
    properties: console.PropertiesFile = None,
) -> None:
    """Count the rows of the newest batches, and compare them with the decisions.

    The history has the offsets and the producers of each batch. The command reads these offsets with
    isolation.level=read_committed, and counts the rows of these producers. It compares totals, and neither contents nor single
    partitions. It needs Read on the topics and the history. A version that is decided and not finished is not in the history yet:
    kafka-eos status shows it.

    complete: as many rows as decided. not readable: offsets that cannot be read explain every row that was not found; the output
    says why (retention, DeleteRecords, compaction, a deleted topic, an open transaction). missing: they explain only
    some of these rows. too many: more rows than decided.

    Exit status 1 if rows are missing or too many. Without DescribeConfigs on a topic, rows that compaction removed count as
    missing.

    Example: kafka-eos audit --write-id kafka-eos/nightly-orders/orders

    To see when each batch was written, and how long it took: kafka-eos history
    """
    config = console.client_config(bootstrap_servers, properties)
    with connected(config) as admin:
        records = read_history(
            admin, history_topic, write_id, limit=limit, timeout_ms=console.TIMEOUT_MS, version=version
        )
        batch = f"{'batch' if version is None else f'version {version}'} of {write_id!r}"
        console.require_found(records, batch, history_topic, config, write_id)
        audits = [audit_batch(admin, record, timeout_ms=console.TIMEOUT_MS) for record in records]
    console.present(audits, as_json, audit_table)
    if wrong := [each for each in audits if not each.is_as_decided]:
        versions = some([str(each.record.version) for each in wrong])
        raise refused("NOT_AS_DECIDED", write_id=write_id, versions=versions)


def audit_table(audits: Sequence[BatchAudit]) -> Table:
    rows = [row for each in audits for row in _rows(each)]
    return console.table(_COLUMNS, rows, unwrapped=_COLUMNS)


def _rows(audit: BatchAudit) -> Iterator[console.Row]:
    figures = (audit.record.rows, audit.found, audit.missing, audit.not_readable)
    style = "green" if audit.result == "complete" else "yellow" if audit.is_as_decided else "bold red"
    yield str(audit.record.version), "", "", *figures, Text(audit.result, style=style)
    for part in audit.partitions:
        offsets = f"{part.first_offset}..{part.last_offset}"
        hidden = f"{console.counted(part.hidden, 'offset')}: {part.reason}" if part.reason else ""
        where = f"{part.topic}-{part.partition}"
        yield "", where, offsets, "", part.found, "", "", textwrap.wrap(hidden, _REASON_WIDTH)
    if letters := audit.record.dead_letters:
        text = f"{audit.record.dead_letter_rows:,} of these rows are dead letters: {letters_text(letters)}"
        yield "", "", "", "", "", "", "", textwrap.wrap(text, _REASON_WIDTH)
