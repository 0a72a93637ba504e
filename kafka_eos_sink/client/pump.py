"""The non-blocking half of the client: nodes, metadata, and all network I/O."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from kafka_eos_sink.client.config import ClientConfig, ExponentialBackoff
from kafka_eos_sink.client.connection import (
    ANY_VERSION,
    BrokerVersions,
    Completion,
    ConnectionState,
    PendingRequest,
    Versions,
)
from kafka_eos_sink.client.metadata import NEVER, Metadata, MetadataUpdater
from kafka_eos_sink.client.node import Node, bootstrap_brokers
from kafka_eos_sink.client.oauth import authentication_for
from kafka_eos_sink.client.tls import tls_context
from kafka_eos_sink.client.transport import Poller
from kafka_eos_sink.errors import ConfigurationError, KafkaEosError, peer_text
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import Broker, MetadataResponse
from kafka_eos_sink.protocol.schema import Request

log = logging.getLogger(__name__)


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Pump:
    """Sends requests to one cluster and collects responses (Java's NetworkClient).

    All I/O happens in ``pump``, which ``poll`` and the blocking calls of ``NetworkClient`` run. It also refreshes metadata: by age,
    on request, and when a connection breaks. A pump belongs to one thread.
    """

    def __init__(self, config: ClientConfig, clock: Callable[[], int] = monotonic_ms) -> None:
        self.config = config
        self.clock = clock
        self.last_error = ""
        """The newest error of any connection, for messages."""
        self._tls = tls_context(config.security.tls) if config.security.uses_tls else None
        self._authentication = authentication_for(config.security)
        self._poller = Poller()
        self._nodes: dict[int, Node] = {}
        self._completions: deque[Completion] = deque()
        self._metadata_pending: PendingRequest | None = None
        self._expected_cluster: str | None = None
        self._features: Mapping[str, int] = MappingProxyType({})
        self._features_epoch = -1
        self._updater = MetadataUpdater(
            bootstrap_brokers(config),
            backoff=ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms),
            max_age_ms=config.metadata_max_age_ms,
            max_idle_ms=config.metadata_max_idle_ms,
        )

    # the cluster

    @property
    def metadata(self) -> Metadata:
        """The newest snapshot of the cluster."""
        return self._updater.snapshot

    def want_topics(self, topics: Iterable[str]) -> None:
        """Keep metadata of the topics until ``metadata.max.idle.ms`` after the last call."""
        self._updater.want_topics(topics, self.clock())

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Request metadata of these topics no more."""
        self._updater.forget_topics(topics)

    def request_metadata_update(self) -> None:
        """Request fresh metadata, once the backoff since the last response has passed."""
        self._updater.request_update()

    def learn_leader(
        self, topic: str, partition: int, leader: int, leader_epoch: int, endpoints: Iterable[Broker] = ()
    ) -> bool:
        """Learn a leader from a Produce or Fetch response (KIP-951); return True if newer."""
        return self._updater.learn_leader(topic, partition, leader, leader_epoch, endpoints)

    def learn_broker(self, node_id: int, host: str, port: int) -> None:
        """Learn a broker's address from a FindCoordinator response."""
        self._updater.learn_broker(Broker(node_id=node_id, host=host, port=port))

    def versions(self, node_id: int) -> BrokerVersions:
        """Return the API versions and features of a connected node."""
        connection = self._connected(node_id).connection
        assert connection is not None
        return connection.versions

    def finalized_features(self) -> Mapping[str, int]:
        """Return feature -> finalized level from the ApiVersions of the highest epoch."""
        return self._features

    def learn_features(self, versions: BrokerVersions) -> None:
        """Learn an ApiVersions response's features, unless the client knows newer ones."""
        # A feature change reaches the brokers one after the other. The epoch shows which broker is ahead (KIP-584).
        if versions.features_epoch >= self._features_epoch:
            self._features, self._features_epoch = versions.finalized_features, versions.features_epoch

    def expect_cluster(self, cluster_id: str | None) -> None:
        """Raise OTHER_CLUSTER from now on if metadata name another cluster than this one."""
        self._expected_cluster = cluster_id
        if (error := self._other_cluster(self.metadata.cluster_id)) is not None:
            raise error

    def _other_cluster(self, found: str | None) -> ConfigurationError | None:
        if found is None or self._expected_cluster in (None, found):
            return None
        return ConfigurationError(
            "OTHER_CLUSTER",
            f"the brokers at {self.config.bootstrap_servers_text} belong to cluster {peer_text(found)!r}, but the write began on cluster "
            f"{peer_text(str(self._expected_cluster))!r}: the address leads to another cluster, or the cluster was created again",
            "Make kafka.bootstrap.servers lead to the same cluster on the driver and on all executors (DNS, proxies, load balancers)",
        )

    # nodes

    def node(self, node_id: int) -> Node | None:
        """Return or make the node; None if metadata lacks it and it has no connection."""
        node = self._nodes.get(node_id)
        if node is not None and (node.state is not ConnectionState.DISCONNECTED or node_id in self.metadata.brokers):
            return node
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            return None
        node = self._nodes[node_id] = Node(broker, self.config, self._poller, self._tls, self._authentication)
        return node

    def ready(self, node_id: int) -> bool:
        """Return whether the node takes a request now; begin to connect if needed.

        False while the broker throttles the client (KIP-219), during re-authentication (KIP-368) and backoff. Also False for a node
        that metadata does not name; then the client requests fresh metadata.
        """
        now = self.clock()
        node = self.node(node_id)
        if node is None:
            self._updater.request_update()
            return False
        # The caller may not have pumped for long, and a load balancer on the way may have dropped the idle connection silently.
        self._close_if_idle(node, now)
        if node.is_established:
            return node.takes_requests(now)
        if node.can_connect(now):
            if node.failures > 0:
                # After a broker's death its metadata is stale for a while: refresh until the partitions have new leaders.
                self._updater.request_update()
            node.connect(now)
            self._note_error(node)
        return False

    def send(
        self,
        node_id: int,
        request: Request[Any],
        *,
        deadline_ms: int = NEVER,
        versions: Versions = ANY_VERSION,
    ) -> PendingRequest:
        """Send to a ``ready`` node, in the highest common version.

        Args:
            deadline_ms: Clock ms at which the request ends, also before ``request.timeout.ms`` and while the broker throttles.
            versions: Bounds of the API version.

        Raises:
            BrokerRefusedError: MISSING_API or NO_COMMON_VERSION.
        """
        return self._connected(node_id).send(request, self.clock(), deadline_ms, versions)

    def _connected(self, node_id: int) -> Node:
        node = self._nodes.get(node_id)
        if node is None or not node.is_established:
            raise RuntimeError(f"node {node_id} is not ready")
        return node

    def in_flight(self, node_id: int) -> int:
        """Return the number of requests to the node without a response."""
        node = self._nodes.get(node_id)
        return 0 if node is None else node.in_flight

    def least_loaded_node(self) -> int | None:
        """Return the best node for a request to any node; None if all back off.

        As Java's leastLoadedNode: ready nodes come first, by requests in flight; then a node that is connecting; then one that may connect.
        """
        now = self.clock()
        node_ids = list(self.metadata.brokers)
        # Choose at random among equals, so that many clients spread over the brokers.
        random.shuffle(node_ids)
        loads = {node_id: load for node_id in node_ids if (node := self.node(node_id)) and (load := node.load(now))}
        return min(loads, key=loads.__getitem__, default=None)

    def why_unreachable(self, node_id: int) -> str:
        """Describe with its address why the node cannot be reached; empty if it can."""
        node = self.node(node_id)
        if node is None:
            return f"broker {node_id} is not part of the cluster (any more)"
        is_lost = node.state is ConnectionState.DISCONNECTED and not node.failures and node.last_error
        # A connection that worked and broke says nothing yet: the client connects again at once.
        return "" if node.is_established or is_lost else node.last_error or f"{node.broker} has not responded yet"

    def throttling(self, since: int, node_ids: Container[int | None] | None = None) -> tuple[int, str]:
        """Return for how many ms a broker throttled this client, and text for errors.

        Args:
            since: Clock ms from which throttling counts.
            node_ids: The nodes to check; None for all. The one that throttled most counts.
        """
        now = self.clock()
        nodes = [node for node_id, node in self._nodes.items() if node_ids is None or node_id in node_ids]
        node = max(nodes, key=lambda each: each.throttled_ms(since, now), default=None)
        if node is None or not (ms := node.throttled_ms(since, now)):
            return 0, ""
        seconds = f"{ms / 1_000:.1f} s of {(now - since) / 1_000:.1f} s"
        return ms, f"a quota of Kafka throttled client.id {self.config.client_id!r} on {node.broker} for {seconds}"

    def prevailing_quota(self, since: int, node_ids: Container[int | None] | None = None) -> str:
        """Return the text of `throttling` if a broker throttled most of the time, else ''."""
        ms, text = self.throttling(since, node_ids)
        return text if 2 * ms >= self.clock() - since else ""

    def disconnect(self, node_id: int) -> None:
        """Close the connection; requests in flight end as ConnectionLost at the next poll."""
        node = self._nodes.get(node_id)
        if node is not None:
            self._complete(node, node.disconnect(f"{node.broker}: closed by this client", self.clock()))

    @property
    def logins_deferred(self) -> bool:
        """Whether a broker has rejected its newest login for the moment."""
        return any(node.login_deferred for node in self._nodes.values())

    def close(self) -> None:
        """Close all connections without waiting for responses."""
        for node in self._nodes.values():
            node.close()
        self._poller.close()

    # the pump

    def poll(self, timeout_ms: int, of: Container[PendingRequest]) -> list[Completion]:
        """Run `pump` and return those of the requests that ended."""
        self.pump(0 if any(each.pending in of for each in self._completions) else timeout_ms)
        return self.take(of)

    def take(self, requests: Container[PendingRequest]) -> list[Completion]:
        """Return the completions of these requests; the others stay for the next ``poll``."""
        taken = [each for each in self._completions if each.pending in requests]
        if taken:
            self._completions = deque(each for each in self._completions if each.pending not in requests)
        return taken

    def pump(self, timeout_ms: int) -> None:
        """Move bytes once, wait at most ``timeout_ms`` for I/O, and keep completions."""
        now = self.clock()
        metadata_due = self._send_metadata_request(now)
        # A due re-authentication goes first: until it ends, the node accepts no request (KIP-368).
        for node in list(self._nodes.values()):
            self._accept(node, node.reauthenticate_if_wanted(now))
        # The poll must end at the first timer: no I/O wakes the client when a request times out or a throttle ends.
        timers = [node.time_to_next_timer(now) for node in self._nodes.values()]
        ready = self._poller.poll(min([timeout_ms, metadata_due, *timers]))
        # Before the I/O: a login can wait long for a KDC or a token, and responses that arrive meanwhile must be read before they expire.
        now = self.clock()
        for node_id, readable, writable in ready:
            self._handle_io(self._nodes[node_id], readable, writable)
        for node in list(self._nodes.values()):
            self._complete(node, node.expire(now))
            self._note_error(node)
            self._close_if_idle(node, now)

    def _handle_io(self, node: Node, readable: bool, writable: bool) -> None:
        was_established = node.is_established
        self._accept(node, node.handle_io(readable, writable, self.clock()))
        if not was_established and node.is_established and node.connection is not None:
            self.last_error = ""
            self.learn_features(node.connection.versions)
        if was_established and not node.is_established:
            # The broker may be shutting down, and then other brokers lead its partitions.
            self._updater.request_update()

    def _accept(self, node: Node, completions: Iterable[Completion]) -> None:
        self._note_error(node)
        # Completions first: a fatal error must not lose the responses that arrived before it.
        self._complete(node, completions)
        fatal, node.fatal = node.fatal, None
        if fatal is not None:
            raise fatal

    def _complete(self, node: Node, completions: Iterable[Completion]) -> None:
        """Keep completions for the caller; handle the client's own metadata responses."""
        now = self.clock()
        for completion in completions:
            if completion.error is not None:
                self.last_error = completion.error.message
            elif (throttle_time_ms := getattr(completion.response, "throttle_time_ms", 0)) > 0:
                # KIP-219: the broker responds at once, and expects the client to send nothing for this time.
                node.throttle(throttle_time_ms, now)
            if completion.pending is not self._metadata_pending:
                self._completions.append(completion)
                continue
            self._metadata_pending = None
            if completion.response is None:
                self._updater.handle_failure(now)
            else:
                self._handle_metadata(completion.response, now)

    def _note_error(self, node: Node) -> None:
        if node.last_error:
            self.last_error = node.last_error

    def _close_if_idle(self, node: Node, now: int) -> None:
        if not node.is_established or node.in_flight:
            return
        # Once metadata lists the brokers by id, no request uses a bootstrap connection any more.
        forgotten = node.broker.node_id < 0 and node.broker.node_id not in self.metadata.brokers
        if forgotten or now - node.last_active_at > self.config.connections_max_idle_ms:
            log.debug("[%s] %s: closing an idle connection", self.config.client_id, node.broker)
            node.close()

    # metadata

    def _send_metadata_request(self, now: int) -> int:
        """Send a metadata request if due and a node is ready; return the ms to the next."""
        wait = self._updater.time_to_next_update(now)
        if self._updater.failing_for_ms(now) > self.config.metadata_recovery_rebootstrap_trigger_ms:
            self._rebootstrap(now)
        if wait > 0:
            return wait
        node_id = self.least_loaded_node()
        if node_id is None:
            # A broker in backoff may come back. Bootstrap again only after every known broker has failed (KIP-899).
            if self._all_brokers_are_gone():
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
        if (error := self._other_cluster(response.cluster_id)) is not None:
            # The snapshot still describes the write's own cluster: no later request may go to the other one.
            self._updater.handle_failure(now)
            raise error
        self._updater.handle_response(response, now)
        # A broker with a new address keeps its connection until that breaks. The next attempt uses the new address.
        for broker in self.metadata.brokers.values():
            if broker.node_id in self._nodes:
                self._nodes[broker.node_id].broker = broker

    def _all_brokers_are_gone(self) -> bool:
        nodes = filter(None, map(self.node, self.metadata.brokers))
        return all(node.state is ConnectionState.DISCONNECTED and node.failures > 0 for node in nodes)

    def _rebootstrap(self, now: int) -> None:
        """Start again from the bootstrap servers: no known broker responds (KIP-899)."""
        if self.config.metadata_recovery_strategy != "rebootstrap" or min(self.metadata.brokers) < 0:
            return
        if self._metadata_pending is not None:
            # The response would describe the cluster that the client has just abandoned.
            self.disconnect(self._metadata_pending.node_id)
        log.info("[%s] metadata: bootstrap again from %s", self.config.client_id, self.config.bootstrap_servers_text)
        self._updater.rebootstrap(bootstrap_brokers(self.config), now)
