from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.bench_against_spark import _Run, _turns
from benchmarks.cells import BASE, Cell, full_grid, small_grid
from benchmarks.contenders import BUILT_IN, CONTENDERS, FLOOR, KAFKA_EOS, Contender, contenders_of
from benchmarks.cpu_seconds import CpuSeconds
from benchmarks.report import Measured, as_json, bench_table, limit_seconds, ratio_to_built_in

CPU = CpuSeconds(spark=1.0, python=1.5, kafka=0.5)


def measured(contender: Contender, *seconds: float, cell: Cell = BASE, cpu: CpuSeconds | None = None) -> Measured:
    return Measured(contender=contender, cell=cell, rows=1_000_000, seconds=seconds, cpu=cpu)


def lines(table: Table) -> list[str]:
    console = Console(width=200, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


def test_speed_is_that_of_the_median_round() -> None:
    assert measured(KAFKA_EOS, 1.0, 5.0, 2.0, 4.0, 2.5).rows_per_second == pytest.approx(400_000)


def test_ratio_is_to_the_built_in_sink_in_the_same_cell() -> None:
    ours = measured(KAFKA_EOS, 1.0)
    others = [measured(BUILT_IN, 8.0, cell=replace(BASE, codec="none")), measured(BUILT_IN, 3.0)]
    assert ratio_to_built_in(ours, [ours, *others]) == pytest.approx(3.0)
    assert ratio_to_built_in(others[1], others) == pytest.approx(1.0)
    assert ratio_to_built_in(measured(KAFKA_EOS, 1.0, cell=replace(BASE, codec="zstd")), others) is None


def test_cpu_time_is_per_million_rows_over_all_rounds() -> None:
    found = measured(KAFKA_EOS, 1.0, 1.0, cpu=CpuSeconds(spark=2.0, python=3.0, kafka=1.0)).cpu_per_million_rows
    assert found == CPU
    assert found is not None
    assert found.total == pytest.approx(3.0)


def test_limit_is_the_floor_and_kafka_on_all_cpus() -> None:
    floor = measured(FLOOR, 1.0, cpu=CpuSeconds(spark=0.8, python=0.2, kafka=0.0))
    cell_of_two_million = replace(BASE, megabytes=232)
    both = [replace(each, cell=cell_of_two_million) for each in (floor, measured(KAFKA_EOS, 1.0, cpu=CPU))]
    assert limit_seconds(cell_of_two_million, both, cpus=2) == pytest.approx((0.8 + 0.2 + 0.5) * 2 / 2)
    assert limit_seconds(BASE, both, cpus=2) is None


def test_table_shows_each_cell_once_and_each_guarantee() -> None:
    plain = replace(BASE, codec="none")
    results = [
        measured(KAFKA_EOS, 1.0, cpu=CPU),
        measured(BUILT_IN, 2.0),
        measured(FLOOR, 0.5),
        measured(KAFKA_EOS, 1.0, cell=plain),
    ]
    shown = lines(bench_table(results))
    text = "\n".join(shown)
    assert text.count("100 B, keys, ") == 2
    assert "kafka-eos, exactly once" in text
    assert "Spark's Kafka sink, at least once" in text
    ours = next(line for line in shown if "kafka-eos, exactly once" in line)
    assert "2.00" in ours
    assert "3.00: Spark 1.00, Python 1.50, Kafka 0.50" in ours


def test_json_holds_every_round() -> None:
    (found,) = as_json([measured(KAFKA_EOS, 1.0, 2.0)], cpus=2)
    assert found["seconds"] == [1.0, 2.0]
    assert found["ratio_to_built_in"] is None
    assert found["limit_seconds"] is None
    assert found["cpu_seconds_per_million_rows"] is None
    assert found["cell"]["codec"] == "lz4"


def test_each_round_has_all_runs_and_another_first_run() -> None:
    runs = [_Run(BASE, each, f"t{at}") for at, each in enumerate(CONTENDERS[:3])]
    turns = list(_turns(runs, warm_up=1, rounds=3))
    assert [what.split(":")[0] for what, _ in turns[::3]] == ["warm-up", *(f"round {n} of 3" for n in (1, 2, 3))]
    rounds: list[Any] = [[run.topic for _, run in turns[at : at + 3]] for at in range(0, 12, 3)]
    assert all(sorted(found) == ["t0", "t1", "t2"] for found in rounds)
    assert len({found[0] for found in rounds[:3]}) == 3


def test_grids_hold_every_axis_with_cells_of_enough_bytes() -> None:
    assert {(cell.keyed, cell.codec) for cell in small_grid(["lz4", "none"], 116, 4)} == {
        (keyed, codec) for keyed in (True, False) for codec in ("lz4", "none")
    }
    cells = full_grid(116)
    assert len(set(cells)) == len(cells)
    assert {cell.codec for cell in cells} == {"lz4", "none", "zstd"}
    assert {cell.partitions for cell in cells} >= {1, 8, 64}
    assert {cell.tasks for cell in cells} == {4, 64}
    assert all(cell.rows * (cell.value_bytes + 16) >= 100_000_000 for cell in cells if cell.value_bytes > 0)


def test_contenders_are_chosen_by_name() -> None:
    assert [each.name for each in contenders_of("usual")] == ["rows dropped", "kafka-eos", "Spark's Kafka sink"]
    assert contenders_of("all") == list(CONTENDERS)
    assert [each.name for each in contenders_of("confluent-kafka,kafka-eos")] == ["confluent-kafka", "kafka-eos"]
    with pytest.raises(ValueError, match="nobody is unknown; choose usual, all, or from"):
        contenders_of("nobody")
