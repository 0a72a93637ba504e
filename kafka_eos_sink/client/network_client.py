"""One client of a cluster: nodes, their connections, and the one pump that moves all bytes (Java's NetworkClient)."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from kafka_eos_sink.client import sasl
from kafka_eos_sink.client.backoff import ExponentialBackoff
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.connection import (
    Authentication,
    BrokerVersions,
    ConnectionLost,
    LostAnswer,
    PendingRequest,
    RequestTimedOut,
    ResponseReceived,
)
from kafka_eos_sink.client.metadata import NEVER, Broker, Metadata, MetadataUpdater
from kafka_eos_sink.client.node import Lost, Moved, Node, NodeState
from kafka_eos_sink.client.oauth_token import Tokens
from kafka_eos_sink.client.security import SecurityConfig, TokenCredentials
from kafka_eos_sink.client.transport import Poller, TlsContext, canonical_names
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import MetadataResponse
from kafka_eos_sink.protocol.schema import Request

__all__ = [
    "Completion",
    "ConnectionLost",
    "LostAnswer",
    "NetworkClient",
    "PendingRequest",
    "RequestTimedOut",
    "monotonic_ms",
]

R = TypeVar("R")

_PIPELINE_DEPTH = 64
"""Requests of `call_all` in flight per node: enough to hide the round trip, few enough that the last is not overdue."""


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
    when a connection breaks. `poll` and the blocking calls raise what is no matter of trying again: BrokerRefusedError
    BROKER_TOO_OLD where a broker speaks no version of a request that the client itself needs, AuthenticationError where
    it and we could not prove to each other who we are.

    Raises ConfigurationError TLS_SETTINGS where certificates or keys are of no use.
    """

    def __init__(self, config: ClientConfig, clock: Callable[[], int] = monotonic_ms) -> None:
        self.config = config
        self.clock = clock
        self._tls = TlsContext(config.security.tls) if config.security.uses_tls else None
        self._authentication = _authentication(config.security)
        self._poller = Poller()
        self._nodes: dict[int, Node] = {}
        self._completions: deque[Completion] = deque()
        self._metadata_pending: PendingRequest | None = None
        self._last_error = ""
        self._features: Mapping[str, int] = MappingProxyType({})
        self._features_epoch = -1
        self._updater = MetadataUpdater(
            self._bootstrap_brokers(),
            backoff=ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms),
            max_age_ms=config.metadata_max_age_ms,
            max_idle_ms=config.metadata_max_idle_ms,
        )

    # the cluster

    @property
    def metadata(self) -> Metadata:
        """The newest snapshot of the cluster."""
        return self._updater.snapshot

    def want_topics(self, topics: Iterable[str], *, allow_auto_creation: bool = False) -> None:
        """Keep metadata of these topics; a topic not asked for again is dropped after `metadata.max.idle.ms`.

        With `allow_auto_creation` the broker may create a missing topic by its own `auto.create.topics.enable`, as for
        the Java producer.
        """
        self._updater.want_topics(topics, self.clock(), allow_auto_creation=allow_auto_creation)

    def request_metadata_update(self) -> None:
        """Ask for fresh metadata at the next poll (after the retry backoff since the last request)."""
        self._updater.request_update()

    def learn_leader(
        self, topic: str, partition: int, leader: int, leader_epoch: int, endpoints: Iterable[Any] = ()
    ) -> bool:
        """Take over a leader from a Produce or Fetch answer (KIP-951); True if it was newer than what was known.

        `endpoints` are the answer's `node_endpoints` (node_id, host, port, rack).
        """
        return self._updater.learn_leader(topic, partition, leader, leader_epoch, endpoints)

    def learn_broker(self, node_id: int, host: str, port: int) -> None:
        """Take over a broker's address from a FindCoordinator answer."""
        self._updater.learn_broker(Broker(node_id=node_id, host=host, port=port))

    def finalized_features(self, node_id: int | None = None) -> Mapping[str, int]:
        """Feature name -> finalized max level, as the node said when connecting; None: the newest that any said."""
        if node_id is None:
            return self._features
        connection = self._nodes[node_id].connection if node_id in self._nodes else None
        return MappingProxyType({}) if connection is None else connection.versions.finalized_features

    def learn_features(self, versions: BrokerVersions) -> None:
        """Take over the finalized features of an ApiVersions answer, unless a newer one is known."""
        # Brokers learn of a feature one after the other; the epoch says who is ahead.
        if versions.features_epoch >= self._features_epoch:
            self._features, self._features_epoch = versions.finalized_features, versions.features_epoch

    # requests

    def ready(self, node_id: int) -> bool:
        """Whether a request can be sent to the node now; starts to connect where not.

        False while the broker has throttled us (KIP-219), while the session is being prolonged (KIP-368), while backing
        off, and for a node that metadata does not know, which asks for fresh metadata.
        """
        now = self.clock()
        node = self._node(node_id)
        if node is None:
            self._updater.request_update()
            return False
        if node.state is NodeState.READY:
            return node.takes_requests(now)
        if node.can_connect(now):
            if node.failures > 0:
                # Metadata right after a broker's death still names it as leader; until it does not, it is asked again.
                self._updater.request_update()
            node.connect(now)
            self._note_error(node)
        return False

    def send(
        self,
        node_id: int,
        request: Request[Any],
        *,
        timeout_ms: int | None = None,
        max_version: int | None = None,
        min_version: int | None = None,
    ) -> PendingRequest:
        """Send to a `ready` node, in the highest version that both sides speak between `min_version` and `max_version`.

        `timeout_ms` is for the answer, default `request.timeout.ms`. Raises BrokerRefusedError (BROKER_TOO_OLD,
        NO_COMMON_VERSION).
        """
        node = self._nodes.get(node_id)
        if node is None or node.state is not NodeState.READY:
            raise RuntimeError(f"node {node_id} is not ready")
        timeout = self.config.request_timeout_ms if timeout_ms is None else timeout_ms
        return node.send(request, self.clock(), timeout, max_version, min_version)

    def in_flight(self, node_id: int) -> int:
        """How many requests await the node's answer."""
        node = self._nodes.get(node_id)
        return 0 if node is None else node.in_flight

    @property
    def has_unanswered(self) -> bool:
        """Whether an answer is on its way, or here and not taken, that somebody else than metadata asked for."""
        metadata = 0 if self._metadata_pending is None else 1
        return bool(self._completions) or sum(node.in_flight for node in self._nodes.values()) > metadata

    def api_version(self, node_id: int, request: type[Request[Any]], max_version: int | None = None) -> int:
        """The version `send` would use for this request class; the node must be connected."""
        node = self._nodes.get(node_id)
        if node is None or node.connection is None:
            raise RuntimeError(f"node {node_id} is not connected")
        return node.connection.versions.negotiate(request, str(node.broker), max_version=max_version)

    def poll(self, timeout_ms: int) -> tuple[Completion, ...]:
        """Move bytes once, waiting at most `timeout_ms` for something to happen; the requests that ended."""
        self._pump(0 if self._completions else timeout_ms)
        completions = tuple(self._completions)
        self._completions.clear()
        return completions

    def least_loaded_node(self) -> int | None:
        """The node to ask what any can answer; None where all known ones are backing off (Java's leastLoadedNode).

        Ready nodes come first, by requests in flight, then one that is connecting, then one that may connect.
        """
        now = self.clock()
        best: tuple[int, int, int] | None = None
        chosen: int | None = None
        node_ids = list(self.metadata.brokers)
        random.shuffle(node_ids)
        for node_id in node_ids:
            node = self._node(node_id)
            assert node is not None
            if node.state is NodeState.READY:
                rank = (0 if not node.is_throttled(now) else 2, node.in_flight, 0)
            elif node.state is not NodeState.DISCONNECTED:
                rank = (1, 0, 0)
            elif node.can_connect(now):
                rank = (3, 0, node.last_attempt_at)
            else:
                continue
            if best is None or rank < best:
                best, chosen = rank, node_id
        return chosen

    def disconnect(self, node_id: int) -> None:
        """Close the node's connection; what is in flight ends as ConnectionLost at the next poll."""
        node = self._nodes.get(node_id)
        if node is not None:
            self._lose(node.disconnect(f"{node.broker}: closed by this client", self.clock()))

    # blocking, on the same pump

    def call(self, node_id: int, request: Request[R], *, deadline_ms: int, max_version: int | None = None) -> R:
        """Send and wait for the answer, until the absolute clock time `deadline_ms`; one try.

        Raises BrokerUnavailableError (nothing was sent), LostAnswer (it may have been processed), BrokerRefusedError
        (no common version).
        """
        (result,) = self.call_all([(node_id, request, max_version)], deadline_ms)
        if isinstance(result, KafkaEosError):
            raise result
        response: R = result
        return response

    def call_all(
        self,
        requests: Sequence[tuple[int, Request[Any], int | None]],
        deadline_ms: int,
        *,
        exact_versions: bool = False,
    ) -> list[Any | KafkaEosError]:
        """`call` for many (node id, request, max version): pipelined per node, in order, concurrent over nodes.

        With `exact_versions` a request goes out in its max version or not at all, as repeats that must be identical do.
        Errors are returned in the request's place: BrokerUnavailableError (nothing was sent), LostAnswer (it may have
        been processed), BrokerRefusedError (no common version). A node that could not be reached at any of its
        addresses fails its requests at once, not at the deadline: to try elsewhere is the caller's matter.
        """
        results: list[Any | KafkaEosError] = [None] * len(requests)
        queues: dict[int, deque[int]] = {}
        for position, (node_id, _request, _max_version) in enumerate(requests):
            queues.setdefault(node_id, deque()).append(position)
        rounds = {node_id: node.failed_rounds for node_id in queues if (node := self._node(node_id)) is not None}
        version = self.metadata.version
        awaited: dict[PendingRequest, int] = {}
        while queues or awaited:
            now = self.clock()
            for node_id in list(queues):
                queue = queues[node_id]
                while queue and self.in_flight(node_id) < _PIPELINE_DEPTH and now < deadline_ms and self.ready(node_id):
                    position = queue.popleft()
                    _node_id, request, max_version = requests[position]
                    timeout = min(self.config.request_timeout_ms, deadline_ms - now)
                    min_version = max_version if exact_versions else None
                    try:
                        pending = self.send(
                            node_id, request, timeout_ms=timeout, max_version=max_version, min_version=min_version
                        )
                        awaited[pending] = position
                    except KafkaEosError as error:
                        results[position] = error
                failure = self._why_unreachable(node_id, rounds.setdefault(node_id, 0), version)
                if failure is None and now >= deadline_ms:
                    failure = BrokerUnavailableError(
                        "REQUEST_DEADLINE", f"broker {node_id} was not ready in time; {self._last_error or 'no error'}"
                    )
                if queue and failure is not None:
                    for position in queue:
                        results[position] = failure
                    queue.clear()
                if not queue:
                    del queues[node_id]
            if not queues and not awaited:
                break
            self._pump(max(0, deadline_ms - now))
            others: deque[Completion] = deque()
            for completion in self._completions:
                awaited_position = awaited.pop(completion.pending, None)
                if awaited_position is None:
                    others.append(completion)
                else:
                    results[awaited_position] = completion.response if completion.error is None else completion.error
            self._completions = others
        return results

    def any_node(self, deadline_ms: int) -> int:
        """A node that is ready.

        Raises BrokerUnavailableError BROKER_UNREACHABLE, naming the bootstrap servers and the last socket error.
        """
        while True:
            node_id = self.least_loaded_node()
            if node_id is not None and self.ready(node_id):
                return node_id
            now = self.clock()
            if now >= deadline_ms:
                raise BrokerUnavailableError(
                    "BROKER_UNREACHABLE",
                    f"no broker of {self.config.bootstrap_servers_text} could be reached in time; last error: "
                    f"{self._last_error or 'none, the connection was not ready'}; check kafka.bootstrap.servers, "
                    "the network, and that the listener takes kafka.security.protocol="
                    f"{self.config.security.protocol}",
                )
            self._pump(deadline_ms - now)

    def wait(self, delay_ms: int, deadline_ms: int) -> None:
        """Let `delay_ms` pass, or the time to the deadline where that is less, while the pump goes on."""
        until = min(self.clock() + delay_ms, deadline_ms)
        while (left := until - self.clock()) > 0:
            self._pump(left)

    def wait_for_metadata(self, deadline_ms: int) -> bool:
        """Ask for fresh metadata and wait for it; False where the deadline passed first."""
        wanted = self._updater.request_update()
        while self._updater.answered < wanted:
            left = deadline_ms - self.clock()
            if left <= 0:
                return False
            self._pump(left)
        return True

    def close(self) -> None:
        """Close all connections; nothing is waited for."""
        for node in self._nodes.values():
            node.close()
        self._poller.close()

    def __enter__(self) -> NetworkClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # the pump

    def _pump(self, timeout_ms: int) -> None:
        now = self.clock()
        metadata_due = self._send_metadata_request(now)
        for node in list(self._nodes.values()):
            self._take(node, node.reauthenticate_if_wanted(now))
        timers = [node.time_to_next_timer(now) for node in self._nodes.values()]
        for node_id, readable, writable in self._poller.poll(min([timeout_ms, metadata_due, *timers])):
            self._handle_io(self._nodes[node_id], readable, writable)
        now = self.clock()
        for node in list(self._nodes.values()):
            self._lose(node.expire(now))
            self._note_error(node)
            self._close_if_idle(node, now)

    def _handle_io(self, node: Node, readable: bool, writable: bool) -> None:
        now = self.clock()
        was_ready = node.state is NodeState.READY
        moved = node.handle_io(readable, writable, now)
        for received in moved.responses:
            self._handle_response(node, received, now)
        self._take(node, moved)
        if not was_ready and node.state is NodeState.READY and node.connection is not None:
            self._last_error = ""
            self.learn_features(node.connection.versions)
        if was_ready and node.state is not NodeState.READY:
            # A broker that goes away has led partitions: others lead them now.
            self._updater.request_update()

    def _take(self, node: Node, moved: Moved) -> None:
        self._note_error(node)
        self._lose(moved.lost)
        if moved.refusal is not None:
            raise moved.refusal

    def _handle_response(self, node: Node, received: ResponseReceived, now: int) -> None:
        throttle_time_ms = getattr(received.response, "throttle_time_ms", 0)
        if throttle_time_ms > 0:
            # KIP-219: the broker answers at once and expects the client to keep silent by itself.
            node.throttled_until = max(node.throttled_until, now + throttle_time_ms)
        if received.pending is self._metadata_pending:
            self._metadata_pending = None
            self._handle_metadata(received.response, now)
        else:
            self._completions.append(Completion(pending=received.pending, response=received.response))

    def _lose(self, lost: Lost) -> None:
        for pending, error in lost:
            self._last_error = error.message
            if pending is self._metadata_pending:
                self._metadata_pending = None
                self._updater.handle_failure(self.clock())
            else:
                self._completions.append(Completion(pending=pending, error=error))

    def _note_error(self, node: Node) -> None:
        if node.last_error:
            self._last_error = node.last_error

    def _close_if_idle(self, node: Node, now: int) -> None:
        if node.state is not NodeState.READY or node.in_flight:
            return
        forgotten = node.broker.node_id < 0 and node.broker.node_id not in self.metadata.brokers
        if forgotten or now - node.last_active_at > self.config.connections_max_idle_ms:
            node.close()

    # metadata

    def _send_metadata_request(self, now: int) -> int:
        """Ask for metadata where it is due and somebody can be asked; how long until it is due otherwise, in ms."""
        wait = self._updater.time_to_next_update(now)
        if self._updater.failing_for_ms(now) > self.config.metadata_recovery_rebootstrap_trigger_ms:
            self._rebootstrap(now)
        if wait > 0:
            return wait
        node_id = self.least_loaded_node()
        if node_id is None:
            if self._all_brokers_are_gone(now):
                self._rebootstrap(now)
            return NEVER
        if self.ready(node_id):
            try:
                self._metadata_pending = self.send(node_id, self._updater.next_request(now))
            except KafkaEosError:
                self._updater.handle_failure(now)
                raise
        return NEVER

    def _handle_metadata(self, response: MetadataResponse, now: int) -> None:
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self._updater.handle_failure(now)
            self._rebootstrap(now)
            return
        self._updater.handle_response(response, now)
        for broker in self.metadata.brokers.values():
            if broker.node_id in self._nodes:
                self._nodes[broker.node_id].broker = broker

    def _all_brokers_are_gone(self, now: int) -> bool:
        nodes = [node for node_id in self.metadata.brokers if (node := self._node(node_id)) is not None]
        return all(node.state is NodeState.DISCONNECTED and node.failures > 0 for node in nodes)

    def _rebootstrap(self, now: int) -> None:
        """KIP-899: none of the brokers we know answers any more; the bootstrap servers may know others."""
        if self.config.metadata_recovery_strategy != "rebootstrap" or min(self.metadata.brokers) < 0:
            return
        if self._metadata_pending is not None:
            self.disconnect(self._metadata_pending.node_id)
        self._updater.rebootstrap(self._bootstrap_brokers(), now)

    def _bootstrap_brokers(self) -> tuple[Broker, ...]:
        servers = list(self.config.bootstrap_servers)
        if self.config.client_dns_lookup == "resolve_canonical_bootstrap_servers_only":
            try:
                servers = [(name, port) for host, port in servers for name in canonical_names(host, port)]
            except OSError as error:
                raise BrokerUnavailableError(
                    "BROKER_UNREACHABLE",
                    f"a name in kafka.bootstrap.servers={self.config.bootstrap_servers_text} is not known: {error}",
                ) from error
        return tuple(Broker(node_id=-1 - index, host=host, port=port) for index, (host, port) in enumerate(servers))

    def _node(self, node_id: int) -> Node | None:
        """The node, made where metadata knows the broker; None where it does not and there is no connection either."""
        node = self._nodes.get(node_id)
        if node is not None and (node.state is not NodeState.DISCONNECTED or node_id in self.metadata.brokers):
            return node
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            return None
        node = self._nodes[node_id] = Node(
            broker, self.config, self._poller, tls=self._tls, authentication=self._authentication
        )
        return node

    def _why_unreachable(
        self, node_id: int, failed_rounds: int, metadata_version: int
    ) -> BrokerUnavailableError | None:
        """Why nothing can be sent to the node, seen since the given round and version; None where it may yet."""
        node = self._node(node_id)
        if node is not None:
            if node.state is NodeState.DISCONNECTED and node.failed_rounds > failed_rounds:
                return BrokerUnavailableError("BROKER_UNREACHABLE", node.last_error)
            return None
        if self.metadata.version > metadata_version:
            return BrokerUnavailableError(
                "BROKER_UNREACHABLE", f"broker {node_id} is not part of the cluster (any more)"
            )
        return None


def _authentication(security: SecurityConfig) -> Authentication | None:
    """Makes the dialogue of each connection, where there is one."""
    config = security.sasl
    if not security.uses_sasl or config is None:
        return None
    if isinstance(config.credentials, TokenCredentials):
        tokens = Tokens(config.credentials.source, security.tls)
        return lambda: sasl.authenticate(config, tokens.current, tokens.forget)
    return lambda: sasl.authenticate(config)
