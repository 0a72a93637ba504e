"""What the demo shows at its end: two writes side by side, in a table and a chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.demo.topic_census import Census

__all__ = ["DemoWrite", "census_table", "chart"]

_BAR_WIDTH = 52


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWrite:
    """One of the demo's writes. ``in_log`` counts the records that lie in the topic's log, visible or not."""

    name: str
    sink: str
    topic: str
    census: Census
    in_log: int


def census_table(writes: Sequence[DemoWrite]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in ("sent", "in the log", "visible", "duplicates", "missing"):
        table.add_column(heading, justify="right")
    for write in writes:
        census = write.census
        table.add_row(
            Text.assemble((write.name, "bold"), f" ({write.sink})"),
            f"{census.sent:,}",
            f"{write.in_log:,}",
            f"{census.visible:,}",
            _count(census.duplicates + census.unknown),
            _count(census.missing),
        )
    return table


def chart(writes: Sequence[DemoWrite]) -> RenderableType:
    """One bar per write: records visible once, the duplicates behind them, a line where what was sent ends."""
    widest = max((max(write.census.visible, write.census.sent) for write in writes), default=0) or 1
    names = max((len(write.name) for write in writes), default=0)
    lines: list[RenderableType] = []
    for write in writes:
        census = write.census
        once = census.visible - census.duplicates - census.unknown
        line = Text(f"{write.name:<{names}}  ")
        line.append("█" * _cells(once, widest), style="green")
        line.append("░" * _cells(census.missing, widest), style="yellow")
        line.append("▓" * _cells(census.duplicates + census.unknown, widest), style="red")
        line.append(f" {census.visible:,}")
        lines.append(line)
    legend = Text(" " * (names + 2))
    legend.append("█", style="green").append(" once   ")
    legend.append("▓", style="red").append(" again   ")
    legend.append("░", style="yellow").append(" missing")
    return Group(*lines, legend)


def _cells(count: int, widest: int) -> int:
    """Cells of a bar; what is there is never rounded away."""
    return max(1, round(count * _BAR_WIDTH / widest)) if count else 0


def _count(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "green")
