"""Documents and docstrings use the words of the field, and not the house words for which it has better ones.

A match is a whole word or phrase outside blocks and spans of code. `ALLOWED` lists the phrases in which a word is right.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from documents import DOCUMENTS, IN_CODE, ROOT, by_hand, without_markup

DETERMINER = r"(?:an?|the|its|their|your|his|our|this|that|these|those|each|every|all|any|both|only|no|which|what|how|it|them|one|two)"
ROWS = rf"(?:{DETERMINER} |lost )*rows"
VOICE = {
    # word -> pattern, what to write instead
    "behind": (r"behind", "after"),
    "beside": (r"beside", "next to, in addition to, while ... also ran"),
    "stands": (r"stands", "is, appears"),
    "names": (rf"names (?!that ){DETERMINER}", "lists, shows, says which"),  # the verb
    "look": (r"looks?", "check, read"),
    "ends a transaction": (
        rf"(?:ends?|ended|ending) (?:(?:{DETERMINER}|listed|open|left-over|named|losing) )*transactions?",
        "commits or aborts",
    ),
    "what it left": (r"what (?:it|he|they|a \w+|the \w+) left", "its open transactions"),
    "give up rows": (rf"g(?:ive|ives|ave|iving) (?:up {ROWS}|{ROWS} up)", "accept the loss of"),
    "given up": (r"given up", "accepted as lost"),
    "knows nothing of": (r"knows? nothing (?:of|about)", "has no records for"),
    "takes": (
        rf"takes (?:{DETERMINER} )?(?:same )?(?:options?|values?|arguments?|names?|prefix(?:es)?|letters?|tokens?)",
        "accepts",
    ),
    "that of": (r"(?:that|those) of", "repeat the noun"),
    "of its own": (r"of (?:its|their|our|your|his) own", "its own X"),
    "nothing of the batch": (r"nothing of (?:the|a|this|that|its) batch", "no row of the batch"),
    "in place of": (r"in place of", "instead of"),
    ", too": (r", too", "also"),
    "for good": (r"for good", "permanently"),
    "somebody": (r"somebody", "someone, an operator"),
    "mended": (r"mends?|mended", "fixed"),
    "try of": (r"tr(?:y|ies) of", "attempt"),
    "a right CRC": (r"right CRC", "a valid CRC"),
    "the way of a row": (r"way of (?:an?|the) (?:row|commit)", "the path of a row"),
    "in the end": (r"in the end", "finally"),
    "typing error": (r"typing error", "typo"),
}
ALLOWED = {
    "behind a proxy": "there is a proxy in front of it",
    "behind a load balancer": "there is a load balancer in front of it",
    "behind the proxy": "there is a proxy in front of it",
    "look something up": "the field's word for a search by key",
    "look up": "the field's word for a search by key",
    "looks up": "the field's word for a search by key",
    "looked up": "the field's word for a search by key",
    "look like": "resemble",
    "looks like": "resembles",
    "although others are given up": "the name of a mutation",
    "beside: Further columns": "the name of a parameter",
    "stands for": "a letter or a number stands for something",
}
"""Phrase -> why the word is right in it."""
_ALLOWED = re.compile("|".join(map(re.escape, ALLOWED)), re.IGNORECASE)
_PATTERNS = {
    word: re.compile(rf"(?:(?<![\w-])|(?=,))(?:{pattern})(?![\w-])", re.IGNORECASE)
    for word, (pattern, _) in VOICE.items()
}


def house_words(text: str) -> Iterator[tuple[str, str]]:
    """Each house word of a text, and what is around it."""
    plain = " ".join(_ALLOWED.sub("", IN_CODE.sub("code", text)).split())
    for word, pattern in _PATTERNS.items():
        for found in pattern.finditer(plain):
            yield word, plain[max(0, found.start() - 30) : found.end() + 30]


def docstrings_and_comments(source: str) -> Iterator[str]:
    """Also the strings that follow a constant or a field."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    lines = (token for token in tokenize.generate_tokens(io.StringIO(source).readline))
    yield " ".join(token.string.lstrip("# ") for token in lines if token.type == tokenize.COMMENT)


def test_house_words_are_found_in_any_form() -> None:
    text = "It looks at rows that stand\nbehind `behind` it, too, as ``behind``. The driver ends the open transaction, behind a proxy."
    assert [word for word, _ in house_words(text)] == ["behind", "look", "ends a transaction", ", too"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_page_uses_the_words_of_the_field(document: Path) -> None:
    text = without_markup("\n".join(by_hand(document)))
    assert [f"{found!r}: write {VOICE[word][1]}" for word, found in house_words(text)] == []


@pytest.mark.parametrize(
    "package", sorted({file.parent for file in (ROOT / "kafka_eos_sink").rglob("*.py")}), ids=lambda path: path.name
)
def test_package_uses_the_words_of_the_field(package: Path) -> None:
    found = [
        f"{file.name}: {around!r}: write {VOICE[word][1]}"
        for file in package.glob("*.py")
        for text in docstrings_and_comments(file.read_text("utf-8"))
        for word, around in house_words(text)
    ]
    assert found == []
