"""Reads the history topic: the batches of a write or row, the newest records."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.metadata import TopicMetadata
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.commit.log_records import LARGEST_BATCH_BYTES, LARGEST_BATCH_RECORDS
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.errors import BrokerUnavailableError, ProtocolError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, TopicPartition
from kafka_eos_sink.protocol.record_batch import read_each_batch
from kafka_eos_sink.protocol.record_reader import Record
from kafka_eos_sink.protocol.wire_types import ZERO_UUID
from kafka_eos_sink.runtime.batch_record import BatchRecord, parse_record

WINDOW = 2_000
"""Offsets that a reader takes at a time, from the end of a partition to its start."""
KEPT_BYTES = 64 << 20
"""Encoded records that one reading keeps; with the offsets of many partitions they take ten times this memory."""
LONGEST_ID = 1_000
"""Characters. Kafka allows 32,767, and two such ids in each record of a window take 500 MB."""
TAIL_WITHIN_MS = 15_000
"""For how long the tail is read. A record of 200 bytes can take 30 ms to parse, and a batch of 1 MB 400 ms to decompress."""
FETCH_WITHIN_MS = 2_000
"""How long a Fetch may take beyond the time limit of its reading."""
WITHOUT_HISTORY = (
    "a lost commit log is noticed for 7 days only (transactional.id.expiration.ms), not for 30; then a batch job would write its versions "
    "again"
)


def warn_of_unread(config: ClientConfig, topic: str) -> None:
    """Warn once that the principal may not Read the history, and what that costs."""
    warn_once(
        f"the principal of this write may not Read the history topic {topic!r}, so {WITHOUT_HISTORY}. To grant Read, put the principal in "
        f"place of P: kafka-acls.sh --bootstrap-server {config.bootstrap_servers_text} --add --allow-principal P --operation Read "
        f"--topic {topic}"
    )


def read_history(
    admin: Admin,
    topic: str,
    write_id: str,
    *,
    limit: int,
    timeout_ms: int,
    version: int | None = None,
    is_prefix: bool = False,
) -> tuple[BatchRecord, ...]:
    """Return the newest records of a write id, the newest first; skip foreign records.

    Args:
        version: Only of this version; None for all.
        timeout_ms: Bounds the whole reading.
        is_prefix: Of all write ids that begin with ``write_id``.

    Raises:
        BrokerRefusedError: NO_HISTORY if the topic does not exist.
        BrokerUnavailableError: REQUEST_DEADLINE if the records are not read in time, or are too large to keep.
    """
    deadline = admin.client.clock() + timeout_ms
    topic_found = admin.topic(topic, deadline)
    if topic_found is None:
        config = admin.client.config
        where, connection = config.bootstrap_servers_text, config.command_options
        raise refused("NO_HISTORY.no_topic", topic=topic, where=where, connection=connection)
    wanted = write_id.encode()

    def is_wanted(key: bytes | None) -> bool:
        return key is not None and (key.startswith(wanted) if is_prefix else key == wanted)

    found: list[BatchRecord] = []
    kept = 0
    for each, (start, end) in _bounds(admin, topic_found, deadline).items():
        newest: deque[BatchRecord] = deque()
        # From the end, because the topic may hold the batches of a month.
        while end > start and len(newest) < limit:
            begin = max(start, end - WINDOW)
            found_here = _between(admin, each, begin, end, is_wanted, deadline)
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


def find_batch(
    admin: Admin, topic: str, where: TopicPartition, offset: int, producer: ProducerIdAndEpoch, *, timeout_ms: int
) -> tuple[BatchRecord | None, int | None]:
    """Return the record of the batch that wrote a row, and the begin of the history.

    Args:
        producer: Of the row's record batch. The offsets of a batch may overlap with other writes.

    Returns:
        The record, None without one; the timestamp in ms of the oldest record that was read, None without one.

    Raises:
        BrokerUnavailableError: REQUEST_DEADLINE if the history is not read in time.
    """
    deadline = admin.client.clock() + timeout_ms
    described = admin.topic(topic, deadline)
    oldest: int | None = None
    # As in the encoded producers. Parsing every record would take a hundred times as long.
    mark = b"[%d,%d]" % producer
    for each, (start, end) in ({} if described is None else _bounds(admin, described, deadline)).items():
        found: BatchRecord | None = None
        # From the end, because the topic may hold the batches of a month.
        while end > start:
            begin = max(start, end - WINDOW)
            for one in _between(admin, each, begin, end, lambda _: True, deadline):
                oldest = one.timestamp if oldest is None else min(oldest, one.timestamp)
                record = parse_record(one.key, one.value) if mark in (one.value or b"") else None
                found = record if record is not None and record.wrote(where, offset, producer) else found
            if found is not None:
                return found, oldest
            if admin.client.clock() > deadline:
                raise BrokerUnavailableError(
                    "REQUEST_DEADLINE",
                    f"{each[0]}-{each[1]} could not be read from its end down to offset {begin} in {timeout_ms} ms",
                )
            end = begin
    return None, oldest


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
            for one in _between(self._admin, where, begin, end, lambda _: True, until):
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
    admin: Admin,
    where: TopicPartition,
    first: int,
    end: int,
    is_wanted: Callable[[bytes | None], bool],
    until: int,
) -> Iterator[Record]:
    """Yield the records with wanted keys in a range; stop after ``until``."""
    while first < end and admin.client.clock() <= until:
        # Longer than until then: the time that others have used up must not look like a silent broker.
        fetched = admin.fetch(where, first, until + FETCH_WITHIN_MS, isolation="read_uncommitted")
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
            yield from (one for one in batch.records if one.offset < end and is_wanted(one.key))
