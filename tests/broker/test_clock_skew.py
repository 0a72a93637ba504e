"""A clock of the writing host that the topics do not accept: the write fails, and no row becomes a dead letter for it."""

from __future__ import annotations

import platform
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dead_writes import ROWS, abort_by_hand, decided, tasks, varied, write_all, write_settings
from kafka_eos_sink.commit.values import DEFAULT_TOPIC
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.record_columns import RecordColumns
from kafka_eos_sink.runtime import session
from kafka_testing import assert_nothing_open, create_topic, read_committed, unique_topic

AFTER, BEFORE = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
TEN_MINUTES_MS = 600_000
HALF_AN_HOUR_MS = 1_800_000


@pytest.fixture
def shifted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the wall clock of this process, which writes, by so many ms; the brokers are other processes."""
    true_time_ns = time.time_ns
    return lambda ms: monkeypatch.setattr(time, "time_ns", lambda: true_time_ns() + ms * 1_000_000)


def limited(kafka: EmbeddedKafka, *limits: str) -> str:
    return create_topic(kafka.bootstrap_servers, configs=dict.fromkeys(limits, str(TEN_MINUTES_MS)))


def with_letters(given: session.WriteSettings, kafka: EmbeddedKafka, *limits: str) -> session.WriteSettings:
    return replace(given, producer=replace(given.producer, dead_letter_topic=limited(kafka, *limits)))


def assert_names_the_clock(error: KafkaEosError, topic: str, limit: str) -> None:
    assert error.code == "CLOCK_SKEW"
    text = str(error)
    assert f"topic {topic} partition" in text
    assert f"the clock of host {platform.node()}" in text
    assert f"({limit} of the topic)" in text
    assert f"--entity-type topics --entity-name {topic} --describe --all" in text
    assert "Timestamp " not in text, "times are readable"


def values(kafka: EmbeddedKafka, topic: str) -> list[int]:
    return sorted(int(record.value or b"") for record in read_committed(kafka.bootstrap_servers, topic))


@pytest.mark.parametrize(("ms", "limit"), [(HALF_AN_HOUR_MS, AFTER), (-HALF_AN_HOUR_MS, BEFORE)])
def test_write_fails_when_its_clock_is_beyond_the_limit(
    kafka: EmbeddedKafka, shifted: Any, ms: int, limit: str
) -> None:
    given = with_letters(write_settings(kafka, limited(kafka, AFTER, BEFORE)), kafka)
    topic = given.batch.topic or ""
    plan = session.plan(given)
    shifted(ms)
    with pytest.raises(KafkaEosError) as raised:
        tasks(given, plan, 1)
    assert_names_the_clock(raised.value, topic, limit)
    shifted(0)
    session.abort(given, plan, [])
    assert_nothing_open(kafka.bootstrap_servers, [topic])
    write_all(given, 1)
    assert values(kafka, topic) == list(range(ROWS))
    assert values(kafka, given.producer.dead_letter_topic or "") == []


def mixed_rows(topic: str, own_ms: int) -> Rows:
    """Every third row has a timestamp."""
    value = pa.array([b"%d" % number for number in range(ROWS)], pa.binary())
    timestamp = pa.array([None if number % 3 else own_ms for number in range(ROWS)], pa.int64())
    return Rows(topic=topic, partition=None, columns=RecordColumns(value=value, timestamp=timestamp))


def write_mixed(given: session.WriteSettings, own_ms: int) -> list[session.TaskMessage]:
    plan = session.plan(given)
    task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
    rows = mixed_rows(given.batch.topic or "", own_ms)
    messages = [session.write_task(given, plan, task, iter([rows]))]
    session.commit(given, plan, messages)
    return messages


def test_only_rows_with_their_own_timestamp_become_dead_letters(kafka: EmbeddedKafka) -> None:
    given = with_letters(write_settings(kafka, limited(kafka, AFTER)), kafka)
    own_ms = time.time_ns() // 1_000_000 + HALF_AN_HOUR_MS
    dead = given.producer.dead_letter_topic or ""
    write_mixed(given, own_ms)
    own = [number for number in range(ROWS) if not number % 3]
    assert values(kafka, dead) == own
    assert values(kafka, given.batch.topic or "") == [number for number in range(ROWS) if number % 3]
    headers = [dict(record.headers) for record in read_committed(kafka.bootstrap_servers, dead)]
    assert {each["kafka-eos.timestamp"] for each in headers} == {b"%d" % own_ms}


def with_limited_log(kafka: EmbeddedKafka, **of_batch: Any) -> session.WriteSettings:
    log = unique_topic("log")
    configs = {"cleanup.policy": "compact", AFTER: str(TEN_MINUTES_MS)}
    create_topic(kafka.bootstrap_servers, log, partitions=16, configs=configs)
    return varied(write_settings(kafka, create_topic(kafka.bootstrap_servers)), commit_log_topic=log, **of_batch)


@pytest.mark.parametrize("step", ["plan", "task", "commit"])
def test_commit_log_that_rejects_the_clock_names_it(kafka: EmbeddedKafka, shifted: Any, step: str) -> None:
    """Planner, task and driver append to the log, each with its own host's clock."""
    given = with_limited_log(kafka)
    # Less than the transaction timeout, to which the driver compares the age of the batch by this clock.

    def ahead(at: str) -> None:
        shifted(TEN_MINUTES_MS + 60_000 if at == step else 0)

    def write() -> None:
        ahead("plan")
        plan = session.plan(given)
        ahead("task")
        messages = tasks(given, plan, 1)
        ahead("commit")
        session.commit(given, plan, messages)

    with pytest.raises(KafkaEosError) as raised:
        write()
    assert_names_the_clock(raised.value, given.write.log_topic, AFTER)
    shifted(0)
    write_all(given, 1)
    assert values(kafka, given.batch.topic or "") == list(range(ROWS))
    assert_nothing_open(kafka.bootstrap_servers)


@pytest.mark.parametrize("is_log_limited", [True, False])
def test_lost_rows_are_copied_with_their_own_timestamps(
    kafka: EmbeddedKafka, shifted: Any, monkeypatch: pytest.MonkeyPatch, is_log_limited: bool
) -> None:
    """So their topic accepts the copies under any clock, but a commit log with a limit does not accept the recovery's records."""
    given = with_limited_log(kafka, topic=limited(kafka, AFTER))
    given = given if is_log_limited else varied(given, commit_log_topic=DEFAULT_TOPIC)
    abort_by_hand(given, decided(given, "commit.decided", monkeypatch, 2))
    shifted(HALF_AN_HOUR_MS)
    if is_log_limited:
        with pytest.raises(KafkaEosError) as raised:
            session.plan(given)
        assert_names_the_clock(raised.value, given.write.log_topic, AFTER)
        assert values(kafka, given.batch.topic or "") == []
        shifted(0)
    session.plan(given)
    assert values(kafka, given.batch.topic or "") == list(range(2 * ROWS))
