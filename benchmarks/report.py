"""The results of the benchmark, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks.cpu_seconds import CpuSeconds
from kafka_eos_sink.demo.report import plain_table

__all__ = ["BUILT_IN", "DISCARD", "KAFKA_EOS", "Measured", "as_json", "bench_table", "ratio_to_built_in"]

KAFKA_EOS = "kafka-eos"
BUILT_IN = "Spark's Kafka sink"
DISCARD = "Arrow rows discarded"
_GUARANTEES = {KAFKA_EOS: "exactly once", BUILT_IN: "at least once", DISCARD: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The rounds of one contender with one codec, each a ``save()`` of ``rows`` rows.

    Attributes:
        seconds: Elapsed time of each round.
        cpu: CPU time of all rounds together, None on a system without /proc.
    """

    contender: str
    codec: str
    rows: int
    seconds: tuple[float, ...]
    cpu: CpuSeconds | None = None

    @property
    def rows_per_second(self) -> float:
        """Rows per second of the median round."""
        return self.rows / median(self.seconds)

    @property
    def slowest(self) -> float:
        return self.rows / max(self.seconds)

    @property
    def fastest(self) -> float:
        return self.rows / min(self.seconds)

    @property
    def cpu_per_million_rows(self) -> CpuSeconds | None:
        if self.cpu is None:
            return None
        millions = self.rows * len(self.seconds) / 1_000_000
        return CpuSeconds(
            spark=self.cpu.spark / millions, python=self.cpu.python / millions, kafka=self.cpu.kafka / millions
        )


def ratio_to_built_in(measured: Measured, all_measured: Iterable[Measured]) -> float | None:
    """Return the ratio to Spark's sink with the same codec, None without its result."""
    # Only the same codec compares: the codec costs more than the rest of a sink.
    for other in all_measured:
        if other.contender == BUILT_IN and other.codec == measured.codec:
            return measured.rows_per_second / other.rows_per_second
    return None


def bench_table(all_measured: Sequence[Measured]) -> Table:
    """Make a table with one line per codec and contender; ratios are to Spark's sink."""
    numbers = ("rows/s", "slowest to fastest", "median s", "ratio")
    table = plain_table("codec", "sink", *numbers, "CPU s per million rows", numbers=numbers)
    codec = ""
    for measured in all_measured:
        if codec and measured.codec != codec:
            table.add_section()
        ratio = ratio_to_built_in(measured, all_measured)
        guarantee = _GUARANTEES.get(measured.contender, "")
        table.add_row(
            measured.codec if measured.codec != codec else "",
            Text(measured.contender + (f", {guarantee}" if guarantee else "")),
            f"{measured.rows_per_second:,.0f}",
            f"{measured.slowest:,.0f} to {measured.fastest:,.0f}",
            f"{median(measured.seconds):.2f}",
            Text("" if ratio is None else f"{ratio:.2f}", style="bold" if measured.contender == KAFKA_EOS else ""),
            _cpu(measured.cpu_per_million_rows),
        )
        codec = measured.codec
    return table


def _cpu(cpu: CpuSeconds | None) -> str:
    if cpu is None:
        return ""
    return f"{cpu.total:.2f}: Spark {cpu.spark:.2f}, Python {cpu.python:.2f}, Kafka {cpu.kafka:.2f}"


def as_json(all_measured: Sequence[Measured]) -> list[dict[str, Any]]:
    return [
        {
            "contender": measured.contender,
            "codec": measured.codec,
            "rows": measured.rows,
            "seconds": [round(seconds, 4) for seconds in measured.seconds],
            "rows_per_second": round(measured.rows_per_second),
            "ratio_to_built_in": ratio_to_built_in(measured, all_measured),
            "cpu_seconds_per_million_rows": None if (cpu := measured.cpu_per_million_rows) is None else asdict(cpu),
        }
        for measured in all_measured
    ]
