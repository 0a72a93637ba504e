from __future__ import annotations

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.bench_against_spark import _turns
from benchmarks.cpu_seconds import CpuSeconds
from benchmarks.report import BUILT_IN, DISCARD, KAFKA_EOS, Measured, as_json, bench_table, ratio_to_built_in


def measured(contender: str, codec: str, *seconds: float, cpu: CpuSeconds | None = None) -> Measured:
    return Measured(contender=contender, codec=codec, rows=1_000_000, seconds=seconds, cpu=cpu)


def lines(table: Table) -> list[str]:
    console = Console(width=200, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


def test_speed_is_that_of_the_median_round() -> None:
    rounds = measured(KAFKA_EOS, "lz4", 1.0, 5.0, 2.0, 4.0, 2.5)
    assert rounds.rows_per_second == pytest.approx(400_000)
    assert rounds.slowest == pytest.approx(200_000)
    assert rounds.fastest == pytest.approx(1_000_000)


def test_ratio_is_to_the_built_in_sink_with_the_same_codec() -> None:
    ours = measured(KAFKA_EOS, "lz4", 1.0)
    others = [measured(BUILT_IN, "none", 8.0), measured(BUILT_IN, "lz4", 3.0)]
    assert ratio_to_built_in(ours, [ours, *others]) == pytest.approx(3.0)
    assert ratio_to_built_in(others[1], others) == pytest.approx(1.0)
    assert ratio_to_built_in(measured(KAFKA_EOS, "zstd", 1.0), others) is None


def test_cpu_time_is_per_million_rows_over_all_rounds() -> None:
    rounds = measured(KAFKA_EOS, "lz4", 1.0, 1.0, cpu=CpuSeconds(spark=2.0, python=3.0, kafka=1.0))
    found = rounds.cpu_per_million_rows
    assert found == CpuSeconds(spark=1.0, python=1.5, kafka=0.5)
    assert found is not None
    assert found.total == pytest.approx(3.0)


def test_table_shows_each_codec_once_and_each_guarantee() -> None:
    cpu = CpuSeconds(spark=1.0, python=1.5, kafka=0.5)
    shown = lines(
        bench_table(
            [
                measured(KAFKA_EOS, "lz4", 1.0, cpu=cpu),
                measured(BUILT_IN, "lz4", 2.0),
                measured(DISCARD, "lz4", 0.5),
                measured(KAFKA_EOS, "none", 1.0),
            ]
        )
    )
    text = "\n".join(shown)
    assert [line.split()[0] for line in shown if line.startswith(("lz4", "none"))] == ["lz4", "none"]
    assert "kafka-eos, exactly once" in text
    assert "Spark's Kafka sink, at least once" in text
    assert "1,000,000" in text
    assert "2.00" in next(line for line in shown if line.startswith("lz4"))
    assert "3.00: Spark 1.00, Python 1.50, Kafka 0.50" in text


def test_json_holds_every_round() -> None:
    (found,) = as_json([measured(KAFKA_EOS, "none", 1.0, 2.0)])
    assert found["seconds"] == [1.0, 2.0]
    assert found["ratio_to_built_in"] is None
    assert found["cpu_seconds_per_million_rows"] is None


def test_each_round_has_all_runs_and_another_first_run() -> None:
    runs = [("lz4", "a"), ("lz4", "b"), ("none", "a")]
    turns = list(_turns(runs, 3))
    assert len(turns) == 4 * len(runs)
    rounds = [[run for number, run in turns if number == wanted] for wanted in range(4)]
    assert all(sorted(found) == sorted(runs) for found in rounds)
    assert len({found[0] for found in rounds[:3]}) == 3
