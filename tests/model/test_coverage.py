"""Every case that the design calls out is reached by a trace; otherwise the search proves less than it seems to."""

from __future__ import annotations

from functools import cache

import pytest

from .coverage import CASES, SETTINGS, Case
from .stories import tell as story
from .walks import walk

STEPS = 40_000


@cache
def reached(name: str, wanted: frozenset[str]) -> frozenset[str]:
    """What walks through a setting meet: they end when everything that was asked for has been met."""
    setting = SETTINGS[name]
    found = walk(setting, steps=STEPS, seed=7, recover=bool(setting.recover_from_every), until=wanted)
    assert found.violation is None, story(found.world, found.trace, found.violation)
    return frozenset(found.reached)


@pytest.mark.feature("coordinator states")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.section}: {case.text}")
def test_a_case_of_the_design_is_reached(case: Case, tell: list[str]) -> None:
    wanted = frozenset(met for other in CASES if other.setting == case.setting for met in other.met)
    met = reached(case.setting, wanted)
    missing = [what for what in case.met if what not in met]
    tell.append(f"section {case.section:4} {'reached' if not missing else 'MISSED '}  {case.text}")
    assert not missing, f"no trace met {missing}; met: {sorted(met)}"
