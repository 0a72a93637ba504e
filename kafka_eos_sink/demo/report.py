"""The result of the demo: two writes side by side, in a table and a chart."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType, group
from rich.table import Table
from rich.text import Text

from kafka_eos_sink.demo.topic_census import Census

_BAR_WIDTH = 52
_ONCE, _AGAIN, _MISSING = ("█", "green"), ("▓", "red"), ("░", "yellow")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWrite:
    """One of the demo's writes; ``in_log`` counts visible and hidden records."""

    name: str
    sink: str
    topic: str
    census: Census
    in_log: int


def plain_table(*headings: str, numbers: Collection[str] = ()) -> Table:
    """Make a table without lines; the columns in ``numbers`` are aligned right."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        is_number = heading in numbers
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=not is_number)
    return table


def census_table(writes: Sequence[DemoWrite]) -> Table:
    columns = ("sent", "in the log", "visible", "duplicates", "missing")
    table = plain_table("", *columns, numbers=columns)
    for write in writes:
        census = write.census
        numbers = (f"{count:,}" for count in (census.sent, write.in_log, census.visible))
        errors = map(_errors, (census.duplicates + census.unknown, census.missing))
        table.add_row(Text.assemble((write.name, "bold"), f" ({write.sink})"), *numbers, *errors)
    return table


@group()
def chart(writes: Sequence[DemoWrite]) -> Iterator[RenderableType]:
    """Draw a bar per write: records visible once, missing records, duplicates."""
    widest = max((max(write.census.visible, write.census.sent) for write in writes), default=0) or 1
    names = max((len(write.name) for write in writes), default=0)
    for write in writes:
        census = write.census
        again = census.duplicates + census.unknown
        counts = ((*_ONCE, census.visible - again), (*_MISSING, census.missing), (*_AGAIN, again))
        bar = ((sign * _cells(count, widest), style) for sign, style, count in counts)
        yield Text.assemble(f"{write.name:<{names}}  ", *bar, f" {census.visible:,}")
    yield Text.assemble(" " * (names + 2), _ONCE, " once   ", _AGAIN, " again   ", _MISSING, " missing")


def _cells(count: int, widest: int) -> int:
    # Never rounded down to nothing: a single duplicate must be visible.
    return max(1, round(count * _BAR_WIDTH / widest)) if count else 0


def _errors(count: int) -> Text:
    return Text(f"{count:,}", style="bold red" if count else "green")
