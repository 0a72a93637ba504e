"""docs/features.md has every row of what Kafka's producer does and of where it runs, and names modules and tests that are there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = re.findall(r"^\| (R?\d+) \|(.*)\|$", (ROOT / "docs" / "features.md").read_text(), re.MULTILINE)
ROWS = {number: [cell.strip() for cell in cells.split(" | ")] for number, cells in TABLE}


@cache
def names_of_tests(file: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^def (test_\w+)\(", file.read_text(), re.MULTILINE))


def test_feature_table_has_each_row_once() -> None:
    of_the_producer, where_it_runs = range(1, 34), range(1, 7)
    assert [number for number, _ in TABLE] == [*map(str, of_the_producer), *(f"R{row}" for row in where_it_runs)]


@pytest.mark.parametrize("number", ROWS)
def test_modules_and_tests_named_by_a_feature_row_exist(number: str) -> None:
    what, modules, shown_by = ROWS[number]
    assert what
    named_modules = re.findall(r"`([^`]+)`", modules)
    assert named_modules
    assert [name for name in named_modules if not (ROOT / "kafka_eos_sink" / name).is_file()] == []
    named_tests = re.findall(r"`([^`]+)`", shown_by)
    assert named_tests
    for name in named_tests:
        file, _, test = name.partition("::")
        path = ROOT / "tests" / file
        assert path.is_file(), f"{name}: no such file"
        assert test in names_of_tests(path), f"{name}: no such test"
