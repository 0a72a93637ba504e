"""The jobs run through spark-submit with nothing but a zip of the package."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from kafka_eos_sink.cli.embedded_kafka import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed

REPOSITORY = Path(__file__).parents[2]
Submit = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a zip, as one would give it to --py-files."""
    path = tmp_path_factory.mktemp("package") / "kafka_eos_sink.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for source in sorted((REPOSITORY / "kafka_eos_sink").rglob("*.py")):
            archive.write(source, source.relative_to(REPOSITORY))
    return path


@pytest.fixture
def submit(package: Path, spark_environment: dict[str, str], tmp_path: Path) -> Submit:
    """Runs batch_to_kafka.py with arguments, away from the repository and without it on the Python path."""
    environment = {**os.environ, **spark_environment}
    environment.pop("PYTHONPATH", None)
    environment.pop("SPARK_HOME", None)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                "--properties-file",
                str(REPOSITORY / "conf" / "spark-defaults.conf"),
                "--conf",
                "spark.driver.bindAddress=127.0.0.1",
                "--py-files",
                str(package),
                str(REPOSITORY / "spark_jobs" / "batch_to_kafka.py"),
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            cwd=tmp_path,
            env=environment,
        )

    return run


def own_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the job has to say, between Spark's log lines; spark-submit shows both its streams on standard output."""
    return [line for line in done.stdout.splitlines() if line.startswith("batch_to_kafka")]


def test_help(submit: Submit) -> None:
    done = submit("--help")
    assert done.returncode == 0, done.stderr
    for name in ("--topic", "--key", "--value", "--txn-app-id", "--txn-version", "--option", "--properties"):
        assert name in done.stdout


def test_wrong_usage_is_status_2(submit: Submit) -> None:
    done = submit("--topic", "orders", "--bootstrap-servers", "a:1", "--txn-app-id", "x", "data.json")
    assert done.returncode == 2, done.stderr
    assert own_lines(done) == ["batch_to_kafka.py: error: --txn-app-id and --txn-version belong together"]


def test_a_failure_is_one_sentence_and_status_1(submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('{"a": 1}\n', "utf-8")
    done = submit(
        "--topic",
        "orders",
        "--bootstrap-servers",
        "127.0.0.1:1",
        "--format",
        "json",
        "--option",
        "kafka.acks=1",
        "data.json",
    )
    assert done.returncode == 1, done.stderr
    (line,) = own_lines(done)
    assert line.startswith("batch_to_kafka: [KAFKA_EOS.INVALID_OPTIONS] kafka.acks=1 contradicts exactly-once")


def test_files_go_to_a_topic_once_however_often_the_job_runs(
    submit: Submit, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    rows = [{"id": i, "name": f"n{i}"} for i in range(50)]
    (tmp_path / "data.json").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (tmp_path / "client.properties").write_text(
        f"bootstrap.servers={kafka.bootstrap_servers}\ncompression.type=lz4\ngroup.id=not-ours\n", "utf-8"
    )
    for _ in range(2):
        done = submit(
            *("--topic", topic, "--format", "json", "--properties", "client.properties"),
            *("--key", "id", "--headers", "array(named_struct('key', 'h', 'value', CAST(name AS BINARY)))"),
            *("--where", "id < 40", "--txn-app-id", "files", "--txn-version", "3", "data.json"),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert own_lines(done) == [f"batch_to_kafka: written to topic {topic}"]
    records = read_committed(kafka.bootstrap_servers, topic)
    assert [(record.key, json.loads(record.value or b""), record.headers) for record in records] == [
        (str(row["id"]).encode(), row, (("h", str(row["name"]).encode()),)) for row in rows[:40]
    ]
    assert_nothing_open(kafka.bootstrap_servers, [topic])
