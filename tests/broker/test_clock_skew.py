"""A clock of the writing host that the topics do not accept: the write fails, and no row becomes a dead letter for it."""

from __future__ import annotations

import platform
import time
from dataclasses import replace
from typing import Any

import pytest

from dead_writes import ROWS, tasks, varied, write_all, write_settings
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import KafkaEosError
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
