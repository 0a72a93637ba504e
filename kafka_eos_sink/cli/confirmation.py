"""The confirmation of the commands that change a write."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING

import typer

from kafka_eos_sink.cli import EXIT_FAILURE, console
from kafka_eos_sink.cli.status import commits_table
from kafka_eos_sink.cli.transactions import transactions_table

if TYPE_CHECKING:
    from kafka_eos_sink.operations.operator import Preview


def require_consent(found: Preview, effect: str, *, err: bool) -> None:
    """Show the findings and effect of a command, and require a confirmation.

    Args:
        err: Show it on standard error, because standard output is for JSON.

    Raises:
        typer.Exit: The command was not confirmed (status 1).
    """
    tables = [commits_table(found.writes)] if found.writes else []
    if found.opened:
        tables.append(transactions_table(found.opened, time.time_ns() // 1_000_000))
    for table in tables:
        console.show(table, err=err)
        console.echo("", err=err)
    console.echo(effect, err=err)
    if not agrees("Do it?"):
        again = shlex.join(["kafka-eos", *sys.argv[1:], "--yes"])
        console.echo(f"Nothing was changed. To do it without a question: {again}", err=True)
        raise typer.Exit(EXIT_FAILURE)


def agrees(question: str) -> bool:
    """Prompt on a terminal; return False without a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty() and typer.confirm(question, err=True)
