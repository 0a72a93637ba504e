"""What the state of a coordinator's topic says if rights hide a part of it, and on releases that tests do not start."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos_sink.client.coordinator_topics import INSYNC, TRANSACTIONS, CoordinatorState, coordinator_state
from kafka_eos_sink.errors import AuthorizationError

DENIED = AuthorizationError("CLUSTER_AUTHORIZATION_FAILED", "denied")
LEVEL_OF_3_9, LEVEL_OF_4_0 = 21, 22


def state(
    brokers: int,
    *,
    broker: Mapping[str, str] | AuthorizationError = DENIED,
    replicas: int | AuthorizationError | None = None,
    topic: Mapping[str, str] | AuthorizationError = DENIED,
    level: int = LEVEL_OF_4_0,
) -> CoordinatorState:
    """``replicas``: of the topic's one partition, all in sync; None for no topic."""

    def found(*_: object) -> Any:
        if isinstance(replicas, AuthorizationError):
            raise replicas
        nodes = tuple(range(replicas or 0))
        partition = SimpleNamespace(leader_id=0, replica_nodes=nodes, isr_nodes=nodes)
        return None if replicas is None else SimpleNamespace(partitions=(partition,), replication_factor=len(nodes))

    def configs(kind: str, *_: object) -> Mapping[str, str]:
        shown = broker if kind == "broker" else topic
        if isinstance(shown, AuthorizationError):
            raise shown
        return shown

    client: Any = SimpleNamespace(
        wait_for_metadata=lambda _: True,
        metadata=SimpleNamespace(brokers=dict.fromkeys(range(brokers))),
        finalized_features=lambda: {"metadata.version": level},
        config=SimpleNamespace(bootstrap_servers_text="a:1"),
    )
    admin: Any = SimpleNamespace(client=client, topic=found, describe_configs=configs)
    return coordinator_state(admin, TRANSACTIONS, 0)


def test_topic_that_may_not_be_described_is_no_sure_problem() -> None:
    settings = {TRANSACTIONS.factor: "3", TRANSACTIONS.in_sync: "2"}
    two, three = (state(brokers, broker=settings, replicas=DENIED) for brokers in (2, 3))
    assert (two.is_sure, bool(two.problem)) == (False, True), "one of three brokers may be down"
    assert (three.is_sure, three.problem) == (False, "")


@pytest.mark.parametrize(("level", "works"), [(LEVEL_OF_3_9, False), (LEVEL_OF_4_0, True)])
def test_more_replicas_in_sync_than_there_are_stop_only_older_brokers(level: int, works: bool) -> None:
    existing = state(1, replicas=1, topic={INSYNC: "2"}, level=level)
    missing = state(1, broker={TRANSACTIONS.factor: "1", TRANSACTIONS.in_sync: "2"}, level=level)
    assert (existing.problem == "", missing.problem == "") == (works, works)
    if not works:
        assert f"--entity-name {TRANSACTIONS.name} --alter --add-config {INSYNC}=1" in existing.text
        assert f"set {TRANSACTIONS.in_sync}=1 in the properties" in missing.text


@pytest.mark.parametrize("value", ["", "three", "-1", "9" * 5_000])
def test_setting_that_is_no_number_is_as_if_hidden(value: str) -> None:
    assert not state(1, broker={TRANSACTIONS.factor: value}).is_sure
