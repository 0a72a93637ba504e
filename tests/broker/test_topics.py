"""A write waits for a topic that is just being created, and says so. It never lets a broker create one."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import confluent_kafka
import pytest

from dead_writes import rows_of, varied, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import ConfigurationError, InvalidRowError
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.runtime import at_least_once, session
from kafka_testing import create_topic, topic_names, unique_topic


class CreatesWhenAsked(logging.Handler):
    """Creates the topic once somebody says that it does not exist."""

    def __init__(self, kafka: EmbeddedKafka, topic: str) -> None:
        super().__init__(logging.WARNING)
        self._create = threading.Thread(target=create_topic, args=(kafka.bootstrap_servers, topic))
        self._said = f"topic {topic!r} does not exist: waiting up to"
        self.times = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(self._said):
            self.times += 1
            self._create.start()

    def close(self) -> None:
        self._create.join()
        super().close()


def test_missing_topic_is_logged_and_awaited(kafka: EmbeddedKafka) -> None:
    topic = unique_topic()
    log, creates = logging.getLogger("kafka_eos_sink"), CreatesWhenAsked(kafka, topic)
    log.addHandler(creates)
    try:
        planned = session.plan(write_settings(kafka, topic))
    finally:
        log.removeHandler(creates)
    creates.close()
    assert creates.times == 1
    assert planned.write.id


def test_a_topic_of_kafkas_own_is_refused_before_a_task_starts(kafka: EmbeddedKafka) -> None:
    write_all(write_settings(kafka, create_topic(kafka.bootstrap_servers)), 1)  # which makes the coordinator create it
    with pytest.raises(ConfigurationError, match=r"INTERNAL_TOPIC\].*'__transaction_state'.*option topic"):
        session.plan(write_settings(kafka, "__transaction_state"))


# Kafka's default is auto.create.topics.enable=true, and the embedded Kafka has it.


def settings_for(kafka: EmbeddedKafka, topic: str | None, **producer: object) -> session.WriteSettings:
    """A write that waits for missing topics for a moment only."""
    given = write_settings(kafka, topic or "by-column", schema="topic string, value binary")
    return varied(given, topic=topic, producer=replace(given.producer, max_block_ms=1_000, **producer))


def write_rows(given: session.WriteSettings, guarantee: str, *rows: Rows) -> None:
    """One task writes the rows, and the batch is committed."""
    if guarantee == "at-least-once":
        at_least_once.write_rows(given, iter(rows))
        return
    plan = session.plan(given)
    task = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
    session.commit(given, plan, [session.write_task(given, plan, task, iter(rows))])


GUARANTEES = pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])


def test_the_broker_creates_topics_for_clients_that_allow_it(kafka: EmbeddedKafka) -> None:
    """Otherwise the tests below could not fail."""
    topic = unique_topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"row")
    assert producer.flush(60) == 0
    assert topic in topic_names(kafka.bootstrap_servers)


@GUARANTEES
@pytest.mark.parametrize("named_by", ["option", "column"])
def test_missing_topic_fails_the_write_and_is_not_created(kafka: EmbeddedKafka, guarantee: str, named_by: str) -> None:
    missing = unique_topic("misspelled")
    given = settings_for(kafka, missing if named_by == "option" else None)
    with pytest.raises(InvalidRowError, match=rf"UNKNOWN_TOPIC\].*{missing}"):
        write_rows(given, guarantee, rows_of(missing, 0))
    assert missing not in topic_names(kafka.bootstrap_servers)


def test_commands_about_a_missing_topic_do_not_create_it(
    kafka: EmbeddedKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, log, history = (unique_topic(each) for each in ("misspelled", "log", "history"))
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    own = ["--commit-log-topic", log]
    for command in (
        ["consume", "--topic", missing, "--count", "1", *servers],
        ["check", "--topic", missing, *own, *servers],
        ["topics", *servers],
        ["status", *own, *servers],
        ["recover", "--write-id", "w", "--yes", *own, *servers],
        ["forget", "--write-id", "w", "--yes", *own, *servers],
        ["resolve", "--write-id", "w", "--version", "1", "--as", "rewrite", "--yes", *own, *servers],
        ["history", "--write-id", "w", "--history-topic", history, *servers],
        ["audit", "--write-id", "w", "--history-topic", history, *servers],
    ):
        assert main(command) in (0, 1), command
    capsys.readouterr()
    assert not topic_names(kafka.bootstrap_servers) & {missing, log, history}
