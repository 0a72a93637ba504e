"""Peak memory of the processes that worked in a run, from Linux's /proc."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cpu_seconds import cpu_ticks

__all__ = ["PeakMemory", "PeakWatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """Largest resident MB of Spark's JVM, and of a single Python process.

    The JVM keeps its heap between runs, so its figure also holds what earlier runs needed.
    """

    jvm: float
    python: float

    def or_larger(self, other: PeakMemory | None) -> PeakMemory:
        if other is None:
            return self
        return PeakMemory(jvm=max(self.jvm, other.jvm), python=max(self.python, other.python))


class PeakWatch:
    """Resets the peaks of Spark's processes, and reads them after a run."""

    def __init__(self, spark_pid: int) -> None:
        self._spark_pid = spark_pid
        self._before: Mapping[int, int] = cpu_ticks(spark_pid)
        for pid in self._before:
            with suppress(OSError):  # the process ended meanwhile
                # 5 resets the peak to what the process holds now (proc(5)).
                Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")

    def read(self) -> PeakMemory | None:
        """Return the peaks since the constructor; None without /proc."""
        after = cpu_ticks(self._spark_pid)
        # Idle workers of other runs have not worked meanwhile, and their memory is not this run's. The daemon that forks workers wakes up
        # now and then.
        worked = [pid for pid, ticks in after.items() if ticks > self._before.get(pid, 0) and not _has_children(pid)]
        jvm = _peak_mb([self._spark_pid])
        return None if jvm is None else PeakMemory(jvm=jvm, python=_peak_mb(set(worked) - {self._spark_pid}) or 0.0)


def _has_children(pid: int) -> bool:
    with suppress(OSError):
        return any(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return False


def _peak_mb(pids: Iterable[int]) -> float | None:
    found = []
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # the process ended meanwhile
        if (peak := re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)) is not None:
            found.append(int(peak[1]) * 1_024 / 1e6)
    return max(found, default=None)
