"""``docs/options.md`` is what the settings table says."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

from kafka_eos_sink.settings import kinds
from kafka_eos_sink.settings.table import JAVA, PREFIX, SECURITY, SINK
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


def test_sink_options_come_first_and_unusual_options_last() -> None:
    found = sections()
    first, second, *_ = found.values()
    assert names_of(first) == [*SINK]
    assert {"kafka.compression.type", "kafka.batch.size", "kafka.transaction.timeout.ms"} <= {*names_of(second)}
    assert [*found][-3:] == ["Not supported", "Without effect", "Defaults that differ from Java's"]


def test_names_of_a_pattern_have_one_reason() -> None:
    for pattern in PATTERNS:
        rows = [row for name, row in JAVA.items() if fnmatchcase(name, pattern)]
        assert len(rows) > 1, pattern
        assert len({(row.group, row.meaning) for row in rows}) == 1, pattern


def test_the_page_shows_no_limit_that_only_a_computer_knows() -> None:
    values = [row[1] for rows in sections().values() for row in rows if len(row) == 4]
    assert not any(re.search(r"\d{10}", value) for value in values)


def test_introduction_names_hidden_and_untrimmed_values() -> None:
    texts = (kinds.TEXT, kinds.AS_GIVEN)
    assert all(row.secret == (row.kind in texts) for row in SECURITY.values())
    kept = [name for name, row in SINK.items() if row.kind in (kinds.ID, kinds.GROUP, kinds.USER_METADATA)]
    introduction = options_page().partition("\n## ")[0]
    assert len(kept) == 4
    assert [name for name in kept if f"`{name}`" not in introduction] == []
    untrimmed = {name for name, row in JAVA.items() if row.kind == kinds.AS_GIVEN}
    assert all(re.search(r"location|password|username|client\.(id|secret)$", name) for name in untrimmed)


def test_every_default_is_a_value_that_its_option_accepts() -> None:
    for name, row in {**SINK, **JAVA}.items():
        given = row.default if row.default is not None else row.default_value
        if given in (None, (), "required", "see meaning"):
            continue
        value = row.kind.parse(str(given))
        assert row.contradiction is None or row.contradiction.allows(value), name
        assert row.default_value in (None, value), name
