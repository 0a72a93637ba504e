"""``sasl.jaas.config``, Java's string, parsed into a name and options. No class is ever loaded for it.

The grammar is that of Java's JaasConfig, one login module with its options::

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="secret";
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_CONTROL_FLAGS = ("required", "requisite", "sufficient", "optional")
# The tokens of Java's StreamTokenizer: quoted strings, words and single characters, without comments.
_TOKEN = re.compile(
    r"""\s+|//[^\r\n]*|/\*.*?\*/
    |(?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote))[^\\\r\n])*)(?P=quote)
    |(?P<word>[\w.$-]+)
    |(?P<mark>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-3]?[0-7]{1,2})|(.))", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginModule:
    """A login module: the last part of its class name, because shaded jars move packages, and its options."""

    name: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(text: str) -> LoginModule:
    """Parse the one login module in `text`.

    Raises:
        ValueError: The expected form, without any part of the text, which contains a password.
    """
    # No message below repeats a token: any of them may be the password, for example after a missing quote.
    tokens = list(_tokens(text))
    if len(tokens) < 3 or tokens[0][0] != "word" or tokens[1][0] != "word":
        raise ValueError('it must be like: org.apache...PlainLoginModule required username="..." password="...";')
    if tokens[1][1].lower() not in _CONTROL_FLAGS:
        raise ValueError(f"after the login module one of {', '.join(_CONTROL_FLAGS)} must follow")
    options: dict[str, str] = {}
    at = 2
    while tokens[at : at + 1] != [("mark", ";")]:
        match tokens[at : at + 3]:
            case [("word", name), ("mark", "="), ("word" | "quoted", value)]:
                options[name] = value
            case _:
                raise ValueError(f'after {len(options)} options, name="value" or the final semicolon must follow')
        at += 3
    if len(tokens) > at + 1:
        raise ValueError("it must end at its first semicolon: only one login module is supported")
    return LoginModule(name=tokens[0][1].rpartition(".")[2], options=options)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"character {at + 1} is not allowed; quote values that contain other characters")
        at = found.end()
        if found["quote"]:
            yield "quoted", _ESCAPE.sub(_unescape, found["quoted"])
        elif found["word"]:
            yield "word", found["word"]
        elif found["mark"]:
            yield "mark", found["mark"]


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 8)) if found[1] else _ESCAPED.get(found[2], found[2])
