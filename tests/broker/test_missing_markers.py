"""What a real Kafka holds open because a marker is missing heals in the next run, without a person."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import confluent_kafka.admin
import pyarrow as pa
import pytest

from dead_writes import ROWS, decided, die_at, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.commit.log_access import append_in_transaction, write_done
from kafka_eos_sink.commit.log_records import decision_records, part_record
from kafka_eos_sink.commit.steps import InitProducerId, LogRecord, Procedure
from kafka_eos_sink.commit.transactional_id import task_transactional_id
from kafka_eos_sink.commit.values import DecisionStatus, OffsetRange, Plan, PreparedTransaction, TaskOutcome
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import TransactionAbortedError
from kafka_eos_sink.operations import hanging
from kafka_eos_sink.operations.hanging import producers_on
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.identity import ProducerIdentity, TransactionMarker
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.executor import Executor
from kafka_testing import assert_nothing_open, create_topic, read_committed, unique_topic
from unmarked_transactions import (
    SIDE,
    abort_by_hand,
    begin,
    commit_at_coordinator,
    committed_without_a_marker,
    decision_of,
    produce_without_adding,
    unverified_partitions,
)

SETTINGS = ProducerConfig(delivery_timeout_ms=30_000)


def recover(kafka: EmbeddedKafka, write_id: str, *more: str) -> int:
    return main(["recover", "--bootstrap-servers", kafka.bootstrap_servers, "--write-id", write_id, *more])


def finishes(kafka: EmbeddedKafka, write_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing hangs, or is left open."""
    capsys.readouterr()
    assert recover(kafka, write_id, "--yes", "--json") == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["discarded"], found["hanging"]) == ([], {"held": [], "not_checked": []})
    assert shown.err == ""


def abort_as_printed(kafka: EmbeddedKafka, printed: str) -> None:
    """Do what the printed commands of ``kafka-transactions.sh abort`` do, with another client."""
    commands = [line.split() for line in printed.splitlines() if "kafka-transactions.sh" in line]
    assert commands
    for command in commands:
        assert command[:4] == ["kafka-transactions.sh", "--bootstrap-server", kafka.bootstrap_servers, "abort"]
        given = dict(zip(command[4::2], command[5::2], strict=True))
        where, start = (given["--topic"], int(given["--partition"])), int(given["--start-offset"])
        with connected(kafka.bootstrap_servers) as admin:
            producers = admin.describe_producers([where], admin.client.clock() + 30_000)[where]
        (held,) = (each for each in producers if each.current_txn_start_offset == start)
        abort_by_hand(kafka, where, held.producer_id, held.producer_epoch)


def resolve_as_committed(kafka: EmbeddedKafka, given: session.WriteSettings) -> int:
    where = ["--bootstrap-servers", kafka.bootstrap_servers, "--write-id", given.write.id]
    return main(["resolve", "--yes", *where, "--version", str(given.batch.version), "--as", "committed"])


def decided_without_a_marker(kafka: EmbeddedKafka, given: session.WriteSettings) -> ProducerIdentity:
    """Two prepared tasks and their decision, committed at its coordinator, with no marker in the commit log.

    Returns:
        The driver, as it was before its transaction ended.
    """
    plan: Plan = session.plan(given)
    named = [message.prepared for message in tasks(given, plan) if message.prepared is not None]
    side = create_topic(kafka.bootstrap_servers, partitions=1)
    with unverified_partitions(kafka), NetworkClient(given.client) as client:
        admin = Admin(client)
        records = decision_records(decision_of(given, plan, *named))
        where = (given.write.log_topic, given.write.commit_log[1])
        produce_without_adding(admin, plan.driver, where, [(record.key, record.value) for record in records])

        def end() -> Procedure[None]:
            yield from append_in_transaction(
                plan.driver, records, 0
            )  # a transaction without any partition cannot be ended
            yield from commit_at_coordinator(plan.driver)

        Executor(admin, (side, 0), SETTINGS).run(end())
    return plan.driver


