"""Decided transactions that Kafka aborted before they could be committed: their rows are copied from the log, or nothing is.

Without Spark, and without the source that the rows came from.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from random import Random
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from dead_writes import (
    ROWS,
    abort_by_hand,
    abort_open,
    decided,
    delete_rows,
    die_at,
    prepared_by,
    rows_of,
    tasks,
    varied,
    write_all,
    write_settings,
)
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit import log_records
from kafka_eos_sink.commit.log_records import part_record
from kafka_eos_sink.commit.restore import MOST_COPIES
from kafka_eos_sink.commit.steps import Copied, Copy, CopyRecords, End, EndTransactions, Gone, InitProducerId, Procedure
from kafka_eos_sink.commit.transactional_id import random_write_id, task_transactional_id
from kafka_eos_sink.commit.values import OffsetRange, TaskOutcome
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import DecisionPendingError, KafkaEosError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.record_columns import HEADERS_TYPE, RecordColumns
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.executor import Executor
from kafka_eos_sink.runtime.failpoints import VARIABLE
from kafka_eos_sink.runtime.record_copier import RecordCopier
from kafka_testing import (
    PATIENCE_S,
    ReadRecord,
    assert_nothing_open,
    await_markers,
    change_config,
    create_topic,
    read_committed,
    read_uncommitted,
    started_producer,
    wait_until,
)

TASKS = 3
HeldCommit = Callable[
    [session.WriteSettings, session.Plan, Sequence[session.TaskMessage], Callable[[], object]],
    session.Decision | None,
]


def initialise_by_hand(given: session.WriteSettings, messages: Sequence[session.TaskMessage]) -> None:
    """As a person or a program does that uses the sink's transactional ids."""
    with NetworkClient(given.client) as client:
        for entry in prepared_by(messages):
            Admin(client).init_producer_id(entry.identity.transactional_id, 60_000, client.clock() + 30_000)


def await_timeout(given: session.WriteSettings, messages: Sequence[session.TaskMessage]) -> None:
    ids = [entry.identity.transactional_id for entry in prepared_by(messages)]
    with NetworkClient(given.client) as client:

        def have_timed_out() -> bool:
            found = Admin(client).describe_transactions(ids, client.clock() + 30_000)
            return all(state is not None and state.transaction_state == "CompleteAbort" for state in found.values())

        wait_until(have_timed_out, f"the timeout of {ids}")


LOSE = {"end": abort_by_hand, "initialise": initialise_by_hand, "timeout": await_timeout}


