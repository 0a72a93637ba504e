"""README and docs as tests read them: their text, and their blocks of code by name.

Importable from every test as ``documents`` (pytest's ``pythonpath`` names the folder).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
FENCE = re.compile(r"^ *```(\w*)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
IN_CODE = re.compile(r"`+([^`\n]+)`+")
OF_SPARK = "\n## Errors of Spark\n"
"""The last section of docs/errors.md."""
ERRORS = ROOT / "docs" / "errors.md"


@dataclass(frozen=True)
class Block:
    """A block of code."""

    document: str
    line: int
    """Of its first line in the document, from 1."""
    section: str
    """The anchor of the heading above it, empty above the first."""
    number: int
    """In its section, from 1."""
    language: str
    """The word behind the fence, empty for indented code."""
    text: str

    @property
    def name(self) -> str:
        return f"{self.document}#{self.section}" + (f":{self.number}" if self.number > 1 else "")

    def commands(self) -> list[str]:
        """Its lines as a shell takes them: joined at a backslash, without comments."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        return [line for line in (re.sub(r"(^|\s+)#\s.*", "", each).strip() for each in lines) if line]


@dataclass(frozen=True)
class Document:
    text: tuple[tuple[int, str], ...]
    """Numbered lines outside blocks of code."""
    blocks: tuple[Block, ...]


def without_markup(text: str) -> str:
    """Text as a reader sees it: links by their words, no anchors."""
    return re.sub(r"</?a[^>]*>", "", LINK.sub(lambda link: link[0][1 : link[0].index("](")], text))


def heading_of(line: str) -> str | None:
    """The anchor that GitHub makes of a heading; None if the line is none."""
    heading = re.match(r"#+ (.*)", line)
    return re.sub(r"[^\w\- ]", "", without_markup(heading[1]).lower()).replace(" ", "-") if heading else None


@cache
def read(path: Path) -> Document:
    """A document, whose blocks are fenced, or indented by four behind an empty line."""
    name = path.relative_to(ROOT).as_posix()
    text: list[tuple[int, str]] = []
    blocks: list[Block] = []
    section, before, fence = "", "", None
    code: list[str] = []

    def end(number: int, language: str) -> None:
        block = dedent("\n".join(code)).rstrip()
        first = number - len(code)
        code.clear()
        beside = sum(each.section == section for each in blocks)
        blocks.append(Block(name, first, section, beside + 1, language, block + "\n"))

    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        opened = FENCE.match(line)
        if fence is None and code and line.strip() and not line.startswith("    "):
            end(number, "")  # indented code ends at the first line that is neither indented nor empty
        if fence is not None and opened:
            end(number, fence)
            fence = None
        elif fence is None and opened:
            fence = opened[1]
        elif fence is not None or code or (line.startswith("    ") and not before.strip()):
            code.append(line)
        else:
            text.append((number, line))
            section = heading_of(line) or section
        before = line
    assert fence is None, f"{name}: a code block without an end"
    if code:
        end(number + 1, "")
    return Document(tuple(text), tuple(blocks))


def by_hand(path: Path) -> list[str]:
    """The lines of a page outside blocks of code, without comments and what comes from the code: tables, codes, their answers on rows."""
    text = "\n".join(
        line
        for _, line in read(path).text
        if not re.match(r"Rows visible: \*\*|An error of a command:|### [A-Z_]+$", line)
    )
    return re.sub(r"<!-- written by .*?<!-- end of the table -->|<!--.*?-->", "", text, flags=re.DOTALL).splitlines()


@cache
def anchors(path: Path) -> frozenset[str]:
    """Anchors of headings, and those that stand in the text."""
    lines = [line for _, line in read(path).text]
    return frozenset({*filter(None, map(heading_of, lines)), *re.findall(r'<a id="([^"]+)"', "\n".join(lines))})


def error_codes(section: str = "") -> list[str]:
    """Our codes, which have a heading in docs/errors.md, of one of its sections if it is named."""
    page = ERRORS.read_text("utf-8").partition(OF_SPARK)[0]
    if section:
        page = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^### (\w+)$", page, re.MULTILINE)


def spark_errors() -> list[str]:
    """Headings of docs/errors.md that are codes of Spark, or words of its messages."""
    page = ERRORS.read_text("utf-8").partition(OF_SPARK)[2]
    return re.findall(r"^### (.+)$", page, re.MULTILINE)


def explained_errors() -> list[str]:
    """Every heading of docs/errors.md that `kafka-eos explain` knows."""
    return [*error_codes(), *spark_errors()]


def all_blocks() -> Iterator[Block]:
    for path in DOCUMENTS:
        yield from read(path).blocks


def output_blocks() -> dict[str, Block]:
    """Name of a block -> the block of the language ``text`` directly below it: what its (last) command prints."""
    found = {}
    for path in DOCUMENTS:
        document = read(path)
        filled = [number for number, line in document.text if line.strip()]
        for block, below in pairwise(document.blocks):
            between = any(block.line < number < below.line for number in filled)
            if below.language == "text" != block.language and not between:
                found[block.name] = below
    return found


def words_of(command: str) -> list[str]:
    """Split ``kafka-eos ...`` into words as a shell does, without the brackets around optional words."""
    return [re.sub(r"^\[|\]$", "", word) for word in shlex.split(command)[1:]]


def is_kafka_eos(command: str) -> bool:
    return re.match(r"(\.venv/bin/)?kafka-eos ", command) is not None


def submitted(command: str) -> tuple[str, list[str]] | None:
    """The job and its arguments of a line that submits a job; None for other commands."""
    found = re.match(r"submit(?:-local)? .*?spark_jobs/(\w+)\.py (.*)", command)
    return (found[1], shlex.split(found[2])) if found else None
