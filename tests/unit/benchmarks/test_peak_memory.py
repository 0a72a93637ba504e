from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peak_memory import PeakWatch

PARENT = """
import subprocess, sys
workers = [subprocess.Popen([sys.executable, "-c", {worker!r}], stdin=subprocess.PIPE, text=True) for _ in range(2)]
for line in sys.stdin:
    number, megabytes = line.split()
    print(megabytes, file=workers[int(number)].stdin, flush=True)
for worker in workers:
    worker.communicate()
"""
# Holds so many MB for a while of CPU time.
WORKER = """
import os, sys
for line in sys.stdin:
    until = os.times().user + 0.1
    while os.times().user < until:
        block = b"x" * (int(line) * 1_000_000)
        del block
    print(flush=True)
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="there is no /proc here")


def test_peak_is_that_of_processes_that_worked_in_the_run() -> None:
    program = PARENT.format(worker=WORKER)
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    assert parent.stdout is not None

    def work(number: int, megabytes: int) -> None:
        assert parent.stdin is not None
        assert parent.stdout is not None
        print(number, megabytes, file=parent.stdin, flush=True)
        parent.stdout.readline()

    try:
        watch = PeakWatch(parent.pid)
        work(0, 200)
        first = watch.read()
        watch = PeakWatch(parent.pid)
        work(1, 100)
        second = watch.read()
    finally:
        parent.communicate()
    assert first is not None
    assert second is not None
    assert 200 <= first.python < 250
    assert 100 <= second.python < 150
    assert 0 < second.jvm < 50
