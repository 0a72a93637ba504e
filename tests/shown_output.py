"""What a page shows of a program's output is what the program prints: the words, the columns, the order, and the number of lines.

Importable from every test as ``shown_output`` (pytest's ``pythonpath`` names the folder).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

WIDTH = 140
"""A page may break a longer line that the program prints; it breaks no shorter one."""
_VARIES = {
    r"\x1b\[[0-9;?]*[A-Za-z]": "",
    r"\b(?:127\.0\.0\.1|localhost):\d+": "SERVER",
    r"[█▓░]+": "BAR",
    r"/tmp/kafka-eos-\w+": "FOLDER",
    r"\bcluster [\w-]{22}(?![\w-])": "CLUSTER",
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b": "UUID",
    r"\b(?:local-\d+|app-\d+-\d+)\b": "APPLICATION",
    r"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?Z?": "TIME",
    r"(?<![\w.])\d+(?:\.\d+)? (?:s|min|h|d)\b(?: \d+ (?:s|min|h)\b)?": "DURATION",
    r"(?<=[\w-])\.\d+\.\d+(?![\w.])": ".TASK.SLOT",
    r"\bproducer id \d+|\d+ (?=\(producer ids\))": "PRODUCER",
    r"\bid \d+, epoch \d+|(?<![\w.-])\d+, epoch \d+": "PRODUCER",
    r"(?<![\w.-])(?!20\d{6} )\d[\d,]*(?: to |\.\.)\d[\d,]*": "OFFSETS",
    r"\b(plan|write|check|decide|end|verify) \d+": r"\1 N",
    r"(\"\w+_(?:ms|id|epoch|offsets?|second)\": )\d+": r"\1N",
    r"^\s*\d+(,?)$": r"N\1",
    r"(?<!\d)(?!20\d{6}(?!\d))\d[\d,.]*\d": "N",
}
"""Pattern -> what to compare in its place. Digits that stand alone are compared, and so are versions that are dates."""


def in_common(line: str) -> str:
    """A line without what differs from run to run, and with one space between its columns."""
    for pattern, name in _VARIES.items():
        line = re.sub(pattern, name, line)
    return " ".join(line.split())


def assert_shows(page: str, printed: str, name: str) -> None:
    """Fail with what was printed, as it would be put into the page, unless the page shows that."""
    shown = [in_common(line) for line in page.strip().splitlines()]
    wanted = [(in_common(line), len(line) > WIDTH) for line in printed.strip().splitlines()]
    for number, (line, is_long) in enumerate(wanted):
        at = _end(shown, number, line) if is_long else number + 1
        shown[number:at] = [" ".join(shown[number:at])]
    assert shown == [line for line, _ in wanted], f"{name} is not what is printed:\n{printed.strip()}\n"


def _end(shown: list[str], begin: int, line: str) -> int:
    """Where the lines end that show one long line, if they do."""

    def ends() -> Iterator[int]:
        for end in range(begin + 1, len(shown) + 1):
            if in_common(" ".join(shown[begin:end])) == line:
                yield end

    return next(ends(), begin + 1)
