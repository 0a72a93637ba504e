"""The pipeline of docs/stream.md as it stands there: a Delta table's change feed, Avro with a registry's prefix, a consumer."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from documents import Block, all_blocks
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, wait_until
from tests.downloads import pinned_jars, python_with
from tests.spark.killable_job import KillableJob
from tests.spark.quick_start import SHORT_LIVED_JVM

JOBS = Path(__file__).parent / "jobs"
TESTS = Path(__file__).parents[1]
JARS = {
    "io.delta:delta-spark_4.1_2.13:4.1.0": "9b05d7a82196ee1f1073733a45a2faae59161e52b86ae918fe6742fad6eaf036",
    "org.apache.spark:spark-avro_2.13:4.1.1": "6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d",
    "io.delta:delta-storage:4.1.0": "6d0520ffcc35b582369f92c23fa24e14a5bb935cf6e31ed7f47c5046ae17cb25",
}
"""The last one is a dependency of the first."""
PACKAGES = ("pyspark==4.1.4", "pyarrow", "numpy", "crc32c", "lz4", "confluent-kafka", "kafka-python", "fastavro")

pytestmark = pytest.mark.timeout(3_600)  # the first run installs another Spark


@pytest.fixture(scope="module")
def python() -> Path:
    return python_with(*PACKAGES) / "python"


def blocks() -> list[Block]:
    return [block for block in all_blocks() if block.name.startswith("docs/stream.md#a-delta-table-as-the-source")]


def submit_arguments(command: str) -> str:
    """The page's arguments of spark-submit, with jars that are here instead of packages."""
    words = shlex.split(command)[1:-1]
    at = words.index("--packages")
    assert words[at + 1].split(",") == list(JARS)[:2]
    words[at : at + 2] = ["--jars", ",".join(map(str, pinned_jars(JARS)))]
    return shlex.join([*words, "pyspark-shell"])


def changes() -> Iterator[tuple[int, str | None]]:
    """Key and new customer of each change that the statements of the job make, in their order; None: deleted."""
    known = {number: f"c{number}" for number in range(1_000)}
    yield from known.items()
    steps: tuple[dict[int, str | None], ...] = (
        {number: "updated" for number in known if number % 10 in (1, 2)},
        {number: None for number in known if number % 10 == 2},
        dict.fromkeys(range(940, 1100), "merged"),
        {number: None for number in range(900, 1_100) if number >= 940 or number % 10 != 2},
        dict.fromkeys(range(900, 1000), "replaced"),
    )
    for step in steps:
        yield from step.items()


@pytest.mark.parametrize("form", ["stream", "foreachBatch"])
def test_each_change_of_a_table_is_written_once(
    form: str, python: Path, kafka: EmbeddedKafka, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    """The drivers die in batches of Delta's change files, which a batch that runs again must find the same: no model has them."""
    submit, records, stream, for_each = blocks()
    topic = create_topic(kafka.bootstrap_servers, partitions=3)
    text = "\n".join([records.text, (stream if form == "stream" else for_each).text])
    text = text.replace("localhost:9092", kafka.bootstrap_servers).replace("s3a://bucket", str(tmp_path))
    program, table, mark = tmp_path / "program.py", tmp_path / "tables" / "orders", tmp_path / "mark"
    program.write_text(text.replace('"topic", "orders"', f'"topic", "{topic}"'), "utf-8")
    environment = {
        **spark_environment,
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_SUBMIT_OPTS": SHORT_LIVED_JVM,
        "PYSPARK_SUBMIT_ARGS": submit_arguments(*submit.commands()),
    }
    job = KillableJob(JOBS / "delta_feed.py", environment, tmp_path, python)
    arguments = [str(program), str(table), str(mark)]
    mark.touch()  # the point does not act while its file is there
    with job.started(arguments, f"commit.decided=hang:{mark}") as process:
        wait_until(lambda: not mark.exists() or process.poll() is not None, job.said, patience_s=KillableJob.deadline_s)
        job.await_mark(mark, process, "commit.decided")
    job.die_at("commit.decision_written", arguments)
    assert job.run(arguments) == 0, job.said()[-3000:]
    found = decoded(python, kafka, topic, records.text)
    expected: dict[int, list[Any]] = {}
    for number, customer in changes():
        expected.setdefault(number, []).append(customer)
    in_order = list if form == "foreachBatch" else sorted_texts
    assert {key: in_order(values) for key, values in found.items()} == {
        key: in_order(values) for key, values in expected.items()
    }
    assert_nothing_open(kafka.bootstrap_servers)


def sorted_texts(values: list[Any]) -> list[str]:
    return sorted(map(str, values))


def decoded(python: Path, kafka: EmbeddedKafka, topic: str, program: str) -> dict[int, list[Any]]:
    """Key -> its customers in the order of the topic; None: a tombstone."""
    (schema,), (schema_id,) = re.findall(r'"""(.*?)"""', program, re.DOTALL), re.findall(r"schema_id = (\d+)", program)
    arguments = (kafka.bootstrap_servers, topic, schema_id, schema)
    printed = subprocess.run(
        [python, JOBS / "avro_consumer.py", *arguments],
        env={"PYTHONPATH": f"{TESTS.parent}:{TESTS}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=KillableJob.deadline_s,
    ).stdout
    found: dict[int, list[Any]] = {}
    for key, value in map(json.loads, printed.splitlines()):
        assert value is None or value["id"] == int(key)
        found.setdefault(int(key), []).append(value and value["customer"])
    return found
