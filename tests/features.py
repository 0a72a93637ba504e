"""docs/features.md, and the tests that are the evidence of its rows.

A test names the rows that it is evidence of:

    @pytest.mark.feature("sequence numbers", "fail-over")

``make features`` writes the page's last column from these markers. Importable from every test as ``features`` (pytest's ``pythonpath``
names the folder).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "features.md"
ROW = re.compile(
    r"^\| (?P<name>(?!row \|)\w[^|]*) \| (?P<what>[^|]+) \| (?P<modules>[^|]+) \| (?P<evidence>[^|]*) \|$", re.MULTILINE
)


@dataclass(frozen=True)
class Collected:
    """A test of any tier: ``tier`` is the lowest that holds it, ``features`` are the rows that it is evidence of."""

    nodeid: str
    tier: str
    function: str
    features: Sequence[str]

    @property
    def file(self) -> str:
        """Path below ``tests/``."""
        return self.nodeid.partition("::")[0].removeprefix("tests/")


LIST = """
import json, sys
import pytest

class Listing:
    def pytest_collection_finish(self, session):
        tiers = ("check", "test", "all", "exhaustive")
        found = [
            {
                "nodeid": item.nodeid,
                "tier": next(name for name in tiers if item.get_closest_marker(name)),
                "function": item.originalname,
                "features": [name for marker in item.iter_markers("feature") for name in marker.args],
            }
            for item in session.items
        ]
        print("LISTED" + json.dumps(found))

sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "--tier", "exhaustive", "tests"], plugins=[Listing()]))
"""


@cache
def collected() -> tuple[Collected, ...]:
    """Return all tests, as pytest collects them in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", LIST], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    (line,) = (line for line in run.stdout.splitlines() if "LISTED" in line)
    return tuple(Collected(**each) for each in json.loads(line.partition("LISTED")[2]))


def with_evidence(page: str, tests: Iterable[Collected]) -> str:
    """Return the page with the evidence of each row: test functions by file, in alphabetical order."""
    evidence: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for test in tests:
        for row in test.features:
            evidence[row][test.file].add(test.function)

    def filled(row: re.Match[str]) -> str:
        of_row = evidence.get(row["name"], {})
        cell = "<br>".join(
            f"`{file}`: " + ", ".join(f"`{function}`" for function in sorted(of_row[file])) for file in sorted(of_row)
        )
        return f"| {row['name']} | {row['what']} | {row['modules']} | {cell} |"

    return ROW.sub(filled, page)


if __name__ == "__main__":
    PAGE.write_text(with_evidence(PAGE.read_text("utf-8"), collected()), "utf-8")
