"""A short campaign, and the checker: it sees what is missing, double, out of order, uncommitted and unasked."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from . import checker
from .campaign import Settings, run
from .checker import Expected, Sightings, judge
from .mutants import MUTANTS, Mutant, planted_package
from .nemesis import FAULTS

WRITTEN = Expected(writer="w", topics=("t",), units={1: 3, 2: 2}, accepted=frozenset({1}))
ROWS = [(0, b"w|1|0|0|0"), (0, b"w|1|1|0|1"), (1, b"w|1|2|1|0"), (1, b"w|2|0|0|0"), (1, b"w|2|1|0|1")]


def wrong(rows: list[tuple[int, bytes]], *, expected: Expected = WRITTEN, all_written: bool = False) -> list[str]:
    seen = Sightings()
    for offset, (partition, value) in enumerate(rows):
        seen.take("t", partition, offset, value)
    return judge(seen, [expected], {b"foreign|1": 1}, (b"foreign|2",), all_written=all_written)


def test_checker_accepts_whole_units_and_absent_ones() -> None:
    foreign = [(0, b"foreign|1")]
    assert wrong(ROWS + foreign, all_written=True) == []
    assert wrong(ROWS[:3] + foreign) == []
    assert wrong(ROWS[:3] + foreign + [(0, b"foreign|2")]) == []


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (ROWS[:2], "2 of 3 rows of the accepted unit 1"),
        (ROWS[:4], "1 of 2 rows of the unit 2"),
        ([*ROWS, ROWS[1]], "w|1|1|0|1 is there again"),
        ([ROWS[1], ROWS[0], *ROWS[2:]], "w|1|0|0|0 at t-0 offset 1 comes after row 1"),
        ([*ROWS, (0, b"w|3|0|0|0")], "('t', 'w', 3) is there, and was never asked for"),
        ([*ROWS, (0, b"w|1|3|0|9")], "unit 1 of w has lines in t that nobody wrote"),
        ([*ROWS, (0, b"foreign|3")], "foreign|3 of another program is there 1 times, not 0"),
        (ROWS, "foreign|1 of another program is there 0 times, not 1"),
    ],
)
def test_checker_names_each_kind_of_harm(rows: list[tuple[int, bytes]], told: str) -> None:
    assert any(told in each for each in wrong(rows)), wrong(rows)


@pytest.mark.parametrize(
    ("stable", "at_stable", "told"),
    [
        (3, b"w|1|0|0|0", []),
        (2, b"foreign|1", []),
        (2, b"w|1|2|1|0", ["t-0 was stable up to 2, and its rows reach to 2"]),
    ],
)
def test_rows_hidden_when_a_write_returned_are_reported(
    stable: int, at_stable: bytes, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Sightings()
    for offset, (_, value) in enumerate(ROWS[:3]):
        seen.take("t", 0, offset, value)
    monkeypatch.setattr(checker, "value_at", lambda *_: at_stable)
    found = checker.judge_returned("nowhere", seen, "w", [("t", 1, [stable]), ("t", 7, [0])])
    assert [each.partition("returned when ")[2] for each in found] == told


def test_all_units_are_demanded_in_the_end() -> None:
    assert any("0 of 2 rows of the unit 2" in each for each in wrong(ROWS[:3], all_written=True))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_can_be_planted(mutant: Mutant) -> None:
    assert {*mutant.faults} <= {fault.name for fault in FAULTS}
    with planted_package(mutant) as folder:
        for file in (folder / "kafka_eos_sink" / "commit").glob("*.py"):
            compile(file.read_text(), str(file), "exec")


@pytest.mark.timeout(2_400)
def test_campaign_finds_nothing_wrong(tmp_path: Path) -> None:
    settings = Settings(seed=15, episode_s=60, longest_pause_s=10, largest_unit=3_000)
    journal = tmp_path / "journal.jsonl"
    reports = run(settings, 15.0, journal)
    assert len(journal.read_text().splitlines()) == len(reports)
    assert [dataclasses.asdict(report)["wrong"] for report in reports if report.wrong] == []
    # How many come in a minute depends on what else runs.
    assert sum(report.fault_count for report in reports) >= 3
    assert all(report.rows >= 500 for report in reports)
