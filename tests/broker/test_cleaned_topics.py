"""Topics with rows that Kafka compacts or deletes: what readers see then, and that writes and recovery do not mind.

Segments are as small as can be and the cleaner is always at work, so that seconds do what takes days elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dead_writes import abort_by_hand, die_at, write_settings
from kafka_eos_sink.cli.embedded_kafka import EmbeddedKafka
from kafka_eos_sink.commit import write
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_testing import READERS, assert_nothing_open, create_topic, read_committed, read_uncommitted, wait_until

KEYS = range(10)
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "20",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
DELETED = {"retention.ms": "500", "segment.ms": "20"}


@pytest.fixture(scope="module")
def cleaning_kafka() -> Iterator[EmbeddedKafka]:
    properties = {
        "log.cleaner.backoff.ms": "100",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "100",
    }
    with EmbeddedKafka(transaction_version=2, properties=properties) as cluster:
        yield cluster


class KeyedWrites:
    """Batches of one row per key, which say their number; some are aborted."""

    def __init__(self, cluster: EmbeddedKafka, topic: str) -> None:
        self.topic = topic
        self.next = write_settings(cluster, topic, version=0)

    def prepared(
        self, given: write.WriteSettings, timestamp_ms: int | None = None
    ) -> tuple[write.Plan, list[write.TaskMessage]]:
        plan = write.plan(given)
        times = None if timestamp_ms is None else pa.array([timestamp_ms for _ in KEYS], pa.int64())
        columns = RecordColumns(
            key=pa.array([b"%d" % key for key in KEYS]),
            value=pa.array([b"%d" % given.version for _ in KEYS]),
            timestamp=times,
        )
        task = write.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
        rows = iter([Rows(topic=self.topic, partition=None, columns=columns)])
        return plan, [write.write_task(given, plan, task, rows)]

    def commit(self) -> int:
        """The number of the batch."""
        given = self._take()
        write.commit(given, *self.prepared(given))
        return given.version

    def abort(self) -> int:
        given = self._take()
        _, messages = self.prepared(given)
        abort_by_hand(given, messages)
        return given.version

    def _take(self) -> write.WriteSettings:
        given, self.next = self.next, replace(self.next, version=self.next.version + 1)
        return given


def numbers(cluster: EmbeddedKafka, topic: str) -> list[int]:
    """Of the batches that readers of committed rows see, in order."""
    return [int(record.value or b"") for record in read_committed(cluster.bootstrap_servers, topic)]


def stored(cluster: EmbeddedKafka, topic: str) -> set[int]:
    """Of the batches of which any row is still there, aborted or not."""
    return {int(record.value or b"") for record in read_uncommitted(cluster.bootstrap_servers, topic)}


def newest(cluster: EmbeddedKafka, topic: str, reader: Any) -> dict[bytes | None, int]:
    """What who reads everything keeps of each key."""
    records = read_committed(cluster.bootstrap_servers, topic, reader=reader)
    return {record.key: int(record.value or b"") for record in records}


def test_compaction_leaves_the_newest_committed_row_of_each_key_and_nothing_of_what_was_aborted(
    cleaning_kafka: EmbeddedKafka,
) -> None:
    topic = create_topic(cleaning_kafka.bootstrap_servers, partitions=1, configs=COMPACTED)
    writes = KeyedWrites(cleaning_kafka, topic)
    first = writes.commit()
    aborted = [writes.abort()]
    last = writes.commit()
    aborted.append(writes.abort())  # newer than the newest committed row of its keys, which it must not hide

    def go_on() -> None:
        nonlocal last
        last = writes.commit()
        aborted.append(writes.abort())

    wait_until(lambda: stored(cleaning_kafka, topic).isdisjoint({first, *aborted[:2]}), "compaction", meanwhile=go_on)
    seen = numbers(cleaning_kafka, topic)
    assert not set(seen) & set(aborted)
    for reader in READERS:
        assert newest(cleaning_kafka, topic, reader) == {b"%d" % key: last for key in KEYS}
    assert_nothing_open(cleaning_kafka.bootstrap_servers, [topic])


def test_compaction_does_not_touch_rows_that_are_decided_and_not_yet_visible(
    cleaning_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(cleaning_kafka.bootstrap_servers, partitions=1, configs=COMPACTED)
    before, others = KeyedWrites(cleaning_kafka, topic), KeyedWrites(cleaning_kafka, topic)
    old = before.commit()
    decided = replace(before.next, version=1_000)
    plan, messages = before.prepared(decided)
    die_at("commit.decided", decided, plan, messages, monkeypatch)
    others.next = replace(others.next, version=2_000)

    def others_write() -> None:
        """Behind the open transaction, where readers do not get and the cleaner neither."""
        given = others._take()
        other_plan, other_messages = others.prepared(given)
        settings = replace(given, producer=replace(given.producer, delivery_timeout_ms=5_000))
        write.commit(settings, other_plan, other_messages)

    for _ in range(3):
        others_write()
    assert stored(cleaning_kafka, topic) == {old, 1_000, 2_000, 2_001, 2_002}
    write.plan(decided)  # recovers
    for reader in READERS:  # which are let past all of them at once, and the cleaner too
        assert newest(cleaning_kafka, topic, reader) == dict.fromkeys((b"%d" % key for key in KEYS), 2_002)
    wait_until(lambda: 1_000 not in stored(cleaning_kafka, topic), "compaction", meanwhile=others_write)
    assert write.commit(decided, *before.prepared(decided)) is None  # committed, although nothing of it is left
    assert 1_000 not in stored(cleaning_kafka, topic)
    assert_nothing_open(cleaning_kafka.bootstrap_servers, [topic])


def test_what_retention_has_deleted_is_not_written_again(cleaning_kafka: EmbeddedKafka) -> None:
    topic = create_topic(cleaning_kafka.bootstrap_servers, partitions=1, configs=DELETED)
    writes = KeyedWrites(cleaning_kafka, topic)
    given = writes.next
    number = writes.commit()
    assert set(numbers(cleaning_kafka, topic)) <= {number}
    wait_until(lambda: not stored(cleaning_kafka, topic), "retention")
    assert write.commit(given, *writes.prepared(given)) is None
    assert stored(cleaning_kafka, topic) == set()
    assert_nothing_open(cleaning_kafka.bootstrap_servers, [topic])
    following = writes.commit()
    assert set(numbers(cleaning_kafka, topic)) <= {following}


def test_rows_that_are_older_than_the_retention_are_written_and_then_deleted(
    cleaning_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention goes by the timestamps that the rows have, and does not wait for the end of their transaction."""
    topic = create_topic(cleaning_kafka.bootstrap_servers, partitions=1, configs=DELETED)
    writes = KeyedWrites(cleaning_kafka, topic)
    given = writes.next
    plan, messages = writes.prepared(given, timestamp_ms=1_500_000_000_000)
    die_at("commit.decided", given, plan, messages, monkeypatch)
    wait_until(lambda: not stored(cleaning_kafka, topic), "retention")
    write.plan(given)
    assert write.commit(given, *writes.prepared(given)) is None
    assert_nothing_open(cleaning_kafka.bootstrap_servers, [topic])
    following = writes.commit()
    assert set(numbers(cleaning_kafka, topic)) <= {following}
