"""Every interleaving of small settings, with every crash point, under both transaction versions: no invariant is broken."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from .exhausted import CAPPED, EXHAUSTED, LARGE, WALKED
from .explorer import explore
from .settings import Setting
from .stories import tell as story
from .walks import walk

WALK_STEPS = int(os.environ.get("KAFKA_EOS_MODEL_STEPS", "1000"))
LARGE_STATES = int(os.environ.get("KAFKA_EOS_MODEL_STATES", "5000"))
MOST_STATES = 5_000_000
VERSIONS = pytest.mark.parametrize("version", [2, 0], ids=["tv2", "tv0"])


@VERSIONS
@pytest.mark.parametrize("name", EXHAUSTED)
def test_all_states_of_a_small_setting_keep_the_invariants(name: str, version: int, tell: list[str]) -> None:
    cap = None if os.environ.get("KAFKA_EOS_MODEL_ALL") else CAPPED.get((name, version))
    found = explore(replace(EXHAUSTED[name], version=version), max_states=cap or MOST_STATES)
    tell.append(
        f"{found.states:9,} states {found.transitions:10,} steps {found.seconds:6.1f} s  tv{version}  {name}"
        + ("" if found.exhausted else "  NOT EXHAUSTED")
    )
    assert found.violation is None, story(found.world, found.trace, found.violation)
    assert found.exhausted or cap is not None


@VERSIONS
@pytest.mark.parametrize("name", LARGE)
def test_the_first_states_of_a_large_setting_keep_the_invariants(name: str, version: int, tell: list[str]) -> None:
    found = explore(replace(LARGE[name], version=version), max_states=LARGE_STATES)
    tell.append(f"{found.states:9,} states {found.transitions:10,} steps {found.seconds:6.1f} s  tv{version}  {name}")
    assert found.violation is None, story(found.world, found.trace, found.violation)


def walked(setting: Setting, version: int, tell: list[str], seed: int) -> None:
    found = walk(replace(setting, version=version), steps=WALK_STEPS, seed=seed)
    tell.append(f"{found.walks:9,} walks  {found.steps:10,} steps {found.seconds:6.1f} s  tv{version}  {setting.name}")
    assert found.violation is None, story(found.world, found.trace, found.violation)


@VERSIONS
@pytest.mark.parametrize("name", WALKED)
def test_random_walks_through_larger_settings_keep_the_invariants(name: str, version: int, tell: list[str]) -> None:
    walked(WALKED[name], version, tell, seed=int(os.environ.get("KAFKA_EOS_MODEL_SEED", "1")))
