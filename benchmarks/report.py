"""The results of the benchmark, as a table, as JSON and as a chart."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from benchmarks.cells import Cell
from benchmarks.contenders import BUILT_IN, CONTENDERS, EQUAL, FLOOR, KAFKA_EOS, Contender
from benchmarks.cpu_seconds import CpuSeconds
from benchmarks.failures import Failures
from benchmarks.peak_memory import PeakMemory
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
    "failures_json",
    "failures_table",
    "latency_json",
    "latency_table",
    "limit_seconds",
    "ratio_to",
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
        memory: The largest of all rounds, None on a system without /proc.
    """

    contender: Contender
    cell: Cell
    rows: int
    seconds: tuple[float, ...]
    cpu: CpuSeconds | None = None
    memory: PeakMemory | None = None

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


def ratio_to(contender: Contender, measured: Measured, all_measured: Iterable[Measured]) -> float | None:
    """Return the ratio of rows per second to a contender; None without its result."""
    other = _of(contender, measured.cell, all_measured)
    return None if other is None else measured.rows_per_second / other.rows_per_second


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
    """Make a table with one line per cell and contender.

    The first ratio is to Spark's sink with its defaults, the second to Spark's sink at equal settings.
    """
    numbers = (
        "rows/s",
        "median s",
        "fastest to\nslowest",
        "ratio: defaults,\nequal settings",
        "CPU s/M: Spark,\nPython, Kafka",
        "peak MB:\nPython, JVM",
    )
    table = plain_table("sink", *numbers, numbers=numbers)
    for column in table.columns:
        column.no_wrap = True  # a narrow terminal would leave no digit of the rates
    cell = None
    for measured in all_measured:
        if measured.cell != cell:
            if cell is not None:
                table.add_section()
            cell = measured.cell
            table.add_row(Text(f"{cell.name}, {cell.rows:,} rows", style="bold"))
        contender = measured.contender
        ratios = [ratio_to(each, measured, all_measured) for each in (BUILT_IN, EQUAL)]
        table.add_row(
            Text(f"  {_name(contender)}"),
            f"{measured.rows_per_second:,.0f}",
            f"{median(measured.seconds):.2f}",
            f"{min(measured.seconds):.2f} to {max(measured.seconds):.2f}",
            Text(_ratios(ratios), style="bold" if contender == KAFKA_EOS else ""),
            _cpu(measured.cpu_per_million_rows),
            _memory(measured.memory),
        )
    return table


def failures_table(all_failures: Sequence[Failures]) -> Table:
    """Make a table with one line per contender: the visible records per written row."""
    numbers = ("a task retried", "the job run again")
    table = plain_table("records per row after a failure", *numbers, numbers=numbers)
    for each in all_failures:
        table.add_row(_name(each.contender), f"{each.retried:.2f}", f"{each.run_again:.2f}")
    return table


def _ratios(ratios: Sequence[float | None]) -> str:
    return "" if not any(ratios) else ", ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)


def _cpu(cpu: CpuSeconds | None) -> str:
    if cpu is None:
        return ""
    return f"{cpu.spark:.2f}, {cpu.python:.2f}, {cpu.kafka:.2f}"


def _memory(memory: PeakMemory | None) -> str:
    return "" if memory is None else f"{memory.python:,.0f}, {memory.jvm:,.0f}"


def _name(contender: Contender) -> str:
    return ", ".join(filter(None, (contender.name, contender.guarantee)))


def as_json(all_measured: Sequence[Measured], cpus: int) -> list[dict[str, Any]]:
    return [
        {
            "contender": measured.contender.name,
            "settings": dict(measured.contender.settings),
            "cell": asdict(measured.cell),
            "rows": measured.rows,
            "seconds": [round(seconds, 4) for seconds in measured.seconds],
            "rows_per_second": round(measured.rows_per_second),
            "ratio_to_built_in": ratio_to(BUILT_IN, measured, all_measured),
            "ratio_to_equal_settings": ratio_to(EQUAL, measured, all_measured),
            "limit_seconds": limit_seconds(measured.cell, all_measured, cpus),
            "cpu_seconds_per_million_rows": None if (cpu := measured.cpu_per_million_rows) is None else asdict(cpu),
            "peak_megabytes": None if measured.memory is None else asdict(measured.memory),
        }
        for measured in all_measured
    ]


def failures_json(all_failures: Sequence[Failures]) -> list[dict[str, Any]]:
    return [{**asdict(each), "contender": each.contender.name} for each in all_failures]


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
            f"  {_name(latency.contender)}",
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


