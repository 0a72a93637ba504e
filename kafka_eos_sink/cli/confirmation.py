"""The confirmation of the commands that change a write."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.cli.view import line, transactions_table, writes_table

if TYPE_CHECKING:
    from kafka_eos_sink.operations.operator import Preview


def require_consent(found: Preview, effect: str, *, err: bool) -> None:
    """Show what a command finds and would do; require a confirmation if it acts.

    Args:
        err: Show it on standard error, because standard output is for JSON.

    Raises:
        typer.Exit: The command was not confirmed (status 1).
    """
    # Imported here because it is slow, and only a command that acts needs it.
    from kafka_eos_sink.operations.cluster_view import write_lines

    now_ms = time.time_ns() // 1_000_000
    shown = [
        *writes_table(write_lines(found.writes), now_ms, with_offsets=True),
        *transactions_table(found.opened, now_ms),
    ]
    for part in (*shown, *([Text()] if shown else []), *(line(each, "bold red") for each in found.warnings)):
        console.show(part, err=err)
    console.echo(effect, err=err)
    require_agreement("Do it?")


def require_agreement(question: str) -> None:
    """Raise `typer.Exit` (status 1) unless the user agrees on a terminal."""
    if not agrees(question):
        again = shlex.join(["kafka-eos", *sys.argv[1:], "--yes"])
        console.echo(f"Nothing was changed. To do it without a question: {again}", err=True)
        raise typer.Exit(EXIT_FAILURE)


def agrees(question: str) -> bool:
    """Prompt on a terminal; return False without a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty() and typer.confirm(question, err=True)
