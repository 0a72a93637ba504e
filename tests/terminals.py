"""The command ``kafka-eos`` on a terminal, and a person who answers its question."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time

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
            if not answered and b"[y/N]" in shown:
                os.write(ours, f"{answer}\n".encode())
                answered = True
        return process.wait(timeout=PATIENCE_S), shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
