from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.bench_against_spark import _has_unix_sockets, _Results, _Run, _turns
from benchmarks.cells import BASE, Cell
from benchmarks.contenders import BUILT_IN, CONTENDERS, EQUAL, FLOOR, KAFKA_EOS, Contender
from benchmarks.cpu_seconds import CpuSeconds
from benchmarks.failures import Failures
from benchmarks.peak_memory import PeakMemory
from benchmarks.report import (
    BATCH_WRITE,
    Latency,
    Measured,
    Recovery,
    Timing,
    draw_chart,
    latency_table,
    limit_seconds,
    ratio_to,
    ratio_to_floor,
)
from benchmarks.timed import COMMIT, PLAN, Span, driver_ms
from kafka_eos_sink.producer.config import ProducerConfig

CPU = CpuSeconds(spark=1.0, python=1.5, kafka=0.5)


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


RECOVERY = Recovery(
    megabytes=100,
    copies=(Timing(1.0, 0.25), Timing(0.5, 0.25), Timing(0.5, 0.5)),
    recoveries=(Timing(4.0, 1.0), Timing(2.0, 2.0)),
)


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


def test_equal_settings_are_the_defaults_of_kafka_eos() -> None:
    defaults = ProducerConfig()
    assert EQUAL.settings == {
        "kafka.batch.size": str(defaults.batch_size),
        "kafka.linger.ms": str(defaults.linger_ms),
    }
    assert [each for each in CONTENDERS if each.settings] == [EQUAL]


@pytest.mark.parametrize(("version", "has"), [("4.0.2", False), ("4.1.0", True), ("4.10.0", True), ("5.0.0", True)])
def test_unix_sockets_are_claimed_from_spark_4_1_on(version: str, has: bool) -> None:
    assert _has_unix_sockets(version) == has


def test_limit_is_the_floor_and_kafka_on_all_cpus() -> None:
    floor = measured(FLOOR, 1.0, cpu=CpuSeconds(spark=0.8, python=0.2, kafka=0.0))
    cell_of_two_million = replace(BASE, megabytes=232)
    both = [replace(each, cell=cell_of_two_million) for each in (floor, measured(KAFKA_EOS, 1.0, cpu=CPU))]
    assert limit_seconds(cell_of_two_million, both, cpus=2) == pytest.approx((0.8 + 0.2 + 0.5) * 2 / 2)
    assert limit_seconds(BASE, both, cpus=2) is None


def test_each_round_has_all_runs_and_another_first_run() -> None:
    runs = [_Run(BASE, each, f"t{at}") for at, each in enumerate(CONTENDERS[:3])]
    turns = list(_turns(runs, warm_up=1, rounds=3))
    assert [what.split(":")[0] for what, _ in turns[::3]] == ["warm-up", *(f"round {n} of 3" for n in (1, 2, 3))]
    rounds: list[Any] = [[run.topic for _, run in turns[at : at + 3]] for at in range(0, 12, 3)]
    assert all(sorted(found) == ["t0", "t1", "t2"] for found in rounds)
    assert len({found[0] for found in rounds[:3]}) == 3


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


def test_skipped_parts_are_empty_in_json_and_have_no_table() -> None:
    failed = [Failures(contender=KAFKA_EOS, retried=1, run_again=1)]
    everything = _Results([measured(KAFKA_EOS, 1.0)], [latency(KAFKA_EOS, 300.0)], recovery=RECOVERY, failures=failed)
    for found, tables in ((everything, 4), (_Results(), 0), (_Results(recovery=RECOVERY), 1)):
        console = Console(width=200)
        with console.capture() as captured:
            found.show(console)
        headings = ("median", "records per row")
        assert sum(any(each in line for each in headings) for line in captured.get().splitlines()) == tables
    assert json.loads(json.dumps(_Results().as_json(2))) == {
        "results": [],
        "latency": [],
        "failures": [],
        "recovery": None,
    }
    assert all(everything.as_json(2).values())


CHART_INCHES = {
    "throughput": 0.8 + 0.35 * 7,
    "costs": 2 * (0.8 + 0.3 * 8),
    "failures": 0.8 + 0.45 * 7,
    "latency": 0.8 + 0.5 * 3,
}


@pytest.mark.parametrize(
    "parts",
    [("throughput",), ("latency",), ("failures",), ("throughput", "costs"), tuple(CHART_INCHES)],
    ids="-".join,
)
def test_chart_has_a_panel_for_each_part(tmp_path: Path, parts: tuple[str, ...]) -> None:
    costs: dict[str, Any] = {"cpu": CPU, "memory": PeakMemory(jvm=1_500, python=220)} if "costs" in parts else {}
    throughput = [measured(each, 1.0, **costs) for each in CONTENDERS] if "throughput" in parts else []
    latencies = [latency(each, 300.0, 400.0) for each in (FLOOR, KAFKA_EOS, BUILT_IN)] if "latency" in parts else []
    # The chart omits batch writes.
    latencies += [replace(each, kind=BATCH_WRITE) for each in latencies]
    writing = CONTENDERS[1:] if "failures" in parts else ()
    failed = [Failures(contender=each, retried=1, run_again=1.5) for each in writing]
    draw_chart(throughput, latencies, failed, tmp_path / "chart.png", "title")
    width, height = png_size(tmp_path / "chart.png")
    assert (width, height) == (1_500, pytest.approx(150 * (0.5 + sum(CHART_INCHES[each] for each in parts)), abs=1))


def png_size(file: Path) -> tuple[int, int]:
    header = file.read_bytes()[:24]
    assert header.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def test_timed_sink_imports_no_more_than_the_sink() -> None:
    before = (
        "import sys, kafka_eos_sink.spark.data_source, kafka_eos_sink.spark.stream_writer; before = set(sys.modules)"
    )
    program = f"{before}; import benchmarks.timed; print(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["benchmarks", "benchmarks.timed"]
