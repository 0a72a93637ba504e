"""Every interleaving of small settings, with every crash point, under both transaction versions: no invariant is broken."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from tests.tiers import Effort

from .exhausted import EXHAUSTED, LARGE, NOT_ENDED, STATES, WALKED
from .explorer import explore
from .stories import tell as story
from .walks import walk

MOST_STATES = 5_000_000
VERSIONS = pytest.mark.parametrize("version", [2, 0], ids=["tv2", "tv0"])


@VERSIONS
@pytest.mark.parametrize("name", EXHAUSTED)
def test_all_states_of_a_small_setting_keep_the_invariants(
    name: str, version: int, tell: list[str], effort: Effort
) -> None:
    most = STATES[name, version] if (name, version) in NOT_ENDED else None
    if effort.searched_to_the_end is not None and STATES[name, version] > effort.searched_to_the_end:
        most = effort.capped_at
    found = explore(replace(EXHAUSTED[name], version=version), max_states=most or MOST_STATES)
    tell.append(
        f"{found.states:9,} states {found.transitions:10,} steps {found.seconds:6.1f} s  tv{version}  {name}"
        + ("" if found.exhausted else "  NOT EXHAUSTED")
    )
    assert found.violation is None, story(found.world, found.trace, found.violation)
    assert found.exhausted or most is not None
    if found.exhausted:
        # A setting in which one of its faults never happens proves no more than the one without it.
        assert found.offered == {fault for fault, count in found.setting.faults.items() if count}
    # A search that shrinks proves less than it did.
    assert found.states >= min(STATES[name, version], most or MOST_STATES)


@VERSIONS
@pytest.mark.parametrize("name", LARGE)
def test_the_first_states_of_a_large_setting_keep_the_invariants(
    name: str, version: int, tell: list[str], effort: Effort
) -> None:
    found = explore(replace(LARGE[name], version=version), max_states=effort.capped_at)
    tell.append(f"{found.states:9,} states {found.transitions:10,} steps {found.seconds:6.1f} s  tv{version}  {name}")
    assert found.violation is None, story(found.world, found.trace, found.violation)
    assert found.states >= effort.capped_at


@VERSIONS
@pytest.mark.parametrize("name", WALKED)
def test_random_walks_of_larger_settings_keep_the_invariants(
    name: str, version: int, tell: list[str], effort: Effort
) -> None:
    seed = secrets.randbelow(1_000_000) if effort.random else 1
    found = walk(replace(WALKED[name], version=version), steps=effort.walk_steps, seed=seed)
    tell.append(
        f"{found.walks:9,} walks  {found.steps:10,} steps {found.seconds:6.1f} s  tv{version}  {name}, seed {seed}"
    )
    assert found.violation is None, story(found.world, found.trace, found.violation)
