"""Topics with rows that Kafka compacts or deletes: what readers see then, and that writes and recovery do not mind.

Segments are as small as can be and the cleaner is always at work, so that seconds do what takes days elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import confluent_kafka
import pyarrow as pa
import pytest

from dead_writes import ROWS, abort_by_hand, die_at, prepared_by, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit.log_records import barrier_key
from kafka_eos_sink.commit.steps import AbortedTransactions, Procedure, Unseen
from kafka_eos_sink.commit.values import OffsetRange, TaskOutcome
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.executor import Executor
from kafka_testing import (
    ReadRecord,
    assert_nothing_open,
    await_markers,
    create_topic,
    read_committed,
    read_uncommitted,
    unique_topic,
    wait_until,
)

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
        self, given: session.WriteSettings, timestamp_ms: int | None = None
    ) -> tuple[session.Plan, list[session.TaskMessage]]:
        plan = session.plan(given)
        times = None if timestamp_ms is None else pa.array([timestamp_ms for _ in KEYS], pa.int64())
        columns = RecordColumns(
            key=pa.array([b"%d" % key for key in KEYS]),
            value=pa.array([b"%d" % given.batch.version for _ in KEYS]),
            timestamp=times,
        )
        task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
        rows = iter([Rows(topic=self.topic, partition=None, columns=columns)])
        return plan, [session.write_task(given, plan, task, rows)]

    def commit(self) -> int:
        """The number of the batch."""
        given = self._take()
        session.commit(given, *self.prepared(given))
        return given.batch.version

    def abort(self) -> int:
        given = self._take()
        _, messages = self.prepared(given)
        abort_by_hand(given, messages)
        return given.batch.version

    def _take(self) -> session.WriteSettings:
        given, self.next = self.next, varied(self.next, version=self.next.batch.version + 1)
        return given


def numbers(cluster: EmbeddedKafka, topic: str) -> list[int]:
    """Of the batches that readers of committed rows see, in order."""
    records = read_whole(lambda: read_committed(cluster.bootstrap_servers, topic))
    return [int(record.value or b"") for record in records]


def stored(cluster: EmbeddedKafka, topic: str) -> set[int]:
    """Of the batches of which any row is still there, aborted or not."""
    records = read_whole(lambda: read_uncommitted(cluster.bootstrap_servers, topic))
    return {int(record.value or b"") for record in records}


def read_whole(read: Callable[[], list[ReadRecord]]) -> list[ReadRecord]:
    """Again where retention has taken the first offset between the look for it and the fetch."""
    while True:
        try:
            return read()
        except confluent_kafka.KafkaException as gone:
            if gone.args[0].code() != confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                raise


def newest(cluster: EmbeddedKafka, topic: str) -> dict[bytes | None, int]:
    """What who reads everything keeps of each key.

    Not by kafka-python, which fails on a marker's batch once the cleaner has emptied it (StopIteration in `_contains_abort_marker`).
    """
    records = read_committed(cluster.bootstrap_servers, topic)
    return {record.key: int(record.value or b"") for record in records}


@pytest.mark.feature("readers")
def test_compaction_keeps_newest_committed_and_no_aborted_rows(
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
    assert newest(cleaning_kafka, topic) == {b"%d" % key: last for key in KEYS}
    assert_nothing_open(cleaning_kafka.bootstrap_servers, [topic])


@pytest.mark.feature("readers")
def test_compaction_keeps_decided_rows_that_are_not_yet_visible(
    cleaning_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(cleaning_kafka.bootstrap_servers, partitions=1, configs=COMPACTED)
    before, others = KeyedWrites(cleaning_kafka, topic), KeyedWrites(cleaning_kafka, topic)
    old = before.commit()
    decided = varied(before.next, version=1_000)
    plan, messages = before.prepared(decided)
    die_at("commit.decided", decided, plan, messages, monkeypatch)
    others.next = varied(others.next, version=2_000)

    def others_write() -> None:
        """Behind the open transaction, where readers do not get and the cleaner neither."""
        given = others._take()
        other_plan, other_messages = others.prepared(given)
        settings = replace(given, producer=replace(given.producer, delivery_timeout_ms=30_000))
        session.commit(settings, other_plan, other_messages)

    for _ in range(3):
        others_write()
    assert stored(cleaning_kafka, topic) == {old, 1_000, 2_000, 2_001, 2_002}
    session.plan(decided)  # recovers
    # Readers are let past all of them at once, and the cleaner too.
    assert newest(cleaning_kafka, topic) == dict.fromkeys((b"%d" % key for key in KEYS), 2_002)
    wait_until(lambda: 1_000 not in stored(cleaning_kafka, topic), "compaction", meanwhile=others_write)
    assert session.commit(decided, *before.prepared(decided)) is None  # committed, although nothing of it is left
    assert 1_000 not in stored(cleaning_kafka, topic)
    assert_nothing_open(cleaning_kafka.bootstrap_servers, [topic])


def test_planner_that_saw_forgotten_decision_writes_its_version(cleaning_kafka: EmbeddedKafka) -> None:
    """The planner reads on where it stopped, and the cleaner has removed the tombstones before it gets there."""
    servers, log = cleaning_kafka.bootstrap_servers, unique_topic("log")
    create_topic(servers, log, partitions=16, configs=COMPACTED)
    topic = create_topic(servers)
    given = varied(write_settings(cleaning_kafka, topic), commit_log_topic=log)
    for _ in range(2):  # the second one is skipped, and reads the decision
        write_all(given)
    where = ["--bootstrap-servers", servers, "--commit-log-topic", log]
    assert main(["forget", "--yes", *where, "--write-id", given.write.id]) == 0
    fitting = (varied(given, write_id=f"other-{number}") for number in itertools.count())
    other = next(each for each in fitting if each.write.commit_log[1] == given.write.commit_log[1])
    versions = itertools.count(1)

    def forgotten() -> bool:
        keys = {record.key or b"" for record in read_uncommitted(servers, log)}
        # The barrier stays: so a later run can begin.
        return {key for key in keys if given.write.id.encode() in key} == {barrier_key(given.write.id)}

    def go_on() -> None:
        session.plan(varied(other, version=next(versions)))

    wait_until(forgotten, "the cleaner", meanwhile=go_on)
    assert {message.outcome for message in write_all(given)} == {TaskOutcome.PREPARED}
    assert len(read_committed(servers, topic)) == 4 * ROWS


@pytest.mark.feature("readers")
def test_rows_deleted_by_retention_are_not_rewritten(cleaning_kafka: EmbeddedKafka) -> None:
    topic = create_topic(cleaning_kafka.bootstrap_servers, partitions=1, configs=DELETED)
    writes = KeyedWrites(cleaning_kafka, topic)
    given = writes.next
    number = writes.commit()
    assert set(numbers(cleaning_kafka, topic)) <= {number}
    wait_until(lambda: not stored(cleaning_kafka, topic), "retention")
    assert session.commit(given, *writes.prepared(given)) is None
    assert stored(cleaning_kafka, topic) == set()
    assert_nothing_open(cleaning_kafka.bootstrap_servers, [topic])
    following = writes.commit()
    assert set(numbers(cleaning_kafka, topic)) <= {following}


@pytest.mark.feature("readers")
def test_rows_older_than_retention_are_written_then_deleted(
    cleaning_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention goes by the timestamps that the rows have, and does not wait for the end of their transaction."""
    topic = create_topic(cleaning_kafka.bootstrap_servers, partitions=1, configs=DELETED)
    writes = KeyedWrites(cleaning_kafka, topic)
    given = writes.next
    plan, messages = writes.prepared(given, timestamp_ms=1_500_000_000_000)
    die_at("commit.decided", given, plan, messages, monkeypatch)
    wait_until(lambda: not stored(cleaning_kafka, topic), "retention")
    session.plan(given)
    assert session.commit(given, *writes.prepared(given)) is None
    assert_nothing_open(cleaning_kafka.bootstrap_servers, [topic])
    following = writes.commit()
    assert set(numbers(cleaning_kafka, topic)) <= {following}


