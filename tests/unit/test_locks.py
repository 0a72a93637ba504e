"""The locked dependencies: `make demo` and `make docs` install their own few, in the versions that the tests have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO, DEV, DOCS = "requirements/demo.lock", "requirements/dev.lock", "requirements/docs.lock"


def pinned(lock: str) -> dict[str, list[str]]:
    """Each requirement with its marker, to its hashes."""
    entries = re.split(r"\n(?=[a-z])", (ROOT / lock).read_text("utf-8"))[1:]
    return {entry.splitlines()[0].removesuffix(" \\"): re.findall(r"--hash=(\S+)", entry) for entry in entries}


def names(lock: str) -> set[str]:
    return {re.split("==", requirement)[0] for requirement in pinned(lock)}


@pytest.mark.parametrize("lock", [DEMO, DOCS])
def test_lock_is_a_part_of_the_lock_of_the_tests(lock: str) -> None:
    # So `make demo`, `make docs` and `make test` can use one environment, in any order.
    some, dev = pinned(lock), pinned(DEV)
    assert some
    hashes = {version(requirement): of for requirement, of in dev.items()}
    assert {version(requirement): of for requirement, of in some.items()}.items() <= hashes.items()


def version(requirement: str) -> str:
    """A requirement without its marker: a package of one lock alone may be needed on more systems."""
    return requirement.partition(" ;")[0]
