"""Steps of a command: a bar while a step runs, a finished line after it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@dataclass
class Step:
    """A running step; ``note`` appears in its finished line."""

    title: str
    bar: Progress
    note: str = ""

    def update(self, done: int, total: int | None, what: str = "") -> None:
        """Show ``done`` of ``total`` (None: unknown), with ``what`` after the title."""
        # Escaped, because Rich would read "[...]" in a name as markup.
        title = f"{self.title} [dim]{escape(what)}[/]" if what else self.title
        self.bar.update(self.bar.task_ids[0], completed=done, total=total, description=title)


class Steps:
    """Shows steps on ``console``: bars on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show ``title`` while the body runs, then the note, duration and success."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn())
        is_plain = not self.console.is_terminal
        bar = Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True, disable=is_plain)
        bar.add_task(title, total=None)
        if is_plain:
            self.console.print(f"  {title} ...")
        step, started, sign = Step(title, bar), time.monotonic(), "[red]✗[/]"
        try:
            with bar:
                yield step
            sign = "[green]✓[/]"
        finally:
            note = f": {step.note}" if step.note else ""
            self.console.print(f"{sign} {title}{note}  [dim]{time.monotonic() - started:.1f} s[/]")
