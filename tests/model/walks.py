"""Seeded random walks through settings that are too large to exhaust, and the shortening of a walk that breaks an invariant."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from .settings import Setting
from .simulated_spark import Label, State, Violation, World

MAX_WALK = 400


@dataclass(slots=True, kw_only=True)
class Walks:
    """What a number of walks found."""

    setting: Setting
    world: World
    walks: int
    steps: int
    seconds: float
    violation: str | None = None
    trace: tuple[Label, ...] = ()


def walk(
    setting: Setting,
    *,
    steps: int,
    seed: int,
    world: World | None = None,
    recover: bool = True,
    shorten: bool = True,
) -> Walks:
    """Walk from the beginning again and again until so many steps were taken; every walk ends with a recovery."""
    world = world or World(setting)
    chance = random.Random(seed)
    started = time.monotonic()
    taken = walks = 0
    violation: str | None = None
    trace: list[Label] = []
    while taken < steps and violation is None:
        walks += 1
        trace = []
        state = world.initial()
        haste = chance.choice((0.02, 0.1, 0.4))
        stop = chance.randrange(20, MAX_WALK)
        try:
            for _ in range(stop):
                found = list(world.successors(state))
                if not found:
                    break
                label, state = chance.choices(found, [_weight(label, haste) for label, _ in found])[0]
                trace.append(label)
                taken += 1
            if recover:
                world.doing = ("recovery",)
                world.check_recovery(state)
        except Violation as wrong:
            violation = str(wrong)
            trace.append(world.doing)
    if violation is not None and shorten:
        trace, violation = shortened(world, trace, violation)
    return Walks(
        setting=setting,
        world=world,
        walks=walks,
        steps=taken,
        seconds=time.monotonic() - started,
        violation=violation,
        trace=tuple(trace),
    )


def _weight(label: Label, haste: float) -> float:
    match label:
        case (_, "do", *_) | ("spark", "record", _):
            return 1.0
        case ("cluster", "marker", *_):
            return 0.6
        case ("spark", "restart"):
            return 0.5
        case ("spark", *_):
            return haste / 2
    return haste


def replay(world: World, trace: list[Label]) -> tuple[list[Label], str | None]:
    """Take the labels that are possible, in their order; the labels taken and the violation that they end in."""
    state: State = world.initial()
    taken: list[Label] = []
    for label in trace:
        if label == ("recovery",):
            world.doing = label
            try:
                world.check_recovery(state)
            except Violation as wrong:
                return [*taken, label], str(wrong)
            continue
        after = None
        try:
            for found, following in world.successors(state):
                if _same(found, label):
                    after, label = following, found
                    break
        except Violation as wrong:
            return [*taken, world.doing], str(wrong)
        if after is not None:
            taken.append(label)
            state = after
    try:
        list(world.successors(state))
    except Violation as wrong:
        return [*taken, world.doing], str(wrong)
    return taken, None


def _same(found: Label, label: Label) -> bool:
    """The same action, whatever its request and answer have become in a shorter trace."""
    if isinstance(found[0], tuple) and isinstance(label[0], tuple):
        return found[:2] == label[:2]
    return found == label


def shortened(world: World, trace: list[Label], violation: str) -> tuple[list[Label], str]:
    """Leave out what can be left out while the same kind of violation remains (delta debugging on the labels)."""
    kind = violation.split(":")[0]
    best, told = trace, violation
    length = max(1, len(best) // 2)
    while length:
        start = 0
        while start < len(best):
            shorter, wrong = replay(world, best[:start] + best[start + length :])
            if wrong is not None and wrong.split(":")[0] == kind and len(shorter) < len(best):
                best, told = shorter, wrong
            else:
                start += length
        length //= 2
    return best, told
