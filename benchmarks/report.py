"""The results of the benchmark, as a table, as JSON and as a chart."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from benchmarks.cells import Cell
from benchmarks.contenders import BUILT_IN, CONTENDERS, FLOOR, KAFKA_EOS, Contender
from benchmarks.cpu_seconds import CpuSeconds
from kafka_eos_sink.demo.report import plain_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "BATCH_WRITE",
    "Latency",
    "Measured",
    "Recovery",
    "Timing",
    "as_json",
    "bench_table",
    "draw_chart",
    "latency_json",
    "latency_table",
    "limit_seconds",
    "ratio_to_built_in",
    "ratio_to_floor",
    "recovery_json",
    "recovery_table",
]


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


MICRO_BATCH, BATCH_WRITE = "micro-batch", "batch write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The micro-batches or batch writes of one sink after the warm-up.

    Attributes:
        ms: Duration of each (``triggerExecution``, or ``save()``).
        driver_ms: Plan and commit of each; empty for other sinks than kafka-eos.
    """

    contender: Contender
    rows: int
    tasks: int
    ms: tuple[float, ...]
    driver_ms: tuple[float, ...] = ()
    kind: str = MICRO_BATCH

    def percentile(self, percent: int) -> float:
        """Return the smallest duration that is not shorter than ``percent`` of all."""
        return sorted(self.ms)[math.ceil(len(self.ms) * percent / 100) - 1]


@dataclass(frozen=True, slots=True)
class Timing:
    """One round: its seconds, and CPU seconds of this process."""

    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Rounds of copies of lost records, and of recoveries of aborted decided batches."""

    megabytes: int
    copies: tuple[Timing, ...]
    recoveries: tuple[Timing, ...]

    @property
    def parts(self) -> dict[str, tuple[Timing, ...]]:
        return {"copy": self.copies, "whole recovery": self.recoveries}


def _of(contender: Contender, cell: Cell, measured: Iterable[Measured]) -> Measured | None:
    return next((each for each in measured if each.contender == contender and each.cell == cell), None)


def ratio_to_built_in(measured: Measured, all_measured: Iterable[Measured]) -> float | None:
    """Return the ratio of rows per second to Spark's sink; None without its result."""
    built_in = _of(BUILT_IN, measured.cell, all_measured)
    return None if built_in is None else measured.rows_per_second / built_in.rows_per_second


def limit_seconds(cell: Cell, all_measured: Sequence[Measured], cpus: int) -> float | None:
    """Return the seconds of a sink whose own code takes no CPU time.

    They are the floor's CPU time and Kafka's, over all CPUs.
    """
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


def ratio_to_floor(latency: Latency, all_latencies: Iterable[Latency]) -> float | None:
    """Return the ratio of the median to that of the floor; None without its result."""
    floor = next((each for each in all_latencies if each.contender == FLOOR and each.kind == latency.kind), None)
    return None if floor is None else median(latency.ms) / median(floor.ms)


def latency_table(all_latencies: Sequence[Latency]) -> Table:
    """Make a table, a line per sink; ratios are to the writer that drops its rows."""
    numbers = ("writes", "median ms", "95 %", "99 %", "ratio", "plan and commit, median ms")
    table = plain_table("sink", *numbers, numbers=numbers)
    kind = ""
    for latency in all_latencies:
        if latency.kind != kind:
            if kind:
                table.add_section()
            kind = latency.kind
            table.add_row(Text(f"{kind} of {latency.rows:,} rows in {latency.tasks} tasks", style="bold"))
        ratio = ratio_to_floor(latency, all_latencies)
        table.add_row(
            "  " + ", ".join(filter(None, (latency.contender.name, latency.contender.guarantee))),
            f"{len(latency.ms):,}",
            f"{median(latency.ms):.0f}",
            f"{latency.percentile(95):.0f}",
            f"{latency.percentile(99):.0f}",
            "" if ratio is None else f"{ratio:.2f}",
            f"{median(latency.driver_ms):.0f}" if latency.driver_ms else "",
        )
    return table


def latency_json(all_latencies: Sequence[Latency]) -> list[dict[str, Any]]:
    return [
        {
            "kind": latency.kind,
            "contender": latency.contender.name,
            "rows": latency.rows,
            "tasks": latency.tasks,
            "median_ms": median(latency.ms),
            "p95_ms": latency.percentile(95),
            "p99_ms": latency.percentile(99),
            "ratio_to_floor": ratio_to_floor(latency, all_latencies),
            "driver_median_ms": round(median(latency.driver_ms), 2) if latency.driver_ms else None,
            "ms": list(latency.ms),
        }
        for latency in all_latencies
    ]