def draw_chart(
    all_measured: Sequence[Measured],
    all_latencies: Sequence[Latency],
    all_failures: Sequence[Failures],
    file: Path,
    title: str,
) -> None:
    """Draw a PNG with a panel for each part that was measured.

    Rows per second of every contender and cell; CPU time and memory in the first cell; records after failures; the latency of
    micro-batches.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    micro_batches = [each for each in all_latencies if each.kind == MICRO_BATCH]
    first = [each for each in all_measured if each.cell == all_measured[0].cell]
    panels: list[tuple[float, Callable[[Axes], None]]] = []
    if all_measured:
        bars = sum(each.contender != FLOOR for each in all_measured)
        panels.append((0.8 + 0.35 * bars, partial(_draw_throughput, all_measured=all_measured)))
    if any(each.cpu is not None for each in first):
        panels.append((0.8 + 0.3 * len(first), partial(_draw_cpu, measured=first)))
    if any(each.memory is not None for each in first):
        panels.append((0.8 + 0.3 * len(first), partial(_draw_memory, measured=first)))
    if all_failures:
        panels.append((0.8 + 0.45 * len(all_failures), partial(_draw_failures, all_failures=all_failures)))
    if micro_batches:
        panels.append((0.8 + 0.5 * len(micro_batches), partial(_draw_latency, all_latencies=micro_batches)))
    heights = [height for height, _ in panels]
    figure, places = pyplot.subplots(
        len(heights),
        figsize=(10, 0.5 + sum(heights)),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    for axes, (_, draw) in zip(places[:, 0], panels, strict=True):
        draw(axes)
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
            label=_name(contender),
        )
        axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(cells))], [cell.name for cell in cells])
    axes.set_xlabel("million rows per second, median of the rounds")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8)


def _draw_cpu(axes: Axes, measured: Sequence[Measured]) -> None:
    """Draw the CPU time of a cell as bars of three processes."""
    shown = [(each.contender, cpu) for each in measured if (cpu := each.cpu_per_million_rows) is not None]
    begins = [0.0] * len(shown)
    for what, colour in (("Spark", "0.8"), ("Python", "C0"), ("Kafka", "0.5")):
        widths = [float(getattr(cpu, what.lower())) for _, cpu in shown]
        drawn = axes.barh(range(len(shown)), widths, left=begins, height=0.7, color=colour, label=what)
        begins = [begin + width for begin, width in zip(begins, widths, strict=True)]
    axes.bar_label(drawn, [f"{total:.2f}" for total in begins], padding=3, fontsize=8)
    axes.set_yticks(range(len(shown)), [contender.name for contender, _ in shown])
    axes.set_xlabel(f"CPU seconds per million rows: {measured[0].cell.name}")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=8)


def _draw_memory(axes: Axes, measured: Sequence[Measured]) -> None:
    shown = [(each.contender, each.memory) for each in measured if each.memory is not None]
    drawn = axes.barh(
        range(len(shown)),
        [memory.python for _, memory in shown],
        height=0.7,
        color=[_colour(contender) for contender, _ in shown],
    )
    axes.bar_label(drawn, fmt="{:,.0f}", padding=3, fontsize=8)
    axes.set_yticks(range(len(shown)), [contender.name for contender, _ in shown])
    axes.set_xlabel(f"peak MB of a Python worker, 0 for none: {measured[0].cell.name}")


def _draw_failures(axes: Axes, all_failures: Sequence[Failures]) -> None:
    """Draw two bars per contender; 1 is exactly once."""
    places = range(len(all_failures))
    colours = [_colour(each.contender) for each in all_failures]
    for shift, found in (
        (0.0, [each.retried for each in all_failures]),
        (0.4, [each.run_again for each in all_failures]),
    ):
        drawn = axes.barh([place + shift for place in places], found, height=0.35, color=colours)
        axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
    axes.axvline(1, color="0.2", linewidth=1)
    axes.set_yticks([place + 0.2 for place in places], [_name(each.contender) for each in all_failures])
    axes.set_xlabel("records per row: a task retried (above), the job run again (below)")


def _draw_latency(axes: Axes, all_latencies: Sequence[Latency]) -> None:
    """Draw the median as a bar, and lines to 95 % and 99 %."""
    for place, latency in enumerate(all_latencies):
        middle, most, longest = median(latency.ms), latency.percentile(95), latency.percentile(99)
        axes.barh(place, middle, height=0.6, color=_colour(latency.contender))
        axes.hlines(place, middle, longest, colors="0.4", linewidth=1)
        axes.plot([most, longest], [place, place], "|", color="0.2", markersize=10)
        text = f"{middle:.0f}, {most:.0f}, {longest:.0f}"
        axes.annotate(text, (longest, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(all_latencies)), [_name(each.contender) for each in all_latencies])
    first = all_latencies[0]
    axes.set_xlabel(f"ms of a micro-batch of {first.rows:,} rows in {first.tasks} tasks: median, 95 %, 99 %")
