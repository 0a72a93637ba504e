"""The demo on a slice of its data, as a user starts it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from shown_output import assert_shows
from snippets import OUTPUTS
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

    (commit,) = found["writes"]
    assert (commit["write_id"], commit["version"]) == ("kafka-eos/flights-demo/flights", 1)
    assert (commit["state"], commit["rows"]) == ("finished", ROWS)
    assert found["first_save"]  # the commit died, so that Spark's save() failed

    # With --json the report for people is on standard error, without Spark's log.
    assert "Exactly once: every flight is visible once" in run.stderr
    assert "WARN" not in run.stderr
    assert "Traceback" not in run.stderr
    # A terminal replaces the line of a step that has begun, and wraps the last sentence at its own width.
    report = re.sub(r"^  .* \.\.\.\n", "", run.stderr, flags=re.MULTILINE)
    tables, heading, sentence = report.partition("Exactly once: every")
    printed = f"{tables}{heading} {' '.join(sentence.split())}"
    assert_shows(OUTPUTS["docs/cli.md#kafka-eos-demo"].text, printed, "docs/cli.md")
