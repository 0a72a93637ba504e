"""A Spark application with executors in processes of their own, so that a test can kill each of them at a named point of the protocol."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafka_eos_sink.runtime import failpoints
from kafka_testing import wait_until
from tests.spark.killable_job import descendants, signal_all

SCRIPT = Path(__file__).parent / "jobs" / "cluster_driver.py"
DEADLINE_S = 120.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.sql.adaptive.enabled": "false",  # which makes one task of the few rows behind a shuffle
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    # Nobody ends the worker of a task that was killed, as on a machine that does not hear the driver any more; 2 s by default.
    "spark.python.task.killTimeout": "120s",
    # A copy is started as soon as half of the tasks are done; Spark looks ten times a second.
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}
EXECUTOR = b"CoarseGrainedExecutorBackend"
GATES = (
    "task.writing",
    "task.flushed",
    "task.prepared",
    "commit.before_decision",
)
"""The steps at which a process can be made to wait."""


class Gate:
    """A failpoint with the action ``wait:FILE``: once the gate is closed, the first process to come waits there until it is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.open()

    def open(self) -> None:
        """The one who waits goes on, and everybody else passes: a link to nowhere does not exist, but cannot be made anew."""
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


class ExecutorCluster:
    """The driver of ``jobs/cluster_driver.py``, its two executors of one core each, and the gates on their way."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder
        self._gates = {name: Gate(folder / "gates" / name) for name in GATES}

    @staticmethod
    @contextlib.contextmanager
    def started(folder: Path) -> Iterator[ExecutorCluster]:
        """While the block runs; killed with all that it started when the block ends."""
        gates = folder / "gates"
        gates.mkdir()
        settings = [f"{name}={value}" for name, value in SETTINGS.items()]
        settings.append(f"spark.executor.extraJavaOptions={os.environ.get('SPARK_SUBMIT_OPTS', '')}")
        with (folder / "driver.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(folder), *settings],
                env={
                    **os.environ,
                    "SPARK_LOCAL_DIRS": str(folder),
                    failpoints.VARIABLE: ";".join(f"{name}=wait:{gates / name}" for name in GATES),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
            )
        cluster = ExecutorCluster(process, folder)
        try:
            yield cluster
        finally:
            cluster._end()

    def _end(self) -> None:
        signal_all(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def ask(self, method: str, **given: Any) -> Any:
        """Have the driver do something (the methods of its `Application`), and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"do": method, "given": given}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"the driver has ended: {self.said()[-3000:]}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["answer"]

    def said(self) -> str:
        """What Spark has logged."""
        return (self._folder / "driver.log").read_text()

    def await_executors(self) -> None:
        wait_until(lambda: self.ask("executors") == 2, "two executors", patience_s=DEADLINE_S)

    def close(self, *points: str) -> None:
        for point in points:
            self._gates[point].close()

    def open(self, *points: str) -> None:
        for point in points:
            self._gates[point].open()

    def open_all(self) -> None:
        self.open(*GATES)

    def await_caught(self, *points: str) -> None:
        for point in points:
            wait_until(self._gates[point].waits_here, f"{point} reached", patience_s=DEADLINE_S)

    def executor_at(self, point: str) -> int:
        """The JVM of the executor whose worker waits there."""
        caught = self._gates[point].waits_here()
        (found,) = (pid for pid in self.executors() if caught in descendants(pid))
        return found

    def executors(self) -> list[int]:
        """The JVMs of the executors, those that are still starting too."""
        return [pid for pid in descendants(self._process.pid) if EXECUTOR in _command_line(pid)]

    def kill_executors(self, *pids: int) -> None:
        """Whole executors at once, as machines that are gone: the JVMs and their Python workers."""
        for pid in [found for executor in pids for found in descendants(executor)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
