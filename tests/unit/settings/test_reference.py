"""``docs/options.md`` is what the settings table says."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

from kafka_eos_sink.settings.table import JAVA, PREFIX, SINK
from tools.configuration_reference import COMMAND, OTHER_DEFAULTS, PATTERNS, options_page

PAGE = Path(__file__).parents[3] / "docs" / "options.md"


def sections() -> dict[str, list[list[str]]]:
    """The cells of each table's rows, by the heading above the table."""
    _, *parts = options_page().split("\n## ")
    return {
        part.partition("\n")[0]: [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in part.splitlines()
            if line.startswith("| `")
        ]
        for part in parts
    }


def names_of(rows: list[list[str]]) -> list[str]:
    return [name for row in rows for name in re.findall("`(.*?)`", row[0])]


def test_the_options_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == options_page(), f"run: {COMMAND}"


def test_page_has_each_option_once_and_short_cells() -> None:
    *tables, differences = sections().values()
    patterns = [PREFIX + pattern for pattern in PATTERNS]
    options = [*SINK, *(PREFIX + name for name in JAVA)]
    folded = [option for option in options if any(fnmatchcase(option, pattern) for pattern in patterns)]
    assert sorted(name for rows in tables for name in names_of(rows)) == sorted({*options, *patterns} - {*folded})
    assert sorted(names_of(differences)) == sorted(PREFIX + name for name in OTHER_DEFAULTS)
    assert max(len(cell) for rows in [*tables, differences] for row in rows for cell in row) <= 200


def test_every_default_is_a_value_that_its_option_accepts() -> None:
    for name, row in {**SINK, **JAVA}.items():
        given = row.default if row.default is not None else row.default_value
        if given in (None, (), "required", "see meaning"):
            continue
        value = row.kind.parse(str(given))
        assert row.contradiction is None or row.contradiction.allows(value), name
        assert row.default_value in (None, value), name
