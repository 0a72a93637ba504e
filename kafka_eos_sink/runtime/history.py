"""The history topic: one record per decided batch, for people and monitoring.

No failure of it changes how a batch is written. The first plan of a write id also reads the history (`log_standing.py`): without a record,
or without Read, a lost commit log is noticed for 7 days instead of 30.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.refusals import text
from kafka_eos_sink.commit.steps import AppendInTransaction, LogRecord
from kafka_eos_sink.commit.transactional_id import is_random_write_id
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.murmur2 import murmur2_bytes
from kafka_eos_sink.protocol.reactions import TOO_LARGE
from kafka_eos_sink.runtime import driver_requests
from kafka_eos_sink.runtime.batch_record import BatchRecord, dead_letter_warning, record_of
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.history_reading import warn_of_unread
from kafka_eos_sink.runtime.topics import POLICY, REPLICATION_FACTOR, create_first_accepted, lacks_read

log = logging.getLogger(__name__)

WITHIN_MS = 2_000
"""How long a batch may wait until its record is appended."""
AGAIN_AFTER_S = 60.0
"""Pause after a failure, so that not every micro-batch waits."""
SETTINGS = {POLICY: "delete", "retention.ms": str(30 * 24 * 3_600_000)}
_CREATIONS: tuple[tuple[int, Mapping[str, str]], ...] = ((REPLICATION_FACTOR, SETTINGS), (-1, SETTINGS), (-1, {}))
"""Replication factor and settings of a new history topic, as `topics.CREATIONS`."""

_not_before: dict[tuple[ClientConfig, str], float] = {}
_partitions: dict[tuple[ClientConfig, str], int] = {}
"""Partition counts of the topics that this process has written to, so that a micro-batch costs one request."""


def report(admin: Admin, topic: str, record: BatchRecord, *, create: bool = True) -> None:
    """Log the line of a batch, and append its record if there is a history topic.

    Dead letters are committed rows that their readers do not get, so each batch with some warns.
    """
    log.info("%s", record.line(), extra=record.figures())
    if record.dead_letters:
        of = f"version {record.version} of write id {record.write_id!r}"
        log.warning("kafka-eos: %s", dead_letter_warning(record.dead_letters, record.rows, of, admin.client.config))
    if topic:
        write(admin, topic, record, create=create)


def report_recovered(executor: Executor, topic: str, view: LogView, by: str, *, create: bool = True) -> None:
    """Report the decisions of dead drivers that this executor has finished.

    Args:
        view: It has read the newest decisions, copies included.
        by: `BatchRecord.recovered_by`.
    """
    for query_id, copied in executor.stopwatch.finished.items():
        newest = view.query(query_id).newest
        # The decision of an operator has no rows.
        if newest is not None and newest.decision.resolution is None:
            now_ms = time.time_ns() // 1_000_000
            record = record_of(newest.decision, now_ms, transactions_copied=copied, recovered_by=by)
            report(executor.admin, topic, record, create=create)


def write(admin: Admin, topic: str, record: BatchRecord, *, create: bool = True) -> None:
    """Append the record. Warn of failures, never raise.

    Args:
        create: Create a missing topic; without it, a missing topic gets no record.
    """
    place = admin.client.config, topic
    if time.monotonic() < _not_before.get(place, 0.0):
        return
    do = "Grant Write and Read on the topic, and Create if it is missing"
    try:
        problem = _append(admin, topic, record, create)
    except KafkaEosError as failure:
        problem, do = (failure.brief, failure.way_out) if failure.way_out else (str(failure), do)
    except Exception as failure:  # The batch is committed, so no error here may fail it.
        problem = type(failure).__name__
    if problem is None:
        _not_before.pop(place, None)
        return
    _not_before[place] = time.monotonic() + AGAIN_AFTER_S
    if problem in {code.name for code in TOO_LARGE}:
        do = "Raise max.message.bytes of the topic"
    warning = text("history_lacks_records", topic=topic, why=problem, do=do)
    warn_once(warning, about=("history", topic, problem.split("]")[0]))


def _append(admin: Admin, topic: str, record: BatchRecord, create: bool) -> str | None:
    """Append the record; return the error code, None for success."""
    deadline = admin.client.clock() + WITHIN_MS
    place = admin.client.config, topic
    # Popped, so that a failure leaves nothing.
    count = _partitions.pop(place, 0)
    if not count:
        found = admin.topic(topic, deadline)
        if found is None and not create:
            return None
        if found is None:
            create_first_accepted(admin, topic, 1, _CREATIONS, deadline)
        elif lacks_read(found) and not is_random_write_id(record.write_id):
            # Only the first plan of a write id reads the history, and by now the right may have been taken away.
            warn_of_unread(admin.client.config, topic)
        count = 1 if found is None else len(found.partitions)
    key = record.write_id.encode()
    where = topic, (murmur2_bytes(key) & 0x7FFFFFFF) % count
    step = AppendInTransaction(driver_requests.NO_PRODUCER, 0, (LogRecord(key, record.encoded()),))
    appended = driver_requests.append(admin, step, where, max(1, deadline - admin.client.clock()))
    if appended.error == ErrorCode.NONE:
        _partitions[place] = count
        return None
    return appended.code
