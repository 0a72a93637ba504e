"""Names of the greatest length that Kafka holds, and limits of time that no broker can meet."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import replace

import pytest

from dead_writes import ROWS, rows_of, tasks, varied, write_all, write_settings
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.commit.transactional_id import LONGEST_WRITE_ID
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.runtime import at_least_once, session
from kafka_testing import create_topic, read_committed

LONGEST = 32_767
WITHIN_MS = 60_000


@pytest.mark.parametrize("character", [".", "ü"])
def test_write_with_the_longest_names_commits(kafka: EmbeddedKafka, character: str) -> None:
    """A pattern that lists its transactions quotes each dot, so it is longer than Kafka's limit."""
    topic = create_topic(kafka.bootstrap_servers)
    size = len(character.encode())
    write_id = f"{topic}/" + character * ((LONGEST_WRITE_ID - len(topic) - 1) // size)
    write_id += "w" * (LONGEST_WRITE_ID - len(write_id.encode()))
    given = write_settings(kafka, topic, write_id=write_id)
    given = varied(given, client=replace(given.client, client_id=f"{topic}-".ljust(LONGEST, "c")))
    # An earlier driver has left transactions open, which the plan lists and aborts.
    tasks(given, session.plan(given))
    offsets = GroupOffsets(group_id=f"{topic}-".ljust(LONGEST, "g"), offsets=((topic, 0, 7),))
    messages = write_all(replace(given, group_offsets=offsets))
    found = [message.prepared.identity.transactional_id for message in messages if message.prepared is not None]
    assert [each.removeprefix(write_id)[:3] for each in found] == [".0.", ".1."]
    assert len(read_committed(kafka.bootstrap_servers, topic)) == 2 * ROWS


def test_limit_of_time_that_no_broker_meets_is_named(kafka: EmbeddedKafka) -> None:
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers))
    hasty = replace(given, producer=ProducerConfig(delivery_timeout_ms=1))
    with pytest.raises(
        BrokerUnavailableError, match=r"kafka\.max\.block\.ms=60000 and kafka\.delivery\.timeout\.ms=1\b"
    ):
        session.plan(hasty)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        client = ClientConfig(bootstrap_servers=(silent.getsockname(),))
        hasty = varied(given, client=client, producer=ProducerConfig(max_block_ms=1))
        with pytest.raises(
            BrokerUnavailableError, match=r"kafka\.max\.block\.ms=1 and kafka\.delivery\.timeout\.ms=120000\b"
        ):
            session.plan(hasty)
        with pytest.raises(BrokerUnavailableError, match=r"kafka\.max\.block\.ms is 1\b"):
            at_least_once.write_rows(hasty, iter([rows_of(given.batch.topic or "", 0)]))
