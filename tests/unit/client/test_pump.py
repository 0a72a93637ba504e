"""The pump on nodes without sockets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.metadata import NEVER
from kafka_eos_sink.client.network_client import NetworkClient


class Node:
    """A node whose read takes ``login_ms``, as a login that waits for its KDC; it notes at which times its requests may expire."""

    is_established, in_flight, fatal, last_error, connection = True, 1, None, "", None

    def __init__(self, clock: SimpleNamespace, login_ms: int = 0) -> None:
        self.clock, self.login_ms = clock, login_ms
        self.calls: list[Any] = []

    def time_to_next_timer(self, _now: int) -> int:
        return int(NEVER)

    def reauthenticate_if_wanted(self, _now: int) -> list[Any]:
        return []

    def handle_io(self, *_: Any) -> list[Any]:
        self.clock.now += self.login_ms
        self.calls.append("read")
        return []

    def expire(self, now: int) -> list[Any]:
        self.calls.append(now)
        return []


def test_response_that_arrives_during_a_login_is_read_before_it_expires() -> None:
    clock = SimpleNamespace(now=0)
    client: Any = NetworkClient(ClientConfig(bootstrap_servers=(("localhost", 9092),)), clock=lambda: clock.now)
    client._send_metadata_request = lambda _now: int(NEVER)
    login, other = Node(clock, login_ms=31_000), Node(clock)
    client._nodes = {1: login, 2: other}
    ready = iter([[(1, True, False)], [(2, True, False)]])
    client._poller = SimpleNamespace(poll=lambda _ms: next(ready))
    client.pump(0)
    client.pump(0)
    assert other.calls == [0, "read", 31_000]
