"""Parse Java's ``sasl.jaas.config`` without loading a class.

The grammar is Java's JaasConfig's, one login module with its options::

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="secret";
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_CONTROL_FLAGS = ("required", "requisite", "sufficient", "optional")
# The tokens of Java's StreamTokenizer. "++" and "*+" never backtrack, so that a token ends only where Java ends it.
_SPACE = r"(?:\s|//[^\r\n]*|/\*.*?\*/)*+"
_WORD = r"([\w.$-]++)"
_QUOTED = r"""(["'])((?:\\.|(?!\3)[^\\\r\n])*+)\3"""
_MODULE = re.compile(rf"{_SPACE}{_WORD}{_SPACE}{_WORD}{_SPACE}", re.DOTALL)
# Unlike Java, require a space after a value. Else a quote in a password would turn the rest of the password into an option.
_OPTION = re.compile(rf"{_WORD}{_SPACE}={_SPACE}(?:{_WORD}|{_QUOTED})(?=[\s/;]|\Z){_SPACE}", re.DOTALL)
_END = re.compile(rf";{_SPACE}", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:([0-3]?[0-7]{1,2})|(.))", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginModule:
    """A login module; ``name`` has no package, because shaded jars move packages."""

    name: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(text: str) -> LoginModule:
    """Parse the one login module in `text`.

    Raises:
        ValueError: The expected form, without any part of the text, which contains a password.
    """
    # No message below contains a token: any of them may be the password, for example after a missing quote.
    module = _MODULE.match(text)
    if module is None:
        raise ValueError('it must be like: org.apache...PlainLoginModule required username="..." password="...";')
    if module[2].lower() not in _CONTROL_FLAGS:
        raise ValueError(f"after the login module one of {', '.join(_CONTROL_FLAGS)} must follow")
    options: dict[str, str] = {}
    at = module.end()
    while option := _OPTION.match(text, at):
        name, word, quote, quoted = option.groups()
        options[name] = _ESCAPE.sub(_unescape, quoted) if quote else word
        at = option.end()
    end = _END.match(text, at)
    if end is None:
        raise ValueError(
            f'character {at + 1}: after {len(options)} options, name="value" or the final semicolon must follow; '
            "quote values that contain other characters"
        )
    if end.end() < len(text):
        raise ValueError("it must end at its first semicolon: only one login module is supported")
    return LoginModule(name=module[1].rpartition(".")[2], options=options)


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 8)) if found[1] else _ESCAPED.get(found[2], found[2])
