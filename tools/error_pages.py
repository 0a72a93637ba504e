"""The sections of docs/errors.md, from the rows of errors.toml."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from kafka_eos_sink.error_table import Row, table
from kafka_eos_sink.errors import OF_A_COMMAND, safety_of

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
COMMAND = "python -m tools.error_pages"
BEGIN = f"<!-- written by {COMMAND} from kafka_eos_sink/errors.toml -->"


def sections() -> Iterator[str]:
    """Yield the lines of all sections."""
    for title, rows in itertools.groupby(table().rows.values(), lambda row: row.section):
        yield f"## {title}\n"
        if about := table().sections[title]:
            yield f"{about}\n"
        for row in rows:
            yield f"### {row.code}"
            if not row.like:  # the code that has the text is the last of those with one meaning
                yield f"\n{answers(row)}\n\n{row.explained}\n"


def answers(row: Row) -> str:
    safety = safety_of(row.code)
    if safety is None:
        return OF_A_COMMAND
    return f"Rows visible: **{safety.visible}**. Safe to run again: **{safety.run_again}**."


def page(text: str) -> str:
    """Return the page with the sections as they are now."""
    return f"{text.partition(BEGIN)[0]}{BEGIN}\n\n" + "\n".join(sections())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
