from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cpu_seconds import CpuSeconds, cpu_seconds

BURN = "import os,sys\nwhile os.times().user < {seconds}: pass\nprint(flush=True)\nsys.stdin.read()"

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")


def test_children_count_as_python_and_given_pids_as_kafka() -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", BURN.format(seconds=seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for seconds in (0.2, 0.4)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        found = cpu_seconds(os.getpid(), [children[1].pid])
        assert found is not None
        assert found.spark > 0
        assert found.python >= 0.55  # both are children of this process
        assert 0.35 <= found.kafka < found.python
    finally:
        for child in children:
            child.communicate()


def test_ended_process_counts_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert cpu_seconds(child.pid, [child.pid]) == CpuSeconds(spark=0, python=0, kafka=0)
