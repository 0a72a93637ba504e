"""Ends child processes when their parent ends, even by SIGKILL.

A context manager and ``atexit`` do nothing for a killed parent, and each broker left running holds half a gigabyte.
So the guard, a small separate process, reads a pipe from the parent. When the parent ends, the kernel closes the
pipe. Then the guard kills the processes on its list and removes the temporary folder.

Linux's ``PR_SET_PDEATHSIG`` is no replacement. It follows the *thread* that started the child. It needs a ``preexec_fn``,
which is unsafe in a process with threads. It leaves the folder, and macOS lacks it.

This file is also the guard's program: it is run by path, so it imports the standard library alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO

_KILL_PATIENCE_S = 10.0


class ProcessGuard:
    """Start processes that end with this one; remove the folder ``scratch`` then."""

    def __init__(self, scratch: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__)), *([str(scratch)] if scratch else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to the terminal's process group and must not reach the guard
        )
        _open_guards.add(self)

    def start(self, command: Sequence[str], *, output: IO[bytes], directory: Path) -> subprocess.Popen[bytes]:
        """Start ``command`` in its own session; append its output to ``output``."""
        # The new process waits for a line before it becomes the command, and the line comes only after the guard has
        # its id. If the parent dies in between, the line never comes and the process ends: it never runs unguarded.
        process = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _ && exec "$@" </dev/null', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            start_new_session=True,
        )
        self._send(f"watch {process.pid}")
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        return process

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Remove an ended process from the guard's list."""
        # Otherwise the guard could kill another process to which the kernel has given the same id.
        self._send(f"forget {process.pid}")

    def close(self) -> None:
        """End the guard, which then touches no process and no folder."""
        if self._process.returncode is None:
            self._send("close")
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
        _open_guards.discard(self)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def _drop_in_child(self) -> None:
        if self._process.stdin is not None:
            os.close(self._process.stdin.fileno())


_open_guards: weakref.WeakSet[ProcessGuard] = weakref.WeakSet()


def _drop_pipes_in_child() -> None:
    # A forked child that never calls exec (multiprocessing) would hold the pipe open after its parent's death.
    for guard in list(_open_guards):
        guard._drop_in_child()
    _open_guards.clear()


os.register_at_fork(after_in_child=_drop_pipes_in_child)


def _watch(scratch: Path | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: set[int] = set()
    for line in sys.stdin:
        verb, _, process_id = line.strip().partition(" ")
        if verb == "watch":
            watched.add(int(process_id))
        elif verb == "forget":
            watched.discard(int(process_id))
        elif verb == "close":
            return
    for process_id in tuple(watched):
        if not _signal(process_id, signal.SIGKILL):
            watched.discard(process_id)
    give_up_at = time.monotonic() + _KILL_PATIENCE_S
    while any(_signal(process_id, 0) for process_id in watched) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def _signal(process_id: int, number: int) -> bool:
    try:
        os.kill(process_id, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    _watch(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