def test_aborted_rows_deleted_by_cleaner_are_not_visible(
    cleaning_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the records the cleaner forgets that their transaction was aborted; at their offsets there is somebody else's."""
    servers = cleaning_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1, configs=COMPACTED)
    writes, others = KeyedWrites(cleaning_kafka, topic), KeyedWrites(cleaning_kafka, topic)
    given = varied(writes.next, version=1_000)
    plan, messages = writes.prepared(given)
    die_at("commit.decided", given, plan, messages, monkeypatch)
    abort_by_hand(given, messages)
    others.next = varied(others.next, version=2_000)
    wait_until(lambda: 1_000 not in stored(cleaning_kafka, topic), "compaction", meanwhile=others.commit)
    where = ["--bootstrap-servers", servers, "--write-id", given.write.id]
    assert main(["resolve", "--yes", *where, "--version", "1000", "--as", "rewrite"]) == 0, capsys.readouterr().err
    writes.next = given
    writes.commit()
    assert numbers(cleaning_kafka, topic)[-len(KEYS) :] == [1_000] * len(KEYS)
    assert_nothing_open(servers, [topic])


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
    other_keys = KeyedWrites(cleaning_kafka, topic)
    given = write_settings(cleaning_kafka, topic)
    plan = session.plan(given)
    messages = tasks_with_keys(given, plan)
    die_at("commit.between_ends" if lost == "some" else "commit.decided", given, plan, messages, monkeypatch)
    await_markers(servers)
    abort_by_hand(given, messages[1:] if lost == "some" else messages)
    other_keys.next = varied(other_keys.next, version=2_000)
    cleaned = set(range(0 if lost == "all" else ROWS, 2 * ROWS))
    wait_until(lambda: stored(cleaning_kafka, topic).isdisjoint(cleaned), "compaction", meanwhile=other_keys.commit)
    (part,) = prepared_by(messages)[1].offsets
    gone = (
        f"{ROWS} of {ROWS} rows of Spark partition 1 are gone from {topic}-0 [{part.first_offset}..{part.last_offset}]"
    )
    exit_status = main(["recover", "--yes", "--bootstrap-servers", servers, "--write-id", given.write.id])
    captured = capsys.readouterr()
    visible = sorted(number for number in numbers(cleaning_kafka, topic) if number < 2_000)
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
        assert set(range(2 * ROWS)) <= set(numbers(cleaning_kafka, topic))
    assert_nothing_open(servers, [topic])


