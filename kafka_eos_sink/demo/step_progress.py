"""Steps of a command: a bar while a step runs, a finished line after it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Step:
    """A running step; ``note`` appears in its finished line."""

    def __init__(self, title: str, bar: Progress | None) -> None:
        self.note = ""
        self._title = title
        self._bar = bar
        self._task = None if bar is None else bar.add_task(title, total=None)

    def update(self, done: int, total: int | None, what: str = "") -> None:
        """Show ``done`` of ``total`` (None: unknown), with ``what`` behind the title."""
        if self._bar is not None and self._task is not None:
            title = f"{self._title} [dim]{escape(what)}[/]" if what else self._title
            self._bar.update(self._task, completed=done, total=total, description=title)


class Steps:
    """Shows steps on ``console``: bars on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show ``title`` while the body runs, then the note, duration and success."""
        bar = None
        if self.console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn())
            bar = Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True)
        else:
            self.console.print(f"  {title} ...")
        step, started, sign = Step(title, bar), time.monotonic(), "[red]✗[/]"
        try:
            with bar or nullcontext():
                yield step
            sign = "[green]✓[/]"
        finally:
            note = f": {step.note}" if step.note else ""
            self.console.print(f"{sign} {title}{note}  [dim]{time.monotonic() - started:.1f} s[/]")
