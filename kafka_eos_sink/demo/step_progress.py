"""Steps of a longer command: a live line with a bar while one runs, a finished line after it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

__all__ = ["Step", "Steps"]


class Step:
    """A step that runs: how far it is, and what there is to say about it when it is done."""

    def __init__(self, bar: Progress | None, task: TaskID | None, title: str) -> None:
        self._bar = bar
        self._task = task
        self._title = title
        self.note = ""

    def update(self, done: int, total: int | None, what: str = "") -> None:
        """`done` of `total` (None: not known), shown as a bar; `what` stands behind the title."""
        if self._bar is None or self._task is None:
            return
        title = f"{self._title} [dim]{escape(what)}[/]" if what else self._title
        self._bar.update(self._task, completed=done, total=total, description=title)


class Steps:
    """Shows steps one after the other on `console`: bars on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Shows `title` while the body runs, then its `note` and the time it took; a cross where it raised."""
        started = time.monotonic()
        if self.console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn())
            with Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True) as bar:
                step = Step(bar, bar.add_task(title, total=None), title)
                yield from self._run(step, title, started)
        else:
            self.console.print(f"  {title} ...")
            yield from self._run(Step(None, None, title), title, started)

    def _run(self, step: Step, title: str, started: float) -> Iterator[Step]:
        sign = "[red]✗[/]"
        try:
            yield step
            sign = "[green]✓[/]"
        finally:
            took = f"[dim]{time.monotonic() - started:.1f} s[/]"
            note = f": {step.note}" if step.note else ""
            self.console.print(f"{sign} {title}{note}  {took}")
