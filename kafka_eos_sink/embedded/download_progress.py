"""Shows how far a download is: a bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from kafka_eos_sink.embedded.distribution import Progress

__all__ = ["shown_progress"]

_PLAIN_INTERVAL_S = 5.0
_LABELS = {
    "waiting": "Waiting for another process that is downloading",
    "resolving": "Looking up Kafka's packages",
    "downloading": "Downloading Kafka's packages",
}


@contextmanager
def shown_progress(stream: TextIO | None = None) -> Iterator[Callable[[Progress], None]]:
    """What to give as `progress` to `kafka_distribution`; shows nothing at all when everything is in the cache."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield _PlainLines(stream)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(file=stream), transient=True) as bar:
        yield _bar_reporter(bar)


def _bar_reporter(bar: Bar) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        if not bar.task_ids:
            bar.add_task("", total=None)
        bar.update(
            bar.task_ids[0],
            description=_LABELS[progress.stage],
            completed=progress.done,
            total=progress.total or None,
        )

    return report


class _PlainLines:
    """One line per stage and then one every few seconds, as a log wants it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._next_at = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.stage == self._stage and now < self._next_at and progress.done != progress.total:
            return
        self._stage, self._next_at = progress.stage, now + _PLAIN_INTERVAL_S
        counted = f": {progress.done} of {progress.total}" if progress.total else ""
        print(f"{_LABELS[progress.stage]}{counted}", file=self._stream, flush=True)
