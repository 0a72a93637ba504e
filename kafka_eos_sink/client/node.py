"""One node of the cluster: its connection, and when the client may connect again."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from kafka_eos_sink.client.config import ClientConfig, ExponentialBackoff, with_prefix
from kafka_eos_sink.client.connection import (
    Completion,
    Connection,
    ConnectionLost,
    ConnectionReady,
    ConnectionState,
    Dialogue,
    PendingRequest,
    RequestTimedOut,
    Versions,
)
from kafka_eos_sink.client.metadata import NEVER
from kafka_eos_sink.client.sasl import LoginDeferred
from kafka_eos_sink.client.tls import TlsContext, TlsError, TlsTransport
from kafka_eos_sink.client.transport import Address, Poller, Transport, canonical_names, resolve_host
from kafka_eos_sink.errors import AuthenticationError, BrokerUnavailableError, ProtocolError
from kafka_eos_sink.protocol.messages import Broker
from kafka_eos_sink.protocol.schema import Request

log = logging.getLogger(__name__)

_READS_PER_POLL = 16
"""Reads from one connection before it is the turn of the others."""


_THROTTLES_KEPT = 1_000
"""Begin and end of each throttle, for messages."""
_MANY_ATTEMPTS = 32
"""After so many failures in a row, a backoff has its maximum."""


class Node:
    """A broker's address with its transport and connection.

    The node tries all addresses of the host in turn (KIP-302). After all have failed, it backs off exponentially
    (``reconnect.backoff.ms``) and allows the next attempts more time (KIP-601).

    Methods that do I/O return completions: the responses, then the lost requests if the connection broke.
    """

    def __init__(
        self,
        broker: Broker,
        config: ClientConfig,
        poller: Poller,
        tls: TlsContext | None = None,
        authentication: Callable[[str], Dialogue] | None = None,
    ) -> None:
        self.broker = broker
        self.connection: Connection | None = None
        self.fatal: Exception | None = None
        """An error that a retry cannot resolve (version, TLS, principal). The pump raises it."""
        self.throttled_until = 0
        self.last_active_at = 0
        self.last_attempt_at = -NEVER
        self.failed_rounds = 0
        """How often all addresses failed, in total."""
        self.failures = 0
        """How often all addresses failed since the node was last ready."""
        self.last_error = ""
        self.login_deferred = False
        """Whether the broker has rejected the newest login for the moment."""
        self._config = config
        self._poller = poller
        self._tls = tls
        self._authentication = authentication
        self._reauthentication_wanted = False
        self._has_responded = False
        self._throttles: deque[tuple[int, int]] = deque(maxlen=_THROTTLES_KEPT)
        self._transport: Transport | None = None
        # The host of this round: metadata may move the broker while its old addresses are still being tried.
        self._host = broker.host
        self._addresses: list[Address] = []
        self._next_attempt_at = 0
        self._setup_expires_at = NEVER
        self._backoff = ExponentialBackoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms)
        self._setup_timeout = ExponentialBackoff(
            config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms
        )

    # state

    @property
    def state(self) -> ConnectionState:
        """The connection's state, with the states before the handshake."""
        if self.connection is not None:
            return self.connection.state
        return ConnectionState.DISCONNECTED if self._transport is None else ConnectionState.CONNECTING

    @property
    def is_established(self) -> bool:
        return self.connection is not None and self.connection.is_established

    @property
    def in_flight(self) -> int:
        return 0 if self.connection is None else self.connection.in_flight

    def can_connect(self, now: int) -> bool:
        return self._transport is None and now >= self._next_attempt_at

    def takes_requests(self, now: int) -> bool:
        """Return whether a request can be sent; schedule a due re-authentication first."""
        # A broker that throttles the client does not read from the connection: a request could time out there (KIP-219).
        if self.connection is None or not self.connection.is_established or now < self.throttled_until:
            return False
        self._reauthentication_wanted |= self.connection.reauthentication_due(now)
        return self.connection.state is ConnectionState.READY and not self._reauthentication_wanted

    def load(self, now: int) -> tuple[int, int, int] | None:
        """Return the rank in ``least_loaded_node``, smallest first; None during backoff."""
        if self.is_established:
            return (2 if now < self.throttled_until else 0), self.in_flight, 0
        if self._transport is not None:
            return 1, 0, 0
        return (3, 0, self.last_attempt_at) if self.can_connect(now) else None

    def time_to_next_timer(self, now: int) -> int:
        """Return the time to the node's next timer in ms, NEVER if there is none."""
        times = [NEVER]
        if self._transport is None and self._next_attempt_at > now:
            times.append(self._next_attempt_at)
        if self.state is ConnectionState.CONNECTING:
            times.append(self._setup_expires_at)
        if self.connection is not None and (expires_at := self.connection.expires_at) is not None:
            times.append(expires_at)
        # No I/O marks the end of a throttle, so only a timer can wake a caller that waits for the node.
        if self.throttled_until > now:
            times.append(self.throttled_until)
        if self._reauthentication_wanted:
            times.append(now)
        return max(0, min(times) - now)

    # quotas

    def throttle(self, ms: int, now: int) -> None:
        """Note that the broker reads nothing from the connection for ``ms`` (KIP-219)."""
        self.throttled_until = max(self.throttled_until, now + ms)
        self._throttles.append((now, now + ms))
        if self.connection is not None:
            # Otherwise requests that wait in the muted connection would time out, and be sent again on a new one.
            self.connection.postpone_timeouts(ms)

    def throttled_ms(self, since: int, now: int) -> int:
        """Return for how long the broker has throttled the client since then."""
        return min(now - since, sum(max(0, min(end, now) - max(begin, since)) for begin, end in self._throttles))

    # connecting

    def connect(self, now: int) -> None:
        """Begin a round of attempts: resolve the host and connect to its first address."""
        # Resolve the name in each round: a broker that Kubernetes restarts has another address.
        self.last_attempt_at = self.last_active_at = now
        self._host = self.broker.host
        try:
            self._addresses = list(resolve_host(self._host, self.broker.port))
        except OSError as error:
            self._fail_round(f"{self.broker}: cannot resolve the host name: {error}", now)
            return
        self._connect_next_address(now)

    def _connect_next_address(self, now: int) -> None:
        while self._addresses:
            address = self._addresses.pop(0)
            try:
                transport = (
                    Transport(address, self._config)
                    if self._tls is None
                    else TlsTransport(address, self._config, self._tls, self._host)
                )
            except OSError as error:
                self.last_error = f"{self.broker}: {error}"
                continue
            log.debug("[%s] connecting to %s at %s", self._config.client_id, self.broker, address)
            self._transport = transport
            self._poller.register(self.broker.node_id, transport)
            self._setup_expires_at = now + self._setup_timeout.delay_ms(self.failures)
            return
        self._fail_round(self.last_error, now)

    def _fail_round(self, reason: str, now: int) -> None:
        # Only the first failure is INFO: otherwise a broker that is down for an hour would fill the log.
        level = logging.DEBUG if self.failures else logging.INFO
        log.log(level, "[%s] cannot connect: %s", self._config.client_id, reason)
        self.last_error = reason
        self._next_attempt_at = now + self._backoff.delay_ms(self.failures)
        self.failures += 1
        self.failed_rounds += 1

    # moving bytes

    def send(self, request: Request[Any], now: int, deadline_ms: int, versions: Versions) -> PendingRequest:
        """Put a request in flight and begin to write it; the next poll reports a break."""
        assert self.connection is not None
        pending = self.connection.send(request, now=now, deadline_ms=deadline_ms, versions=versions)
        self.last_active_at = now
        self._write()
        return pending

    def _write(self) -> None:
        assert self.connection is not None
        assert self._transport is not None
        try:
            self._transport.write(self.connection.data_to_send())
        except OSError:
            # The poller reports a broken socket as readable. Its next read returns the responses that arrived before the
            # break, and then raises the reason.
            return

    def handle_io(self, readable: bool, writable: bool, now: int) -> list[Completion]:
        """Read what the socket has now, and write what it accepts."""
        completions: list[Completion] = []
        if self._transport is None:
            return completions
        try:
            if self.connection is None:
                if not self._transport.continue_connect(writable):
                    return completions
                self._begin_handshake(now)
            elif writable:
                self._transport.flush()
            if readable:
                self._read(completions, now)
        except Exception as error:
            completions += self._break(error, now)
        return completions

    def reauthenticate_if_wanted(self, now: int) -> list[Completion]:
        """Re-authenticate if ``takes_requests`` scheduled it (KIP-368)."""
        # Only a request starts a re-authentication: an idle connection may expire with its session.
        if not self._reauthentication_wanted:
            return []
        self._reauthentication_wanted = False
        assert self.connection is not None
        log.info("[%s] %s: re-authenticating before the session expires", self._config.client_id, self.broker)
        try:
            self.connection.reauthenticate(now)
            self._write()
        except Exception as error:
            return self._break(error, now)
        return []

    def _break(self, error: Exception, now: int) -> list[Completion]:
        """Disconnect because of ``error``; keep it as ``fatal`` if a retry cannot help."""
        assert self._transport is not None
        where = f"{self.broker} at {self._transport.address}"
        if isinstance(error, TlsError) and not self.is_established:
            error = AuthenticationError("TLS_FAILED", f"{where}: {with_prefix(self._config.prefix, str(error))}")
        elif isinstance(error, AuthenticationError):
            error = AuthenticationError(error.code, f"{where}: {with_prefix(self._config.prefix, error.message)}")
        if isinstance(error, (OSError, ProtocolError)):
            reason = with_prefix(self._config.prefix, error.message if isinstance(error, ProtocolError) else str(error))
            self.login_deferred = isinstance(error, LoginDeferred)
            if self.state is ConnectionState.AUTHENTICATING and not self.login_deferred:
                # A broker may also close the connection of a login that it rejects, without a reason.
                reason += " during the login"
            elif self.is_established and self._authentication is None and not self._has_responded:
                # A listener with SASL responds to ApiVersions, and closes the connection at the first other request.
                protocol = self._config.security.protocol
                option = f"{self._config.prefix}security.protocol={protocol}"
                reason += f" before its first response; a listener with SASL does that: check {option}"
            if self.login_deferred:
                # The host's other addresses lead to the same broker, and a quick login would be one more above its limit.
                self._addresses.clear()
            lost = self.disconnect(f"{where}: {reason}", now)
            if self.login_deferred:
                self._next_attempt_at = now + self._backoff.delay_ms(_MANY_ATTEMPTS)
            return lost
        # The host's other addresses lead to the same broker, which would reject the version or the principal again.
        self._addresses.clear()
        self.fatal = error
        return self.disconnect(str(error), now)

    def _begin_handshake(self, now: int) -> None:
        self.connection = Connection(
            node_id=self.broker.node_id,
            broker=str(self.broker),
            client_id=self._config.client_id,
            now=now,
            request_timeout_ms=self._config.request_timeout_ms,
            authentication=None if self._authentication is None else partial(self._authentication, self._host),
        )
        self._write()

    def _read(self, completions: list[Completion], now: int) -> None:
        assert self.connection is not None
        assert self._transport is not None
        for _ in range(_READS_PER_POLL):
            data = self._transport.read()
            if data is None:
                return
            self.last_active_at = now
            # Decode each read before the next one: a break in the next read must not lose the responses of this one.
            self.connection.receive_data(data, now)
            while (event := self.connection.next_event()) is not None:
                if isinstance(event, ConnectionReady):
                    log.debug("[%s] %s is ready", self._config.client_id, self.broker)
                    self.failures = 0
                    self.last_error = ""
                    self.login_deferred = False
                    self._addresses.clear()
                    self._has_responded = False
                else:
                    completions.append(event)
                    self._has_responded = True
            self._write()

    # ending

    def expire(self, now: int) -> list[Completion]:
        """Disconnect if the connection attempt or a request is overdue."""
        if self.state is ConnectionState.CONNECTING and now >= self._setup_expires_at:
            assert self._transport is not None
            address = self._transport.address
            option = f"{self._config.prefix}socket.connection.setup.timeout.ms is {self._config.socket_connection_setup_timeout_ms}"
            reason = f"{self.broker}: no connection to {address} within the setup timeout ({option})"
            return self.disconnect(reason, now)
        if self.connection is None:
            return []
        expires_at = self.connection.expires_at
        if expires_at is None or now < expires_at:
            return []
        # Responses arrive in the order of the requests, so an overdue one blocks all later ones on this connection.
        option = f"{self._config.prefix}request.timeout.ms is {self._config.request_timeout_ms}"
        reason = f"{self.broker}: no response within the request timeout ({option})"
        lost, overdue = self.disconnect(reason, now), RequestTimedOut("REQUEST_TIMED_OUT", reason)
        return [replace(each, error=overdue) if now >= each.pending.expires_at else each for each in lost]

    def disconnect(self, reason: str, now: int) -> list[Completion]:
        """Close and return the lost requests; then try the next address, or back off."""
        if self._transport is None:
            return []
        was_established, in_flight = self.is_established, self.in_flight
        lost = () if self.connection is None else self.connection.abandon(reason)
        self.close()
        self.last_error = reason
        if was_established:
            # A connection that worked starts with the shortest backoff: a restarting broker closes many and soon accepts them.
            log.info("[%s] connection lost, %d in flight: %s", self._config.client_id, in_flight, reason)
            self._next_attempt_at = now + self._backoff.delay_ms(0)
        else:
            log.debug("[%s] connection attempt failed: %s", self._config.client_id, reason)
            self._connect_next_address(now)
        error = ConnectionLost("CONNECTION_LOST", reason)
        # Return the oldest request first: the producer resends in this order, and its batches must keep their sequence.
        return [Completion(pending=pending, error=error) for pending in lost]

    def close(self) -> None:
        """Close the socket. This has no effect on when the node may connect."""
        self.connection = None
        # A new connection authenticates anyway.
        self._reauthentication_wanted = False
        if self._transport is not None:
            self._poller.unregister(self.broker.node_id)
            self._transport.close()
            self._transport = None


def bootstrap_brokers(config: ClientConfig) -> tuple[Broker, ...]:
    """Return the brokers to bootstrap from (``client.dns.lookup``), with negative ids.

    Raises:
        BrokerUnavailableError: BROKER_UNREACHABLE, if the resolver does not know a name.
    """
    servers = list(config.bootstrap_servers)
    if config.client_dns_lookup == "resolve_canonical_bootstrap_servers_only":
        try:
            servers = [(name, port) for host, port in servers for name in canonical_names(host, port)]
        except OSError as error:
            raise BrokerUnavailableError(
                "BROKER_UNREACHABLE",
                f"cannot resolve a name in kafka.bootstrap.servers={config.bootstrap_servers_text}: {error}; check the "
                "names and the DNS of this machine",
            ) from error
    return tuple(Broker(node_id=-1 - index, host=host, port=port) for index, (host, port) in enumerate(servers))
