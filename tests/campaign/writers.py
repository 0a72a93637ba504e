"""A writer of the campaign: a Spark application that is started again whenever it has died, until it has written everything."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import confluent_kafka

from kafka_eos_sink.runtime import failpoints
from tests.spark.jobs.stream_rows import BEGAN_S
from tests.spark.killable_job import descendants, signal_all

from .checker import Expected
from .spark_writer import Assignment, Unit, accepted_of

SCRIPT = Path(__file__).parent / "spark_writer.py"
CODE = re.compile(r"\[KAFKA_EOS\.([A-Z_]+)\]")
ROLES = {
    "jvm": "java",
    "python worker": "pyspark.daemon",
    "planner or committer": "pyspark.sql.worker|pyspark/sql/worker|streaming_sink",
}
"""Processes below a writer, by their command lines."""
FINISH_WITHIN_S = 300.0


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


class Writer:
    """One assignment and the processes that work at it."""

    def __init__(self, folder: Path, given: Assignment, environment: dict[str, str], chance: random.Random) -> None:
        self.folder, self.given, self._environment, self._chance = folder, given, environment, chance
        self.command = [sys.executable, str(SCRIPT)]
        self.units: dict[int, int] = {}
        self.codes: Counter[str] = Counter()
        self.starts = self.deaths = 0
        self.points: tuple[str, ...] = ()
        """Failpoints that a start may draw."""
        self.log = folder / "run-0.log"
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._second: subprocess.Popen[bytes] | None = None
        self.waits = 0
        """How often one of its processes has waited at a failpoint."""
        self._mark: Path | None = None
        self._waits: Path | None = None
        self._resume_at = 0.0
        self._ended_at = 0.0
        self._pause_s = 0.0
        folder.mkdir()
        (folder / "source").mkdir()
        (folder / "units.jsonl").touch()
        (folder / "writer.json").write_text(json.dumps(asdict(given)))

    # what is to be written

    def more_units(self, count: int, largest: int) -> None:
        """Ask for so many more; a batch job gets them in any order, and some of its accepted ones again."""
        first = len(self.units)
        # Many small ones, and some large.
        new = [
            Unit(number, max(3, int(largest * self._chance.random() ** 3))) for number in range(first, first + count)
        ]
        self.units |= {unit.number: unit.rows for unit in new}
        if self.given.kind == "batch":
            again = (
                [Unit(number, self.units[number]) for number in self._chance.choices(range(first), k=2)]
                if first
                else []
            )
            order = self._chance.sample(new + again, len(new + again))
            with (self.folder / "units.jsonl").open("a") as units:
                units.writelines(json.dumps(asdict(unit)) + "\n" for unit in order)
        elif self.given.kind == "copy":
            self._produce_input(new)
        else:
            for unit in new:
                self._add_file(unit)

    def _add_file(self, unit: Unit) -> None:
        hidden = self.folder / "source" / f".{unit.number}"  # Spark takes no file that is still being written
        hidden.write_text("".join(f"{unit.number}|{line}\n" for line in range(unit.rows)))
        os.utime(hidden, (BEGAN_S + unit.number, BEGAN_S + unit.number))  # Spark takes files by their age
        hidden.rename(self.folder / "source" / f"{unit.number:06d}.txt")

    def _produce_input(self, units: list[Unit]) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.given.source_servers,
                "transactional.id": f"input-{self.given.name}",
                "transaction.timeout.ms": 60_000,
                "log_level": 0,
            }
        )
        # A fault may let any of this fail. What counts in the end is what is committed.
        with contextlib.suppress(confluent_kafka.KafkaException):
            producer.init_transactions(60)
            for unit in units:
                if unit.number % 3 == 0:
                    self._send_input(producer, -1, 5)
                    producer.abort_transaction(60)
                self._send_input(producer, unit.number, unit.rows)
                producer.commit_transaction(60)

    def _send_input(self, producer: confluent_kafka.Producer, unit: int, rows: int) -> None:
        producer.begin_transaction()
        for line in range(rows):
            producer.produce(self.given.input_topic, f"{unit}|{line}")
            producer.poll(0)
        producer.flush(60)

    def expected(self) -> Expected:
        """Return what must be visible; a copy must have all of its input, whatever became of the units."""
        is_batch = self.given.kind == "batch"
        return Expected(
            writer=self.given.name,
            topics=tuple(self.given.topics),
            units=dict(self.units),
            accepted=frozenset(accepted_of(self.folder)) if is_batch else self._noted_by_spark(),
            input_topic=self.given.input_topic,
            group=self.given.group,
        )

    def visible_on_return(self) -> list[tuple[str, int, list[int]]]:
        """Return what a job noted after each write: topic, unit, last stable offsets."""
        path = self.folder / "visible.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):  # a job that was killed while it wrote the line
                topic, number, stable = json.loads(line)
                found.append((topic, number, stable))
        return found

    def _noted_by_spark(self) -> frozenset[int]:
        """The batches of a query that Spark has committed; a batch is a unit, but in a copy."""
        commits = self.folder / "checkpoint" / "commits"
        if self.given.kind == "copy" or not commits.exists():
            return frozenset()
        # Spark commits batches in their order, and removes the oldest notes.
        newest = max((int(each.name) for each in commits.iterdir() if each.name.isdigit()), default=-1)
        return frozenset(range(newest + 1))

    @property
    def write_ids(self) -> list[str]:
        """What its transactional ids begin with."""
        if self.given.kind in ("batch", "foreachBatch"):
            return [f"kafka-eos/{self.given.name}/{topic}" for topic in self.given.topics]
        with contextlib.suppress(OSError, ValueError, KeyError):
            return [f"kafka-eos-{json.loads((self.folder / 'checkpoint' / 'metadata').read_text())['id']}"]
        return []

    # its processes

    @property
    def pid(self) -> int | None:
        with self._lock:
            return None if self._process is None or self._process.poll() is not None else self._process.pid

    @property
    def has_second(self) -> bool:
        return self._second is not None

    def tick(self) -> None:
        """Notice that it has ended, and start it again after a while."""
        with self._lock:
            if self._mark is not None and self._mark.exists() and self._process is not None:
                signal_all(self._process.pid, signal.SIGKILL)
                self._mark = None
            if self._waits is not None and self._waits.exists():
                self._resume_or_wait(self._waits)
            if self._process is not None and self._process.poll() is not None:
                self._note_end(self._process)
                self._process, self._ended_at = None, time.monotonic()
                self._pause_s = 2 * self._chance.random()
            if self._process is None and time.monotonic() - self._ended_at >= self._pause_s:
                self.log = self.folder / f"run-{self.starts}.log"
                self._process = self._start(self._failpoint())

    def _failpoint(self) -> str:
        self._mark = self._waits = None
        self._resume_at = 0.0
        if not self.points or self._chance.random() < 0.4:
            return ""
        point, mark = self._chance.choice(self.points), self.folder / f"mark-{self.starts}"
        action = self._chance.choice(("hang", "kill", "wait"))
        if action == "hang":
            self._mark = mark  # everything of it dies at once
        elif action == "wait":
            self._waits = mark
        return f"{point}={action}:{mark}"

    def _resume_or_wait(self, mark: Path) -> None:
        """Let the first process at a point wait, sometimes beyond its transactions' timeout; later ones pass."""
        if not self._resume_at:
            self.waits += 1
            self._resume_at = time.monotonic() + 3 + self._chance.expovariate(1 / 12)
        if time.monotonic() >= self._resume_at:
            mark.unlink()

    def _start(self, fail: str, *more: str, log_file: Path | None = None) -> subprocess.Popen[bytes]:
        self.starts += 1
        with (log_file or self.log).open("ab") as log:
            return subprocess.Popen(
                [*self.command, str(self.folder), *more],
                env={**os.environ, **self._environment, failpoints.VARIABLE: fail},
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-40_000:] if self.log.exists() else ""

    def _note_end(self, process: subprocess.Popen[bytes]) -> None:
        self.deaths += 1
        signal_all(process.pid, signal.SIGKILL)
        if process.returncode > 0:
            # The last one is what the caller was told; tasks that were tried again have told others before.
            found = CODE.findall(self.said())
            self.codes[found[-1] if found else "no code"] += 1

    def processes(self, role: str) -> list[int]:
        """Return the processes of a role."""
        pid = self.pid
        if pid is None:
            return []
        below = descendants(pid)
        if role == "driver":
            return [pid]
        wanted = re.compile(ROLES[role])
        return [each for each in below[1:] if wanted.search(command_line(each))]

    def kill(self) -> None:
        """Everything of it at once."""
        with self._lock:
            for process in (self._process, self._second):
                if process is not None:
                    signal_all(process.pid, signal.SIGCONT)
                    signal_all(process.pid, signal.SIGKILL)
                    process.wait()
            self._process = self._second = None

    @contextlib.contextmanager
    def second_driver(self) -> Iterator[None]:
        """Another process with the same ids and checkpoint, while the block runs."""
        with self._lock:
            self._second = second = self._start("", log_file=self.folder / f"second-{self.starts}.log")
        try:
            yield
        finally:
            signal_all(second.pid, signal.SIGKILL)
            second.wait()
            self._second = None

    def finish(self) -> None:
        """Write everything that is left, without a fault. Raises AssertionError if that fails."""
        self.kill()
        self.log = self.folder / f"finish-{self.starts}.log"
        process = self._start("", "--finish")
        try:
            status = process.wait(FINISH_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.given.name} did not finish: {self.said()[-3_000:]}") from None
        finally:
            signal_all(process.pid, signal.SIGKILL)
        assert status == 0, f"{self.given.name} could not finish: {self.said()[-3_000:]}"
