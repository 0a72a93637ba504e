"""What docs/read.md says of share groups, of readers by time, and of a consumer's lag."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import confluent_kafka
import pytest

from dead_writes import ROWS, tasks, write_all, write_settings
from documents import all_blocks
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.java import find_java, run_to_end
from kafka_eos_sink.runtime import session
from kafka_testing import change_config, create_topic, unique_topic
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
