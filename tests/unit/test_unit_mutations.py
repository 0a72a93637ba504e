"""Each mutation of `tests/unit_mutations.py` can be planted, and the tests that it names catch it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from model.mutations import MUTATIONS, planted

from tests.unit_mutations import ROOT, UNIT_MUTATIONS, UnitMutation


def test_names_of_mutations_differ() -> None:
    names = [each.name for each in (*UNIT_MUTATIONS, *MUTATIONS)]
    assert sorted(set(names)) == sorted(names)
    assert len(UNIT_MUTATIONS) >= 100


@pytest.mark.parametrize("mutation", UNIT_MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_can_be_planted(mutation: UnitMutation) -> None:
    with planted(mutation.edits):
        pass


@pytest.mark.parametrize(
    ("given", "files"),
    [([], ""), (["--matrix", "the end of another epoch counts"], "commit/test_resolve.py commit/test_settle.py\n")],
)
def test_each_mutation_is_caught(given: list[str], files: str) -> None:
    command = [sys.executable, "-m", "tests.unit_mutations", *given]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2_000:] + run.stderr[-2_000:]
    assert files in run.stdout, "a file that does not fail counts, or one that fails does not"
