"""The benchmark runs, every row of every round arrives, and its results are complete. What it measures belongs to no test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.contenders import BUILT_IN, CONTENDERS, EQUAL, FLOOR, KAFKA_EOS, NO_HISTORY

PNG = b"\x89PNG\r\n\x1a\n"


def bench(chart: Path, *options: str) -> dict[str, Any]:
    """Run the benchmark in a process of its own, because it starts a Spark; return its JSON."""
    run = subprocess.run(
        [*(sys.executable, "-m", "benchmarks.bench_against_spark", "--json", "--chart", str(chart)), *options],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    # Spark may cut the connection to PySpark's accumulator server when a query is stopped within a batch: "EOFError".
    assert run.stderr.count("Traceback") == run.stderr.count("\nEOFError")
    assert chart.read_bytes().startswith(PNG)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_benchmark_measures_all_sinks(spark_environment: dict[str, str], tmp_path: Path) -> None:
    small = ("--megabytes", "1", "--rounds", "1", "--warm-up", "1")
    cells = ("--codecs", "zstd", "--kinds", "text", "--partitions", "3")
    found = bench(tmp_path / "bench.png", *small, *cells, "--contenders", "all", "--parts", "throughput,failures")
    results = found["results"]
    assert {(each["cell"]["codec"], each["cell"]["keyed"], each["contender"]) for each in results} == {
        ("zstd", keyed, each.name) for keyed in (True, False) for each in CONTENDERS
    }
    for each in results:
        assert len(each["seconds"]) == 1
        assert each["rows_per_second"] > 0
        assert each["ratio_to_built_in"] > 0
        assert each["ratio_to_equal_settings"] > 0
        assert each["settings"] == (EQUAL.settings if each["contender"] == EQUAL.name else {})
        assert each["limit_seconds"] > 0
        assert each["peak_megabytes"]["jvm"] > 100
        # So few rows that are only dropped may cost a worker less than the tick by which the kernel counts.
        assert each["peak_megabytes"]["python"] > 20 or each["contender"] in (BUILT_IN.name, EQUAL.name, FLOOR.name)
    failures = {each["contender"]: (each["retried"], each["run_again"]) for each in found["failures"]}
    assert list(failures) == [each.name for each in CONTENDERS if each is not FLOOR]
    for contender in CONTENDERS[1:]:
        retried, run_again = failures[contender.name]
        assert retried == 1 or contender.guarantee == "at least once", contender.name
        assert (run_again == 1) == contender.guarantee.startswith("exactly once"), contender.name
    assert failures[BUILT_IN.name][0] > 1
    assert failures[EQUAL.name][0] > 1
    assert not found["latency"]
    assert found["recovery"] is None


def test_benchmark_measures_latency_and_recovery(spark_environment: dict[str, str], tmp_path: Path) -> None:
    small = ("--megabytes", "20", "--rounds", "2", "--warm-up", "2", "--batches", "10", "--parts", "latency,recovery")
    timeline = tmp_path / "requests.png"
    found = bench(tmp_path / "bench.png", *small, "--timeline", str(timeline))
    assert timeline.read_bytes().startswith(PNG)
    latency = {each["contender"]: each for each in found["latency"] if each["kind"] == "micro-batch"}
    assert list(latency) == [FLOOR.name, KAFKA_EOS.name, BUILT_IN.name]
    assert all(len(each["ms"]) == 2 * (10 - 5) and each["tasks"] == 4 for each in latency.values())
    assert all(each["ratio_to_floor"] > 0 for each in found["latency"])
    assert 0 < latency[KAFKA_EOS.name]["driver_median_ms"] < latency[KAFKA_EOS.name]["median_ms"]
    writes = {each["contender"]: each for each in found["latency"] if each["kind"] == "batch write"}
    assert list(writes) == [FLOOR.name, KAFKA_EOS.name, NO_HISTORY.name, BUILT_IN.name]
    assert all(len(each["ms"]) == 10 for each in writes.values())
    for part in ("copy", "whole_recovery"):
        assert len(found["recovery"][part]["seconds"]) == 2
        assert found["recovery"][part]["megabytes_per_second"] > 0
