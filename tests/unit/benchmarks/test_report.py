from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.cells import BASE, Cell
from benchmarks.contenders import BUILT_IN, EQUAL, FLOOR, KAFKA_EOS, Contender
from benchmarks.cpu_seconds import CpuSeconds
from benchmarks.peak_memory import PeakMemory
from benchmarks.report import (
    BATCH_WRITE,
    Latency,
    Measured,
    latency_table,
    ratio_to,
    ratio_to_floor,
)
from benchmarks.timed import COMMIT, PLAN, Span, driver_ms


def measured(
    contender: Contender,
    *seconds: float,
    cell: Cell = BASE,
    cpu: CpuSeconds | None = None,
    memory: PeakMemory | None = None,
) -> Measured:
    return Measured(contender=contender, cell=cell, rows=1_000_000, seconds=seconds, cpu=cpu, memory=memory)


def latency(contender: Contender, *ms: float, driver_ms: tuple[float, ...] = ()) -> Latency:
    return Latency(contender=contender, rows=400, tasks=4, ms=ms, driver_ms=driver_ms)


def lines(table: Table) -> list[str]:
    console = Console(width=200, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


@pytest.mark.parametrize("other", [BUILT_IN, EQUAL], ids=["defaults", "equal settings"])
def test_ratio_is_to_sparks_sink_in_the_same_cell(other: Contender) -> None:
    ours = measured(KAFKA_EOS, 1.0)
    others = [measured(other, 8.0, cell=replace(BASE, codec="none")), measured(other, 3.0)]
    assert ratio_to(other, ours, [ours, *others]) == pytest.approx(3.0)
    assert ratio_to(other, others[1], others) == pytest.approx(1.0)
    assert ratio_to(other, measured(KAFKA_EOS, 1.0, cell=replace(BASE, codec="zstd")), others) is None


def test_percentile_is_the_duration_that_so_many_do_not_exceed() -> None:
    hundred = latency(KAFKA_EOS, *(float(ms) for ms in range(100, 0, -1)))
    assert [hundred.percentile(percent) for percent in (1, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert [latency(KAFKA_EOS, 7.0).percentile(percent) for percent in (1, 99)] == [7, 7]


def test_batch_writes_are_relative_to_writes_of_dropped_rows() -> None:
    each = [latency(sink, ms) for sink, ms in ((FLOOR, 100.0), (KAFKA_EOS, 150.0))]
    writes = [replace(one, kind=BATCH_WRITE, rows=4, ms=(2 * one.ms[0] - 100,)) for one in each]
    assert ratio_to_floor(writes[1], [*each, *writes]) == pytest.approx(2)
    assert ratio_to_floor(writes[1], each) is None
    headings = [line for line in lines(latency_table([*each, *writes])) if "rows in 4 tasks" in line]
    assert [line.split()[0] for line in headings] == ["micro-batch", "batch"]


def test_driver_time_is_plan_and_commit_of_each_whole_batch() -> None:
    # The query had planned one batch more when it was stopped.
    spans = [
        Span(PLAN, 1, 0, 1),
        Span(COMMIT, 2, 1, 3),
        Span(PLAN, 1, 5, 6),
        Span(COMMIT, 2, 6, 6.5),
        Span(PLAN, 1, 7, 8),
    ]
    assert driver_ms(spans) == [3_000, 1_500]
