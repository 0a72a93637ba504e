"""A process that writes dies at each named point of the protocol; the same version runs again.

Without Spark, so that every point is met under both transaction protocols; tests/spark does the same to whole Spark drivers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from dead_writes import POINTS, ROWS, write_all, write_settings
from kafka_eos_sink.cli.embedded_kafka import EmbeddedKafka
from kafka_eos_sink.commit import failpoints
from kafka_testing import assert_nothing_open, create_topic, read_committed

TESTS = Path(__file__).parents[1]
TASKS = 3
PROGRAM = """
import sys
from types import SimpleNamespace
from dead_writes import write_all, write_settings

servers, topic, write_id, tasks = sys.argv[1:]
write_all(write_settings(SimpleNamespace(bootstrap_servers=servers), topic, write_id=write_id), int(tasks))
"""


def die_at(point: str, kafka: EmbeddedKafka, topic: str, write_id: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, kafka.bootstrap_servers, topic, write_id, str(TASKS)],
        env={
            **os.environ,
            failpoints.VARIABLE: f"{point}=kill",
            "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == -signal.SIGKILL, f"{point} was not reached: {finished.stderr[-2000:]}"


def assert_every_row_once(kafka: EmbeddedKafka, topic: str) -> None:
    values = Counter(int(record.value or b"") for record in read_committed(kafka.bootstrap_servers, topic))
    assert values == Counter(range(TASKS * ROWS))
    assert_nothing_open(kafka.bootstrap_servers)


@pytest.mark.parametrize("point", POINTS)
def test_a_write_that_dies_is_whole_after_the_next_run(any_kafka: EmbeddedKafka, point: str) -> None:
    topic = create_topic(any_kafka.bootstrap_servers, partitions=3)
    settings = write_settings(any_kafka, topic)
    die_at(point, any_kafka, topic, settings.write_id)
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
        die_at(point, any_kafka, topic, settings.write_id)
    write_all(settings, TASKS)
    assert_every_row_once(any_kafka, topic)
