"""README and docs keep their promises to a reader: short, with links that resolve and names that exist."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from kafka_eos_sink.cli.main import _COMMANDS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])

README_WORDS = 900
"""Words of all text outside code blocks; tables count, the targets of links do not."""
LINE_LENGTH = 140
CELL_LENGTH = 200
LONG_CELLS = {"docs/features.md"}
"""Its cells are lists of tests, read by `test_features_are_shown.py` rather than by people."""
SOURCES = ("kafka_eos_sink", "pyspark_kafka_eos", "spark_jobs", "benchmarks", "tests")
IN_CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^ *```(\w*)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@cache
def split(document: Path) -> tuple[list[tuple[int, str]], list[str], list[tuple[int, str]]]:
    """Numbered lines of text, lines of code blocks, and the Python blocks with the number of their first line."""
    text: list[tuple[int, str]] = []
    code: list[str] = []
    python: list[tuple[int, str]] = []
    fence: str | None = None
    block: list[str] = []
    before = ""
    for number, line in enumerate(document.read_text("utf-8").splitlines(), 1):
        opened = FENCE.match(line)
        if fence is not None:
            if opened:
                if fence == "python":
                    python.append((number - len(block), "\n".join(block)))
                fence = None
            else:
                code.append(line)
                block.append(line)
        elif opened:
            fence, block = opened[1], []
        elif line.startswith("    ") and (not before.strip() or before.startswith("    ")):
            code.append(line)  # indented code, which begins behind an empty line
        else:
            text.append((number, line))
        before = line
    assert fence is None, f"{document}: a code block without an end"
    return text, code, python


def is_table(line: str) -> bool:
    return line.lstrip().startswith("|")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def without_markup(text: str) -> str:
    """Text as a reader sees it: links by their words, no anchors."""
    return re.sub(r"</?a[^>]*>", "", LINK.sub(lambda link: link[0][1 : link[0].index("](")], text))


def named(document: Path) -> str:
    return str(document.relative_to(ROOT))


@cache
def anchors(document: Path) -> frozenset[str]:
    """Anchors as GitHub makes them of headings, and those that stand in the text."""
    found: set[str] = set()
    for _, line in split(document)[0]:
        if heading := re.match(r"#+ (.*)", line):
            words = re.sub(r"[^\w\- ]", "", without_markup(heading[1]).lower())
            found.add(words.replace(" ", "-"))
        found |= set(re.findall(r'<a id="([^"]+)"', line))
    return frozenset(found)


def code_of(document: Path) -> list[str]:
    """Code blocks and the code within lines."""
    text, code, _ = split(document)
    return [*code, *(span for _, line in text for span in IN_CODE.findall(line))]


def test_the_readme_is_short_enough_to_be_read() -> None:
    text = " ".join(without_markup(line) for _, line in split(README)[0])
    words = [word for word in re.split(r"[\s|]+", text) if re.search(r"\w", word)]
    assert len(words) <= README_WORDS


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_lines_and_cells_are_short_enough_to_be_read(document: Path) -> None:
    text, _, _ = split(document)
    lines = [number for number, line in text if not is_table(line) and len(line) > LINE_LENGTH]
    wide = [
        number
        for number, line in text
        if is_table(line) and any(len(without_markup(cell)) > CELL_LENGTH for cell in cells(line))
    ]
    assert lines == []
    assert wide == [] or named(document) in LONG_CELLS


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_have_targets(document: Path) -> None:
    broken = []
    for number, line in split(document)[0]:
        for target in LINK.findall(IN_CODE.sub("", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (document.parent / path).resolve() if path else document
            if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
                broken.append(f"{number}: {target}")
    assert broken == []


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
        if not any(pattern.fullmatch(file) for file in files):
            missing.add(name)
    assert sorted(missing) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_python_blocks_compile(document: Path) -> None:
    for number, block in split(document)[2]:
        compile("\n" * number + block, named(document), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_readme_names_the_licence_of_each_runtime_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = {
        re.split(r"[<>=\[]", each)[0] for each in [*project["dependencies"], *(one for some in extras for one in some)]
    }
    rows = [
        cells(line) for _, line in split(README)[0] if is_table(line) and re.search(r"Apache-2|BSD-3|MIT|LGPL", line)
    ]
    listed = " ".join(row[0] for row in rows)
    assert sorted(name for name in wanted - {"kafka-eos-sink"} if name not in listed) == []
