"""Which transactional id an attempt takes, and for how long it looks for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.transactions import SLOT_DEADLINE_MS, SLOT_WITHIN_MS, fresh_identity
from kafka_eos_sink.errors import BrokerUnavailableError
from tests.model.scripted_cluster import ScriptedCluster
from tests.runs import WRITE

OWN = 3
SLOTS = [(OWN + step) % 8 for step in range(8)]


class SlowCoordinators(ScriptedCluster):
    """Coordinators that respond after ``took(id)`` ms."""

    def __init__(self, took: Callable[[str], int]) -> None:
        super().__init__()
        self.took = took
        self.described: list[tuple[str, ...]] = []
        self.own = {steps.DescribeTransactions: self.describe}

    def describe(self, step: steps.DescribeTransactions) -> Any:
        self.described.append(step.transactional_ids)
        took, most = max(map(self.took, step.transactional_ids)), step.within_ms or 120_000
        self.now += min(took, most)
        if took > most:
            raise BrokerUnavailableError("REQUEST_DEADLINE", "no response")
        return self.perform(step)

    def fresh_id(self) -> str:
        return self.run(fresh_identity(WRITE, 0, SLOTS, 60_000)).transactional_id


def test_attempt_takes_the_next_slot_if_its_own_is_silent() -> None:
    coordinators = SlowCoordinators(lambda name: 10**6 if name == f"w.0.{OWN}" else 5)
    began = coordinators.now
    assert coordinators.fresh_id() == f"w.0.{OWN + 1}"
    assert coordinators.now - began <= SLOT_WITHIN_MS + 5


def test_attempt_fails_at_its_deadline_with_slow_coordinators() -> None:
    coordinators = SlowCoordinators(lambda _: SLOT_WITHIN_MS + 1)
    began = coordinators.now
    with pytest.raises(BrokerUnavailableError, match="REQUEST_DEADLINE"):
        coordinators.fresh_id()
    assert SLOT_DEADLINE_MS < coordinators.now - began <= SLOT_DEADLINE_MS + SLOT_WITHIN_MS
