"""Whether the nodes of an embedded Kafka are ready, asked by protocol."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.network_client import LostAnswer, NetworkClient, monotonic_ms
from kafka_eos_sink.embedded.node import HOST, NodeAddress
from kafka_eos_sink.errors import BrokerUnavailableError
from kafka_eos_sink.protocol.messages import MetadataRequest

__all__ = ["wait_until_ready"]

_ATTEMPT_MS = 1_000
_RECONNECT_MS = 50


def wait_until_ready(
    asked: Sequence[NodeAddress],
    expected: Collection[int],
    cluster_id: str,
    *,
    deadline_ms: int,
    check_alive: Callable[[], None],
) -> bool:
    """Waits until each of the `asked` nodes answers that it knows all `expected` nodes; False when time is up.

    A node answers Metadata when it has caught up with the controllers and lists a broker when that is registered and
    not fenced, so afterwards any of them can lead partitions and any can be asked. `cluster_id` tells another cluster
    on the same port from this one. `check_alive` is called all the while and may raise.
    """
    return all(
        _knows_all(node, set(expected), cluster_id, deadline_ms=deadline_ms, check_alive=check_alive) for node in asked
    )


def _knows_all(
    node: NodeAddress, expected: set[int], cluster_id: str, *, deadline_ms: int, check_alive: Callable[[], None]
) -> bool:
    config = ClientConfig(
        bootstrap_servers=((HOST, node.plaintext_port),),
        client_id="kafka-eos-readiness",
        reconnect_backoff_ms=_RECONNECT_MS,
        reconnect_backoff_max_ms=_RECONNECT_MS,
    )
    while monotonic_ms() < deadline_ms:
        check_alive()
        with contextlib.suppress(BrokerUnavailableError, LostAnswer), NetworkClient(config) as client:
            attempt_deadline_ms = min(monotonic_ms() + _ATTEMPT_MS, deadline_ms)
            asked = client.any_node(attempt_deadline_ms)
            answer = client.call(asked, MetadataRequest(topics=()), deadline_ms=attempt_deadline_ms)
            if answer.cluster_id == cluster_id and expected <= {broker.node_id for broker in answer.brokers}:
                return True
        time.sleep(_RECONNECT_MS / 1_000)
    return False
