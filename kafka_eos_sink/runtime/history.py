"""The history topic: one record per decided batch, for people and monitoring.

It is not part of the protocol: no failure of it changes how a batch is written.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.metadata import TopicMetadata
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.commit.log_records import LARGEST_BATCH_BYTES, LARGEST_BATCH_RECORDS
from kafka_eos_sink.commit.log_view import LogView
from kafka_eos_sink.commit.steps import AppendInTransaction, LogRecord
from kafka_eos_sink.errors import BrokerRefusedError, BrokerUnavailableError, KafkaEosError, ProtocolError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.murmur2 import murmur2_bytes
from kafka_eos_sink.protocol.reactions import TOO_LARGE
from kafka_eos_sink.protocol.record_batch import read_each_batch
from kafka_eos_sink.protocol.record_reader import Record
from kafka_eos_sink.protocol.wire_types import ZERO_UUID
from kafka_eos_sink.runtime import driver_requests
from kafka_eos_sink.runtime.batch_record import BatchRecord, parse_record, record_of
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.step_log import code_name
from kafka_eos_sink.runtime.topics import POLICY, REPLICATION_FACTOR, create_first_accepted

log = logging.getLogger(__name__)

WITHIN_MS = 2_000
"""How long a batch may wait until its record is appended."""
AGAIN_AFTER_S = 60.0
"""Pause after a failure, so that not every micro-batch waits."""
WINDOW = 2_000
"""Offsets that a reader takes at a time, from the end of a partition to its start."""
KEPT_BYTES = 64 << 20
"""Encoded records that one reading keeps; with the offsets of many partitions they take ten times this memory."""
SETTINGS = {POLICY: "delete", "retention.ms": str(30 * 24 * 3_600_000)}
_CREATIONS: tuple[tuple[int, Mapping[str, str]], ...] = ((REPLICATION_FACTOR, SETTINGS), (-1, SETTINGS), (-1, {}))
"""Replication factor and settings of a new history topic, as `topics.CREATIONS`."""
LONGEST_ID = 1_000
"""Characters. Kafka allows 32,767, and two such ids in each record of a window take 500 MB."""
TAIL_WITHIN_MS = 15_000
"""For how long the tail is read. A record of 200 bytes can take 30 ms to parse, and a batch of 1 MB 400 ms to decompress."""

_not_before: dict[tuple[ClientConfig, str], float] = {}
_partitions: dict[tuple[ClientConfig, str], int] = {}
"""Partition counts of the topics that this process has written to, so that a micro-batch costs one request."""


def report(admin: Admin, topic: str, record: BatchRecord) -> None:
    """Log the line of a batch, and append its record if there is a history topic."""
    log.info("%s", record.line(), extra=record.figures())
    if topic:
        write(admin, topic, record)


def report_recovered(executor: Executor, topic: str, view: LogView) -> None:
    """Report the decisions of dead drivers that this executor has finished."""
    for query_id, copied in executor.stopwatch.finished.items():
        if (newest := view.query(query_id).newest) is not None:
            now_ms = time.time_ns() // 1_000_000
            report(executor.admin, topic, record_of(newest.decision, now_ms, parts_copied=copied, recovered=True))


def write(admin: Admin, topic: str, record: BatchRecord) -> None:
    """Append the record; create a missing topic. Warn of failures, never raise."""
    place = admin.client.config, topic
    if time.monotonic() < _not_before.get(place, 0.0):
        return
    try:
        problem = _append(admin, topic, record)
    except KafkaEosError as failure:
        problem = str(failure)
    except Exception as failure:  # The batch is committed, so no error here may fail it.
        problem = type(failure).__name__
    if problem is None:
        _not_before.pop(place, None)
        return
    _not_before[place] = time.monotonic() + AGAIN_AFTER_S
    is_large = problem in {code.name for code in TOO_LARGE}
    rights = "Grant Write on the topic, and Create if it is missing"
    warn_once(
        f"the history topic {topic!r} lacks records, and writes continue without them ({problem}). "
        f"{'Raise max.message.bytes of the topic' if is_large else rights}; an empty option history.topic switches the history off",
        about=("history", topic, problem.split("]")[0]),
    )


def _append(admin: Admin, topic: str, record: BatchRecord) -> str | None:
    """Append the record; return the error code, None for success."""
    deadline = admin.client.clock() + WITHIN_MS
    place = admin.client.config, topic
    # Popped, so that a failure leaves nothing behind.
    count = _partitions.pop(place, 0)
    if not count:
        found = admin.topic(topic, deadline)
        if found is None:
            create_first_accepted(admin, topic, 1, _CREATIONS, deadline)
        count = 1 if found is None else len(found.partitions)
    key = record.write_id.encode()
    where = topic, (murmur2_bytes(key) & 0x7FFFFFFF) % count
    step = AppendInTransaction(driver_requests.NO_PRODUCER, 0, (LogRecord(key, record.encoded()),))
    appended = driver_requests.append(admin, step, where, max(1, deadline - admin.client.clock()))
    if appended.error == ErrorCode.NONE:
        _partitions[place] = count
        return None
    return code_name(appended.error)


def read_history(
    admin: Admin, topic: str, write_id: str, *, limit: int, timeout_ms: int, version: int | None = None
) -> tuple[BatchRecord, ...]:
    """Return the newest records of a write id, the newest first; skip foreign records.

    Args:
        version: Only of this version; None for all.
        timeout_ms: Bounds the whole reading.

    Raises:
        BrokerRefusedError: NO_HISTORY if the topic does not exist.
        BrokerUnavailableError: REQUEST_DEADLINE if the records are not read in time, or are too large to keep.
    """
    deadline = admin.client.clock() + timeout_ms
    topic_found = admin.topic(topic, deadline)
    if topic_found is None:
        raise BrokerRefusedError(
            "NO_HISTORY",
            f"there is no history topic {topic!r}: no write with a history has run on this cluster, or the writes use another "
            "history.topic; name it with --history-topic",
        )
    found: list[BatchRecord] = []
    kept = 0
    for each, (start, end) in _bounds(admin, topic_found, deadline).items():
        newest: deque[BatchRecord] = deque()
        # From the end, because the topic may hold the batches of a month.
        while end > start and len(newest) < limit:
            begin = max(start, end - WINDOW)
            found_here = _between(admin, each, begin, end, write_id.encode(), deadline)
            # Keep at most this many records at once, and this many bytes: other programs may write large ones under the same key.
            window: deque[tuple[BatchRecord, int]] = deque(maxlen=limit)
            for one in found_here:
                record = parse_record(one.key, one.value)
                if record is not None and version in (None, record.version):
                    kept += len(one.value or b"") - (window[0][1] if len(window) == limit else 0)
                    window.append((record, len(one.value or b"")))
                if kept > KEPT_BYTES:
                    break
            newest.extendleft(record for record, _ in reversed(window))
            end = begin
            if kept > KEPT_BYTES or admin.client.clock() > deadline:
                why = "without more memory" if kept > KEPT_BYTES else "in time"
                raise BrokerUnavailableError(
                    "REQUEST_DEADLINE", f"{each[0]}-{each[1]} could not be read to its start {why}; lower --limit"
                )
        found += newest
    return tuple(sorted(found, key=lambda record: record.finished_ms, reverse=True)[:limit])


class HistoryTail:
    """The newest `WINDOW` records of the history; `read` fetches only appended ones."""

    def __init__(self, admin: Admin, topic: str, *, timeout_ms: int) -> None:
        self._admin = admin
        self._topic = topic
        self._timeout_ms = timeout_ms
        self._topic_id = ZERO_UUID
        self._next: dict[TopicPartition, int] = {}
        self._records: deque[BatchRecord] = deque(maxlen=WINDOW)
        self._appended: deque[BatchRecord] = deque(maxlen=WINDOW)

    def read(self) -> tuple[BatchRecord, ...]:
        """Return the records without offsets and producers, the newest first."""
        deadline = self._admin.client.clock() + self._timeout_ms
        topic = self._admin.topic(self._topic, deadline)
        if topic is None:
            return ()
        if topic.topic_id != self._topic_id:
            self._next.clear()
            self._records.clear()
        self._topic_id = topic.topic_id
        until = self._admin.client.clock() + TAIL_WITHIN_MS
        for where, (start, end) in _bounds(self._admin, topic, deadline).items():
            # Everybody with Write on the topic takes this memory and time: a burst counts up to WINDOW offsets, ids are short, and
            # what is not read in time is skipped.
            begin = max(start, self._next.get(where, 0), end - WINDOW)
            for one in _between(self._admin, where, begin, end, None, until):
                record = parse_record(one.key, one.value, with_ranges=False)
                if record is not None and max(len(record.write_id), len(record.query_id)) <= LONGEST_ID:
                    kept = replace(record, user_metadata=None, application_id=None)
                    self._records.appendleft(kept)
                    self._appended.append(kept)
            self._next[where] = end
        return tuple(sorted(self._records, key=lambda record: record.finished_ms, reverse=True))

    def take_appended(self) -> tuple[BatchRecord, ...]:
        """Return the newest `WINDOW` records since the last call, also of failed reads."""
        taken = tuple(self._appended)
        self._appended.clear()
        return taken


def _bounds(admin: Admin, topic: TopicMetadata, deadline: int) -> dict[TopicPartition, tuple[int, int]]:
    """Return each partition's first offset and its end."""
    where = [(str(topic.name), part.partition_index) for part in topic.partitions]
    ends = admin.list_offsets(where, deadline, isolation="read_uncommitted")
    starts = admin.list_offsets(where, deadline, isolation="read_uncommitted", timestamp=EARLIEST)
    return {each: (starts[each], ends[each]) for each in where}


def _between(
    admin: Admin, where: TopicPartition, first: int, end: int, key: bytes | None, until: int
) -> Iterator[Record]:
    """Yield the records of a key (None for any) in a range; stop after ``until``."""
    while first < end and admin.client.clock() <= until:
        # Longer than until then: the time that others have used up must not look like a silent broker.
        fetched = admin.fetch(where, first, until + WITHIN_MS, isolation="read_uncommitted")
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            break  # Retention removed the range while it was read.
        limits = {"max_bytes": LARGEST_BATCH_BYTES, "max_records": LARGEST_BATCH_RECORDS}
        for header, batch in read_each_batch(fetched.records or b"", **limits):
            # Also here: one Fetch returns thousands of batches that are small in the log and large in memory.
            if admin.client.clock() > until:
                return
            first = max(first, header.last_offset + 1)
            if isinstance(batch, ProtocolError) or batch.control:
                continue
            # Others may write to the topic. Their records are neither parsed nor kept.
            yield from (one for one in batch.records if one.offset < end and key in (None, one.key))
