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


def require_consent(found: Preview, effect: str, *, err: bool, limit: int | None = None) -> None:
    """Show what a command finds and would do; require a confirmation if it acts.

    Args:
        err: Show it on standard error, because standard output is for JSON.
        limit: Rows of each table; None for all.

    Raises:
        typer.Exit: The command was not confirmed (status 1).
    """
    # Imported here because it is slow, and only a command that acts needs it.
    from kafka_eos_sink.operations.cluster_view import write_lines

    now_ms = time.time_ns() // 1_000_000
    shown = [
        *writes_table(write_lines(found.writes), now_ms, with_offsets=True, limit=limit),
        *transactions_table(found.opened, now_ms),
    ]
    for part in (*shown, *([Text()] if shown else []), *(line(each, "bold red") for each in found.warnings)):
        console.show(part, err=err)
    console.echo(effect, err=err)
    # Without a terminal nobody can answer.
    agrees = sys.stdin.isatty() and sys.stderr.isatty() and typer.confirm("Do it?", err=True)
    if not agrees:
        again = shlex.join(["kafka-eos", *sys.argv[1:], "--yes"])
        console.echo(f"Nothing was changed. To do it without a question: {again}", err=True)
        raise typer.Exit(EXIT_FAILURE)
