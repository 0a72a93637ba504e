"""A write waits for a topic that is just being created, and says so."""

from __future__ import annotations

import logging
import threading

import pytest

from dead_writes import write_all, write_settings
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.runtime import session
from kafka_testing import create_topic, unique_topic


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
    assert planned.write_id


def test_a_topic_of_kafkas_own_is_refused_before_a_task_starts(kafka: EmbeddedKafka) -> None:
    write_all(write_settings(kafka, create_topic(kafka.bootstrap_servers)), 1)  # which makes the coordinator create it
    with pytest.raises(ConfigurationError, match=r"INTERNAL_TOPIC\].*'__transaction_state'.*option topic"):
        session.plan(write_settings(kafka, "__transaction_state"))
