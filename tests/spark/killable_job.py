"""A Spark job in a process of its own, so that a test can kill everything of it at once at a named point of the protocol."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kafka_eos_sink.runtime import failpoints


def descendants(pid: int) -> list[int]:
    """The process and all that it started, by what the kernel says; Spark's Python daemons leave its process group."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):  # it may end while its threads are listed, too
            for task in Path(f"/proc/{parent}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    found.extend(int(child) for child in task.read_text().split())
    return found


def signal_all(pid: int, number: signal.Signals) -> None:
    for found in descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(found, number)


class Gate:
    """A failpoint with the action ``wait:FILE``: once the gate is closed, the first process to come waits there until it is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.open()

    def open(self) -> None:
        """The process that waits goes on, and all others pass: a dangling link does not exist, but nobody can create it again."""
        link = self._path.with_name(f"{self._path.name}.open")
        link.symlink_to("nowhere")
        link.replace(self._path)

    def close(self) -> None:
        self._path.unlink()

    def waits_here(self) -> int | None:
        """The process that was caught since the gate was closed."""
        try:
            return int(self._path.read_text() or "0") or None
        except FileNotFoundError:
            return None


class KillableJob:
    """A script under tests/spark/jobs; ``folder`` is for its log and working directory."""

    deadline_s = 180.0

    def __init__(
        self, script: Path, environment: dict[str, str], folder: Path, python: str | Path = sys.executable
    ) -> None:
        self._script, self._environment, self._folder, self._python = script, environment, folder, python
        self.log = folder / "job.log"

    def command(self, arguments: Sequence[str]) -> list[str]:
        """What starts the job."""
        return [str(self._python), str(self._script), *arguments]

    @contextlib.contextmanager
    def started(self, arguments: Sequence[str], fail: str = "") -> Iterator[subprocess.Popen[bytes]]:
        """The job while the block runs; killed with all that it started when the block ends."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.command(arguments),
                env={**os.environ, **self._environment, failpoints.VARIABLE: fail},
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )
        try:
            yield process
        finally:
            signal_all(process.pid, signal.SIGKILL)
            process.wait()

    def run(self, arguments: Sequence[str], fail: str = "") -> int:
        """The exit status."""
        with self.started(arguments, fail) as process:
            try:
                return process.wait(self.deadline_s)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"not done after {self.deadline_s} s: {self.said()[-3000:]}") from None

    def die_at(self, point: str, arguments: Sequence[str]) -> None:
        """Everything of the driver is killed at once when the point is reached."""
        mark = self._folder / f"reached-{len(list(self._folder.glob('reached-*')))}"
        with self.started(arguments, f"{point}=hang:{mark}") as process:
            self.await_mark(mark, process, point)

    def await_mark(self, mark: Path, process: subprocess.Popen[bytes], point: str) -> None:
        """Wait until a failpoint has made its file."""
        give_up_at = time.monotonic() + self.deadline_s
        while not mark.exists():
            assert process.poll() is None, f"the job ended before {point}: {self.said()[-3000:]}"
            assert time.monotonic() < give_up_at, f"{point} was not reached: {self.said()[-3000:]}"
            time.sleep(0.05)

    def said(self) -> str:
        return self.log.read_text()
