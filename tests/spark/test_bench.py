"""The benchmark runs, every row of every round arrives, and its results are complete."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.contenders import CONTENDERS

PNG = b"\x89PNG\r\n\x1a\n"


def test_benchmark_measures_all_sinks(spark_environment: dict[str, str], tmp_path: Path) -> None:
    chart = tmp_path / "bench.png"
    run = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.bench_against_spark", "--json", "--chart", str(chart)),
            *("--megabytes", "1", "--rounds", "1", "--warm-up", "1", "--codecs", "zstd", "--partitions", "3"),
            *("--contenders", "all"),
        ],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)["results"]
    assert {(each["cell"]["codec"], each["cell"]["keyed"], each["contender"]) for each in found} == {
        ("zstd", keyed, each.name) for keyed in (True, False) for each in CONTENDERS
    }
    for each in found:
        assert len(each["seconds"]) == 1
        assert each["rows_per_second"] > 0
        assert each["ratio_to_built_in"] > 0
        assert each["limit_seconds"] > 0
    assert "Traceback" not in run.stderr
    assert chart.read_bytes().startswith(PNG)
