"""The network client against a real broker, and against peers that are no brokers.

The client has its own clock, which the tests move forward instead of waiting for hours.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from kafka_eos_sink.client import node as node_module
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.connection import Completion, ConnectionLost, LostResponse, RequestTimedOut
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.pump import monotonic_ms
from kafka_eos_sink.client.topics_admin import LAST_FETCH_WITH_NAMES
from kafka_eos_sink.client.transport import Address
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.protocol.messages import DescribeTransactionsRequest, FetchRequest


class Clock:
    """The real clock, which can be moved forward."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def __call__(self) -> int:
        return monotonic_ms() + self.offset_ms

    def advance(self, ms: int) -> None:
        self.offset_ms += ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(kafka: Any, clock: Clock) -> Iterator[NetworkClient]:
    with NetworkClient(config(kafka.bootstrap_servers), clock) as made:
        yield made


def config(bootstrap_servers: str, **settings: Any) -> ClientConfig:
    return ClientConfig(bootstrap_servers=parse_bootstrap_servers(bootstrap_servers), client_id="test", **settings)


def deadline(client: NetworkClient, ms: int = 30_000) -> int:
    return client.clock() + ms


def connected_broker(client: NetworkClient) -> int:
    """A broker, not a bootstrap server, that is ready."""
    assert client.wait_for_metadata(deadline(client))
    return client.any_node(deadline(client))


def collect(client: NetworkClient, count: int) -> list[Completion]:
    completions: list[Completion] = []
    until = deadline(client)
    while len(completions) < count and client.clock() < until:
        completions.extend(client.poll(1_000))
    return completions


def long_fetch(topic: str) -> FetchRequest:
    """A request that the broker answers only after 20 s: the topic is empty."""
    partition = FetchRequest.Topic.Partition(partition=0, fetch_offset=0, partition_max_bytes=1)
    return FetchRequest(
        max_wait_ms=20_000, min_bytes=1, topics=(FetchRequest.Topic(topic=topic, partitions=(partition,)),)
    )


def describe(*ids: str) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(transactional_ids=ids)


@pytest.mark.feature("metadata")
def test_client_learns_cluster_from_bootstrap_servers(client: NetworkClient) -> None:
    assert min(client.metadata.brokers) < 0
    node_id = connected_broker(client)
    assert node_id in client.metadata.brokers
    assert min(client.metadata.brokers) >= 0
    assert client.metadata.cluster_id
    assert client.metadata.controller in client.metadata.brokers
    assert client.versions(node_id).finalized_features == client.finalized_features()
    assert "metadata.version" in client.finalized_features()


@pytest.mark.feature("connections")
def test_responses_of_a_node_arrive_in_request_order(client: NetworkClient) -> None:
    node_id = connected_broker(client)
    sent = [client.send(node_id, describe(f"order.{number}")) for number in range(50)]
    assert client.in_flight(node_id) == 50
    completions = collect(client, 50)
    assert [completion.pending for completion in completions] == sent
    assert all(completion.error is None for completion in completions)
    assert client.in_flight(node_id) == 0


@pytest.mark.feature("timeouts")
def test_overdue_response_closes_connection_and_loses_later_ones(client: NetworkClient, clock: Clock) -> None:
    Admin(client).create_topic("overdue", 1, 1, {}, deadline(client))
    Admin(client).list_offsets([("overdue", 0)], deadline(client))  # until its leader has made the log
    node_id = connected_broker(client)
    overdue = client.send(
        node_id, long_fetch("overdue"), deadline_ms=client.clock() + 5_000, versions=(None, LAST_FETCH_WITH_NAMES)
    )
    behind = client.send(node_id, describe("behind"))
    assert client.poll(0) == ()
    clock.advance(5_000)
    completions = collect(client, 2)
    assert [(each.pending, type(each.error)) for each in completions] == [
        (overdue, RequestTimedOut),
        (behind, ConnectionLost),
    ]
    assert client.in_flight(node_id) == 0
    assert client.call(node_id, describe("after"), deadline_ms=deadline(client)).transaction_states


