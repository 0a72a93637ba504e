"""The guard with real processes, because it must act when its parent is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_eos_sink.embedded.process_guard import ProcessGuard

PARENT = """
import os, sys
from pathlib import Path
from kafka_eos_sink.embedded.process_guard import ProcessGuard
guard = ProcessGuard(scratch=Path(sys.argv[1]))
with open(Path(sys.argv[1], "log"), "ab") as log:
    process = guard.start(["sleep", "600"], output=log, directory=Path(sys.argv[1]))
if sys.argv[2] == "forks" and os.fork() == 0:
    sys.stdin.read()  # a forked child that lives on
    os._exit(0)
print(process.pid, flush=True)
sys.stdin.read()
"""


def alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
        status = Path(f"/proc/{process_id}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


@pytest.mark.parametrize("forks", ["alone", "forks"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_parent_ends_its_processes_and_folder(tmp_path: Path, number: signal.Signals, forks: str) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    root = Path(__file__).parents[3]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(scratch), forks], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    guarded = int(parent.stdout.readline())
    assert alive(guarded)
    parent.send_signal(number)
    parent.wait()
    wait_until(lambda: not alive(guarded) and not scratch.exists())
    parent.stdin.close()
    parent.stdout.close()


def test_closed_guard_keeps_processes_and_folder(tmp_path: Path) -> None:
    guard = ProcessGuard(scratch=tmp_path)
    with (tmp_path / "log").open("ab") as log:
        process = guard.start(["sleep", "600"], output=log, directory=tmp_path)
    try:
        guard.close()
        assert process.poll() is None
        assert tmp_path.exists()
    finally:
        process.kill()
        process.wait()
