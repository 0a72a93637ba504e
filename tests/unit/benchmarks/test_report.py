from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.bench_against_spark import _has_unix_sockets, _Results, _Run, _turns, bench
from benchmarks.cells import BASE, Cell, full_grid, small_grid
from benchmarks.contenders import BUILT_IN, CONTENDERS, EQUAL, FLOOR, KAFKA_EOS, Contender, contenders_of
from benchmarks.cpu_seconds import CpuSeconds
from benchmarks.failures import Failures
from benchmarks.peak_memory import PeakMemory
from benchmarks.report import (
    BATCH_WRITE,
    Latency,
    Measured,
    Recovery,
    Timing,
    _draw_throughput,
    as_json,
    bench_table,
    draw_chart,
    failures_json,
    failures_table,
    latency_json,
    latency_table,
    limit_seconds,
    ratio_to,
    ratio_to_floor,
    recovery_json,
    recovery_table,
)
from benchmarks.timed import COMMIT, PLAN, TASK, Span, driver_ms, spans_of
from benchmarks.timeline import draw_timeline, timeline_of
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


def test_speed_is_that_of_the_median_round() -> None:
    assert measured(KAFKA_EOS, 1.0, 5.0, 2.0, 4.0, 2.5).rows_per_second == pytest.approx(400_000)


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


def test_results_say_which_settings_sparks_sink_had() -> None:
    found = [measured(KAFKA_EOS, 1.0), measured(BUILT_IN, 2.0), measured(EQUAL, 1.25)]
    shown = lines(bench_table(found))
    assert any("ratio: defaults," in line for line in shown)
    assert any(re.search(r"\bequal settings +Python", line) for line in shown)
    names = ("kafka-eos, exactly once", "Spark's Kafka sink, at least once", "Spark's Kafka sink at equal settings, at")
    ratios = [next(line for line in shown if name in line).partition(" to ")[2].split()[1:] for name in names]
    assert ratios == [["2.00,", "1.25"], ["1.00,", "0.62"], ["1.60,", "1.00"]]
    ours, defaults, equal = as_json(found, cpus=2)
    assert (ours["ratio_to_built_in"], ours["ratio_to_equal_settings"]) == (2.0, 1.25)
    assert (ours["settings"], defaults["settings"], equal["settings"]) == ({}, {}, EQUAL.settings)
    assert "-, 1.25" in "\n".join(lines(bench_table([found[0], found[2]])))


@pytest.mark.parametrize(("version", "has"), [("4.0.2", False), ("4.1.0", True), ("4.10.0", True), ("5.0.0", True)])
def test_unix_sockets_are_claimed_from_spark_4_1_on(version: str, has: bool) -> None:
    assert _has_unix_sockets(version) == has


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
        measured(KAFKA_EOS, 1.0, cpu=CPU, memory=PeakMemory(jvm=1_500, python=220)),
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
    assert "1.00, 1.50, 0.50" in ours
    assert "220, 1,500" in ours


def test_table_of_all_sinks_keeps_its_figures_in_a_file() -> None:
    found = [measured(each, 2.0, cpu=CPU, memory=PeakMemory(jvm=1_500, python=220)) for each in CONTENDERS]
    out = io.StringIO()
    Console(file=out, width=140).print(bench_table(found))
    assert "…" not in out.getvalue()
    for line in [line for line in out.getvalue().splitlines() if re.match(r"  \w", line)]:
        assert re.search(r"[\d,]+ +2\.00 +2\.00 to 2\.00 +1\.00, 1\.00 +1\.00, 1\.50, 0\.50 +220, 1,500", line), line


def test_failures_table_and_json_show_records_per_row() -> None:
    found = [Failures(contender=BUILT_IN, retried=1.25, run_again=1.75)]
    assert lines(failures_table(found))[-1].split()[-2:] == ["1.25", "1.75"]
    assert failures_json(found) == [{"contender": BUILT_IN.name, "retried": 1.25, "run_again": 1.75}]


def test_json_holds_every_round() -> None:
    (found,) = as_json([measured(KAFKA_EOS, 1.0, 2.0)], cpus=2)
    assert found["seconds"] == [1.0, 2.0]
    assert found["ratio_to_built_in"] is None
    assert found["ratio_to_equal_settings"] is None
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
    usual = ["rows dropped", "kafka-eos", "Spark's Kafka sink", "Spark's Kafka sink at equal settings"]
    assert [each.name for each in contenders_of("usual")] == usual
    assert contenders_of("all") == list(CONTENDERS)
    assert [each.name for each in contenders_of("confluent-kafka,kafka-eos")] == ["confluent-kafka", "kafka-eos"]
    with pytest.raises(ValueError, match="nobody is unknown; choose usual, all, or from"):
        contenders_of("nobody")


