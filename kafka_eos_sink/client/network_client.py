"""Blocking calls to the brokers of one cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

from kafka_eos_sink.client.connection import ConnectionState, PendingRequest, Versions
from kafka_eos_sink.client.pump import Pump
from kafka_eos_sink.errors import BrokerRefusedError, BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol.schema import Request

R = TypeVar("R")

PIPELINE_DEPTH = 64
"""Requests in flight per node: enough to hide the round trip, few enough that the broker sends the last response in time."""

NodeRequest = tuple[int, Request[Any], Versions]
"""Node id, request, and its versions: equal bounds for resends that must be identical."""


class NetworkClient(Pump):
    """The client of one cluster, with blocking calls on the pump, for one thread.

    Responses to `send` that arrive during a blocking call wait for the next `poll`.

    Raises:
        ConfigurationError: TLS_SETTINGS, from the constructor, if OpenSSL rejects certificates or keys.
        MissingApiError: From `poll` and the blocking calls, if a broker lacks a version that the client needs.
        AuthenticationError: From `poll` and the blocking calls, if TLS or SASL fails. Another attempt would also fail.
    """

    def call(self, node_id: int, request: Request[R], *, deadline_ms: int, max_version: int | None = None) -> R:
        """Send once and wait for the response until the clock time ``deadline_ms``.

        Raises:
            BrokerUnavailableError: Nothing was sent.
            LostResponse: The broker may or may not have processed the request.
            BrokerRefusedError: No common version.
        """
        (result,) = self.call_all([(node_id, request, (None, max_version))], deadline_ms)
        if isinstance(result, KafkaEosError):
            raise result
        response: R = result
        return response

    def call_all(
        self, requests: Sequence[NodeRequest], deadline_ms: int, older: Sequence[NodeRequest] = ()
    ) -> list[Any | KafkaEosError]:
        """Send requests as `call`: pipelined in order per node, concurrent over nodes.

        A node that fails at all its addresses fails its requests at once, because the caller may know another node.

        Args:
            older: For each request another one, for a node that does not offer its versions.

        Returns:
            The responses in the order of the requests. An error of `call` takes the place of its response.
        """
        return _PipelinedCalls(self, requests, deadline_ms, older).run()

    def any_node(self, deadline_ms: int) -> int:
        """Return a node that is ready.

        Raises:
            BrokerUnavailableError: BROKER_UNREACHABLE, with the bootstrap servers and the last socket error.
        """
        began = self.clock()
        while True:
            node_id = self.least_loaded_node()
            if node_id is not None and self.ready(node_id):
                return node_id
            now = self.clock()
            if now >= deadline_ms:
                raise self._unreachable(began)
            self.pump(deadline_ms - now)

    def _unreachable(self, since: int) -> BrokerUnavailableError:
        quota = self.prevailing_quota(since)
        reason = quota or self.last_error or "none, the connection was not ready"
        if not quota and not self.logins_deferred:
            # A broker that defers a login or throttles the client has been reached.
            reason += (
                "; check kafka.bootstrap.servers, the network, and that the listener expects kafka.security.protocol="
                f"{self.config.security.protocol}"
            )
        return BrokerUnavailableError(
            "BROKER_UNREACHABLE",
            f"no broker of {self.config.bootstrap_servers_text} could be reached in time; last error: {reason}",
        )

    def abandon_requests(self) -> None:
        """Close the connections with a caller's requests in flight, and drop what arrived."""
        metadata = self._metadata_pending
        for node_id, node in self._nodes.items():
            if node.in_flight > (metadata is not None and metadata.node_id == node_id):
                self.disconnect(node_id)
        self._completions.clear()

    def wait(self, delay_ms: int, deadline_ms: int) -> None:
        """Keep pumping for ``delay_ms``, at most until the deadline."""
        until = min(self.clock() + delay_ms, deadline_ms)
        while (left := until - self.clock()) > 0:
            self.pump(left)

    def wait_for_metadata(self, deadline_ms: int) -> bool:
        """Request fresh metadata and wait; return False if the deadline passes first."""
        wanted = self._updater.request_update()
        while self._updater.completed < wanted:
            left = deadline_ms - self.clock()
            if left <= 0:
                return False
            self.pump(left)
        return True

    def __enter__(self) -> NetworkClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _PipelinedCalls:
    """The requests of one `call_all`, each result or error at its request's position."""

    def __init__(
        self, client: NetworkClient, requests: Sequence[NodeRequest], deadline_ms: int, older: Sequence[NodeRequest]
    ) -> None:
        self._client = client
        self._requests = list(requests)
        self._older = dict(enumerate(older))
        self._deadline_ms = deadline_ms
        self._began = client.clock()
        self._results: list[Any | KafkaEosError] = [None] * len(requests)
        self._queues: dict[int, deque[int]] = {}
        for position, (node_id, _request, _versions) in enumerate(requests):
            self._queues.setdefault(node_id, deque()).append(position)
        self._in_flight: dict[PendingRequest, int] = {}
        # Count only failures from now on. The cause of an older failure may have disappeared.
        self._metadata_version = client.metadata.version
        self._failed_rounds = {node_id: self._rounds(node_id) for node_id in self._queues}

    def run(self) -> list[Any | KafkaEosError]:
        while self._queues or self._in_flight:
            now = self._client.clock()
            for node_id in list(self._queues):
                self._send_ready(node_id, now)
                self._fail_unreachable(node_id, now)
                if not self._queues[node_id]:
                    del self._queues[node_id]
            # A failed send can empty both. The pump would then wait although nothing can arrive.
            if self._queues or self._in_flight:
                self._client.pump(max(0, self._deadline_ms - now))
                self._collect()
        return self._results

    def _send_ready(self, node_id: int, now: int) -> None:
        """Send the node's queued requests as long as it takes them."""
        client, queue = self._client, self._queues[node_id]
        # The check of the deadline comes before `ready`, which starts to connect.
        while (
            queue and client.in_flight(node_id) < PIPELINE_DEPTH and now < self._deadline_ms and client.ready(node_id)
        ):
            position = queue.popleft()
            _node_id, request, versions = self._requests[position]
            try:
                pending = client.send(node_id, request, deadline_ms=self._deadline_ms, versions=versions)
            except KafkaEosError as error:
                if isinstance(error, BrokerRefusedError) and position in self._older:
                    self._requests[position] = self._older.pop(position)
                    queue.appendleft(position)
                else:
                    self._results[position] = error
            else:
                self._in_flight[pending] = position

    def _fail_unreachable(self, node_id: int, now: int) -> None:
        """Fail the queued requests of a node after the deadline or if it is unreachable."""
        failure = self._why_unreachable(node_id)
        if failure is None and now >= self._deadline_ms:
            quota = self._client.prevailing_quota(self._began, (node_id,))
            reason = quota or self._client.why_unreachable(node_id) or self._client.last_error or "no error"
            failure = BrokerUnavailableError("REQUEST_DEADLINE", f"broker {node_id} was not ready in time; {reason}")
        queue = self._queues[node_id]
        while queue and failure is not None:
            self._results[queue.popleft()] = failure

    def _why_unreachable(self, node_id: int) -> BrokerUnavailableError | None:
        """Return why the node became unreachable during these calls, None if it did not."""
        node = self._client.node(node_id)
        if node is not None:
            if node.state is ConnectionState.DISCONNECTED and node.failed_rounds > self._failed_rounds[node_id]:
                return BrokerUnavailableError("BROKER_UNREACHABLE", node.last_error)
        elif self._client.metadata.version > self._metadata_version:
            # Newer metadata does not name the broker either, so it has left the cluster.
            return BrokerUnavailableError(
                "BROKER_UNREACHABLE", f"broker {node_id} is not part of the cluster (any more)"
            )
        return None

    def _rounds(self, node_id: int) -> int:
        node = self._client.node(node_id)
        return 0 if node is None else node.failed_rounds

    def _collect(self) -> None:
        for completion in self._client.take(self._in_flight):
            position = self._in_flight.pop(completion.pending)
            self._results[position] = completion.response if completion.error is None else completion.error
