"""PySpark is an extra: whatever is no part of Spark works in a Python that does not have it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.extras import install_command
from kafka_testing import create_topic

ROOT = Path(__file__).parents[2]
EVERYTHING_ELSE = """
import importlib
import pathlib

import kafka_eos_sink

root = pathlib.Path(kafka_eos_sink.__file__).parent
for package in ("cli", "client", "commit", "embedded", "producer", "protocol", "runtime", "settings"):
    for file in (root / package).rglob("*.py"):
        importlib.import_module(".".join(file.relative_to(root.parent).with_suffix("").parts))
print(kafka_eos_sink.options_from_file.__name__)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All installed packages but PySpark."""
    folder = tmp_path_factory.mktemp("packages")
    for installed in (Path(entry) for entry in sys.path if entry.endswith("site-packages")):
        for entry in installed.iterdir():
            link = folder / entry.name
            if not entry.name.startswith("pyspark") and not link.exists():
                link.symlink_to(entry)
    return folder


def run(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # -S: the interpreter adds no folder of installed packages.
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        env={**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_everything_but_spark_is_importable(packages: Path) -> None:
    done = run(packages, "-c", EVERYTHING_ELSE)
    assert (done.returncode, done.stdout) == (0, "options_from_file\n"), done.stderr


@pytest.mark.parametrize("name", ["KafkaEosDataSource", "partition_for_topic"])
def test_missing_pyspark_names_the_extra(packages: Path, name: str) -> None:
    done = run(packages, "-c", f"from kafka_eos_sink import {name}")
    sentence = f"[KAFKA_EOS.PYSPARK_MISSING] {name} needs PySpark, and this Python does not have it. Run: {install_command('spark')}"
    assert done.returncode == 1
    assert sentence in done.stderr.splitlines()[-1]
    assert "ModuleNotFoundError" not in done.stderr


def test_embedded_kafka_and_commands_run(packages: Path, kafka: EmbeddedKafka) -> None:
    """``kafka`` has downloaded the jars, for which Ivy of PySpark is needed once."""
    topic = create_topic(kafka.bootstrap_servers)
    checked = run(
        packages,
        "-m",
        "kafka_eos_sink.cli.main",
        "check",
        "--bootstrap-servers",
        kafka.bootstrap_servers,
        "--topic",
        topic,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    program = "from kafka_eos_sink.embedded import EmbeddedKafka\nwith EmbeddedKafka() as kafka: print(kafka.bootstrap_servers)"
    started = run(packages, "-c", program)
    assert started.returncode == 0, started.stderr
    assert started.stdout.startswith("127.0.0.1:")
