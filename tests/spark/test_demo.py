"""The demo on a slice of its data, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.spark.conftest import REPOSITORY

ROWS = 4_000


def test_demo_compares_exactly_once_with_at_least_once(spark_environment: dict[str, str]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "kafka_eos_sink.cli.main", "demo", "--rows", str(ROWS), "--json"],
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
        },  # the demo must find its workers' imports itself, as for a user
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["problems"] == []

    exactly_once = found["exactly_once"]
    assert exactly_once["census"] == {"sent": ROWS, "visible": ROWS, "duplicates": 0, "missing": 0, "unknown": 0}
    # The killed task's records are in the log, and no consumer sees them.
    assert exactly_once["in_log"] > ROWS

    at_least_once = found["at_least_once"]
    assert at_least_once["sink"] == "Spark's sink"
    assert at_least_once["census"]["missing"] == at_least_once["census"]["unknown"] == 0
    assert at_least_once["census"]["duplicates"] > 0
    assert at_least_once["census"]["visible"] == ROWS + at_least_once["census"]["duplicates"]

    (commit,) = found["commits"]
    assert (commit["write_id"], commit["version"]) == ("kafka-eos/flights-demo/flights", 1)
    assert (commit["state"], commit["rows"]) == ("finished", ROWS)
    assert found["first_save"]  # the commit died, so that Spark's save() failed

    # With --json the report for people is on standard error, without Spark's log.
    assert "Exactly once: every flight is visible once" in run.stderr
    assert "WARN" not in run.stderr
    assert "Traceback" not in run.stderr


LOCAL_SPARK = """
import sys
from pathlib import Path
from pathlib import Path
from kafka_eos_sink.demo.quiet_spark import quiet_spark

with quiet_spark("local[2,4]", Path(sys.argv[1]), [], {}, {}) as spark:
    manager = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().securityManager()
    rows = spark.range(100).mapInArrow(lambda batches: batches, "id long").repartition(3).count()
    print(manager.isAuthenticationEnabled(), len(manager.getSecretKey()) >= 32, rows)
"""


def test_spark_of_the_demo_authenticates_its_connections(spark_environment: dict[str, str], tmp_path: Path) -> None:
    """Its driver and block manager listen on ports that every user of the machine can reach."""
    run = subprocess.run(
        [sys.executable, "-c", LOCAL_SPARK, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["True", "True", "100"]
