"""Read files in the format of ``java.util.Properties`` as Java does."""

from __future__ import annotations

import re
from pathlib import Path

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.)|$)", re.DOTALL)
# A name ends at the first separator that is not escaped. The separator is white space with at most one "=" or ":" in it.
_NAME = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)


def read_properties(path: str | Path) -> dict[str, str]:
    """Read the properties in the file at `path`.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError: The file is not UTF-8.
    """
    return parse_properties(Path(path).read_text(encoding="utf-8-sig"))


def parse_properties(text: str) -> dict[str, str]:
    """Parse the text of a Java properties file; the last value of a name wins."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        found = _NAME.match(line)
        if found is not None:
            properties[_unescape(found[1])] = _unescape(line[found.end() :])
    return properties


def _logical_lines(text: str) -> list[str]:
    lines: list[list[str]] = []
    continued = False
    # Not splitlines(): it also splits at characters, such as U+2028, that Java keeps in the value.
    for physical in re.split(r"\r\n|\r|\n", text):
        line = physical.lstrip(" \t\f")
        if not continued and (not line or line[0] in "#!"):
            continue
        if not continued:
            lines.append([])
        # An even number of backslashes is escaped backslashes, not a continuation.
        continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        lines[-1].append(line[:-1] if continued else line)
    return ["".join(parts) for parts in lines]


def _unescape(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        return _ESCAPES.get(found[2] or "", found[2] or "")

    # Two escapes make one character beyond U+FFFF, as in Java.
    return _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