def test_late_done_record_hides_no_batch_without_marker(any_kafka: EmbeddedKafka) -> None:
    """An attempt of the next batch erases the coordinator's proof and fails, and then an older driver's done record arrives."""
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    given = write_settings(any_kafka, topic)
    decided_with_part_outside(any_kafka, given)
    following = varied(given, version=given.batch.version + 1)
    plan = session.plan(following)
    tasks(following, plan, 1)
    with NetworkClient(given.client) as client:
        older = replace(decision_of(given, plan), version=given.batch.version - 1, nonce="older")
        Executor(Admin(client), given.write.commit_log, SETTINGS).run(write_done(older))
    write_all(following, 1)
    assert len(read_committed(any_kafka.bootstrap_servers, topic)) == 2 * ROWS
    assert_nothing_open(any_kafka.bootstrap_servers, [topic], of=given.write.id)


@pytest.mark.parametrize("by", ["the next run", "recover", "resolve"])
@pytest.mark.parametrize("taken", [False, True], ids=["untouched", "taken by a late attempt"])
@pytest.mark.parametrize("commits_part", [True, False], ids=["committed", "aborted"])
def test_what_hangs_is_discarded_and_copied(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], commits_part: bool, taken: bool, by: str
) -> None:
    """Whatever its coordinator made of the transaction: no reader has seen a row of it."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1)
    given = write_settings(any_kafka, topic)
    committed_without_a_marker(any_kafka, given, commits_part=commits_part)
    if taken:
        with NetworkClient(given.client) as client:
            Admin(client).init_producer_id(task_transactional_id(given.write.id, 0, 0), 60_000, client.clock() + 30_000)
    assert read_committed(servers, topic) == []
    if by == "recover":
        assert recover(any_kafka, given.write.id) == 1, "not confirmed"
        would = " ".join(capsys.readouterr().out.split())
        assert "are visible, and copy rows that Kafka has aborted; abort 1 transaction hanging on partitions." in would
        assert read_committed(servers, topic) == []
        assert recover(any_kafka, given.write.id, "--yes") == 0
        assert "are copies from the log" in " ".join(capsys.readouterr().out.split())
    elif by == "resolve":
        assert resolve_as_committed(any_kafka, given) == 0
    else:
        assert {each.outcome for each in write_all(given, 1)} == {TaskOutcome.ALREADY_COMMITTED}
    assert Counter(record.value for record in read_committed(servers, topic)) == Counter(
        b"%d" % number for number in range(ROWS)
    )
    assert_nothing_open(servers, [topic])
    write_all(varied(given, version=given.batch.version + 1), 1)
    assert len(read_committed(servers, topic)) == 2 * ROWS
    assert_nothing_open(servers, [topic])
    finishes(any_kafka, given.write.id, capsys)


def test_marker_missing_in_commit_log_alone_stops_no_write(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody reads the part record as a proof; recover ends what hangs there, so that compaction continues."""
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    given = write_settings(any_kafka, topic)
    decided_with_part_outside(any_kafka, given)
    (finished,) = session.plan(given).decisions
    assert finished.status is DecisionStatus.FINISHED
    assert len(read_committed(any_kafka.bootstrap_servers, topic)) == ROWS
    capsys.readouterr()
    assert recover(any_kafka, given.write.id, "--yes", "--json") == 0
    (discarded,) = json.loads(capsys.readouterr().out)["discarded"]
    assert (discarded["topic"], discarded["partition"]) == given.write.commit_log
    assert_nothing_open(any_kafka.bootstrap_servers, [topic], of=given.write.id)
    finishes(any_kafka, given.write.id, capsys)


