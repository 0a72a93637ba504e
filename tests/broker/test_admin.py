"""What the driver requests of coordinators that the simulation of the model does not have: filters, and a coordinator that dies."""

from __future__ import annotations

import pytest

from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.client.transactions_admin import EndTransaction
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import BrokerRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.runtime.driver_requests import add_partitions
from kafka_testing import create_topic, end_as_driver, find_coordinators, initialised, unique_topic


def deadline(admin: Admin, ms: int = 60_000) -> int:
    return admin.client.clock() + ms


def begun(admin: Admin, transactional_id: str, topic: str) -> ProducerIdentity:
    """A transaction on all partitions of a topic."""
    identity = initialised(admin, transactional_id)
    partitions = [(topic, partition) for partition in range(3)]
    assert add_partitions(admin, identity, partitions, deadline(admin)).error == 0
    return identity


def test_open_transactions_are_listed_by_their_ids(any_kafka: EmbeddedKafka) -> None:
    """A transactional id is a pattern with quoted dots. Mutation: the pattern is a prefix."""
    transactional_id, topic = f"{unique_topic('admin')}.0.0", create_topic(any_kafka.bootstrap_servers, partitions=3)
    pattern = transactional_id.replace(".", r"\.")
    with connected(any_kafka.bootstrap_servers) as admin:

        def listed(pattern: str) -> list[tuple[str, int, str]]:
            found = admin.list_transactions(id_pattern=pattern, deadline_ms=deadline(admin))
            return [(each.transactional_id, each.producer_id, each.transaction_state) for each in found]

        assert listed(pattern) == []
        identity = begun(admin, transactional_id, topic)
        assert listed(pattern) == [(transactional_id, identity.producer_id, "Ongoing")]
        assert listed(pattern[:-1]) == []
        assert end_as_driver(admin.client, identity, committed=False) == 0
        assert listed(pattern) == []
        with pytest.raises(BrokerRefusedError, match="Sleeping"):
            admin.list_transactions(states=("Sleeping",), deadline_ms=deadline(admin))


def test_end_txn_succeeds_after_coordinator_fail_over() -> None:
    with EmbeddedKafka(brokers=3) as cluster, connected(cluster.bootstrap_servers) as admin:
        topic = create_topic(cluster.bootstrap_servers, partitions=3, replication_factor=3)
        identities = [begun(admin, f"survivor.{number}", topic) for number in range(12)]
        ids = [identity.transactional_id for identity in identities]
        coordinators = find_coordinators(admin, ids, deadline(admin))
        dying = coordinators[ids[0]]
        assert set(coordinators.values()) != {dying}
        cluster.kill(dying)
        ends = [EndTransaction(identity, committed=True) for identity in identities]
        results = admin.end_transactions(ends, deadline(admin, 90_000))
        assert [result.error_code for result in results] == [0] * 12
        assert dying not in find_coordinators(admin, ids, deadline(admin)).values()
        assert admin.list_transactions(deadline_ms=deadline(admin)) == ()
        states = admin.describe_transactions(ids, deadline(admin)).values()
        assert {state and state.transaction_state for state in states} <= {"PrepareCommit", "CompleteCommit"}
