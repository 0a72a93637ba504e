"""README and docs keep their promises to a reader: short, with links that resolve and names that exist."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from documents import (
    DOCUMENTS,
    IN_CODE,
    LINK,
    ROOT,
    all_blocks,
    anchors,
    by_hand,
    read,
    without_markup,
)
from kafka_eos_sink.cli.main import _COMMANDS, application
from snippets import IN_SPARK, NOT_RUN, ON_A_BROKER, PICTURES, RUNS_IN, SHOWN, SUBMITTED

PROTOCOL_LINES = 250
"""Of docs/internals/protocol.md, which is read in one sitting; consequences and history have pages of their own."""
LINE_LENGTH = 140
CELL_LENGTH = 200
TOUR = ROOT / "notebooks" / "exactly_once_tour.ipynb"
USERS_FILES = {"batch.py", "count.py", "stream.py", "job.py", "transformations/orders.py"}
"""Which the documents tell a user to write."""
WORDS = {"README.md": 750}
"""The most words of a page, as `words` counts them."""
FIGURES = "docs/internals/benchmarks.md"
"""The one page with commits and dates. Its tables do not count as words."""


AT_NIGHT, WORDS_AT_NIGHT = ("runbooks", "alerts"), 2_090
"""What an operator reads at night, and the most words of it."""


SOURCES = ("kafka_eos_sink", "pyspark_kafka_eos", "spark_jobs", "benchmarks", "tests")


def is_table(line: str) -> bool:
    return line.lstrip().startswith("|")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def named(document: Path) -> str:
    return str(document.relative_to(ROOT))


def code_of(document: Path) -> list[str]:
    """Code blocks and the code within lines."""
    found = read(document)
    return [
        *(block.text for block in found.blocks),
        *(span for _, line in found.text for span in IN_CODE.findall(line)),
    ]


def words(page: str) -> int:
    """Words outside blocks of code: tables count; the targets of links, pictures and what a tool writes into a page do not."""
    lines = [line for line in by_hand(page_of(page)) if page != FIGURES or not is_table(line)]
    text = re.sub(r"<(picture|source|img|/picture)[^>]*>", "", without_markup("\n".join(lines)))
    return sum(re.search(r"\w", word) is not None for word in re.split(r"[\s|]+", text))


def page_of(name: str) -> Path:
    return ROOT / (name if name.endswith(".md") else f"docs/{name}.md")


@pytest.mark.parametrize("page", WORDS)
def test_page_fits_its_budget(page: str) -> None:
    assert words(page) <= WORDS[page], (
        f"{page} has {words(page)} words, at most {WORDS[page]}: move what few readers need to docs/"
    )


def test_pages_of_an_operator_at_night_fit_their_budget() -> None:
    assert sum(map(words, AT_NIGHT)) <= WORDS_AT_NIGHT


def test_the_protocol_is_short_enough_to_be_read() -> None:
    assert len((ROOT / "docs" / "internals" / "protocol.md").read_text("utf-8").splitlines()) <= PROTOCOL_LINES


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_lines_and_cells_are_short_enough_to_be_read(document: Path) -> None:
    text = read(document).text
    lines = [number for number, line in text if not is_table(line) and len(line) > LINE_LENGTH]
    wide = [
        number
        for number, line in text
        if is_table(line) and any(len(without_markup(cell)) > CELL_LENGTH for cell in cells(line))
    ]
    assert not lines, f"lines {lines} have more than {LINE_LENGTH} characters"
    assert not wide, f"the tables in lines {wide} have cells of more than {CELL_LENGTH} characters"


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_have_targets(document: Path) -> None:
    assert [
        f"{number}: {target}" for number, line in read(document).text for target in broken_links(document, line)
    ] == []


def test_links_of_the_tour_have_targets() -> None:
    texts = ["".join(cell["source"]) for cell in cells_of_the_tour() if cell["cell_type"] == "markdown"]
    assert sum(len(LINK.findall(text)) for text in texts) > 5
    assert [target for text in texts for target in broken_links(TOUR, text)] == []


def cells_of_the_tour() -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(TOUR.read_text("utf-8"))["cells"]
    return cells


def broken_links(document: Path, text: str) -> Iterator[str]:
    for target in LINK.findall(IN_CODE.sub("", text)):
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        is_elsewhere = re.match(r"[a-z]+:", target)
        if not is_elsewhere and not (file.exists() and (not anchor or file.suffix != ".md" or anchor in anchors(file))):
            yield target


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_targets_and_commands_that_are_named_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = set(_COMMANDS)
    code = "\n".join(code_of(document))
    named_targets = set(re.findall(r"(?<![\w./-])make ([a-z][a-z-]*)", code))
    named_commands = set(re.findall(r"(?<![\w=-])kafka-eos ([a-z][a-z-]*)", code))
    assert sorted(named_targets - targets) == []
    assert sorted(named_commands - commands) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_modules_that_are_named_exist(document: Path) -> None:
    """Written from the root, from the package, or by the file's name alone; ``<name>`` and ``*`` stand for any."""
    files = [str(file.relative_to(ROOT)) for folder in SOURCES for file in (ROOT / folder).rglob("*.py")]
    missing = set()
    for name in re.findall(r"(?<![\w./<>*])[\w./<>*-]+\.py(?!\w)", "\n".join(code_of(document))):
        pattern = re.compile(r"(.*/)?" + re.sub(r"<\w+>|\\\*", "[^/]*", re.escape(name)))
        if name not in USERS_FILES and not any(pattern.fullmatch(file) for file in files):
            missing.add(name)
    assert sorted(missing) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_python_blocks_compile(document: Path) -> None:
    for block in read(document).blocks:
        if block.language == "python":
            compile("\n" * block.line + block.text, named(document), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_notice_names_the_licence_of_each_runtime_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = {
        re.split(r"[<>=\[]", each)[0] for each in [*project["dependencies"], *(one for some in extras for one in some)]
    }
    rows = [cells(line) for line in (ROOT / "NOTICE").read_text("utf-8").splitlines() if is_table(line)]
    listed = {name for packages, licence in rows if licence for name in packages.split(", ")}
    assert sorted(wanted - {"kafka-eos-sink"} - listed) == []


def test_every_block_of_code_runs_in_a_test_or_has_a_reason() -> None:
    """A block that no test finds by its form needs a row in tests/snippets.py, and only such a block has one."""
    blocks = [block for block in all_blocks() if block.name.startswith(("README.md", "docs/", "CONTRIBUTING.md"))]
    names = [block.name for block in blocks]
    assert len(names) == len(set(names)) > 80
    rows = [*RUNS_IN, *NOT_RUN, *PICTURES]
    assert len(rows) == len(set(rows))
    assert sorted(set(rows) - set(names)) == []
    run = {block.name for block in (*IN_SPARK, *ON_A_BROKER, *SUBMITTED, *SHOWN)}
    assert sorted(set(names) - run - set(rows)) == []


@pytest.mark.parametrize("name", sorted(RUNS_IN))
def test_named_test_of_a_block_exists(name: str) -> None:
    file, _, function = RUNS_IN[name].partition("::")
    assert f"\ndef {function}(" in (ROOT / "tests" / file).read_text("utf-8")


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_commands_of_the_text_have_the_options_that_they_name(document: Path) -> None:
    commands = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    wrong = []
    for code in code_of(document):
        for name, words in re.findall(r"(?<![\w=-])kafka-eos ([a-z]+)((?: [^|#\n]+)?)", code):
            options = {option for each in commands[name].params for option in each.opts} if name in commands else set()
            wrong += [f"{name} {word}" for word in re.findall(r"(?<!\S)\[?(--[a-z-]+)", words) if word not in options]
    assert wrong == []