def test_decision_without_its_marker_is_undecided(any_kafka: EmbeddedKafka) -> None:
    """Its driver, too, would have read the marker before it acts on it."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers)
    given = write_settings(any_kafka, topic)
    decided_without_a_marker(any_kafka, given)
    assert recover(any_kafka, given.write.id, "--yes") == 0
    messages = write_all(given)
    assert {message.outcome for message in messages} == {TaskOutcome.PREPARED}
    assert len(read_committed(servers, topic)) == 2 * ROWS
    assert_nothing_open(servers)


def test_preview_of_recover_touches_nothing(any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]) -> None:
    topic = create_topic(any_kafka.bootstrap_servers)
    given = write_settings(any_kafka, topic)
    write_all(given)
    finishes(any_kafka, given.write.id, capsys)
    later = varied(given, version=given.batch.version + 1)
    plan = session.plan(later)
    messages = tasks(later, plan)
    assert recover(any_kafka, given.write.id) == 1
    assert "It would abort 2 open transactions." in " ".join(capsys.readouterr().out.split())
    session.commit(later, plan, messages)  # and nobody was fenced
    assert recover(any_kafka, given.write.id) == 1
    assert "It would change nothing else" in " ".join(capsys.readouterr().out.split())
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])


def decided_with_part_outside(kafka: EmbeddedKafka, given: session.WriteSettings) -> ProducerIdentity:
    """A batch of one task whose coordinator does not know of its part record in the commit log, decided and not ended.

    Returns:
        The task's identity.
    """
    topic = given.batch.topic or ""
    plan: Plan = session.plan(given)
    with unverified_partitions(kafka), NetworkClient(given.client) as client:
        admin = Admin(client)

        def write() -> Procedure[ProducerIdentity]:
            identity = yield from InitProducerId(task_transactional_id(given.write.id, 0, 0), 60_000)
            rows = tuple(LogRecord(b"", b"%d" % number) for number in range(ROWS))
            appended = yield from append_in_transaction(identity, rows, 0)
            assert appended.error == 0
            return identity

        def decide(prepared: PreparedTransaction) -> Procedure[None]:
            yield from append_in_transaction(plan.driver, decision_records(decision_of(given, plan, prepared)), 0)
            yield from commit_at_coordinator(plan.driver)

        identity = Executor(admin, (topic, 0), SETTINGS).run(write())
        part = part_record(given.write.id, given.batch.query_id, 0, given.batch.version, 0)
        log = (given.write.log_topic, given.write.commit_log[1])
        lies = produce_without_adding(admin, identity, log, [(part.key, part.value)])
        offsets = (OffsetRange(topic=topic, partition=0, first_offset=0, last_offset=ROWS - 1),)
        prepared = PreparedTransaction(
            partition=0, identity=identity, part_offset=lies.first_offset, rows=ROWS, offsets=offsets
        )
        Executor(admin, given.write.commit_log, SETTINGS).run(decide(prepared))
        return identity


def test_late_marker_of_a_decision_restores_its_aborted_rows(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once the marker is there the decision counts for whoever reads the log."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers)
    given = write_settings(any_kafka, topic)
    driver = decided_without_a_marker(any_kafka, given)
    session.plan(given)
    assert_nothing_open(servers, [topic])
    assert read_committed(servers, topic) == []
    log_topic, log_partition = given.write.commit_log
    marker = TransactionMarker(
        topic=log_topic,
        partition=log_partition,
        producer_id=driver.producer_id,
        producer_epoch=driver.producer_epoch + (driver.transaction_version >= 2),
        committed=True,
        coordinator_epoch=0,
        transaction_version=driver.transaction_version,
    )
    with NetworkClient(given.client) as client:
        Admin(client).write_txn_marker(marker, client.clock() + 30_000)
    assert main(["recover", "--yes", "--bootstrap-servers", servers, "--write-id", given.write.id]) == 0
    assert (
        "every row is visible, unless retention or a deleted topic has removed it; finished just now"
        in capsys.readouterr().out
    )
    found = Counter(int(record.value or b"") for record in read_committed(servers, topic))
    assert found == Counter(range(2 * ROWS))
    assert_nothing_open(servers)


def test_decision_aborted_by_kafka_tool_is_rewritten(any_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody ends the hanging transaction in the commit log."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers)
    given = write_settings(any_kafka, topic)
    plan = session.plan(given)
    die_at("commit.decision_written", given, plan, tasks(given, plan), monkeypatch)
    abort_by_hand(any_kafka, given.write.commit_log, plan.driver.producer_id, plan.driver.producer_epoch)
    write_all(given)
    assert len(read_committed(servers, topic)) == 2 * ROWS
    assert_nothing_open(servers, [topic])


def test_data_topics_outvote_manual_abort_in_commit_log(
    any_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers)
    given = write_settings(any_kafka, topic)
    named = [message.prepared for message in decided(given, "commit.decided", monkeypatch, 2)]
    assert named[1] is not None
    aborted = named[1].identity
    abort_by_hand(any_kafka, given.write.commit_log, aborted.producer_id, aborted.producer_epoch)
    write_all(given)
    assert len(read_committed(servers, topic)) == 2 * ROWS
    write_all(varied(given, version=given.batch.version + 1))
    assert len(read_committed(servers, topic)) == 4 * ROWS
    assert_nothing_open(servers, [topic], of=given.write.id)


def test_data_topics_prove_commit_that_coordinator_forgot(any_kafka: EmbeddedKafka) -> None:
    """The marker is missing in the commit log only, and a late attempt has taken the id."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1)
    given = write_settings(any_kafka, topic)
    named = decided_with_part_outside(any_kafka, given)
    with connected(servers) as admin:
        Executor(admin, given.write.commit_log, SETTINGS).run(commit_at_coordinator(named))
        admin.init_producer_id(named.transactional_id, 60_000, admin.client.clock() + 30_000)
    write_all(given)
    assert len(read_committed(servers, topic)) == ROWS
    write_all(varied(given, version=given.batch.version + 1), 1)
    assert len(read_committed(servers, topic)) == 2 * ROWS
    assert_nothing_open(servers, [topic], of=given.write.id)


