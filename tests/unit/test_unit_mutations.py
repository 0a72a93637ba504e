"""Each mutation of `tests/unit_mutations.py` can be planted, and the tests that it names catch it."""

from __future__ import annotations

import pytest
from model.mutations import MUTATIONS, planted

from tests.unit_mutations import UNIT_MUTATIONS, UnitMutation, killers


def test_names_of_mutations_differ() -> None:
    names = [each.name for each in (*UNIT_MUTATIONS, *MUTATIONS)]
    assert sorted(set(names)) == sorted(names)
    assert len(UNIT_MUTATIONS) >= 70


@pytest.mark.parametrize("mutation", UNIT_MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_can_be_planted(mutation: UnitMutation) -> None:
    with planted(mutation.edits):
        pass


@pytest.mark.parametrize("mutation", UNIT_MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_is_caught(mutation: UnitMutation) -> None:
    assert killers(mutation.name, [f"tests/unit/{mutation.killer}"], first=True), mutation.name
