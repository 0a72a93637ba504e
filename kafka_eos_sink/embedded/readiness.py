"""Waits for the nodes of an embedded Kafka with Metadata requests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.connection import LostAnswer
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.pump import monotonic_ms
from kafka_eos_sink.embedded.node import HOST, NodeAddress
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.protocol.messages import MetadataRequest

_ATTEMPT_MS = 1_000
_RECONNECT_MS = 50


def wait_until_ready(
    nodes: Sequence[NodeAddress], cluster_id: str, *, timeout_ms: int, check_alive: Callable[[], None]
) -> bool:
    """Wait until the metadata of each node lists all ``nodes``; return False if late.

    A node serves Metadata once it has caught up with the controllers. It lists only brokers that are registered and not fenced.

    Args:
        cluster_id: Distinguishes this cluster from another one that took the same port.
        check_alive: Called before every attempt; may raise.
    """
    expected = {node.node_id for node in nodes}
    deadline_ms = monotonic_ms() + timeout_ms
    return all(_lists_all(node, expected, cluster_id, deadline_ms, check_alive) for node in nodes)


def _lists_all(
    node: NodeAddress, expected: Collection[int], cluster_id: str, deadline_ms: int, check_alive: Callable[[], None]
) -> bool:
    config = ClientConfig(
        bootstrap_servers=((HOST, node.broker_port),),
        client_id="kafka-eos-readiness",
        reconnect_backoff_ms=_RECONNECT_MS,
        reconnect_backoff_max_ms=_RECONNECT_MS,
    )
    while monotonic_ms() < deadline_ms:
        check_alive()
        # A node that is still starting refuses connections or drops them: connect again until the deadline.
        with contextlib.suppress(BrokerUnavailableError, LostAnswer), NetworkClient(config) as client:
            attempt_deadline_ms = min(monotonic_ms() + _ATTEMPT_MS, deadline_ms)
            connection = client.any_node(attempt_deadline_ms)
            metadata = client.call(connection, MetadataRequest(topics=()), deadline_ms=attempt_deadline_ms)
            if metadata.cluster_id == cluster_id and {each.node_id for each in metadata.brokers}.issuperset(expected):
                return True
        time.sleep(_RECONNECT_MS / 1_000)
    return False
