"""The benchmark runs, every row of every round arrives, and its results are complete."""

from __future__ import annotations

import json
import subprocess
import sys

CONTENDERS = {"kafka-eos", "Spark's Kafka sink", "Arrow rows discarded"}


def test_benchmark_measures_all_sinks_with_each_codec(spark_environment: dict[str, str]) -> None:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.bench_against_spark", "--json"),
            *("--rows", "2000", "--rounds", "2", "--codecs", "none,zstd", "--partitions", "3"),
        ],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert {(each["codec"], each["contender"]) for each in found["results"]} == {
        (codec, contender) for codec in ("none", "zstd") for contender in CONTENDERS
    }
    for each in found["results"]:
        assert len(each["seconds"]) == 2
        assert each["rows_per_second"] > 0
        assert each["ratio_to_built_in"] > 0
    assert "Traceback" not in run.stderr
