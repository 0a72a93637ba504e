from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cells import BASE, Cell
from benchmarks.contenders import BUILT_IN, EQUAL, KAFKA_EOS, Contender
from benchmarks.report import Latency, Measured, ratio_to


def measured(contender: Contender, *seconds: float, cell: Cell = BASE) -> Measured:
    return Measured(contender=contender, cell=cell, rows=1_000_000, seconds=seconds, cpu=None, memory=None)


def latency(contender: Contender, *ms: float) -> Latency:
    return Latency(contender=contender, rows=400, tasks=4, ms=ms, driver_ms=())


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
