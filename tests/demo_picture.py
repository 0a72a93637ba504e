"""Draws docs/images/demo.svg: what `kafka-eos demo` shows, without the commit log at its end.

PYTHONPATH=.:tests python tests/demo_picture.py
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console
from top_picture import FORMAT, WIDTH

from kafka_eos_sink.cli.demo import _FLIGHTS
from kafka_eos_sink.demo.quiet_spark import spark_folder
from kafka_eos_sink.demo.report import census_table, chart
from kafka_eos_sink.demo.run import Demo
from kafka_eos_sink.demo.step_progress import Steps
from kafka_eos_sink.embedded.distribution import DEFAULT_KAFKA_VERSION

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"


class _Ended(Console):
    """Prints a step only once it has ended: there is no terminal on which a bar would replace its first line."""

    def print(self, *objects: Any, **how: Any) -> None:
        if not (objects and isinstance(objects[0], str) and objects[0].endswith(" ...")):
            super().print(*objects, **how)


def main() -> None:
    screen = _Ended(record=True, width=WIDTH, force_terminal=False, file=io.StringIO(), highlight=False)
    screen.print("[dim]$[/] make demo")
    screen.print("[bold]kafka-eos demo[/]: flights from New York, 2013, through Spark into Kafka, exactly once\n")
    with spark_folder("kafka-eos-demo-", print) as folder:
        run = Demo(Steps(screen), folder, _FLIGHTS, DEFAULT_KAFKA_VERSION).run()
    assert not run.problems, run.problems
    writes = (run.exactly_once, run.at_least_once)
    for shown in ("", census_table(writes), "", chart(writes)):
        screen.print(shown)
    PICTURE.write_text(screen.export_svg(title="make demo", code_format=FORMAT, unique_id="demo"), "utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
