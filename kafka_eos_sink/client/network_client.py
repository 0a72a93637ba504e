"""One client of a cluster: nodes, their connections, and the one pump that moves all bytes (Java's NetworkClient)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.metadata import Metadata
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError


class LostAnswer(KafkaEosError):
    """A request was sent and its answer did not come: it may have been processed, nobody here can know."""


class ConnectionLost(LostAnswer):
    """The connection broke while the request was in flight (code CONNECTION_LOST)."""


class RequestTimedOut(LostAnswer):
    """No answer within the request's timeout; the connection was closed over it (code REQUEST_TIMED_OUT)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A request in flight: `version` is the API version it was encoded in; times are clock ms."""

    node_id: int
    request: Any
    version: int
    correlation_id: int
    sent_at: int
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The end of a request: exactly one of `response` and `error` is set."""

    pending: PendingRequest
    response: Any | None = None
    error: LostAnswer | None = None


def monotonic_ms() -> int:
    """The default clock: monotonic ms."""
    return time.monotonic_ns() // 1_000_000


class NetworkClient:
    """Talks to the brokers of one cluster, from one thread.

    Nothing happens but inside `poll` and the blocking calls, which poll too; answers to requests made with `send` that
    arrive during a blocking call are kept for the next `poll`. Metadata is refreshed inside poll by age, on request and
    when a connection breaks. All of `poll`, `ready` and the blocking calls raise BrokerRefusedError BROKER_TOO_OLD where a
    broker speaks no version we do; that is no matter of trying again.
    """

    def __init__(self, config: ClientConfig, clock: Callable[[], int] = monotonic_ms) -> None:
        raise NotImplementedError

    config: ClientConfig
    clock: Callable[[], int]

    @property
    def metadata(self) -> Metadata:
        """The newest snapshot of the cluster."""
        raise NotImplementedError

    def want_topics(self, topics: Iterable[str], *, allow_auto_creation: bool = False) -> None:
        """Keep metadata of these topics; a topic not asked for again is dropped after `metadata.max.idle.ms`.

        With `allow_auto_creation` the broker may create a missing topic by its own `auto.create.topics.enable`, as for
        the Java producer.
        """
        raise NotImplementedError

    def request_metadata_update(self) -> None:
        """Ask for fresh metadata at the next poll (after the retry backoff since the last request)."""
        raise NotImplementedError

    def learn_leader(
        self, topic: str, partition: int, leader: int, leader_epoch: int, endpoints: Iterable[Any] = ()
    ) -> bool:
        """Take over a leader from a Produce or Fetch answer (KIP-951); True if it was newer than what was known.

        `endpoints` are the answer's `node_endpoints` (node_id, host, port, rack).
        """
        raise NotImplementedError

    def learn_broker(self, node_id: int, host: str, port: int) -> None:
        """Take over a broker's address from a FindCoordinator answer."""
        raise NotImplementedError

    def ready(self, node_id: int) -> bool:
        """Whether a request can be sent to the node now; starts to connect where not.

        False while the broker has throttled us (KIP-219), while backing off, and for a node that metadata does not
        know, which asks for fresh metadata.
        """
        raise NotImplementedError

    def send(
        self, node_id: int, request: Any, *, timeout_ms: int | None = None, max_version: int | None = None
    ) -> PendingRequest:
        """Send in the highest version that both sides speak, at most `max_version`; the node must be `ready`.

        `timeout_ms` is for the answer, default `request.timeout.ms`. Raises BrokerRefusedError (BROKER_TOO_OLD,
        NO_COMMON_VERSION).
        """
        raise NotImplementedError

    def in_flight(self, node_id: int) -> int:
        """How many requests await the node's answer."""
        raise NotImplementedError

    def poll(self, timeout_ms: int) -> tuple[Completion, ...]:
        """Move bytes once, waiting at most `timeout_ms` for something to happen; the requests that ended."""
        raise NotImplementedError

    def api_version(self, node_id: int, request: type[Any], max_version: int | None = None) -> int:
        """The version `send` would use for this request class; the node must be connected."""
        raise NotImplementedError

    def finalized_features(self, node_id: int | None = None) -> Mapping[str, int]:
        """Feature name -> finalized max level, as the node said when connecting; None: the newest that any node said."""
        raise NotImplementedError

    def least_loaded_node(self) -> int | None:
        """The node to ask what any node can answer; None where all known nodes are backing off (Java's leastLoadedNode)."""
        raise NotImplementedError

    def disconnect(self, node_id: int) -> None:
        """Close the node's connection; what is in flight ends as ConnectionLost at the next poll."""
        raise NotImplementedError

    # blocking, on the same pump

    def call(self, node_id: int, request: Any, *, deadline_ms: int, max_version: int | None = None) -> Any:
        """Send and wait for the answer, until the absolute clock time `deadline_ms`; one try.

        Raises BrokerUnavailableError (nothing was sent), LostAnswer (it may have been processed).
        """
        raise NotImplementedError

    def call_all(
        self, requests: Sequence[tuple[int, Any, int | None]], deadline_ms: int
    ) -> list[Any | LostAnswer | BrokerUnavailableError]:
        """`call` for many (node id, request, max version): pipelined per node, concurrent over nodes, order kept per node.

        Errors are returned in the request's place, never raised.
        """
        raise NotImplementedError

    def any_node(self, deadline_ms: int) -> int:
        """A node that is ready; raises BrokerUnavailableError BROKER_UNREACHABLE naming the bootstrap servers and the last
        socket error."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all connections; nothing is waited for."""
        raise NotImplementedError

    def __enter__(self) -> NetworkClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
