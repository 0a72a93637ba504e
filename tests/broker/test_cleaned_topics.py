"""Lost rows that Kafka's cleaner has removed.

Segments are as small as can be and the cleaner is always at work, so that seconds do what takes days elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import confluent_kafka
import pyarrow as pa
import pytest

from dead_writes import ROWS, abort_by_hand, die_at, prepared_by, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import session
from kafka_testing import (
    ReadRecord,
    assert_nothing_open,
    await_markers,
    create_topic,
    read_committed,
    read_uncommitted,
    wait_until,
)

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "20",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


@pytest.fixture(scope="module")
def cleaning_kafka() -> Iterator[EmbeddedKafka]:
    properties = {
        "log.cleaner.backoff.ms": "100",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "100",
    }
    with EmbeddedKafka(transaction_version=2, properties=properties) as cluster:
        yield cluster


OTHER = 2_000


def write_other_keys(servers: str, topic: str) -> None:
    """Rows of another program, each in a segment of its own, so that the cleaner may take the one before."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for key in range(3):
        producer.produce(topic, b"%d" % OTHER, b"%d" % key)
        assert producer.flush(60) == 0


def numbers(read: Callable[[str, str], list[ReadRecord]], servers: str, topic: str) -> list[int]:
    """Of the rows of the write that are there."""
    found = (int(record.value or b"") for record in read(servers, topic))
    return sorted(number for number in found if number < OTHER)


def tasks_with_keys(given: session.WriteSettings, plan: session.Plan) -> list[session.TaskMessage]:
    """Two tasks, whose keys nobody else has."""
    messages = []
    for task in range(2):
        values = [b"%d" % number for number in range(task * ROWS, (task + 1) * ROWS)]
        columns = RecordColumns(key=pa.array([b"row-" + value for value in values]), value=pa.array(values))
        identity = session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task)
        rows = iter([Rows(topic=given.batch.topic or "", partition=None, columns=columns)])
        messages.append(session.write_task(given, plan, identity, rows))
    return messages


@pytest.mark.parametrize("lost", ["some", "all"])
def test_lost_rows_removed_by_compaction_are_not_copied(
    cleaning_kafka: EmbeddedKafka,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
) -> None:
    """The cleaner drops aborted records, but keeps the empty batch by which the leader knows the producer."""
    servers = cleaning_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1, configs=COMPACTED)
    given = write_settings(cleaning_kafka, topic)
    plan = session.plan(given)
    messages = tasks_with_keys(given, plan)
    die_at("commit.between_ends" if lost == "some" else "commit.decided", given, plan, messages, monkeypatch)
    await_markers(servers)
    abort_by_hand(given, messages[1:] if lost == "some" else messages)
    cleaned = set(range(0 if lost == "all" else ROWS, 2 * ROWS))
    wait_until(
        lambda: cleaned.isdisjoint(numbers(read_uncommitted, servers, topic)),
        "compaction",
        meanwhile=lambda: write_other_keys(servers, topic),
    )
    (part,) = prepared_by(messages)[1].offsets
    gone = (
        f"{ROWS} of {ROWS} rows of Spark partition 1 are gone from {topic}-0 [{part.first_offset}..{part.last_offset}]"
    )
    exit_status = main(["recover", "--yes", "--bootstrap-servers", servers, "--write-id", given.write.id])
    captured = capsys.readouterr()
    visible = numbers(read_committed, servers, topic)
    if lost == "some":
        assert exit_status == 1
        assert "[KAFKA_EOS.LOST_PARTS]" in captured.err
        assert f"{ROWS} rows of version" in captured.err
        assert "1 of its 2 transactions was aborted" in captured.err
        assert gone in captured.err
        assert visible == list(range(ROWS))
    else:
        assert exit_status == 0
        assert "none of its rows is visible: run the same version again" in " ".join(captured.out.split())
        assert gone in caplog.text
        assert visible == []
        plan = session.plan(given)
        session.commit(given, plan, tasks_with_keys(given, plan))
        assert numbers(read_committed, servers, topic) == list(range(2 * ROWS))
    assert_nothing_open(servers, [topic])
