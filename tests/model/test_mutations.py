"""Each planted mutation of the protocol is caught, with the shortest trace that shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafka_eos_sink.commit import evidence

from .explorer import explore
from .mutations import MUTATIONS, Mutation, planted
from .stories import tell as story
from .walks import walk


@pytest.mark.parametrize(
    ("mutation", "version"),
    [
        pytest.param(mutation, version, id=f"{mutation.name}-tv{version}")
        for mutation in MUTATIONS
        for version in mutation.versions
    ],
)
def test_a_mutation_of_the_protocol_is_caught(
    mutation: Mutation, version: int, tell: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = replace(mutation.setting, version=version)
    if mutation.waits_for_readers:
        monkeypatch.setattr(evidence, "BLOCKERS_AFTER_MS", 1_000)
    with planted(mutation.edits):
        if mutation.by_walks:
            walks = walk(setting, steps=200_000, seed=1, recover=bool(setting.recover_from_every))
            violation, trace, world = walks.violation, walks.trace, walks.world
        else:
            found = explore(setting, max_states=200_000)
            violation, trace, world = found.violation, found.trace, found.world
        assert violation is not None, f"nothing noticed that {mutation.what}"
        print(story(world, trace, violation))  # within the plant: the story is told by the mutated protocol
    tell.append(f"mutation caught after {len(trace):3} steps  tv{version}  {mutation.name}: {violation[:100]}")
    assert violation.startswith(mutation.caught), violation
