"""A process that writes dies at each named point of the protocol; the same version runs again.

Without Spark, so that every point is met under both transaction protocols; tests/spark does the same to whole Spark drivers.
"""

from __future__ import annotations

from collections import Counter

import pytest

from dead_writes import POINTS, ROWS, be_killed_at, write_all, write_settings
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed

TASKS = 3


def assert_every_row_once(kafka: EmbeddedKafka, topic: str) -> None:
    values = Counter(int(record.value or b"") for record in read_committed(kafka.bootstrap_servers, topic))
    assert values == Counter(range(TASKS * ROWS))
    assert_nothing_open(kafka.bootstrap_servers)


@pytest.mark.parametrize("point", POINTS)
def test_a_write_that_dies_is_whole_after_the_next_run(any_kafka: EmbeddedKafka, point: str) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    settings = write_settings(any_kafka, topic)
    be_killed_at(point, any_kafka, settings, TASKS)
    write_all(settings, TASKS)
    assert_every_row_once(any_kafka, topic)
    write_all(settings, TASKS)
    assert_every_row_once(any_kafka, topic)


@pytest.mark.parametrize("second", ["plan.fenced", "plan.read", "plan.finished", "task.prepared", "commit.decided"])
def test_a_recovery_that_dies_as_well_gets_further_with_the_next(any_kafka: EmbeddedKafka, second: str) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    settings = write_settings(any_kafka, topic)
    first = "commit.before_decision" if second.startswith(("task", "commit")) else "commit.between_ends"
    for point in (first, second):
        be_killed_at(point, any_kafka, settings, TASKS)
    write_all(settings, TASKS)
    assert_every_row_once(any_kafka, topic)
