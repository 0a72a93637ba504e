"""The network client where addresses lead nowhere and brokers die."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from kafka_eos_sink.client import node as node_module
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.config import ClientConfig, parse_bootstrap_servers
from kafka_eos_sink.client.connection import Completion, LostResponse
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.topics_admin import LAST_FETCH_WITH_NAMES
from kafka_eos_sink.client.transport import Address
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.protocol.messages import DescribeTransactionsRequest, FetchRequest


@pytest.fixture
def client(kafka: Any) -> Iterator[NetworkClient]:
    with NetworkClient(config(kafka.bootstrap_servers)) as made:
        yield made


def config(bootstrap_servers: str, **settings: Any) -> ClientConfig:
    return ClientConfig(bootstrap_servers=parse_bootstrap_servers(bootstrap_servers), client_id="test", **settings)


def deadline(client: NetworkClient, ms: int = 30_000) -> int:
    return client.clock() + ms


def connected_broker(client: NetworkClient) -> int:
    """A broker, not a bootstrap server, that is ready."""
    assert client.wait_for_metadata(deadline(client))
    return client.any_node(deadline(client))


def long_fetch(topic: str) -> FetchRequest:
    """A request that the broker answers only after 20 s: the topic is empty."""
    partition = FetchRequest.Topic.Partition(partition=0, fetch_offset=0, partition_max_bytes=1)
    return FetchRequest(
        max_wait_ms=20_000, min_bytes=1, topics=(FetchRequest.Topic(topic=topic, partitions=(partition,)),)
    )


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_metadata_is_refreshed_while_it_names_unreachable_broker(client: NetworkClient) -> None:
    """Right after a broker's death metadata still names it as leader, and is not old for minutes."""
    assert client.wait_for_metadata(deadline(client))
    client.learn_broker(99, "127.0.0.1", free_port())
    until = deadline(client)
    while 99 in client.metadata.brokers:
        assert client.clock() < until
        assert not client.ready(99)
        client.pump(10)


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


def test_killed_broker_loses_requests_and_is_found_again(mortal_kafka: EmbeddedKafka) -> None:
    with NetworkClient(config(mortal_kafka.bootstrap_servers)) as client:
        Admin(client).create_topic("mortal", 1, 1, {}, deadline(client))
        Admin(client).list_offsets([("mortal", 0)], deadline(client))  # until its leader has made the log
        node_id = connected_broker(client)
        long = client.send(node_id, long_fetch("mortal"), versions=(None, LAST_FETCH_WITH_NAMES))
        sent = [long, client.send(node_id, DescribeTransactionsRequest(transactional_ids=("behind",)))]
        mortal_kafka.kill(mortal_kafka.node_ids[0])
        completions: list[Completion] = []
        until = deadline(client)
        while len(completions) < 2 and client.clock() < until:
            completions.extend(client.poll(1_000, sent))
        assert [completion.pending for completion in completions] == sent
        assert all(isinstance(completion.error, LostResponse) for completion in completions)
        with pytest.raises(BrokerUnavailableError):
            client.any_node(deadline(client, 500))
        mortal_kafka.start_node(mortal_kafka.node_ids[0])
        assert connected_broker(client) == node_id
        assert Admin(client).list_offsets([("mortal", 0)], deadline(client)) == {("mortal", 0): 0}


def test_client_rebootstraps_when_all_brokers_are_gone(kafka: Any, mortal_kafka: EmbeddedKafka) -> None:
    """KIP-899; two clusters behind one list of servers stand for one that has moved."""
    both = f"{mortal_kafka.bootstrap_servers},{kafka.bootstrap_servers}"
    while True:
        with NetworkClient(config(both)) as client:
            connected_broker(client)
            if client.metadata.cluster_id != mortal_kafka.cluster_id:
                # The servers are tried in random order; this client began with the other cluster.
                continue
            mortal_kafka.kill(mortal_kafka.node_ids[0])
            until = deadline(client)
            while client.metadata.cluster_id != kafka.cluster_id:
                assert client.clock() < until
                client.request_metadata_update()
                client.pump(100)
            assert connected_broker(client) in client.metadata.brokers
            return