def ended_without_a_marker(
    kafka: EmbeddedKafka, given: session.WriteSettings, value: bytes, *, commit: bool, task: int = 0
) -> ProducerIdentity:
    """An attempt of slot 5 that wrote a row to partition 0, ended at its coordinator, with no marker on that partition."""
    with unverified_partitions(kafka), NetworkClient(given.client) as client:
        admin = Admin(client)
        executor = Executor(admin, given.write.commit_log, SETTINGS)

        part = part_record(given.write.id, given.batch.query_id, task, given.batch.version, 5)
        identity = executor.run(begin(task_transactional_id(given.write.id, task, 5), part))
        produce_without_adding(admin, identity, (given.batch.topic or "", 0), [(None, value)])
        executor.run(commit_at_coordinator(identity, commit))
        return identity


def test_commit_shows_no_row_of_an_attempt_where_its_task_has_none(any_kafka: EmbeddedKafka) -> None:
    """The broker rejects the task's row for a partition, which its transaction keeps. An older attempt of the id hangs there."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=2, configs={"max.message.bytes": "2000"})
    given = write_settings(any_kafka, topic)
    given = replace(given, producer=replace(given.producer, dead_letter_topic=create_topic(servers, partitions=1)))

    def written(of: session.WriteSettings, plan: Plan, attempt: int, *values: bytes) -> session.TaskMessage:
        columns = RecordColumns(value=pa.array(values))
        rows = Rows(topic=topic, partition=pa.array(range(len(values)), pa.int32()), columns=columns)
        task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=attempt)
        return session.write_task(of, plan, task, iter([rows]))

    plan = session.plan(given)
    ended_without_a_marker(any_kafka, given, b"0", commit=False)
    session.commit(given, plan, [written(given, plan, 0, b"0", b"1")])
    later = varied(given, version=given.batch.version + 1)
    plan = session.plan(later)
    messages = [written(later, plan, 5, os.urandom(5_000), b"3")]
    with pytest.raises(TransactionAbortedError, match=rf"TRANSACTION_NOT_OPEN\].*{topic}-0 .*has no record there"):
        session.commit(later, plan, messages)
    session.abort(later, plan, messages)
    plan = session.plan(later)
    session.commit(later, plan, [written(later, plan, 5, os.urandom(5_000), b"3")])
    assert Counter(record.value for record in read_committed(servers, topic)) == Counter([b"0", b"1", b"3"])
    assert_nothing_open(servers, [topic])


@pytest.mark.parametrize("newest", ["of fewer Spark partitions", "empty", "an operator's answer"])
def test_aborted_attempt_that_hangs_is_discarded(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], newest: str
) -> None:
    """The batch is decided without it, its ABORT was omitted on a data partition, and nobody uses its id again."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=1)
    given = write_settings(any_kafka, topic)
    write_all(given, 1)
    loser = ended_without_a_marker(any_kafka, given, b"lost", commit=False, task=57)
    later = varied(given, version=given.batch.version + 1)
    if newest == "empty":
        plan = session.plan(later)
        nobody = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
        session.commit(later, plan, [session.write_task(later, plan, nobody, iter([]))])
    elif newest == "an operator's answer":
        assert resolve_as_committed(any_kafka, given) == 0
    else:
        write_all(later, 1)
    assert len(read_committed(servers, topic)) == ROWS, "the second version is committed, and nobody sees it"
    capsys.readouterr()
    assert recover(any_kafka, given.write.id) == 1, "not confirmed"
    shown = capsys.readouterr()
    assert loser.transactional_id in shown.out
    assert f"on {topic}-0 from offset {ROWS + 1}, an attempt" in shown.out
    assert "abort 1 transaction hanging on partitions" in " ".join(shown.out.split())
    assert recover(any_kafka, given.write.id, "--yes") == 0
    place = f"{loser.transactional_id} on {topic}-0 from offset {ROWS + 1}"
    assert f"Aborted where it hung: {place}." in " ".join(capsys.readouterr().out.split())
    finishes(any_kafka, given.write.id, capsys)
    assert len(read_committed(servers, topic)) == ROWS * (2 if newest == "of fewer Spark partitions" else 1)
    assert_nothing_open(servers, [topic])


