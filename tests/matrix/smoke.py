"""Batch, repeat, stream and dead drivers on the Spark of this interpreter, against an embedded Kafka; tools/run-matrix runs it on several.

    python tests/matrix/smoke.py [KAFKA_VERSION]

Exit status 0: every row was visible once, or Spark 4.0 refused the stream before it wrote anything.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path

import pyarrow
import pyspark

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.embedded.distribution import DEFAULT_KAFKA_VERSION
from kafka_testing import assert_nothing_open, create_topic, read_committed
from tests.spark.jobs.stream_rows import LINES, add_files
from tests.spark.killable_job import KillableJob

JOBS = Path(__file__).parents[1] / "spark" / "jobs"
BEFORE_DECISION, AFTER_DECISION = "commit.decision_written", "commit.decided"
ROWS, FILES = 5_000, 3


def job(name: str, folder: Path) -> KillableJob:
    (folder / name).mkdir()
    environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return KillableJob(JOBS / name, environment, folder / name)


def batch(kafka: EmbeddedKafka, folder: Path) -> None:
    """The driver dies before its decision is committed; the job runs again; a third run writes nothing."""
    topic = create_topic(kafka.bootstrap_servers, partitions=3)
    write = job("write_rows.py", folder)
    arguments = [kafka.bootstrap_servers, topic, str(ROWS), "3", "smoke", "1"]
    write.die_at(BEFORE_DECISION, arguments)
    for _ in range(2):
        assert write.run(arguments) == 0, write.said()[-3000:]
        values = [
            int((record.value or b"").split(b":")[1]) for record in read_committed(kafka.bootstrap_servers, topic)
        ]
        assert sorted(values) == list(range(ROWS))


def stream(kafka: EmbeddedKafka, folder: Path) -> None:
    """The driver of a query over several files, each a batch, dies after its first decision; the query runs again."""
    topic = create_topic(kafka.bootstrap_servers, partitions=3)
    query = job("stream_rows.py", folder)
    add_files(folder / "source", 0, FILES)
    arguments = [kafka.bootstrap_servers, topic, str(folder / "source"), str(folder / "checkpoint")]
    if pyspark.__version__.startswith("4.0."):
        assert query.run(arguments) != 0
        assert "[KAFKA_EOS.STREAMING_NOT_SUPPORTED] streaming needs Spark 4.1 or newer" in query.said(), query.said()[
            -3000:
        ]
        assert read_committed(kafka.bootstrap_servers, topic) == []
        return
    query.die_at(AFTER_DECISION, arguments)
    assert query.run(arguments) == 0, query.said()[-3000:]
    values = [int(record.value or b"") for record in read_committed(kafka.bootstrap_servers, topic)]
    assert sorted(values) == list(range(FILES * LINES))


def main(kafka_version: str = DEFAULT_KAFKA_VERSION) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(version=kafka_version) as kafka:
        batch(kafka, Path(folder))
        stream(kafka, Path(folder))
        assert_nothing_open(kafka.bootstrap_servers)
    of = f"Spark {pyspark.__version__}, Python {platform.python_version()}, pyarrow {pyarrow.__version__}"
    print(f"{of}, Kafka {kafka.version}: passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
