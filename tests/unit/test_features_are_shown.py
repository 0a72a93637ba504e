"""tests/features.toml: every row lists modules that exist, and has evidence, which the markers of tests declare."""

from __future__ import annotations

import pytest

from features import FILE, ROOT, SECTIONS, collected, parsed

ROWS = parsed(FILE.read_text("utf-8"))
ALL_ROWS = {row.name: row for rows in ROWS.values() for row in rows}


def test_feature_rows_have_names_of_their_own() -> None:
    assert list(ROWS) == list(SECTIONS)
    assert len(ALL_ROWS) == sum(map(len, ROWS.values())) >= 40


@pytest.mark.parametrize("name", ALL_ROWS)
def test_modules_named_by_a_feature_row_exist(name: str) -> None:
    row = ALL_ROWS[name]
    assert row.what
    assert row.where
    assert [module for module in row.where if not (ROOT / "kafka_eos_sink" / module).is_file()] == []


def test_markers_name_feature_rows() -> None:
    wrong = {
        f"{test.file}::{test.function}: {name}"
        for test in collected()
        for name in test.features
        if name not in ALL_ROWS
    }
    assert sorted(wrong) == []


@pytest.mark.parametrize("section", SECTIONS)
def test_every_feature_has_evidence_in_its_tier(section: str) -> None:
    """`make test` holds evidence of what the producer does, `make test-all` of where it runs."""
    tiers = {row.name: {test.tier for test in collected() if row.name in test.features} for row in ROWS[section]}
    assert [name for name, found in tiers.items() if not found & set(SECTIONS[section])] == []
