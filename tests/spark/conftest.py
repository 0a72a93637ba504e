"""A Spark for the tests: two cores, four tries for a task, small, and on the loopback alone."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kafka_eos_sink.embedded.distribution import resolve_coordinates
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS
from tests.spark.quick_start import PYTHON_STARTUP, SHORT_LIVED_JVM, short_lived_jvm
from tests.spark.spark_submit import SparkSubmit, zip_package

AVRO_JAR = "org.apache.spark:spark-avro_2.13:4.0.1"
"""For the recipe of docs/records.md: the newest version that the package index has."""
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def spark_environment() -> Iterator[dict[str, str]]:
    """What a process that starts Spark needs; set for this one, and returned for others."""
    environment = {
        # Workers start "python3" unless told otherwise, which need not have pyarrow.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": short_lived_jvm(),
        "SPARK_LAUNCHER_OPTS": SHORT_LIVED_JVM,
        "PYTHONPATH": os.pathsep.join(
            filter(None, (str(PYTHON_STARTUP), str(REPOSITORY), os.environ.get("PYTHONPATH")))
        ),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield environment


@pytest.fixture(scope="session")
def kafka_source_jars() -> list[Path]:
    """Spark's own source and sink for Kafka."""
    return resolve_coordinates(KAFKA_SOURCE_JARS)


@pytest.fixture(scope="session")
def spark(
    brokers: Any,
    spark_environment: dict[str, str],
    kafka_source_jars: list[Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkSession]:
    """One session for all tests; nothing is registered in it, Spark finds the source by itself. Brokers start beside it."""
    session = (
        SparkSession.builder.master("local[2,4]")  # the second number: tries of a task, which are 1 in plain local mode
        .appName("kafka-eos tests")
        .config("spark.driver.memory", "1g")
        .config("spark.jars", ",".join(map(str, (*kafka_source_jars, *resolve_coordinates([AVRO_JAR])))))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a zip."""
    path = tmp_path_factory.mktemp("package") / "kafka_eos_sink.zip"
    zip_package(path)
    return path


@pytest.fixture
def spark_submit(package: Path, spark_environment: dict[str, str], tmp_path: Path) -> SparkSubmit:
    """Runs the jobs in spark_jobs/."""
    without_repository = {**spark_environment, "PYTHONPATH": str(PYTHON_STARTUP)}
    return SparkSubmit(without_repository, tmp_path, "--py-files", str(package))


@pytest.fixture(scope="session")
def code_of() -> Callable[[str], str]:
    """Finds the stable code in what the caller of ``save()`` caught.

    Whatever Spark puts around it, the code stands right after the class of the exception, before any other word.
    """

    def find(text: str) -> str:
        found = re.search(r"^(?:.*: )?[\w.]*(?:Error|Exception): \[KAFKA_EOS\.([A-Z_]+)\] ", text, re.MULTILINE)
        assert found is not None, text
        return found[1]

    return find
