"""What Kafka's producer does, row by row, and the tests that are the evidence of each row: tests/features.toml.

A test declares the rows that it is evidence of:

    @pytest.mark.feature("sequence numbers", "fail-over")

``make features`` writes the lists ``evidence`` from these markers. Importable from every test as ``features`` (pytest's ``pythonpath``
lists the folder).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "features.toml"
SECTIONS = {"producer": ("check", "test"), "surroundings": ("check", "test", "all")}
"""Section -> the tiers of which one must hold evidence of each row."""


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    what: str
    where: Sequence[str]
    """Modules, below ``kafka_eos_sink/``."""
    evidence: Sequence[str] = ()
    """``file::function`` below ``tests/``, in alphabetical order."""


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


def parsed(text: str) -> dict[str, list[Row]]:
    """Return the rows of each section."""
    return {section: [Row(**row) for row in rows] for section, rows in tomllib.loads(text).items()}


def with_evidence(sections: Mapping[str, Sequence[Row]], tests: Iterable[Collected]) -> dict[str, list[Row]]:
    """Return the rows with the tests whose markers name them."""
    evidence: dict[str, set[str]] = defaultdict(set)
    for test in tests:
        for name in test.features:
            evidence[name].add(f"{test.file}::{test.function}")
    return {
        section: [replace(row, evidence=sorted(evidence[row.name])) for row in rows]
        for section, rows in sections.items()
    }


def written(head: str, sections: Mapping[str, Sequence[Row]]) -> str:
    """Return the text of the file: its head, then the rows."""
    lines = [head.rstrip()]
    for section, rows in sections.items():
        for row in rows:
            lines += ["", f"[[{section}]]"]
            for key, value in asdict(row).items():
                if isinstance(value, str):
                    lines.append(f"{key} = {json.dumps(value)}")  # a JSON string is a TOML string
                else:
                    lines += [f"{key} = [", *(f"    {json.dumps(each)}," for each in value), "]"]
    return "\n".join(lines) + "\n"


def updated(text: str, tests: Iterable[Collected]) -> str:
    """Return the file's text with the evidence of these tests."""
    head = text.partition("\n[[")[0]
    return written(head, with_evidence(parsed(text), tests))


if __name__ == "__main__":
    FILE.write_text(updated(FILE.read_text("utf-8"), collected()), "utf-8")