def recover(kafka: EmbeddedKafka, given: session.WriteSettings, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run the command, which has neither the write's options nor its rows, and return its newest decision."""
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--write-id", given.write.id]
    assert main(["recover", "--yes", *where, "--json"]) == 0, capsys.readouterr().err
    (decision,) = json.loads(capsys.readouterr().out)["versions"]
    found: dict[str, Any] = decision
    return found


def values(kafka: EmbeddedKafka, topic: str) -> Counter[int]:
    return Counter(int(record.value or b"") for record in read_committed(kafka.bootstrap_servers, topic))


def assert_every_row_once(
    kafka: EmbeddedKafka, given: session.WriteSettings, count: int = TASKS, *, topic: str | None = None
) -> None:
    assert values(kafka, topic or given.batch.topic or "") == Counter(range(count * ROWS))
    assert_none_of_ours_open(kafka, given)


def assert_none_of_ours_open(kafka: EmbeddedKafka, given: session.WriteSettings) -> None:
    assert_nothing_open(kafka.bootstrap_servers, [given.batch.topic or ""], of=given.write.id)


def assert_next_run_skips(given: session.WriteSettings) -> None:
    """Whatever rows its source has now: here those of other tasks."""
    plan = session.plan(given)
    task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
    message = session.write_task(given, plan, task, iter([rows_of(given.batch.topic or "", 77)]))
    assert message.outcome is TaskOutcome.ALREADY_COMMITTED
    assert session.commit(given, plan, [message]) is None


@pytest.mark.parametrize("lost", ["some", "all"])
@pytest.mark.parametrize("lose", LOSE)
def test_recover_restores_aborted_rows_without_spark(
    any_kafka: EmbeddedKafka,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    lose: str,
    lost: str,
) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    given = write_settings(any_kafka, topic)
    if lose == "timeout":
        given = replace(given, producer=ProducerConfig(transaction_timeout_ms=10_000))
    messages = decided(given, "commit.between_ends" if lost == "some" else "commit.decided", monkeypatch, TASKS)
    await_markers(any_kafka.bootstrap_servers)
    LOSE[lose](given, messages[1:] if lost == "some" else messages)
    assert sum(values(any_kafka, topic).values()) == (ROWS if lost == "some" else 0)

    decision = recover(any_kafka, given, capsys)
    assert (decision["version"], decision["state"]) == (given.batch.version, "finished")
    assert decision["finished_now"]
    assert_every_row_once(any_kafka, given)
    assert_next_run_skips(given)
    assert not recover(any_kafka, given, capsys)["finished_now"]
    assert_every_row_once(any_kafka, given)
    write_all(varied(given, version=given.batch.version + 1), 1)
    assert sum(values(any_kafka, topic).values()) == (TASKS + 1) * ROWS


def test_next_run_restores_rows_before_it_skips(any_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    given = write_settings(any_kafka, topic)
    abort_by_hand(given, decided(given, "commit.between_ends", monkeypatch, TASKS)[1:])
    assert_next_run_skips(given)
    assert_every_row_once(any_kafka, given)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_copies_equal_the_aborted_records(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    """Two tasks and a losing attempt lie in turn in the same ranges. Only what the decision names is copied, in its order.

    The buffer holds two calls' rows, so no attempt is further ahead of the log than that.
    """
    servers = kafka.bootstrap_servers
    topic = create_topic(servers, partitions=2)
    producer = ProducerConfig(batch_size=2_000, buffer_memory=20_000, compression=compression)
    given = replace(write_settings(kafka, topic), producer=producer)
    plan = session.plan(given)
    in_turn = Barrier(3)

    def rows(attempt: int) -> Iterator[Rows]:
        for number in range(10):
            in_turn.wait(60)
            yield rows_of_all_kinds(topic, attempt, number)

    def written(attempt: int) -> session.TaskMessage:
        task = session.TaskIdentity(partition=min(attempt, 1), attempt_number=0, task_attempt_id=attempt)
        return session.write_task(given, plan, task, rows(attempt))

    with ThreadPoolExecutor(3) as pool:
        messages = list(pool.map(written, range(3)))
    originals = read_uncommitted(servers, topic)
    assert len(originals) == 3 * 10 * KINDS
    assert {attempt for attempt, _ in groupby(originals, attempt_of)} == {0, 1, 2}
    assert len(list(groupby(originals, attempt_of))) > 3 * 2 * 2, "the attempts do not lie in turn"
    die_at("commit.decided", given, plan, messages[:2], monkeypatch)
    abort_open(given)
    session.plan(given)
    copies = read_committed(servers, topic)
    for attempt in (0, 1):
        assert_equal_but_for_offsets(
            [each for each in copies if attempt_of(each) == attempt],
            [each for each in originals if attempt_of(each) == attempt],
        )
    assert len(copies) == 2 * 10 * KINDS
    assert_none_of_ours_open(kafka, given)


KINDS = 120


def rows_of_all_kinds(topic: str, attempt: int, number: int) -> Rows:
    """Keys, values and headers that are there, empty or null, and timestamps of their own.

    Nothing makes the values smaller, so that every call fills a batch for each partition, whatever the compression.
    """
    random = Random(attempt * 100 + number)
    headers = [
        [{"key": "attempt", "value": b"%d" % attempt}, {"key": "h", "value": None if each % 3 else b""}][: 1 + each % 2]
        for each in range(KINDS)
    ]
    columns = RecordColumns(
        key=pa.array([None if each % 5 == 0 else b"%d" % (each % 7) for each in range(KINDS)], pa.binary()),
        value=pa.array([None if each % 11 == 0 else random.randbytes(60) for each in range(KINDS)], pa.binary()),
        headers=pa.array(headers, HEADERS_TYPE),
        timestamp=pa.array([1_600_000_000_000 + each for each in range(KINDS)], pa.int64()),
    )
    return Rows(topic=topic, partition=None, columns=columns)


def attempt_of(record: ReadRecord) -> int:
    return int(dict(record.headers)["attempt"] or b"")


def assert_equal_but_for_offsets(copies: list[ReadRecord], originals: list[ReadRecord]) -> None:
    """In each partition the same records in the same order."""
    assert [replace(each, offset=0) for each in copies] == [replace(each, offset=0) for each in originals]


@pytest.mark.parametrize("source", [b"first", b"second"])
@pytest.mark.parametrize("slots", [(0, 0), (0, 1)], ids=["of another epoch", "of another producer"])
def test_records_of_others_in_the_ranges_are_not_copied(
    any_kafka: EmbeddedKafka, slots: tuple[int, int], source: bytes
) -> None:
    """Zombies and later attempts."""
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    given = write_settings(any_kafka, topic)
    session.plan(given)  # makes the commit log
    with NetworkClient(given.client) as client:
        executor = Executor(Admin(client), given.write.commit_log, given.producer)

        def aborted(slot: int, value: bytes) -> ProducerIdentity:
            identity: ProducerIdentity = executor.run(initialised(task_transactional_id(given.write.id, 0, slot)))
            producer = Producer(
                executor.admin,
                given.producer,
                transactional_id=identity.transactional_id,
                transaction_version=identity.transaction_version,
            )
            with closing(producer):
                producer.init(identity.producer_id, identity.producer_epoch)
                producer.begin()
                columns = RecordColumns(value=pa.array([value] * ROWS))
                producer.write(Rows(topic=topic, partition=None, columns=columns))
                producer.flush()
                assert producer.abort(client.clock() + 30_000) is not None
            await_markers(any_kafka.bootstrap_servers)
            return identity

        found = {value: aborted(slot, value) for slot, value in zip(slots, [b"first", b"second"], strict=True)}
        assert (found[b"first"].producer_id == found[b"second"].producer_id) == (slots == (0, 0))
        everything = OffsetRange(topic=topic, partition=0, first_offset=0, last_offset=2 * ROWS)
        part = part_record(given.write.id, given.batch.query_id, 0, given.batch.version, 0)
        to: ProducerIdentity = executor.run(initialised(task_transactional_id(given.write.id, 0, 7)))
        copied = executor.run(copied_and_committed(Copy(to, found[source], (everything,), part)))
        assert copied.written.rows == ROWS
    assert [record.value for record in read_committed(any_kafka.bootstrap_servers, topic)] == [source] * ROWS
    assert_none_of_ours_open(any_kafka, given)


def initialised(transactional_id: str) -> Procedure[ProducerIdentity]:
    identity = yield from InitProducerId(transactional_id, 60_000)
    return identity


def copied_and_committed(copy: Copy) -> Procedure[Copied]:
    (copied,) = yield from CopyRecords((copy,))
    (result,) = yield from EndTransactions((End(identity=copy.identity, commit=True),))
    assert result.error == 0
    found: Copied = copied
    return found


@pytest.mark.parametrize("times", [1, MOST_COPIES])
def test_copies_lost_before_commit_are_copied_again_in_one_run(
    any_kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Decisions of many pieces follow each other in W.driver's transactions. After four copies the run fails, and the next goes on."""
    monkeypatch.setattr("kafka_eos_sink.commit.log_records.MAX_RECORD_BYTES", 200)
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    given = write_settings(any_kafka, topic)
    abort_by_hand(given, decided(given, "commit.between_ends", monkeypatch, TASKS)[1:])
    held = tmp_path / "copied"
    monkeypatch.setenv(VARIABLE, f"restore.decided=wait:{held}")
    with ThreadPoolExecutor(1) as driver:
        running = driver.submit(session.plan, given)
        for number in range(times):
            wait_until(lambda: held.exists() or running.done(), f"decision {number + 1} of copies")
            abort_open(given)
            if number == times - 1:
                monkeypatch.delenv(VARIABLE)
            held.unlink()
        if times == MOST_COPIES:
            with pytest.raises(
                DecisionPendingError, match=rf"DECIDED_NOT_FINISHED\].*copied from the log {times} times"
            ):
                running.result(PATIENCE_S)
            assert values(any_kafka, topic) == Counter(range(ROWS))
        else:
            running.result(PATIENCE_S)
    assert_next_run_skips(given)
    assert_every_row_once(any_kafka, given)


def test_rows_of_all_topics_of_a_task_are_restored(any_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose brokers compress and stamp batches themselves."""
    servers = any_kafka.bootstrap_servers
    configs: list[dict[str, str]] = [{"compression.type": "gzip"}, {"message.timestamp.type": "LogAppendTime"}]
    topics = [create_topic(servers, partitions=1, configs=config) for config in configs]
    given = varied(write_settings(any_kafka, topics[0]), topic=None)
    plan = session.plan(given)
    task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
    messages = [session.write_task(given, plan, task, iter([rows_of(topic, 0) for topic in topics]))]
    die_at("commit.decided", given, plan, messages, monkeypatch)
    abort_by_hand(given, messages)
    began_ms = time.time_ns() // 1_000_000
    session.plan(given)
    for topic in topics:
        assert_every_row_once(any_kafka, given, 1, topic=topic)
    assert {record.timestamp < began_ms for record in read_committed(servers, topics[0])} == {True}
    assert {record.timestamp >= began_ms for record in read_committed(servers, topics[1])} == {True}


@pytest.mark.parametrize(
    ("setting", "value", "usual"),
    [("max.message.bytes", "80", "1048588"), ("message.timestamp.before.max.ms", "1", "9223372036854775807")],
)
def test_copies_that_the_topic_refuses_leave_nothing_open(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, usual: str
) -> None:
    """Until the topic takes them again, as it took the originals."""
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    given = write_settings(kafka, topic)
    messages = decided(given, "commit.between_ends", monkeypatch, TASKS)
    abort_by_hand(given, messages[1:])
    change_config(kafka.bootstrap_servers, "topic", topic, setting, value)
    with pytest.raises(DecisionPendingError, match=rf"DECIDED_NOT_FINISHED\].*could not be copied.*{topic}"):
        session.plan(given)
    assert values(kafka, topic) == Counter(range(ROWS))
    assert_none_of_ours_open(kafka, given)
    change_config(kafka.bootstrap_servers, "topic", topic, setting, usual)
    assert_next_run_skips(given)
    assert_every_row_once(kafka, given)


def lost_to_deletion(kafka: EmbeddedKafka, point: str, monkeypatch: pytest.MonkeyPatch) -> session.WriteSettings:
    """A write of a partition per task. All its transactions but those committed before ``point`` are aborted, and the records of the
    last one are deleted."""
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers, partitions=TASKS))
    plan = session.plan(given)
    messages = [partition_task(given, plan, task) for task in range(TASKS)]
    die_at(point, given, plan, messages, monkeypatch)
    await_markers(kafka.bootstrap_servers)
    abort_by_hand(given, messages[1:] if point == "commit.between_ends" else messages)
    delete_rows(kafka, messages[-1:])
    return given


def partition_task(given: session.WriteSettings, plan: session.Plan, task: int) -> session.TaskMessage:
    topic = given.batch.topic or ""
    rows = replace(rows_of(topic, task), partition=pa.array([task] * ROWS, pa.int32()))
    identity = session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task)
    return session.write_task(given, plan, identity, iter([rows]))


def test_deleted_records_raise_lost_parts_and_nothing_is_copied(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = kafka.bootstrap_servers
    given = lost_to_deletion(kafka, "commit.between_ends", monkeypatch)
    topic = given.batch.topic or ""
    where = ["--bootstrap-servers", servers, "--write-id", given.write.id]
    for _ in range(2):
        assert main(["recover", "--yes", *where]) == 1
        said = capsys.readouterr().err
        assert "[KAFKA_EOS.LOST_PARTS]" in said
        lost, _, gone = said.partition("can be copied from the log: ")
        assert f"{2 * ROWS} rows of version 3 of write id {given.write.id!r} are missing from the topic" in lost
        assert f"2 of its {TASKS} transactions were aborted" in lost
        assert f"in {topic}-1 [0..{ROWS - 1}], {topic}-2 [" in lost
        assert "Rows visible: maybe. Safe to run again: only with the same txnAppId and txnVersion." in gone
        assert f"{ROWS} rows of Spark partition 2: {topic}-2 [0..{ROWS - 1}]" in gone
        assert f"{topic}-1" not in gone  # whose records are still there
        assert f"kafka-eos resolve {given.client.command_options} --write-id {given.write.id} --version 3" in said
        with pytest.raises(DecisionPendingError, match="LOST_PARTS"):
            session.plan(given)
        assert values(kafka, topic) == Counter(range(ROWS))
        assert_none_of_ours_open(kafka, given)
    assert main(["resolve", "--yes", *where, "--version", "3", "--as", "committed"]) == 0
    assert_next_run_skips(given)
    assert values(kafka, topic) == Counter(range(ROWS))
    assert_none_of_ours_open(kafka, given)


def test_version_of_which_nothing_can_be_copied_is_void(
    kafka: EmbeddedKafka,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even those of its rows that are still there."""
    given = lost_to_deletion(kafka, "commit.decided", monkeypatch)
    topic = given.batch.topic or ""
    assert recover(kafka, given, capsys)["state"] == "void"
    assert f"{ROWS} rows of Spark partition 2: {topic}-2 [0..{ROWS - 1}]" in caplog.text
    assert values(kafka, topic) == Counter()
    assert_none_of_ours_open(kafka, given)
    write_all(given, TASKS)
    assert_every_row_once(kafka, given)


@pytest.mark.parametrize("lost", [0, 1, TASKS])
def test_decision_of_the_version_before_is_finished(
    any_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Its driver has written log format 2, without the number of rows of each range, and died."""

    def fields_of_format_2(decision: Any) -> dict[str, Any]:
        fields = decision_fields(decision)
        for entry in fields["transactions"]:
            entry["offsets"] = [part[:4] for part in entry["offsets"]]
        return fields

    given = write_settings(any_kafka, create_topic(any_kafka.bootstrap_servers, partitions=3))
    decision_fields = log_records._decision_fields
    with monkeypatch.context() as older:
        older.setattr(log_records, "FORMAT_VERSION", 2)
        older.setattr(log_records, "_decision_fields", fields_of_format_2)
        messages = decided(given, "commit.decided", monkeypatch, TASKS)
    abort_by_hand(given, messages[:lost])
    assert_next_run_skips(given)
    assert_every_row_once(any_kafka, given)
    write_all(varied(given, version=given.batch.version + 1), 1)
    assert sum(values(any_kafka, given.batch.topic or "").values()) == (TASKS + 1) * ROWS


@pytest.mark.parametrize("point", ["commit.between_ends", "commit.decided"])
def test_deleted_records_are_unresolved_below_version_2(
    kafka_tv0: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """There, the coordinator's report of an abort may be of a later transaction (LATE ADD)."""
    given = lost_to_deletion(kafka_tv0, point, monkeypatch)
    topic = given.batch.topic or ""
    visible = values(kafka_tv0, topic)
    where = ["--bootstrap-servers", kafka_tv0.bootstrap_servers, "--write-id", given.write.id]
    assert main(["recover", "--yes", *where]) == 1
    said = capsys.readouterr().err
    assert "[KAFKA_EOS.UNRESOLVED]" in said
    assert f"records in {topic}-2 [0..{ROWS - 1}] are gone, and no coordinator reports how they ended" in said
    assert f"aborted and not copied: {topic}-" in said
    assert values(kafka_tv0, topic) == visible
    assert_none_of_ours_open(kafka_tv0, given)


@pytest.fixture
def held_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldCommit]:
    """Runs a commit and, behind its decision, something else."""
    held = tmp_path / "decided"
    monkeypatch.setenv(VARIABLE, f"commit.decided=wait:{held}")
    with ThreadPoolExecutor(1) as driver:

        def commit(
            given: session.WriteSettings,
            plan: session.Plan,
            messages: Sequence[session.TaskMessage],
            meanwhile: Callable[[], object],
        ) -> session.Decision | None:
            running = driver.submit(session.commit, given, plan, messages)
            try:
                wait_until(lambda: held.exists() or running.done(), "the decision")
                meanwhile()
            finally:
                held.unlink(missing_ok=True)
            return running.result(PATIENCE_S)

        yield commit


@pytest.mark.parametrize("lost", ["some", "all"])
@pytest.mark.parametrize("txn_app_id", ["given", "none"])
def test_commit_restores_rows_aborted_behind_its_decision(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], held_commit: HeldCommit, txn_app_id: str, lost: str
) -> None:
    """As when a commit outlives the transaction timeout. The job ends in order, and no other needs to run."""
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    given = write_settings(any_kafka, topic)
    if txn_app_id == "none":
        given = varied(given, write_id=random_write_id(None, str(uuid.uuid4())))
    plan = session.plan(given)
    messages = tasks(given, plan, TASKS)
    aborted = messages[1:] if lost == "some" else messages
    decision = held_commit(given, plan, messages, lambda: abort_by_hand(given, aborted))
    assert decision is not None
    assert decision.copies == 1
    assert_every_row_once(any_kafka, given)
    if txn_app_id == "given":
        assert_next_run_skips(given)
    else:
        # Nothing is left behind for others to look at.
        where = ["--bootstrap-servers", any_kafka.bootstrap_servers, "--write-id", given.write.id]
        assert main(["recover", "--yes", *where]) == 0
        assert "The commit log holds no decision" in capsys.readouterr().out
    assert_every_row_once(any_kafka, given)


def test_commit_without_txn_app_id_needs_new_run_if_rows_gone(kafka: EmbeddedKafka, held_commit: HeldCommit) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=TASKS)
    write_id = random_write_id(None, str(uuid.uuid4()))
    given = varied(write_settings(kafka, topic, write_id=write_id))
    plan = session.plan(given)
    messages = [partition_task(given, plan, task) for task in range(TASKS)]

    def lose() -> None:
        abort_by_hand(given, messages)
        delete_rows(kafka, messages[-1:])

    with pytest.raises(DecisionPendingError, match=r"ALL_PARTS_LOST\].*Run the job again"):
        held_commit(given, plan, messages, lose)
    session.abort(given, plan, messages)
    assert values(kafka, topic) == Counter()
    assert_none_of_ours_open(kafka, given)


@pytest.mark.parametrize("txn_app_id", ["given", "none"])
def test_version_that_a_commit_called_void_stays_void(
    any_kafka: EmbeddedKafka,
    held_commit: HeldCommit,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    txn_app_id: str,
) -> None:
    """Whoever runs the job again, as the error says, has no row twice, even if the records were unreadable for a while only."""
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    first, again = (job_with_id(any_kafka, topic, txn_app_id) for _ in range(2))
    plan = session.plan(first)
    messages = tasks(first, plan, TASKS)
    with monkeypatch.context() as patched:
        patched.setattr(RecordCopier, "_fetch", lambda *_: Gone("the leader returns nothing"))
        with pytest.raises(DecisionPendingError, match=r"ALL_PARTS_LOST\].*Run the "):
            held_commit(first, plan, messages, lambda: abort_by_hand(first, messages))
    # The abort knows its own driver, and ends what a killed worker has left.
    leave_open(first, TASKS)
    assert session.abort(first, plan, messages) is not None
    assert "newer driver" not in caplog.text
    assert_none_of_ours_open(any_kafka, first)
    assert values(any_kafka, topic) == Counter()
    monkeypatch.delenv(VARIABLE)
    write_all(first if txn_app_id == "given" else again, TASKS)
    assert_every_row_once(any_kafka, first)


def leave_open(given: session.WriteSettings, partition: int) -> None:
    """What a worker leaves that was killed before its message."""
    with NetworkClient(given.client) as client:
        name = task_transactional_id(given.write.id, partition, 5)
        with closing(started_producer(client, name, given.producer)) as producer:
            producer.write(rows_of(given.batch.topic or "", partition))
            producer.flush()


def test_lost_part_behind_an_open_attempt_is_copied_at_once(
    any_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery ends the attempt only after the decision is finished, so it must not wait for readers to pass it."""
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    given = write_settings(any_kafka, topic)
    plan = session.plan(given)
    leave_open(given, 0)
    messages = tasks(given, plan, TASKS)
    die_at("commit.decided", given, plan, messages, monkeypatch)
    abort_by_hand(given, messages)
    given = replace(given, producer=ProducerConfig(delivery_timeout_ms=600_000))
    session.plan(given)  # within the test's time limit, long before the delivery timeout
    assert_every_row_once(any_kafka, given)


def job_with_id(kafka: EmbeddedKafka, topic: str, txn_app_id: str) -> session.WriteSettings:
    if txn_app_id == "given":
        return write_settings(kafka, topic)
    write_id = random_write_id(None, str(uuid.uuid4()))
    return varied(write_settings(kafka, topic, write_id=write_id))


@pytest.mark.parametrize("txn_app_id", ["given", "none"])
def test_abort_ends_copies_that_a_failed_commit_has_decided(
    any_kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, txn_app_id: str
) -> None:
    """A job without txnAppId has no next run that would."""
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    given = job_with_id(any_kafka, topic, txn_app_id)
    plan = session.plan(given)
    messages = tasks(given, plan, TASKS)
    held = tmp_path / "decided"
    monkeypatch.setenv(VARIABLE, f"commit.decided=wait:{held};restore.decided=raise")
    with ThreadPoolExecutor(1) as driver:
        running = driver.submit(session.commit, given, plan, messages)
        wait_until(lambda: held.exists() or running.done(), "the decision")
        abort_by_hand(given, messages)
        held.unlink()
        with pytest.raises(KafkaEosError):
            running.result(PATIENCE_S)
    monkeypatch.delenv(VARIABLE)
    assert session.abort(given, plan, messages) is not None
    assert_every_row_once(any_kafka, given)


def test_tasks_that_wrote_in_turn_are_copied_in_one_pass(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    count, slabs, rows = 16, 12, 8
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    given = replace(write_settings(kafka, topic), producer=ProducerConfig(linger_ms=0))
    plan = session.plan(given)
    in_turn = Barrier(count)

    def slabs_of(task: int) -> Iterator[Rows]:
        for number in range(slabs):
            in_turn.wait(60)
            value = pa.array([(b"%d.%d.%d" % (task, number, each)).ljust(5_000) for each in range(rows)], pa.binary())
            yield Rows(topic=topic, partition=None, columns=RecordColumns(value=value))

    def written(task: int) -> session.TaskMessage:
        identity = session.TaskIdentity(partition=task, attempt_number=0, task_attempt_id=task)
        return session.write_task(given, plan, identity, slabs_of(task))

    with ThreadPoolExecutor(count) as pool:
        messages = list(pool.map(written, range(count)))
    die_at("commit.decided", given, plan, messages, monkeypatch)
    abort_by_hand(given, messages)
    fetched: list[int] = []
    fetch = RecordCopier._fetch

    def counting(self: RecordCopier, where: tuple[str, int], offset: int) -> Any:
        found = fetch(self, where, offset)
        assert not isinstance(found, Gone)
        fetched.extend(len(block.records) for _, block in found.batches)
        return found

    monkeypatch.setattr(RecordCopier, "_fetch", counting)
    session.plan(given)
    copies = read_committed(kafka.bootstrap_servers, topic)
    assert len({record.value for record in copies}) == len(copies) == count * slabs * rows
    assert sum(fetched) < 1.5 * count * slabs * rows * 5_000
