"""``docs/configuration.md`` is what the settings table says."""

from __future__ import annotations

from pathlib import Path

from kafka_eos_sink.settings.table import JAVA, SINK
from tools.configuration_reference import COMMAND, OTHER_DEFAULTS, configuration_page

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_configuration_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == configuration_page(), f"run: {COMMAND}"


def test_the_page_has_one_row_per_option_and_short_cells() -> None:
    rows = [line for line in configuration_page().splitlines() if line.startswith("| `")]
    names = [row.split("`")[1] for row in rows]
    assert sorted(names) == sorted([*SINK, *(f"kafka.{name}" for name in [*JAVA, *OTHER_DEFAULTS])])
    assert max(len(cell.strip()) for row in rows for cell in row.split("|")) <= 200


def test_every_default_is_a_value_that_its_option_accepts() -> None:
    for name, row in {**SINK, **JAVA}.items():
        given = row.default if row.default is not None else row.default_value
        if given in (None, (), "required", "see meaning"):
            continue
        value = row.kind.parse(str(given))
        assert row.contradiction is None or row.contradiction.allows(value), name
        assert row.default_value in (None, value), name
