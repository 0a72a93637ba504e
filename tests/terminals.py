"""The command ``kafka-eos`` as a person runs it: on a terminal where it asks, and a broker in the foreground."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 120.0


def on_terminal(arguments: list[str], answer: str) -> tuple[int, str]:
    """Run the command, give `answer` to its question, and return its exit status and everything that it showed."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kafka_eos_sink.cli.main", *arguments]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "400"}
    )
    os.close(theirs)
    shown, answered, give_up_at = b"", False, time.monotonic() + PATIENCE_S
    try:
        while select.select([ours], [], [], max(0.0, give_up_at - time.monotonic()))[0]:
            try:
                shown += os.read(ours, 65_536)
            except OSError:
                break  # Linux: the last process at the other end has closed it
            if (
                not answered and b"[y/N]: " in shown
            ):  # the blank comes last: an earlier answer would be echoed before it
                os.write(ours, f"{answer}\n".encode())
                answered = True
        return process.wait(timeout=PATIENCE_S), shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@contextmanager
def broker(*options: str) -> Iterator[tuple[str, list[str]]]:
    """Run ``kafka-eos broker`` in another process; yield its servers and, at the end, what it printed on standard error."""
    command = subprocess.Popen(
        [sys.executable, "-m", "kafka_eos_sink.cli.main", "broker", "--heap", "384m", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert command.stdout is not None
    printed: list[str] = []
    try:
        yield command.stdout.readline().strip(), printed
    finally:
        command.send_signal(signal.SIGTERM)
        _, errors = command.communicate(timeout=60)
        printed += errors.splitlines()
    assert command.returncode == 0, errors
