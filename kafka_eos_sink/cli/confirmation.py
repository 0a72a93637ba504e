"""The confirmation of the commands that change a write."""

from __future__ import annotations

import shlex
import sys
import time
from functools import partial

import typer
from rich.text import Text

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.cli.view import transactions_table, writes_table
from kafka_eos_sink.operations.cluster_view import write_lines
from kafka_eos_sink.operations.operator import OperatorSettings, Preview


def require_consent(settings: OperatorSettings, found: Preview, effect: str, *, err: bool = False) -> None:
    """Show what a command finds and would do; require a confirmation if it acts.

    Args:
        err: Show it on standard error, because standard output is for JSON.

    Raises:
        typer.Exit: The command was not confirmed (status 1).
    """
    now_ms, lines = time.time_ns() // 1_000_000, write_lines(found.writes)
    every = f"--prefix {shlex.quote(settings.write_id)} --limit {max(len(lines), len(found.opened))}"
    listed = partial(console.listed, limit=console.MOST, rest=f"{settings.write.status_of_all} {every}")
    shown = [
        *writes_table(lines, now_ms, listed, with_offsets=True),
        *transactions_table(found.opened, now_ms, listed),
    ]
    for part in (*shown, *([Text()] if shown else []), *(console.line(each, "bold red") for each in found.warnings)):
        console.show(part, err=err)
    console.echo(effect, err=err)
    if has_terminal():
        if typer.confirm("Do it?", err=True):
            return
        console.echo("Nothing was changed.", err=True)
    else:
        again = shlex.join(["kafka-eos", *sys.argv[1:], "--yes"])
        console.echo(f"Nothing was changed. To do it without a question: {again}", err=True)
    raise typer.Exit(EXIT_FAILURE)


def has_terminal() -> bool:
    """Whether somebody can read the question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()