# quotas


# unreachable and broken peers


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.feature("fail-over", "metadata", "large records and lost brokers")
def test_metadata_is_refreshed_while_it_names_unreachable_broker(client: NetworkClient) -> None:
    """Right after a broker's death metadata still names it as leader, and is not old for minutes."""
    assert client.wait_for_metadata(deadline(client))
    client.learn_broker(99, "127.0.0.1", free_port())
    until = deadline(client)
    while 99 in client.metadata.brokers:
        assert client.clock() < until
        assert not client.ready(99)
        client.poll(10)


@pytest.mark.feature("connections")
def test_all_addresses_of_host_are_tried_without_backoff(kafka: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ((_, port),) = parse_bootstrap_servers(kafka.bootstrap_servers.split(",")[0])
    addresses = tuple(Address(socket.AF_INET, ("127.0.0.1", each)) for each in (free_port(), free_port(), port))
    monkeypatch.setattr(node_module, "resolve_host", lambda _host, _port: addresses)
    settings = config("kafka.example:9092", reconnect_backoff_ms=600_000, reconnect_backoff_max_ms=600_000)
    with NetworkClient(settings) as client:
        assert client.any_node(deadline(client)) < 0


# brokers that die


@pytest.fixture(scope="module")
def mortal_kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as started:
        yield started


@pytest.mark.feature("large records and lost brokers")
def test_killed_broker_loses_requests_and_is_found_again(mortal_kafka: EmbeddedKafka) -> None:
    with NetworkClient(config(mortal_kafka.bootstrap_servers)) as client:
        Admin(client).create_topic("mortal", 1, 1, {}, deadline(client))
        Admin(client).list_offsets([("mortal", 0)], deadline(client))  # until its leader has made the log
        node_id = connected_broker(client)
        long = client.send(node_id, long_fetch("mortal"), versions=(None, LAST_FETCH_WITH_NAMES))
        sent = [long, client.send(node_id, describe("behind"))]
        mortal_kafka.kill(mortal_kafka.node_ids[0])
        completions = collect(client, 2)
        assert [completion.pending for completion in completions] == sent
        assert all(isinstance(completion.error, LostResponse) for completion in completions)
        with pytest.raises(BrokerUnavailableError):
            client.any_node(deadline(client, 500))
        mortal_kafka.start_node(mortal_kafka.node_ids[0])
        assert connected_broker(client) == node_id
        assert Admin(client).list_offsets([("mortal", 0)], deadline(client)) == {("mortal", 0): 0}


@pytest.mark.feature("large records and lost brokers")
def test_client_rebootstraps_when_all_brokers_are_gone(kafka: Any, mortal_kafka: EmbeddedKafka) -> None:
    """KIP-899; two clusters behind one list of servers stand for one that has moved."""
    both = f"{mortal_kafka.bootstrap_servers},{kafka.bootstrap_servers}"
    mortal_id, other_id = (
        Admin(NetworkClient(config(servers))) for servers in (mortal_kafka.bootstrap_servers, kafka.bootstrap_servers)
    )
    for admin in (mortal_id, other_id):
        connected_broker(admin.client)
    identities = [admin.client.metadata.cluster_id for admin in (mortal_id, other_id)]
    for admin in (mortal_id, other_id):
        admin.client.close()
    while True:
        with NetworkClient(config(both)) as client:
            connected_broker(client)
            if client.metadata.cluster_id != identities[0]:
                # The servers are tried in random order; this client began with the other cluster.
                continue
            mortal_kafka.kill(mortal_kafka.node_ids[0])
            until = deadline(client)
            while client.metadata.cluster_id != identities[1]:
                assert client.clock() < until
                client.request_metadata_update()
                client.poll(100)
            assert connected_broker(client) in client.metadata.brokers
            return
