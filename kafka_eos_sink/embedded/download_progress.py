"""Progress of a download: a bar on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from kafka_eos_sink.embedded.distribution import Progress, Report

_PLAIN_INTERVAL_S = 5.0
_LABELS = {
    "waiting": "Waiting for another process that is downloading",
    "resolving": "Looking up Kafka's packages",
    "downloading": "Downloading Kafka's packages",
}


@contextmanager
def shown_progress() -> Iterator[Report]:
    """Yield a callback that shows the progress of ``distribution`` on standard error."""
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:

        def report(progress: Progress) -> None:
            # The task is added late: without a download no bar may appear.
            task = bar.task_ids[0] if bar.task_ids else bar.add_task("", total=None)
            bar.update(task, description=_LABELS[progress.stage], completed=progress.done, total=progress.total or None)

        yield report


def _plain_lines() -> Report:
    stage, next_at = "", 0.0

    def report(progress: Progress) -> None:
        nonlocal stage, next_at
        # A log needs one line per stage and then one every few seconds, not one per jar.
        if progress.stage == stage and time.monotonic() < next_at and progress.done != progress.total:
            return
        stage, next_at = progress.stage, time.monotonic() + _PLAIN_INTERVAL_S
        count = f": {progress.done} of {progress.total}" if progress.total else ""
        print(f"{_LABELS[stage]}{count}", file=sys.stderr, flush=True)

    return report
