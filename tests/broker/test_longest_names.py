"""Names of the greatest length that Kafka holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dead_writes import ROWS, tasks, varied, write_all, write_settings
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.commit.transactional_id import LONGEST_WRITE_ID
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.runtime import session
from kafka_testing import create_topic, read_committed

LONGEST = 32_767


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
