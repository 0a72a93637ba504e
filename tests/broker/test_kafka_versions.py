"""The Kafkas that the other tests do not run: 3.6, the oldest that verifies transactional appends, 3.9, 4.3, and 4.4.

`transaction.version` 1 differs from 0 only in how the coordinator keeps its records. A write is killed at each of its steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import confluent_kafka
import pyarrow as pa
import pytest

from dead_writes import POINTS, RESTORE_POINTS, ROWS, be_killed_at, rows_of, varied, write_all, write_settings
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.operations.cluster_check import CheckResult, check_cluster
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import at_least_once
from kafka_eos_sink.runtime.source_offsets import marked_write
from kafka_testing import (
    READERS,
    assert_nothing_open,
    create_topic,
    end_as_driver,
    read_committed,
    started_producer,
    unique_topic,
    wait_until,
)
from tests.faults.three_nodes import leader


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A Kafka as it formats itself, or with a `transaction.version` asked for, and which one that makes."""

    version: str
    asked_for: int | None = None
    transaction_version: int

    def __str__(self) -> str:
        return f"{self.version}, transaction.version {self.transaction_version}"


RELEASES = [
    Release(version="3.6.2", transaction_version=0),
    Release(version="3.9.2", transaction_version=0),
    Release(version="4.3.1", transaction_version=2),
    Release(version="4.4.0", transaction_version=2),
    Release(version="4.2.2", asked_for=1, transaction_version=1),
]


OMITS_MARKERS = {"4.3.1", "4.4.0"}
INTERNAL_PARTITIONS = 4


@pytest.fixture(scope="module", params=RELEASES, ids=str)
def release(request: pytest.FixtureRequest) -> Release:
    found: Release = request.param
    return found


@pytest.fixture(scope="module")
def other_kafka(release: Release) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(version=release.version, transaction_version=release.asked_for) as cluster:
        yield cluster


def assert_every_row_once(kafka: EmbeddedKafka, topic: str, times: int = 1) -> None:
    for reader in READERS:
        values = Counter(
            int(each.value or b"") for each in read_committed(kafka.bootstrap_servers, topic, reader=reader)
        )
        assert values == Counter(dict.fromkeys(range(2 * ROWS), times))
    assert_nothing_open(kafka.bootstrap_servers)


def test_check_reports_release_and_transaction_version(other_kafka: EmbeddedKafka, release: Release) -> None:
    topic = create_topic(other_kafka.bootstrap_servers)
    write_all(write_settings(other_kafka, topic))  # creates the commit log
    with connected(other_kafka.bootstrap_servers) as admin:
        findings = check_cluster(admin, topic=topic, commit_log_topic="__kafka_eos_commits", timeout_ms=30_000)
    found = {(each.about, each.what): each for each in findings}
    (broker,) = (each.found for (_, what), each in found.items() if what.startswith("broker "))
    assert broker.endswith(f", Kafka {release.version.rpartition('.')[0]}")
    assert found["", "transaction.version"].found == str(release.transaction_version)
    assert CheckResult.FAILS not in {each.result for each in findings}


def coordinator_partition(transactional_id: str) -> int:
    """The partition of `__transaction_state`: Java's hash, its sign bit cleared."""
    code = 0
    for character in transactional_id:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % INTERNAL_PARTITIONS