@pytest.mark.parametrize("ends", [False, True], ids=["open", "ended"])
def test_attempt_that_begins_during_the_search_does_not_hang(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """It begins after its coordinator has responded, and before its leader does."""
    topic = create_topic(any_kafka.bootstrap_servers, partitions=1)
    given = write_settings(any_kafka, topic)
    write_all(given, 1)
    later = varied(given, version=given.batch.version + 1)
    plan = session.plan(later)
    messages: list[session.TaskMessage] = []

    def racing(*arguments: Any) -> Any:
        begins = not messages
        if begins:
            messages.extend(tasks(later, plan, 1))
        response = producers_on(*arguments)
        if begins and ends:
            session.abort(later, plan, messages)
        return response

    monkeypatch.setattr(hanging, "producers_on", racing)
    assert recover(any_kafka, given.write.id) == 1, "not confirmed"
    shown = capsys.readouterr().out
    assert messages
    assert "hanging transaction" not in shown
    assert "It would change nothing else" in " ".join(shown.split())
    if not ends:
        session.commit(later, plan, messages)
    assert len(read_committed(any_kafka.bootstrap_servers, topic)) == ROWS * (2 - ends)
    assert_nothing_open(any_kafka.bootstrap_servers, [topic])


def decided_without_any_marker(kafka: EmbeddedKafka, given: session.WriteSettings, *, commit: bool) -> None:
    """A decided batch of one task, ended at its coordinator with no marker anywhere, whose id a late attempt has taken over."""
    topic = given.batch.topic or ""
    plan: Plan = session.plan(given)
    side = create_topic(kafka.bootstrap_servers, partitions=1)
    with unverified_partitions(kafka), NetworkClient(given.client) as client:
        admin = Admin(client)

        def end(prepared: PreparedTransaction) -> Procedure[None]:
            yield from append_in_transaction(plan.driver, decision_records(decision_of(given, plan, prepared)), 0)
            yield from commit_at_coordinator(plan.driver)

        identity = Executor(admin, (side, 0), SETTINGS).run(begin(task_transactional_id(given.write.id, 0, 0), SIDE))
        part = part_record(given.write.id, given.batch.query_id, 0, given.batch.version, 0)
        log = (given.write.log_topic, given.write.commit_log[1])
        where = produce_without_adding(admin, identity, log, [(part.key, part.value)])
        rows = [(None, b"%d" % number) for number in range(ROWS)]
        written = tuple(produce_without_adding(admin, identity, (topic, each), rows) for each in (0, 1))
        prepared = PreparedTransaction(
            partition=0, identity=identity, part_offset=where.first_offset, rows=2 * ROWS, offsets=written
        )
        Executor(admin, given.write.commit_log, SETTINGS).run(end(prepared))
        Executor(admin, (side, 0), SETTINGS).run(commit_at_coordinator(identity, commit))
        admin.init_producer_id(identity.transactional_id, 60_000, client.clock() + 30_000)


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_batch_without_any_marker_is_copied(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], commit: bool
) -> None:
    """No reader has seen a row, whatever the coordinator's answer was, and the id has gone on."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=2)
    given = write_settings(any_kafka, topic)
    decided_without_any_marker(any_kafka, given, commit=commit)
    write_all(given, 1)
    assert Counter(record.value for record in read_committed(servers, topic)) == Counter(
        2 * [b"%d" % number for number in range(ROWS)]
    )
    assert_nothing_open(servers, [topic])
    assert recover(any_kafka, given.write.id, "--yes") == 0, "the part record hangs in the commit log"
    finishes(any_kafka, given.write.id, capsys)


def test_rows_that_are_gone_and_hang_were_seen_by_nobody(any_kafka: EmbeddedKafka) -> None:
    """An operator deleted them. The leader still holds their transaction open, so the version is void, and its next run writes it."""
    servers = any_kafka.bootstrap_servers
    topic = create_topic(servers, partitions=2)
    given = write_settings(any_kafka, topic)
    decided_without_any_marker(any_kafka, given, commit=True)
    where = confluent_kafka.TopicPartition(topic, 0, ROWS)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
    assert admin.delete_records([where])[where].result(30).low_watermark == ROWS
    (settled,) = session.plan(given).decisions
    assert settled.status is DecisionStatus.VOID
    assert_nothing_open(servers, [topic])
    write_all(given, 1)
    assert len(read_committed(servers, topic)) == ROWS
    assert_nothing_open(servers, [topic])


def test_status_of_a_write_shows_what_no_coordinator_lists(
    any_kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Another program's transaction has missed its marker; neither recover nor the list of open transactions has it."""
    servers = any_kafka.bootstrap_servers
    topic, side = create_topic(servers, partitions=1), create_topic(servers, partitions=1)
    given = write_settings(any_kafka, topic)
    write_all(given, 1)
    command = ["status", "--bootstrap-servers", servers, "--write-id", given.write.id]

    def blocked() -> list[dict[str, object]]:
        capsys.readouterr()
        assert main([*command, "--json"]) == 0
        return list(json.loads(capsys.readouterr().out)["blocked"])

    assert blocked() == []
    with unverified_partitions(any_kafka), NetworkClient(given.client) as client:
        executor = Executor(Admin(client), (side, 0), SETTINGS)

        identity = executor.run(begin(unique_topic("another-program"), SIDE))
        start = produce_without_adding(Admin(client), identity, (topic, 0), [(None, b"foreign")]).first_offset
        assert blocked() == [], "its coordinator lists it, although not with this partition"
        executor.run(commit_at_coordinator(identity, False))
    (found,) = blocked()
    assert found == {
        "topic": topic,
        "partition": 0,
        "hidden_offsets": 1,
        "blocked_by": [],
        "since_ms": -1,
        "hanging": {
            "start_offset": start,
            "producer_id": identity.producer_id,
        },
    }
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "1 blocked partition" in shown
    where = f"producer id {identity.producer_id} from offset {start}:"
    assert re.search(rf"{topic}-0 +1 +{where}\n +no coordinator lists it\n", shown)
    assert f"{given.write.id} has no record of them" in shown
    assert f"kafka-eos recover --write-id {given.write.id}" not in shown, "it would not end what another program wrote"
    write_all(varied(given, version=given.batch.version + 1), 1)
    assert f"{' '.join(['kafka-eos', *command])} shows where it begins" in " ".join(caplog.text.split())
    abort_as_printed(any_kafka, shown)
    assert blocked() == []
    assert len(read_committed(servers, topic)) == 2 * ROWS
