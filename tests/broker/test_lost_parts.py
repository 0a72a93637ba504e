"""Decided transactions that Kafka aborted before they could be committed: their rows are copied from the log, or nothing is.

Without Spark, and without the source that the rows came from.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from kafka_eos_sink.commit.transactional_id import random_write_id
from kafka_eos_sink.commit.values import TaskOutcome
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import DecisionPendingError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import HEADERS_TYPE, RecordColumns
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.failpoints import VARIABLE
from kafka_testing import (
    PATIENCE_S,
    ReadRecord,
    assert_nothing_open,
    await_markers,
    change_config,
    create_topic,
    read_committed,
    read_uncommitted,
    wait_until,
)

TASKS = 3
HeldCommit = Callable[
    [session.WriteSettings, session.Plan, Sequence[session.TaskMessage], Callable[[], object]],
    session.Decision | None,
]


def await_timeout(given: session.WriteSettings, messages: Sequence[session.TaskMessage]) -> None:
    ids = [entry.identity.transactional_id for entry in prepared_by(messages)]
    with NetworkClient(given.client) as client:

        def have_timed_out() -> bool:
            found = Admin(client).describe_transactions(ids, client.clock() + 30_000)
            return all(state is not None and state.transaction_state == "CompleteAbort" for state in found.values())

        wait_until(have_timed_out, f"the timeout of {ids}")


LOSE = {"end": abort_by_hand, "timeout": await_timeout}


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


@pytest.mark.parametrize("compression", ["none", "zstd"])
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


def test_copies_that_the_topic_refuses_leave_nothing_open(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the topic takes them again, as it took the originals."""
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    given = write_settings(kafka, topic)
    messages = decided(given, "commit.between_ends", monkeypatch, TASKS)
    abort_by_hand(given, messages[1:])
    change_config(kafka.bootstrap_servers, "topic", topic, "max.message.bytes", "80")
    with pytest.raises(DecisionPendingError, match=rf"DECIDED_NOT_FINISHED\].*could not be copied.*{topic}"):
        session.plan(given)
    assert values(kafka, topic) == Counter(range(ROWS))
    assert_none_of_ours_open(kafka, given)
    change_config(kafka.bootstrap_servers, "topic", topic, "max.message.bytes", "1048588")
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
        assert f"{ROWS} rows of Spark partition 2: {topic}-2 [0..{ROWS - 1}]" in gone
        assert f"{topic}-1" not in gone  # whose records are still there
        with pytest.raises(DecisionPendingError, match="LOST_PARTS"):
            session.plan(given)
        assert values(kafka, topic) == Counter(range(ROWS))
        assert_none_of_ours_open(kafka, given)
    assert main(["resolve", "--yes", *where, "--version", "3", "--as", "committed"]) == 0
    assert_next_run_skips(given)
    assert values(kafka, topic) == Counter(range(ROWS))
    assert_none_of_ours_open(kafka, given)


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


@pytest.mark.parametrize(("txn_app_id", "lost"), [("given", "some"), ("none", "all")])
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
