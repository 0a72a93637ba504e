"""What docs/read.md says of share groups, of readers by time, and of a consumer's lag."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from dead_writes import ROWS, tasks, write_all, write_settings
from documents import all_blocks
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.java import find_java, run_to_end
from kafka_eos_sink.runtime import session
from kafka_testing import PATIENCE_S, change_config, create_topic, read_committed, unique_topic, wait_until
from tests.broker.share_reader import share_reader

END = "the end"


@pytest.mark.parametrize(("isolation", "attempts"), [(None, 2), ("read_committed", 1)])
def test_share_group_reads_aborted_rows_unless_its_group_reads_committed(
    kafka: EmbeddedKafka, kafka_jars: Path, isolation: str | None, attempts: int
) -> None:
    servers, group = kafka.bootstrap_servers, unique_topic("share")
    topic = create_topic(servers, partitions=1)
    failed = write_settings(kafka, topic)
    plan = session.plan(failed)
    session.abort(failed, plan, tasks(failed, plan))
    write_all(write_settings(kafka, topic))
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    producer.produce(topic, END)
    assert producer.flush(30) == 0
    change_config(servers, "group", group, "share.auto.offset.reset", "earliest")
    if isolation is not None:
        (shown,) = [block for block in all_blocks() if block.name == "docs/read.md#share-groups"]
        command = shown.text.replace("\\\n", " ")
        command = command.replace("localhost:9092", servers).replace("orders-workers", group)
        tool, *arguments = shlex.split(command.replace("read_committed", isolation))
        assert tool == "kafka-configs.sh"
        status, printed = run_to_end(
            find_java().command(Path(f"{kafka_jars}/*"), "kafka.admin.ConfigCommand", *arguments)
        )
        assert status == 0, printed
    found: dict[str, str] = {}
    with share_reader(kafka, kafka_jars, group, topic) as records:
        for offset, value in records:
            found[offset] = value
            if value == END:
                break
    rows = {str(number): attempts for number in range(2 * ROWS)}
    assert Counter(found.values()) == Counter(rows | {END: 1})


def offsets_at(servers: str, topic: str, time_ms: int) -> int:
    """The first offset of partition 0 at or after a time, as a read_committed consumer finds it."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "no group"})
    (found,) = consumer.offsets_for_times([confluent_kafka.TopicPartition(topic, 0, time_ms)], timeout=PATIENCE_S)
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=PATIENCE_S)
    consumer.close()
    return int(found.offset) if found.offset >= 0 else int(end)


def test_reader_by_adjoining_time_windows_misses_all_rows_of_a_batch(kafka: EmbeddedKafka) -> None:
    """The rows have the time of their writing, and appear at the commit, when their window is over."""
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1)

    def window(begins_ms: int, ends_ms: int) -> int:
        begin, end = offsets_at(servers, topic, begins_ms), offsets_at(servers, topic, ends_ms)
        return sum(begin <= record.offset < end for record in read_committed(servers, topic))

    given = write_settings(kafka, topic)
    plan = session.plan(given)
    times, messages = [0], tasks(given, plan)
    times.append(time.time_ns() // 1_000_000 + 1)
    seen = window(*times)
    wait_until(lambda: time.time_ns() // 1_000_000 > times[1], "the next window")
    session.commit(given, plan, messages)
    times.append(time.time_ns() // 1_000_000 + 60_000)
    assert (seen, window(*times[1:])) == (0, 0)
    assert len(read_committed(servers, topic)) == 2 * ROWS  # a reader by offsets
    assert window(*times[:2]) == 2 * ROWS  # a reader that waits until the batch is committed


def committed_by_message(servers: str, group: str, topic: str) -> None:
    reader = {"group.id": group, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "enable.auto.commit": False, **reader})
    consumer.subscribe([topic])
    rows, give_up_at = 0, time.monotonic() + PATIENCE_S
    while rows < 2 * ROWS:
        assert time.monotonic() < give_up_at
        if (message := consumer.poll(1.0)) is not None and message.error() is None:
            consumer.commit(message, asynchronous=False)
            rows += 1
    consumer.close()


def test_lag_counts_markers_behind_the_last_row(kafka: EmbeddedKafka) -> None:
    """The consumer has read all rows of two transactions, whose markers have offsets too."""
    servers, group = kafka.bootstrap_servers, unique_topic("group")
    topic = create_topic(servers, partitions=1)
    write_all(write_settings(kafka, topic))
    committed_by_message(servers, group, topic)
    admin, partition = AdminClient({"bootstrap.servers": servers}), confluent_kafka.TopicPartition(topic, 0)
    request = confluent_kafka.ConsumerGroupTopicPartitions(group, [partition])
    (committed,) = admin.list_consumer_group_offsets([request])[group].result(PATIENCE_S).topic_partitions
    level = confluent_kafka.IsolationLevel.READ_COMMITTED
    latest = {partition: confluent_kafka.admin.OffsetSpec.latest()}
    (end,) = admin.list_offsets(latest, isolation_level=level).values()
    assert end.result(PATIENCE_S).offset - committed.offset == 2
