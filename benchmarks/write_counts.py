"""Count copies, system calls, page faults and waits of a write in this process.

The counts come from wrappers around sockets, the selector, and the functions that copy rows. They depend on the machine's load less than
seconds do.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_eos_sink.client import transport
from kafka_eos_sink.runtime import failpoints

__all__ = ["BEFORE", "LAST", "PHASES", "Counter", "Counts", "counting"]

BEFORE, ROWS, LAST, AFTER = "before the first row", "full memory", "last acknowledgements", "after the last row"
PHASES = (BEFORE, ROWS, LAST, AFTER)
_ENDS = {"task.may_write": ROWS, "task.flushed": AFTER}
"""The phase that begins at a named point of the protocol. LAST begins when the rows end."""


@dataclass(slots=True)
class Counts:
    """What this process did; ``blocked`` are the seconds of a phase in `select`."""

    phase: str = BEFORE
    copied: int = 0
    """Bytes that numpy, Arrow and Python have joined or gathered, and that the kernel took from sendmsg."""
    sent: int = 0
    calls: int = 0
    """System calls on sockets and the selector."""
    cpu_seconds: float = 0.0
    minor_faults: int = 0
    voluntary_switches: int = 0
    blocked: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))


class Counter:
    """The counts of this process; ``counts`` are those since the last `start`."""

    def __init__(self) -> None:
        self.counts = Counts()

    def start(self) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.counts = Counts(
            cpu_seconds=-time.process_time(), minor_faults=-used.ru_minflt, voluntary_switches=-used.ru_nvcsw
        )

    def stop(self) -> Counts:
        counts, used = self.counts, resource.getrusage(resource.RUSAGE_SELF)
        counts.cpu_seconds += time.process_time()
        counts.minor_faults += used.ru_minflt
        counts.voluntary_switches += used.ru_nvcsw
        return counts


class _Counted:
    """An object whose methods of the kernel are counted, for sockets and selectors."""

    def __init__(self, own: Any, counter: Counter) -> None:
        self._own = own
        self._counter = counter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def sendmsg(self, buffers: list[memoryview]) -> int:
        counts = self._counter.counts
        counts.calls += 1
        sent: int = self._own.sendmsg(buffers)
        counts.sent += sent
        counts.copied += sent
        return sent

    def recv(self, size: int) -> bytes:
        self._counter.counts.calls += 1
        received: bytes = self._own.recv(size)
        return received

    def modify(self, *arguments: Any) -> None:
        self._counter.counts.calls += 1
        self._own.modify(*arguments)

    def select(self, timeout: float) -> Any:
        counts = self._counter.counts
        counts.calls += 1
        began = time.perf_counter()
        found = self._own.select(timeout)
        if timeout > 0:
            counts.blocked[counts.phase] += time.perf_counter() - began
        return found


def _size_of_result(found: Any) -> int:
    return found.nbytes if isinstance(found, pa.Array | np.ndarray) else 0


@contextmanager
def counting() -> Iterator[Counter]:
    """Count until the end of the block. Connections must be made inside of it.

    These copies count: joined Arrow arrays, gathered records, joined numpy arrays, and sends. The codecs none and lz4 have no others.
    """
    counter = Counter()

    def copies(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            found = function(*arguments, **named)
            if isinstance(found, pa.Array | np.ndarray):
                counter.counts.copied += found.nbytes
            return found

        return call

    def wrapped(kind: Any, attribute: str) -> Any:
        original = kind.__init__

        def init(self: Any, *arguments: Any) -> None:
            original(self, *arguments)
            setattr(self, attribute, _Counted(getattr(self, attribute), counter))

        return patch.object(kind, "__init__", init)

    def reached(point: str) -> None:
        counter.counts.phase = _ENDS.get(point, counter.counts.phase)

    with (
        wrapped(transport.Transport, "_socket"),
        wrapped(transport.Poller, "_selector"),
        patch.object(failpoints, "reached", reached),
        patch.object(pa, "concat_arrays", copies(pa.concat_arrays)),
        patch.object(pc, "take", copies(pc.take)),
        patch.object(np, "concatenate", copies(np.concatenate)),
    ):
        yield counter
