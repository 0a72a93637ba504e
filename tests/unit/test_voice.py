"""Documents, code and messages use the words of the field, and not the house words for which it has better ones.

A match is a whole word or phrase outside blocks and spans of code.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from documents import DOCUMENTS, IN_CODE, ROOT, by_hand, without_markup

VOICE = {
    # phrase -> what to write instead
    "anew": "again",
    "passed over": "skipped",
    "left out": "omitted",
    "held up": "blocked",
    "taken for": "mistaken for",
    "stays away": "is missing",
}
"""Of rule 4 on words in CONTRIBUTING.md, the phrases that have no second meaning here."""
_PATTERN = re.compile(rf"(?<![\w-])(?:{'|'.join(VOICE)})(?![\w-])", re.IGNORECASE)


def house_words(text: str) -> Iterator[tuple[str, str]]:
    """Each house word of a text, and what is around it."""
    plain = " ".join(IN_CODE.sub("code", text).split())
    for found in _PATTERN.finditer(plain):
        yield found[0].lower(), plain[max(0, found.start() - 30) : found.end() + 30]


def strings_and_comments(source: str) -> Iterator[str]:
    """Docstrings, help texts, messages, comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    lines = (token for token in tokenize.generate_tokens(io.StringIO(source).readline))
    yield " ".join(token.string.lstrip("# ") for token in lines if token.type == tokenize.COMMENT)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_page_uses_the_words_of_the_field(document: Path) -> None:
    text = without_markup("\n".join(by_hand(document)))
    assert [f"{found!r}: write {VOICE[word]}" for word, found in house_words(text)] == []


@pytest.mark.parametrize(
    "package", sorted({file.parent for file in (ROOT / "kafka_eos_sink").rglob("*.py")}), ids=lambda path: path.name
)
def test_package_uses_the_words_of_the_field(package: Path) -> None:
    found = [
        f"{file.name}: {around!r}: write {VOICE[word]}"
        for file in package.glob("*.py")
        for text in strings_and_comments(file.read_text("utf-8"))
        for word, around in house_words(text)
    ]
    assert found == []


@pytest.mark.parametrize("name", ["kafka_eos_sink/errors.toml", "conf/alert-rules.yml", "conf/grafana-dashboard.json"])
def test_file_of_messages_uses_the_words_of_the_field(name: str) -> None:
    assert [found for _, found in house_words((ROOT / name).read_text("utf-8"))] == []


def test_tour_uses_the_words_of_the_field() -> None:
    cells = json.loads((ROOT / "notebooks" / "exactly_once_tour.ipynb").read_text("utf-8"))["cells"]
    assert [found for cell in cells for _, found in house_words("".join(cell["source"]))] == []
