"""A process that writes dies at each named point of the protocol; the same version runs again.

Without Spark, so that every point is met under both transaction protocols; tests/spark does the same to whole Spark drivers.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dead_writes import POINTS, RESTORE_POINTS, ROWS, abort_open, be_killed_at, write_all, write_settings
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed

TASKS = 3


def visible(kafka: EmbeddedKafka, topic: str) -> Counter[int]:
    return Counter(int(record.value or b"") for record in read_committed(kafka.bootstrap_servers, topic))


def assert_every_row_once(kafka: EmbeddedKafka, topic: str) -> None:
    assert visible(kafka, topic) == Counter(range(TASKS * ROWS))
    assert_nothing_open(kafka.bootstrap_servers)


@pytest.mark.parametrize("point", POINTS)
def test_killed_write_is_complete_after_the_next_run(any_kafka: EmbeddedKafka, point: str) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    settings = write_settings(any_kafka, topic)
    be_killed_at(point, any_kafka, settings, TASKS)
    write_all(settings, TASKS)
    assert_every_row_once(any_kafka, topic)
    write_all(settings, TASKS)
    assert_every_row_once(any_kafka, topic)


@pytest.mark.parametrize("second", ["plan.fenced", "plan.read", "plan.finished", "task.prepared", "commit.decided"])
def test_killed_recovery_is_finished_by_the_next(any_kafka: EmbeddedKafka, second: str) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    settings = write_settings(any_kafka, topic)
    first = "commit.before_decision" if second.startswith(("task", "commit")) else "commit.between_ends"
    for point in (first, second):
        be_killed_at(point, any_kafka, settings, TASKS)
    write_all(settings, TASKS)
    assert_every_row_once(any_kafka, topic)


def recover(kafka: EmbeddedKafka, write_id: str) -> None:
    assert main(["recover", "--yes", "--bootstrap-servers", kafka.bootstrap_servers, "--write-id", write_id]) == 0


@pytest.mark.parametrize("killed", ["in commit", "in the next run"])
@pytest.mark.parametrize("point", RESTORE_POINTS)
def test_recover_finishes_a_restore_that_was_killed(
    any_kafka: EmbeddedKafka, tmp_path: Path, point: str, killed: str
) -> None:
    """Nothing but the command runs afterwards: neither Spark nor the rows are needed."""
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    settings = write_settings(any_kafka, topic)
    if killed == "in commit":
        be_killed_at(point, any_kafka, settings, TASKS, losing=tmp_path / "decided")
        before = 0
    else:
        be_killed_at("commit.between_ends", any_kafka, settings, TASKS)
        abort_open(settings)
        be_killed_at(point, any_kafka, settings, TASKS)
        before = ROWS
    assert sum(visible(any_kafka, topic).values()) == before  # of the copies all are visible, or none
    recover(any_kafka, settings.write.id)
    assert_every_row_once(any_kafka, topic)
    write_all(settings, TASKS)
    assert_every_row_once(any_kafka, topic)


def test_copies_lost_in_their_turn_are_copied_again(any_kafka: EmbeddedKafka) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    settings = write_settings(any_kafka, topic)
    be_killed_at("commit.between_ends", any_kafka, settings, TASKS)
    for _ in range(2):
        abort_open(settings)
        be_killed_at("restore.decided", any_kafka, settings, TASKS)
    abort_open(settings)
    recover(any_kafka, settings.write.id)
    assert_every_row_once(any_kafka, topic)
    write_all(settings, TASKS)
    assert_every_row_once(any_kafka, topic)
