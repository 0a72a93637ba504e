"""What Kafka's producer does, row by row (tests/features.toml), and all tests with the rows that they are evidence of.

A test declares its rows by a marker:

    @pytest.mark.feature("sequence numbers", "fail-over")

Importable from every test as ``features`` (pytest's ``pythonpath`` lists the folder).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
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
