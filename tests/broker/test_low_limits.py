"""Errors and warnings name the setting of the brokers that a write breaks: on a Kafka whose settings are unusually low."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from dead_writes import ROWS, rows_of, tasks, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import connected
from kafka_eos_sink.commit.log_records import part_record
from kafka_eos_sink.commit.steps import InitProducerId
from kafka_eos_sink.commit.transactional_id import task_transactional_id
from kafka_eos_sink.commit.values import DEFAULT_TOPIC as LOG
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import DecisionPendingError, KafkaEosError
from kafka_eos_sink.operations.cluster_check import CheckResult, check_cluster
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import at_least_once, session
from kafka_eos_sink.runtime.executor import Executor
from kafka_testing import assert_nothing_open, create_topic, read_committed, wait_until
from unmarked_transactions import (
    begin,
    commit_at_coordinator,
    committed_without_a_marker,
    produce_without_adding,
    unverified_partitions,
)

SOCKET_REQUEST_MAX_BYTES = 200_000
EXPIRATION_MS = 3_000


@pytest.fixture(scope="module")
def low() -> Iterator[EmbeddedKafka]:
    properties = {
        "socket.request.max.bytes": str(SOCKET_REQUEST_MAX_BYTES),
        "transactional.id.expiration.ms": str(EXPIRATION_MS),
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    }
    with EmbeddedKafka(properties=properties, transaction_version=2) as started:
        yield started


def large_row(topic: str) -> Rows:
    return Rows(topic=topic, partition=None, columns=RecordColumns(value=pa.array([b"x" * 300_000])))


def write_task(settings: session.WriteSettings, rows: Rows) -> session.TaskMessage:
    task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
    return session.write_task(settings, session.plan(settings), task, iter([rows]))


def write_at_least_once(settings: session.WriteSettings, rows: Rows) -> None:
    at_least_once.write_rows(settings, iter([rows]))


@pytest.mark.parametrize("write", [write_task, write_at_least_once], ids=["exactly-once", "at-least-once"])
def test_request_above_the_brokers_limit_names_the_options(
    low: EmbeddedKafka, write: Callable[[session.WriteSettings, Rows], object]
) -> None:
    topic = create_topic(low.bootstrap_servers, partitions=1)
    settings = write_settings(low, topic)
    with pytest.raises(KafkaEosError) as raised:
        write(replace(settings, producer=replace(settings.producer, delivery_timeout_ms=3_000)), large_row(topic))
    assert raised.value.code == "DELIVERY_TIMEOUT"
    assert "request of 300072 bytes was in flight" in raised.value.message
    assert "lower kafka.max.request.size and kafka.batch.size" in raised.value.message


def test_plan_warns_of_low_limits_of_the_brokers(low: EmbeddedKafka, caplog: pytest.LogCaptureFixture) -> None:
    session.plan(write_settings(low, create_topic(low.bootstrap_servers)))
    assert f"transactional.id.expiration.ms={EXPIRATION_MS} without use" in caplog.text
    assert f"socket.request.max.bytes={SOCKET_REQUEST_MAX_BYTES}, less than kafka.max.request.size" in caplog.text


def test_check_shows_low_limits_of_the_brokers(low: EmbeddedKafka) -> None:
    with connected(low.bootstrap_servers) as admin:
        found = {each.what: each for each in check_cluster(admin, topic=None, commit_log_topic=LOG, timeout_ms=30_000)}
    for what, value in (
        ("transactional.id.expiration.ms", EXPIRATION_MS),
        ("socket.request.max.bytes", SOCKET_REQUEST_MAX_BYTES),
    ):
        assert (found[what].found, found[what].result) == (str(value), CheckResult.WARNING)


def await_expired(kafka: EmbeddedKafka, transactional_id: str) -> None:
    """Wait until the coordinator has removed the id."""
    with connected(kafka.bootstrap_servers) as admin:

        def is_gone() -> bool:
            found = admin.describe_transactions([transactional_id], admin.client.clock() + 30_000)
            return found[transactional_id] is None

        wait_until(is_gone, f"the end of {transactional_id}")


def test_expired_driver_id_is_named_at_the_commit(low: EmbeddedKafka) -> None:
    topic = create_topic(low.bootstrap_servers)
    settings = write_settings(low, topic)
    plan = session.plan(settings)
    messages = tasks(settings, plan, 1)
    await_expired(low, plan.driver.transactional_id)
    with pytest.raises(KafkaEosError) as raised:
        session.commit(settings, plan, messages)
    assert raised.value.code == "NOT_DECIDED"
    assert "INVALID_PRODUCER_ID_MAPPING" in raised.value.message
    assert "transactional.id.expiration.ms" in raised.value.message
    session.abort(settings, plan, messages)
    write_all(settings, 1)
    assert len(read_committed(low.bootstrap_servers, topic)) == ROWS


def test_expired_task_id_is_named_at_the_first_row(low: EmbeddedKafka) -> None:
    topic = create_topic(low.bootstrap_servers)
    settings = write_settings(low, topic)
    slow = replace(settings, producer=replace(settings.producer, linger_ms=600_000))  # the producer waits for more rows

    def rows() -> Iterator[Rows]:
        yield rows_of(topic, 0)
        await_expired(low, task_transactional_id(settings.write.id, 0, 0))
        yield rows_of(topic, 1)

    task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
    with pytest.raises(KafkaEosError) as raised:
        session.write_task(slow, session.plan(slow), task, rows())
    assert raised.value.code == "TRANSACTION_ABORTED"
    assert "INVALID_PRODUCER_ID_MAPPING" in raised.value.message
    assert "transactional.id.expiration.ms" in raised.value.message


@pytest.mark.parametrize("joined", [False, True], ids=["untouched", "joined by a late attempt"])
def test_what_hangs_under_a_forgotten_id_is_discarded_by_an_operator(
    low: EmbeddedKafka, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, joined: bool
) -> None:
    """No transaction of the id can end it: its coordinator gives the id another producer id."""
    topic = create_topic(low.bootstrap_servers, partitions=1)
    given = write_settings(low, topic)
    committed_without_a_marker(low, given)
    name = task_transactional_id(given.write.id, 0, 0)
    if joined:
        with unverified_partitions(low), connected(low.bootstrap_servers) as admin:
            executor = Executor(admin, given.write.commit_log, given.producer)
            late = executor.run(iter(InitProducerId(name, 60_000)))
            produce_without_adding(admin, late, (topic, 0), [(None, b"late")])
    await_expired(low, name)
    with pytest.raises(DecisionPendingError, match=rf"{topic}-0 is still open.*kafka-eos recover .*--discard"):
        session.plan(given)
    command = ["recover", "--bootstrap-servers", low.bootstrap_servers, "--write-id", given.write.id]
    assert main(command) == 1, "not confirmed"
    shown = " ".join(capsys.readouterr().out.split())
    assert f"on {topic}-0 from offset 0, version {given.batch.version}" in shown
    assert "1 transaction would still hang: add --discard." in shown
    # An operator's command copies no rows of a producer that the coordinator does not know: the decision could be forged.
    assert main([*command, "--discard", "--yes"]) == 1
    shown = capsys.readouterr()
    assert "aborted by a marker: 1 transaction" in caplog.text
    assert "Run the write again under its own user" in shown.err
    assert read_committed(low.bootstrap_servers, topic) == []
    assert_nothing_open(low.bootstrap_servers, [topic])
    session.plan(given)
    assert len(read_committed(low.bootstrap_servers, topic)) == ROWS
    assert_nothing_open(low.bootstrap_servers, [topic])


def test_attempt_under_a_forgotten_id_of_a_finished_version_is_discarded(
    low: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its coordinator gave it the producer id of the decided transaction, and a newer epoch."""
    first, second = (create_topic(low.bootstrap_servers, partitions=2) for _ in range(2))
    given = write_settings(low, first)
    write_all(given, 1)
    write_all(varied(given, query_id="second", topic=second), 1)
    name = task_transactional_id(given.write.id, 0, 0)
    hangs = [(first, 0), (first, 1), (second, 0)]
    with unverified_partitions(low), connected(low.bootstrap_servers) as admin:
        executor = Executor(admin, given.write.commit_log, given.producer)
        part = part_record(given.write.id, given.batch.query_id, 0, given.batch.version, 8)
        attempt = executor.run(begin(name, part))
        starts = {
            where: produce_without_adding(admin, attempt, where, [(None, b"late")]).first_offset for where in hangs
        }
        executor.run(commit_at_coordinator(attempt, False))
    await_expired(low, name)
    command = ["recover", "--bootstrap-servers", low.bootstrap_servers, "--write-id", given.write.id]
    assert main([*command, "--discard"]) == 1, "not confirmed"
    shown = " ".join(capsys.readouterr().out.split())
    assert "abort 3 transactions hanging under a forgotten id, by a marker" in shown
    assert main([*command, "--yes"]) == 1, "they still hang"
    capsys.readouterr()
    assert main([*command, "--discard", "--yes", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["hanging"]["held"] == []
    assert {(each["topic"], each["partition"]): each["start_offset"] for each in result["discarded"]} == starts
    assert {each["producer_id"] for each in result["discarded"]} == {attempt.producer_id}
    assert_nothing_open(low.bootstrap_servers, [first, second])
    assert len(read_committed(low.bootstrap_servers, first)) == ROWS