def test_percentile_is_the_duration_that_so_many_do_not_exceed() -> None:
    hundred = latency(KAFKA_EOS, *(float(ms) for ms in range(100, 0, -1)))
    assert [hundred.percentile(percent) for percent in (1, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert [latency(KAFKA_EOS, 7.0).percentile(percent) for percent in (1, 99)] == [7, 7]


def test_latency_is_relative_to_the_median_of_dropped_rows() -> None:
    floor, ours = latency(FLOOR, 100.0, 200.0, 900.0), latency(KAFKA_EOS, 300.0)
    assert ratio_to_floor(ours, [ours, floor]) == pytest.approx(1.5)
    assert ratio_to_floor(ours, [ours]) is None


def test_batch_writes_are_relative_to_writes_of_dropped_rows() -> None:
    each = [latency(sink, ms) for sink, ms in ((FLOOR, 100.0), (KAFKA_EOS, 150.0))]
    writes = [replace(one, kind=BATCH_WRITE, rows=4, ms=(2 * one.ms[0] - 100,)) for one in each]
    assert ratio_to_floor(writes[1], [*each, *writes]) == pytest.approx(2)
    assert ratio_to_floor(writes[1], each) is None
    headings = [line for line in lines(latency_table([*each, *writes])) if "rows in 4 tasks" in line]
    assert [line.split()[0] for line in headings] == ["micro-batch", "batch"]


def test_latency_table_and_json_hold_percentiles_of_each_sink() -> None:
    both = [latency(FLOOR, 100.0, 200.0), latency(KAFKA_EOS, *(300.0,) * 18, 400.0, 500.0, driver_ms=(40.0, 50.0))]
    shown = lines(latency_table(both))
    assert any("micro-batch of 400 rows in 4 tasks" in line for line in shown)
    ours = next(line for line in shown if "kafka-eos, exactly once" in line)
    assert ours.split()[-6:] == ["20", "300", "400", "500", "2.00", "45"]
    floor, found = latency_json(both)
    assert (found["median_ms"], found["p95_ms"], found["p99_ms"]) == (300, 400, 500)
    assert (found["ratio_to_floor"], found["driver_median_ms"], len(found["ms"])) == (2, 45, 20)
    assert (floor["contender"], floor["ratio_to_floor"], floor["driver_median_ms"]) == (FLOOR.name, 1, None)


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


def test_spans_are_read_as_they_were_noted() -> None:
    spans = [Span(TASK, 7, 1_764_204_000.25, 1_764_204_000.5), Span("EndTxn", 8, 0.125, 0.25)]
    assert spans_of("".join(each.line() for each in spans)) == spans


def test_timeline_holds_parts_and_requests_of_its_batch(tmp_path: Path) -> None:
    first, second = Span(TASK, 7, 10.02, 10.04), Span(TASK, 7, 10.05, 10.07)
    produce, end = Span("Produce", 7, 10.06, 10.065), Span("EndTxn", 8, 10.08, 10.09)
    plan, commit = Span(PLAN, 6, 10.01, 10.015), Span(COMMIT, 8, 10.075, 10.095)
    spans = [plan, first, produce, second, end, commit, Span("Fetch", 8, 10.2, 10.3), Span(PLAN, 6, 10.2, 10.3)]
    progress = {"timestamp": "1970-01-01T00:00:10.000Z", "durationMs": {"triggerExecution": 100}}
    found = timeline_of(progress, spans)
    assert (found.began, found.ms) == (10, 100)
    assert found.parts == ((plan, ()), (first, ()), (second, (produce,)), (commit, (end,)))
    draw_timeline(found, tmp_path / "requests.png", "a micro-batch")
    assert (tmp_path / "requests.png").read_bytes().startswith(b"\x89PNG")


def test_recovery_table_and_json_hold_copies_and_recoveries() -> None:
    heading, copy, whole = lines(recovery_table(RECOVERY))
    assert "100 MB of lost transactions" in heading
    assert copy.split() == ["copy", "0.50", "0.50", "to", "1.00", "200", "50%"]
    assert whole.split() == ["whole", "recovery", "3.00", "2.00", "to", "4.00", "33", "50%"]
    found = recovery_json(RECOVERY)
    assert found["megabytes"] == 100
    assert found["copy"] == {"seconds": [1.0, 0.5, 0.5], "cpu_seconds": [0.25, 0.25, 0.5], "megabytes_per_second": 200}
    assert found["whole_recovery"]["megabytes_per_second"] == 33.3


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


def test_picture_says_which_settings_sparks_sink_had() -> None:
    """Kills: bars of one name for both, or in one colour."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    _draw_throughput(axes, [measured(each, 1.0) for each in (FLOOR, KAFKA_EOS, BUILT_IN, EQUAL)])
    handles, labels = axes.get_legend_handles_labels()
    names = ("kafka-eos", "Spark's Kafka sink", "Spark's Kafka sink at equal settings")
    assert [label.partition(",")[0] for label in labels] == list(names)
    assert len({bar.get_facecolor() for handle in handles for bar in handle}) == len(names)


def png_size(file: Path) -> tuple[int, int]:
    header = file.read_bytes()[:24]
    assert header.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def test_chart_of_recovery_alone_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="add another part to --parts"):
        bench(parts="recovery", chart=tmp_path / "chart.png")


def test_timed_sink_imports_no_more_than_the_sink() -> None:
    before = (
        "import sys, kafka_eos_sink.spark.data_source, kafka_eos_sink.spark.stream_writer; before = set(sys.modules)"
    )
    program = f"{before}; import benchmarks.timed; print(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["benchmarks", "benchmarks.timed"]
