"""A cluster without the brokers that a coordinator's topic needs is refused once no more of them join."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.client.coordinator_topics import TRANSACTIONS, CoordinatorState
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.runtime import requirements
from kafka_eos_sink.runtime.requirements import BROKERS_JOIN_MS, require_coordinator


@pytest.mark.parametrize(
    ("state", "waited_ms"),
    [
        (CoordinatorState(found="", problem="three replicas, one broker", way_out="set it"), BROKERS_JOIN_MS),
        (CoordinatorState(found="", problem="a broker is down", heals=True), 0),
        (CoordinatorState(found="", problem="a right hides it", is_sure=False), 0),
    ],
    ids=["sure", "heals", "unsure"],
)
def test_write_waits_for_brokers_that_join_before_no_coordinator(
    monkeypatch: pytest.MonkeyPatch, state: CoordinatorState, waited_ms: int
) -> None:
    """What heals by itself, or may be no problem, is left to the requests, which wait longer."""
    now = [0]
    client = SimpleNamespace(clock=lambda: now[0], wait=lambda ms, until: now.__setitem__(0, min(now[0] + ms, until)))
    monkeypatch.setattr(requirements, "coordinator_state", lambda *_: state)
    monkeypatch.setattr(requirements, "broker_count", lambda *_: 1)
    admin: Any = SimpleNamespace(client=client)
    if waited_ms:
        with pytest.raises(ConfigurationError, match=r"NO_COORDINATOR\] three replicas, one broker") as raised:
            require_coordinator(admin, TRANSACTIONS, {TRANSACTIONS.factor: "3"}, 60_000)
        assert raised.value.way_out == "Set it"
    else:
        require_coordinator(admin, TRANSACTIONS, {TRANSACTIONS.factor: "3"}, 60_000)
    assert now[0] == waited_ms