def recovery_table(recovery: Recovery) -> Table:
    """Make a table with one line for the copy and one for the whole recovery."""
    numbers = ("median s", "fastest to slowest", "MB/s", "of a core")
    table = plain_table(f"{recovery.megabytes:,} MB of lost transactions", *numbers, numbers=numbers)
    for name, rounds in recovery.parts.items():
        seconds = [each.seconds for each in rounds]
        table.add_row(
            name,
            f"{median(seconds):.2f}",
            f"{min(seconds):.2f} to {max(seconds):.2f}",
            f"{recovery.megabytes / median(seconds):,.0f}",
            f"{sum(each.cpu for each in rounds) / sum(seconds):.0%}",
        )
    return table


def recovery_json(recovery: Recovery) -> dict[str, Any]:
    found: dict[str, Any] = {"megabytes": recovery.megabytes}
    for name, rounds in recovery.parts.items():
        found[name.replace(" ", "_")] = {
            "seconds": [round(each.seconds, 4) for each in rounds],
            "cpu_seconds": [round(each.cpu, 4) for each in rounds],
            "megabytes_per_second": round(recovery.megabytes / median(each.seconds for each in rounds), 1),
        }
    return found


def draw_chart(all_measured: Sequence[Measured], all_latencies: Sequence[Latency], file: Path, title: str) -> None:
    """Draw a PNG with a panel for rows per second and one for latency.

    Rows per second of every contender and cell; the latency of micro-batches.
    """
    all_latencies = [each for each in all_latencies if each.kind == MICRO_BATCH]
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heights = [
        *([0.8 + 0.35 * sum(each.contender != FLOOR for each in all_measured)] if all_measured else []),
        *([0.8 + 0.5 * len(all_latencies)] if all_latencies else []),
    ]
    figure, panels = pyplot.subplots(
        len(heights),
        figsize=(10, 0.5 + sum(heights)),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    if all_measured:
        _draw_throughput(panels[0, 0], all_measured)
    if all_latencies:
        _draw_latency(panels[-1, 0], all_latencies)
    for axes in panels[:, 0]:
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.15)
    figure.suptitle(textwrap.fill(title, 110), x=0.01, ha="left", fontsize=10)
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _colour(contender: Contender) -> str:
    """Return the same colour in all panels."""
    return "0.7" if contender == FLOOR else f"C{CONTENDERS.index(contender) - 1}"


def _draw_throughput(axes: Axes, all_measured: Sequence[Measured]) -> None:
    shown = [each for each in all_measured if each.contender != FLOOR]
    cells = list(dict.fromkeys(each.cell for each in shown))
    contenders = list(dict.fromkeys(each.contender for each in shown))
    height = 0.8 / len(contenders)
    for number, contender in enumerate(contenders):
        bars = [(place, found) for place, cell in enumerate(cells) if (found := _of(contender, cell, shown))]
        drawn = axes.barh(
            [place + number * height for place, _ in bars],
            [found.rows_per_second / 1e6 for _, found in bars],
            height=0.9 * height,
            color=_colour(contender),
            label=", ".join(filter(None, (contender.name, contender.guarantee))),
        )
        axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(cells))], [cell.name for cell in cells])
    axes.set_xlabel("million rows per second, median of the rounds")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8)


def _draw_latency(axes: Axes, all_latencies: Sequence[Latency]) -> None:
    """Draw the median as a bar, and lines to 95 % and 99 %."""
    for place, latency in enumerate(all_latencies):
        middle, most, longest = median(latency.ms), latency.percentile(95), latency.percentile(99)
        axes.barh(place, middle, height=0.6, color=_colour(latency.contender))
        axes.hlines(place, middle, longest, colors="0.4", linewidth=1)
        axes.plot([most, longest], [place, place], "|", color="0.2", markersize=10)
        text = f"{middle:.0f}, {most:.0f}, {longest:.0f}"
        axes.annotate(text, (longest, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
    names = [", ".join(filter(None, (each.contender.name, each.contender.guarantee))) for each in all_latencies]
    axes.set_yticks(range(len(all_latencies)), names)
    first = all_latencies[0]
    axes.set_xlabel(f"ms of a micro-batch of {first.rows:,} rows in {first.tasks} tasks: median, 95 %, 99 %")
