"""A write without transactions or commit log (delivery.guarantee=at-least-once)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from kafka_eos_sink.client.admin import lease_admin
from kafka_eos_sink.commit.values import DeadLetters, summed
from kafka_eos_sink.pickling import PickledByName
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.runtime.batch_record import dead_letter_warning
from kafka_eos_sink.runtime.part_producer import dead_letters_of
from kafka_eos_sink.runtime.topics import require_topic
from kafka_eos_sink.runtime.write_settings import WriteSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWritten(PickledByName):
    """The result of a task."""

    rows: int
    written_bytes: int = 0
    dead_letters: tuple[DeadLetters, ...] = ()


def write_rows(settings: WriteSettings, batches: Iterator[Rows]) -> RowsWritten:
    """Write a task attempt's rows idempotently; a retried task writes them again."""
    rows = 0
    with lease_admin(settings.client) as admin:
        client = admin.client
        if settings.producer.dead_letter_topic is not None:
            # No plan has done so. Without this, every row of a misspelled option topic would become a dead letter.
            require_topic(settings, admin)
        producer = Producer(admin, settings.producer, transactional_id=None)
        try:
            for batch in batches:
                # A task without rows needs no producer id.
                if rows == 0 and batch.num_rows:
                    producer.init_producer_id(client.clock() + settings.producer.max_block_ms)
                if batch.num_rows:
                    producer.write(batch)
                    rows += batch.num_rows
            if rows:
                producer.flush()
        finally:
            producer.close()
    letters = dead_letters_of(producer)
    return RowsWritten(rows=rows, written_bytes=producer.acknowledged_bytes, dead_letters=letters)


def report(settings: WriteSettings, tasks: Sequence[RowsWritten]) -> None:
    """Log the line of a batch, and warn of dead letters."""
    letters = summed(chain.from_iterable(task.dead_letters for task in tasks))
    figures = {
        "version": settings.batch.version,
        "rows": sum(task.rows for task in tasks),
        "written_bytes": sum(task.written_bytes for task in tasks),
        "tasks": len(tasks),
        "dead_letters": sum(each.rows for each in letters),
    }
    log.info(
        "written at least once, version %(version)d: %(rows)d rows; %(written_bytes)d bytes; %(tasks)d tasks",
        figures,
        extra=figures,
    )
    if letters:
        of = f"version {settings.batch.version} of a write with delivery.guarantee=at-least-once"
        log.warning(
            "kafka-eos: %s", dead_letter_warning(letters, sum(task.rows for task in tasks), of, settings.client)
        )