def test_rows_are_found_when_compaction_removed_earlier_offsets(cleaning_kafka: EmbeddedKafka) -> None:
    """The first row is superseded and gone, and somebody else's is the first one left between its offsets."""
    servers = cleaning_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1, configs=COMPACTED)
    ours = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": topic})
    others = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True})

    def write_one(producer: confluent_kafka.Producer, key: bytes) -> None:
        producer.produce(topic, b"0", key)
        assert producer.flush(30) == 0

    ours.init_transactions(30)
    ours.begin_transaction()
    write_one(ours, b"hot")
    write_one(others, b"hot")
    write_one(ours, b"ours")
    with NetworkClient(write_settings(cleaning_kafka, topic).client) as client:
        admin = Admin(client)
        producers = admin.describe_producers([(topic, 0)], client.clock() + 30_000)[topic, 0]
        (owner,) = (each.producer_id for each in producers if each.current_txn_start_offset >= 0)
        ours.commit_transaction(30)
        wait_until(
            lambda: read_committed(servers, topic)[0].offset > 0,
            "compaction",
            meanwhile=lambda: write_one(others, b"x"),
        )
        part = OffsetRange(topic=topic, partition=0, first_offset=0, last_offset=2)
        executor = Executor(admin, ("none", 0), ProducerConfig(delivery_timeout_ms=30_000))

        assert executor.run(asked(part, owner)) == ()  # it is there, and not called aborted
        assert executor.run(asked(part, owner + 1_000)) is Unseen.GONE  # of that one there is nothing


def asked(part: OffsetRange, owner: int) -> Procedure[tuple[tuple[int, int], ...] | Unseen]:
    answer = yield from AbortedTransactions((part,), (owner,))
    return answer[part]  # type: ignore[no-any-return]


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "aborted"])
def test_rows_are_found_when_retention_removed_earlier_offsets(kafka: EmbeddedKafka, commits: bool) -> None:
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1)
    ours = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": topic})
    ours.init_transactions(30)
    ours.begin_transaction()
    for number in range(3):
        ours.produce(topic, b"%d" % number)
        assert ours.flush(30) == 0
    with NetworkClient(write_settings(kafka, topic).client) as client:
        admin = Admin(client)
        (producer,) = admin.describe_producers([(topic, 0)], client.clock() + 30_000)[topic, 0]
        part = OffsetRange(topic=topic, partition=0, first_offset=0, last_offset=2)
        executor = Executor(admin, ("none", 0), ProducerConfig(delivery_timeout_ms=30_000))
        assert executor.run(asked(part, producer.producer_id)) is Unseen.BLOCKED
        ours.commit_transaction(30) if commits else ours.abort_transaction(30)
        wait_until(lambda: executor.run(asked(part, producer.producer_id)) is not Unseen.BLOCKED, "the marker")
        deleter = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
        for start, left in ((2, True), (3, False)):
            where = confluent_kafka.TopicPartition(topic, 0, start)
            deleter.delete_records([where])[where].result(30)
            found = executor.run(asked(part, producer.producer_id))
            assert found == ((() if commits else ((producer.producer_id, 0),)) if left else Unseen.GONE)
