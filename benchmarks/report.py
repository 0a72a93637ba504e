"""The results of the benchmark, as a table, as JSON and as a chart."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks.cells import Cell
from benchmarks.contenders import BUILT_IN, FLOOR, KAFKA_EOS, Contender
from benchmarks.cpu_seconds import CpuSeconds
from kafka_eos_sink.demo.report import plain_table

__all__ = ["Measured", "as_json", "bench_table", "draw_chart", "limit_seconds", "ratio_to_built_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The rounds of one contender in one cell, each a ``save()`` of ``rows`` rows.

    Attributes:
        seconds: Elapsed time of each round.
        cpu: CPU time of all rounds together, None on a system without /proc.
    """

    contender: Contender
    cell: Cell
    rows: int
    seconds: tuple[float, ...]
    cpu: CpuSeconds | None = None

    @property
    def rows_per_second(self) -> float:
        """Rows per second of the median round."""
        return self.rows / median(self.seconds)

    @property
    def cpu_per_million_rows(self) -> CpuSeconds | None:
        if self.cpu is None:
            return None
        millions = self.rows * len(self.seconds) / 1_000_000
        return CpuSeconds(
            spark=self.cpu.spark / millions, python=self.cpu.python / millions, kafka=self.cpu.kafka / millions
        )


def _of(contender: Contender, cell: Cell, measured: Iterable[Measured]) -> Measured | None:
    return next((each for each in measured if each.contender == contender and each.cell == cell), None)


def ratio_to_built_in(measured: Measured, all_measured: Iterable[Measured]) -> float | None:
    """Return the ratio of rows per second to Spark's sink in the same cell, None without its result."""
    built_in = _of(BUILT_IN, measured.cell, all_measured)
    return None if built_in is None else measured.rows_per_second / built_in.rows_per_second


def limit_seconds(cell: Cell, all_measured: Sequence[Measured], cpus: int) -> float | None:
    """Return the seconds of a sink whose own code takes no CPU time: the floor's CPU time and Kafka's, over all CPUs."""
    floor, ours = _of(FLOOR, cell, all_measured), _of(KAFKA_EOS, cell, all_measured)
    if floor is None or ours is None or floor.cpu_per_million_rows is None or ours.cpu_per_million_rows is None:
        return None
    per_million = floor.cpu_per_million_rows.total + ours.cpu_per_million_rows.kafka
    return per_million * cell.rows / 1_000_000 / cpus


def bench_table(all_measured: Sequence[Measured]) -> Table:
    """Make a table with one line per cell and contender; ratios are to Spark's sink."""
    numbers = ("rows/s", "median s", "fastest to slowest", "ratio")
    table = plain_table("sink", *numbers, "CPU s per million rows", numbers=numbers)
    cell = None
    for measured in all_measured:
        if measured.cell != cell:
            if cell is not None:
                table.add_section()
            cell = measured.cell
            table.add_row(Text(f"{cell.name}, {cell.rows:,} rows", style="bold"))
        contender, ratio = measured.contender, ratio_to_built_in(measured, all_measured)
        table.add_row(
            Text("  " + ", ".join(filter(None, (contender.name, contender.guarantee)))),
            f"{measured.rows_per_second:,.0f}",
            f"{median(measured.seconds):.2f}",
            f"{min(measured.seconds):.2f} to {max(measured.seconds):.2f}",
            Text("" if ratio is None else f"{ratio:.2f}", style="bold" if contender == KAFKA_EOS else ""),
            _cpu(measured.cpu_per_million_rows),
        )
    return table


def _cpu(cpu: CpuSeconds | None) -> str:
    if cpu is None:
        return ""
    return f"{cpu.total:.2f}: Spark {cpu.spark:.2f}, Python {cpu.python:.2f}, Kafka {cpu.kafka:.2f}"


def as_json(all_measured: Sequence[Measured], cpus: int) -> list[dict[str, Any]]:
    return [
        {
            "contender": measured.contender.name,
            "cell": asdict(measured.cell),
            "rows": measured.rows,
            "seconds": [round(seconds, 4) for seconds in measured.seconds],
            "rows_per_second": round(measured.rows_per_second),
            "ratio_to_built_in": ratio_to_built_in(measured, all_measured),
            "limit_seconds": limit_seconds(measured.cell, all_measured, cpus),
            "cpu_seconds_per_million_rows": None if (cpu := measured.cpu_per_million_rows) is None else asdict(cpu),
        }
        for measured in all_measured
    ]


def draw_chart(all_measured: Sequence[Measured], file: Path, title: str) -> None:
    """Draw rows per second of every contender and cell as bars into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [each for each in all_measured if each.contender != FLOOR]
    cells = list(dict.fromkeys(each.cell for each in shown))
    contenders = list(dict.fromkeys(each.contender for each in shown))
    height = 0.8 / len(contenders)
    figure, axes = pyplot.subplots(figsize=(10, 1.2 + 0.35 * len(shown)), layout="constrained")
    for number, contender in enumerate(contenders):
        bars = [(place, found) for place, cell in enumerate(cells) if (found := _of(contender, cell, shown))]
        drawn = axes.barh(
            [place + number * height for place, _ in bars],
            [found.rows_per_second / 1e6 for _, found in bars],
            height=0.9 * height,
            label=", ".join(filter(None, (contender.name, contender.guarantee))),
        )
        axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(cells))], [cell.name for cell in cells])
    axes.invert_yaxis()
    axes.set_xlabel("million rows per second, median of the rounds")
    figure.suptitle(textwrap.fill(title, 110), x=0.01, ha="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.08)
    figure.legend(loc="outside lower left", ncols=2, frameon=False)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
