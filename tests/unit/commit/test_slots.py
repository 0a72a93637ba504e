"""Which transactional id an attempt takes, and for how long it looks for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.procedure import Step
from kafka_eos_sink.commit.task import SLOT_DEADLINE_MS, SLOT_WITHIN_MS, fresh_identity
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol.identity import ProducerIdentity

MOST_STEPS = 1_000
OWN = 3


def description(state: str) -> steps.TransactionDescription:
    return steps.TransactionDescription(
        state=state, producer_id=1, producer_epoch=0, timeout_ms=1, start_time_ms=0, partitions=frozenset()
    )


class Coordinators:
    """Answer after ``took(id)`` ms with ``states``; None is an id that nobody knows."""

    def __init__(self, took: Callable[[str], int], states: Mapping[str, str] | None = None) -> None:
        self.took = took
        self.states = states or {}
        self.now = 0
        self.described: list[tuple[str, ...]] = []

    def run(self) -> str:
        procedure = fresh_identity("w", 0, [(OWN + step) % 8 for step in range(8)], 60_000)
        answer: Any = None
        failure: KafkaEosError | None = None
        for _ in range(MOST_STEPS):
            try:
                step = procedure.send(answer) if failure is None else procedure.throw(failure)
            except StopIteration as stop:
                identity: ProducerIdentity = stop.value
                return identity.transactional_id
            answer, failure = None, None
            try:
                answer = self.perform(step)
            except KafkaEosError as error:
                failure = error
        raise AssertionError(f"still looking after {MOST_STEPS} steps and {self.now / 1000:.0f} s")

    def perform(self, step: Step[Any]) -> Any:
        match step:
            case steps.Now():
                return self.now
            case steps.Wait():
                self.now += step.ms
            case steps.DescribeTransactions():
                self.described.append(step.transactional_ids)
                took, most = max(map(self.took, step.transactional_ids)), step.within_ms or 120_000
                self.now += min(took, most)
                if took > most:
                    raise BrokerUnavailableError("REQUEST_DEADLINE", "no response")
                known = self.states.items()
                return dict.fromkeys(step.transactional_ids) | {
                    name: description(state) for name, state in known if name in step.transactional_ids
                }
            case steps.InitProducerId():
                return ProducerIdentity(
                    transactional_id=step.transactional_id, producer_id=1, producer_epoch=1, transaction_version=2
                )
            case _:
                raise AssertionError(step)


def test_attempt_describes_only_its_own_free_slot() -> None:
    coordinators = Coordinators(lambda _: 5)
    assert coordinators.run() == f"w.0.{OWN}"
    assert coordinators.described == [(f"w.0.{OWN}",)]


def test_attempt_takes_the_next_slot_if_its_own_is_taken() -> None:
    coordinators = Coordinators(lambda _: 5, {f"w.0.{OWN}": "Ongoing", f"w.0.{OWN + 1}": "CompleteCommit"})
    assert coordinators.run() == f"w.0.{OWN + 1}"


def test_attempt_takes_the_next_slot_if_its_own_is_silent() -> None:
    coordinators = Coordinators(lambda name: 10**6 if name == f"w.0.{OWN}" else 5)
    assert coordinators.run() == f"w.0.{OWN + 1}"
    assert coordinators.now <= SLOT_WITHIN_MS + 5


def test_attempt_uses_descriptions_of_a_throttled_client() -> None:
    # Each response carries one second of silence, which the client keeps before the next request leaves.
    assert Coordinators(lambda _: 1_001).run() == f"w.0.{OWN}"


def test_attempt_fails_at_its_deadline_with_slow_coordinators() -> None:
    coordinators = Coordinators(lambda _: SLOT_WITHIN_MS + 1)
    with pytest.raises(BrokerUnavailableError, match="REQUEST_DEADLINE"):
        coordinators.run()
    assert SLOT_DEADLINE_MS < coordinators.now <= SLOT_DEADLINE_MS + SLOT_WITHIN_MS