@pytest.mark.parametrize("version", ["4.2.2", "4.3.1", "4.4.0"])
def test_releases_that_omit_markers_are_known(version: str, tmp_path: Path) -> None:
    """KAFKA-20734, on one node: the disk of a partition is gone when its transaction ends, and comes back."""
    kept, lost, away = (tmp_path / name for name in ("kept", "lost", "away"))
    properties = {"log.dirs": f"{kept},{lost}", "log.flush.offset.checkpoint.interval.ms": "500"}
    with EmbeddedKafka(version=version, properties=properties) as kafka, connected(kafka.bootstrap_servers) as admin:
        client, topic = admin.client, create_topic(kafka.bootstrap_servers, partitions=2)
        started_producer(client, "first")  # its request creates the coordinators' topic
        transactional_id = next(
            each
            for each in (f"id-{number}" for number in range(100))
            if (kept / f"__transaction_state-{coordinator_partition(each)}").exists()
        )
        producer = started_producer(client, transactional_id)
        for partition in (0, 1):
            numbers = pa.array([b"%d" % (10 * partition + number) for number in range(3)])
            rows = Rows(
                topic=topic,
                partition=pa.repeat(pa.scalar(partition, pa.int32()), 3),
                columns=RecordColumns(value=numbers),
            )
            producer.write(rows)
        producer.flush()
        (hidden,) = (partition for partition in (0, 1) if (lost / f"{topic}-{partition}").exists())
        prepared = producer.prepare()
        lost.rename(away)
        wait_until(lambda: leader(kafka, topic, hidden) < 0, "a partition without a leader")
        assert end_as_driver(client, prepared, committed=True) == 0
        omitted = version in OMITS_MARKERS

        def state() -> str:
            deadline = client.clock() + 60_000
            return admin.describe_transactions((transactional_id,), deadline)[transactional_id].transaction_state

        if omitted:
            wait_until(lambda: state() == "CompleteCommit", "a transaction that is complete without a marker")
        (node,) = kafka.node_ids
        kafka.kill(node)
        away.rename(lost)
        kafka.start_node(node)
        wait_until(lambda: leader(kafka, topic, hidden) >= 0, "the leader")
        wait_until(lambda: state() == "CompleteCommit", "the end of the transaction")
        seen = {int(each.value or b"") // 10 for each in read_committed(kafka.bootstrap_servers, topic)}
        assert seen == ({1 - hidden} if omitted else {0, 1})


def test_consecutive_batches_are_visible_once(other_kafka: EmbeddedKafka) -> None:
    topic = create_topic(other_kafka.bootstrap_servers)
    given = write_settings(other_kafka, topic)
    for version in (3, 3, 4, 4, 9):
        write_all(varied(given, version=version))
    assert_every_row_once(other_kafka, topic, times=3)


def test_offsets_of_a_group_are_committed_with_the_batch(
    other_kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    servers = other_kafka.bootstrap_servers
    source, topic, group = create_topic(servers, partitions=2), create_topic(servers), unique_topic("group")
    offsets = GroupOffsets(group_id=group, offsets=((source, 0, 7), (source, 1, 8)))
    given = replace(write_settings(other_kafka, topic), group_offsets=offsets)
    write_all(given)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group})
    found = consumer.committed([confluent_kafka.TopicPartition(source, partition) for partition in (0, 1)], timeout=30)
    assert [each.offset for each in found] == [7, 8]
    with connected(servers) as admin:
        read = admin.group_offsets(group, None, admin.client.clock() + 30_000)
    assert {where: each.committed_offset for where, each in read.items()} == {(source, 0): 7, (source, 1): 8}
    assert {marked_write(each.metadata) for each in read.values()} == {given.write.id}
    assert [each for each in caplog.messages if "did not exist on this cluster" not in each] == []
    consumer.subscribe([source])
    wait_until(consumer.assignment, "the member's partitions", meanwhile=lambda: consumer.poll(0.1))
    write_all(varied(given, version=4))
    consumer.close()
    assert f"group '{group}' of source.offsets.group has members" in caplog.text
    assert_every_row_once(other_kafka, topic, times=2)


def test_without_transactions_rows_are_written_too(other_kafka: EmbeddedKafka) -> None:
    topic = create_topic(other_kafka.bootstrap_servers)
    rows = iter([rows_of(topic, 0), rows_of(topic, 1)])
    assert at_least_once.write_rows(write_settings(other_kafka, topic), rows).rows == 2 * ROWS
    assert_every_row_once(other_kafka, topic)


@pytest.mark.parametrize("point", [*POINTS, *RESTORE_POINTS])
def test_interrupted_write_is_complete_after_the_next_run(
    other_kafka: EmbeddedKafka, tmp_path: Path, point: str
) -> None:
    topic = create_topic(other_kafka.bootstrap_servers, partitions=3)
    given = write_settings(other_kafka, topic)
    be_killed_at(point, other_kafka, given, losing=tmp_path / "decided" if point in RESTORE_POINTS else None)
    for _ in range(2):
        write_all(given)
        assert_every_row_once(other_kafka, topic)
