"""docs/features.md: every row names modules that exist, and has evidence, which the markers of tests name."""

from __future__ import annotations

import re

import pytest

from features import PAGE, ROOT, ROW, collected, with_evidence

TEXT = PAGE.read_text("utf-8")
ROWS = {row["name"]: row for row in ROW.finditer(TEXT)}
WHERE_IT_RUNS = TEXT.index("## Where it runs")


def test_feature_rows_have_names_of_their_own() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| row ")]
    assert len(ROWS) == len(rows)


@pytest.mark.parametrize("name", ROWS)
def test_modules_named_by_a_feature_row_exist(name: str) -> None:
    modules = re.findall(r"`([^`]+)`", ROWS[name]["modules"])
    assert modules
    assert [module for module in modules if not (ROOT / "kafka_eos_sink" / module).is_file()] == []


def test_markers_name_feature_rows() -> None:
    wrong = {
        f"{test.file}::{test.function}: {name}" for test in collected() for name in test.features if name not in ROWS
    }
    assert sorted(wrong) == []


def test_every_feature_has_evidence_in_its_tier() -> None:
    """`make test` holds evidence of what the producer does, `make test-all` of where it runs."""
    tiers = {name: {test.tier for test in collected() if name in test.features} for name in ROWS}
    without = [
        name
        for name, row in ROWS.items()
        if not tiers[name] & ({"check", "test"} if row.start() < WHERE_IT_RUNS else {"check", "test", "all"})
    ]
    assert without == []


def test_evidence_of_the_feature_page_is_up_to_date() -> None:
    assert with_evidence(TEXT, collected()) == TEXT, "run: make features"
