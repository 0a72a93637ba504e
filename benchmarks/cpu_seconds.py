"""CPU time by process from Linux's /proc, which excludes other programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CpuSeconds", "cpu_seconds", "cpu_ticks", "total_cpu_seconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSeconds:
    """CPU seconds of Spark's JVM, of the Python processes it started, and of Kafka."""

    spark: float
    python: float
    kafka: float

    def __sub__(self, earlier: CpuSeconds) -> CpuSeconds:
        return CpuSeconds(
            spark=self.spark - earlier.spark, python=self.python - earlier.python, kafka=self.kafka - earlier.kafka
        )

    @property
    def total(self) -> float:
        return self.spark + self.python + self.kafka


def total_cpu_seconds(parts: Sequence[CpuSeconds]) -> CpuSeconds | None:
    """Return the sum, None for no parts."""
    if not parts:
        return None
    return CpuSeconds(
        spark=sum(part.spark for part in parts),
        python=sum(part.python for part in parts),
        kafka=sum(part.kafka for part in parts),
    )


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    own: int
    of_ended_children: int


def cpu_seconds(spark_pid: int, kafka_pids: Iterable[int]) -> CpuSeconds | None:
    """Return the CPU time of the processes since their start, None without /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    processes = _processes()
    tick = os.sysconf("SC_CLK_TCK")
    python = 0
    # The kernel adds ended workers to their parent.
    for pid in _family(spark_pid, processes):
        if pid in processes:
            python += processes[pid].of_ended_children + (0 if pid == spark_pid else processes[pid].own)
    # Kafka starts no processes that count; a process that has ended counts nothing.
    kafka = sum(processes[pid].own for pid in kafka_pids if pid in processes)
    spark = processes[spark_pid].own if spark_pid in processes else 0
    return CpuSeconds(spark=spark / tick, python=python / tick, kafka=kafka / tick)


def cpu_ticks(spark_pid: int) -> dict[int, int]:
    """Return the CPU time of Spark's JVM and of each Python process it started."""
    if not Path("/proc/self/stat").exists():
        return {}
    processes = _processes()
    return {pid: processes[pid].own for pid in _family(spark_pid, processes) if pid in processes}


def _family(pid: int, processes: Mapping[int, _Process]) -> set[int]:
    # Workers are children of a daemon that the JVM started.
    grown, family = True, {pid}
    while grown:
        found = {each for each, process in processes.items() if process.parent in family}
        grown = not found <= family
        family |= found
    return family


def _processes() -> dict[int, _Process]:
    found: dict[int, _Process] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue  # the process ended meanwhile
        # The name in parentheses may hold any character; fields[0] is number 3 of proc(5).
        fields = text.rpartition(")")[2].split()
        user, system, children_user, children_system = map(int, fields[11:15])
        found[int(entry.name)] = _Process(int(fields[1]), user + system, children_user + children_system)
    return found
