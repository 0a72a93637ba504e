"""Names of the greatest length that Kafka holds, and limits of time that no broker can meet."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import replace

import pytest

from dead_writes import ROWS, rows_of, tasks, varied, write_all, write_settings
from kafka_eos_sink.client.admin import lease_admin
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.commit.transactional_id import LONGEST_WRITE_ID
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.runtime import at_least_once, session
from kafka_eos_sink.runtime.batch_record import LARGEST_USER_METADATA
from kafka_testing import create_topic, read_committed

LONGEST = 32_767
WITHIN_MS = 60_000


@pytest.mark.parametrize("character", ["w", ".", "ü"])
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


def test_brokers_close_the_connection_on_a_longer_id(kafka: EmbeddedKafka) -> None:
    given = write_settings(kafka, create_topic(kafka.bootstrap_servers))
    with lease_admin(given.client) as admin:
        admin.init_producer_id("x" * LONGEST, WITHIN_MS, admin.client.clock() + WITHIN_MS)
        with pytest.raises(BrokerUnavailableError, match="closed by the broker"):
            admin.init_producer_id("x" * (LONGEST + 1), WITHIN_MS, admin.client.clock() + 2_000)


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


def test_record_too_large_for_the_history_names_its_limit(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic, history = (create_topic(kafka.bootstrap_servers, partitions=1) for _ in range(2))
    given = replace(write_settings(kafka, topic), history_topic=history)
    # Twice the bytes in JSON: the largest value that the option takes fits.
    write_all(replace(given, user_metadata='"' * LARGEST_USER_METADATA))
    assert "lacks records" not in caplog.text
    write_all(varied(given, version=given.batch.version + 1, user_metadata="x" * 1_100_000))
    assert (
        f"{history!r} lacks records, and writes continue without them (MESSAGE_TOO_LARGE). Raise max.message.bytes"
        in caplog.text
    )
    assert len(read_committed(kafka.bootstrap_servers, history)) == 1
