"""Breadth-first search over all states of a world, with the shortest trace to whatever breaks an invariant."""

from __future__ import annotations

import time
from array import array
from collections import deque
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from kafka_eos_sink.commit import log_records, versions

from .settings import FAULTS, Setting
from .simulated_spark import Label, State, Violation, World


@dataclass(slots=True, kw_only=True)
class Exploration:
    """What a search found. ``exhausted`` is False where ``max_states`` stopped it."""

    setting: Setting
    world: World
    states: int
    transitions: int
    seconds: float
    exhausted: bool
    violation: str | None = None
    trace: tuple[Label, ...] = ()
    offered: frozenset[str] = frozenset()
    """The faults that happen in an explored state."""


def explore(setting: Setting, *, max_states: int = 10_000_000, world: World | None = None) -> Exploration:
    with (
        patch.object(log_records, "MAX_RECORD_BYTES", setting.piece_bytes),
        patch.object(versions, "MOST_RANGES", setting.most_ranges),
    ):
        return _explore(setting, max_states, world)


def _explore(setting: Setting, max_states: int, world: World | None) -> Exploration:
    world = world or World(setting)
    started = time.monotonic()
    initial = world.initial()
    numbers: dict[State, int] = {initial: 0}
    parents = array("l", [-1])
    queue = deque([initial])
    transitions = 0
    shared: dict[Any, Any] = {}
    """Equal tuples of many states, held once."""
    left: dict[tuple[int, ...], tuple[int, ...]] = {}
    """The same, of the budgets of faults."""
    every = setting.recover_from_every

    def finished(
        exhausted: bool, violation: str | None = None, last: int = -1, final: Label | None = None
    ) -> Exploration:
        trace = _trace(world, initial, list(numbers), parents, last) if violation else ()
        return Exploration(
            setting=setting,
            world=world,
            states=len(numbers),
            transitions=transitions,
            seconds=time.monotonic() - started,
            exhausted=exhausted,
            violation=violation,
            trace=(*trace, final) if final is not None else trace,
            offered=frozenset(
                name
                for name, first, *others in zip(FAULTS, initial.budgets, *left, strict=True)
                if others and min(others) < first
            ),
        )

    number = -1
    while queue:
        state = queue.popleft()
        number += 1
        try:
            if every and state.cluster % every == 0:
                world.doing = ("recovery",)
                world.check_recovery(state)
            found = list(world.successors(state))
            wrong = world.ends_badly(state, found)
            if wrong is not None:
                world.doing = ("nobody moves",)
                raise Violation(wrong)
            transitions += len(found)
            for _, after in found:
                if after not in numbers:
                    cluster, processes, drivers, recorded, floating, budgets, clock = after
                    after = State(
                        cluster,
                        shared.setdefault(processes, processes),
                        shared.setdefault(drivers, drivers),
                        recorded,
                        floating,
                        left.setdefault(budgets, budgets),
                        clock,
                    )
                    numbers[after] = len(numbers)
                    parents.append(number)
                    queue.append(after)
        except Violation as violation:
            return finished(False, str(violation), number, world.doing)
        if len(numbers) >= max_states:
            return finished(False)
    return finished(True)


def _trace(world: World, initial: State, known: list[State], parents: array[int], last: int) -> tuple[Label, ...]:
    """The labels on the way from the initial state to a numbered one."""
    chain = []
    while last > 0:
        chain.append(known[last])
        last = parents[last]
    labels = []
    state = initial
    for following in reversed(chain):
        labels.append(next(label for label, after in world.successors(state) if after == following))
        state = following
    return tuple(labels)
