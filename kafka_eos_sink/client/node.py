"""One node of the cluster: its connection, and when the next attempt to connect may be made."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kafka_eos_sink.client.backoff import ExponentialBackoff
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.connection import (
    Authentication,
    Connection,
    ConnectionLost,
    ConnectionReady,
    ConnectionState,
    LostAnswer,
    PendingRequest,
    RequestTimedOut,
    ResponseReceived,
)
from kafka_eos_sink.client.metadata import NEVER, Broker
from kafka_eos_sink.client.transport import (
    Address,
    Poller,
    TlsContext,
    TlsError,
    TlsTransport,
    Transport,
    resolve,
)
from kafka_eos_sink.errors import AuthenticationError, ProtocolError
from kafka_eos_sink.protocol.schema import Request

_READS_PER_POLL = 16


class NodeState(Enum):
    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    HANDSHAKING = "handshaking"
    READY = "ready"


Lost = tuple[tuple[PendingRequest, LostAnswer], ...]
"""Requests that will have no answer, each with the reason."""


@dataclass(slots=True, kw_only=True)
class Moved:
    """What came of moving bytes: answers, what was lost where the connection broke, and a refusal of the broker or of
    ours (version, TLS, principal) that ends more than this attempt and is to be raised."""

    responses: list[ResponseReceived] = field(default_factory=list)
    lost: Lost = ()
    refusal: Exception | None = None


class Node:
    """Joins a broker's address, transport and connection. Every connection is secured as `tls` and `authentication` say.

    All addresses of the host are tried in turn (KIP-302); when all have failed, the node backs off exponentially
    (`reconnect.backoff.ms`), and each attempt is given more time than the last (KIP-601).
    """

    def __init__(
        self,
        broker: Broker,
        config: ClientConfig,
        poller: Poller,
        *,
        tls: TlsContext | None = None,
        authentication: Authentication | None = None,
    ) -> None:
        self.broker = broker
        self.state = NodeState.DISCONNECTED
        self.connection: Connection | None = None
        self.throttled_until = 0
        self.last_active_at = 0
        self.last_attempt_at = -NEVER
        self.failed_rounds = 0
        """How often all addresses failed, ever."""
        self.failures = 0
        """How often in a row since the node was last ready."""
        self.last_error = ""
        self._config = config
        self._poller = poller
        self._tls = tls
        self._authentication = authentication
        self._reauthentication_wanted = False
        self._transport: Transport | None = None
        # Metadata may move the broker to another host while addresses of this one are still being tried.
        self._host = broker.host
        self._addresses: list[Address] = []
        self._next_attempt_at = 0
        self._setup_expires_at = NEVER
        self._backoff = ExponentialBackoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms)
        self._setup_timeout = ExponentialBackoff(
            config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms
        )

    # questions

    @property
    def in_flight(self) -> int:
        """How many requests await an answer."""
        return 0 if self.connection is None else self.connection.in_flight

    def can_connect(self, now: int) -> bool:
        """Whether an attempt may begin now."""
        return self.state is NodeState.DISCONNECTED and now >= self._next_attempt_at

    def is_throttled(self, now: int) -> bool:
        """Whether the broker asked for silence (KIP-219)."""
        return now < self.throttled_until

    def takes_requests(self, now: int) -> bool:
        """Whether a request can be sent now; asks for the session to be prolonged where that must come first."""
        if self.state is not NodeState.READY or self.is_throttled(now):
            return False
        assert self.connection is not None
        self._reauthentication_wanted |= self.connection.reauthentication_due(now)
        return self.connection.state is ConnectionState.READY and not self._reauthentication_wanted

    def time_to_next_timer(self, now: int) -> int:
        """How long until something becomes due here, in ms; NEVER where nothing does."""
        times = [NEVER]
        if self.state is NodeState.DISCONNECTED and self._next_attempt_at > now:
            times.append(self._next_attempt_at)
        if self.state is NodeState.CONNECTING:
            times.append(self._setup_expires_at)
        if self.connection is not None and (expires_at := self.connection.expires_at) is not None:
            times.append(expires_at)
        if self.throttled_until > now:
            times.append(self.throttled_until)
        if self._reauthentication_wanted:
            times.append(now)
        return max(0, min(times) - now)

    # connecting

    def connect(self, now: int) -> None:
        """Begin an attempt: the next address, those of a fresh look-up where none is left."""
        self.last_attempt_at = self.last_active_at = now
        self._host = self.broker.host
        try:
            self._addresses = list(resolve(self._host, self.broker.port))
        except OSError as error:
            self._fail_round(f"{self.broker}: cannot resolve the host name: {error}", now)
            return
        self._connect_next_address(now)

    def _connect_next_address(self, now: int) -> None:
        while self._addresses:
            address = self._addresses.pop(0)
            try:
                transport = self._new_transport(address)
            except OSError as error:
                self.last_error = f"{self.broker}: {error}"
                continue
            self._transport = transport
            self._poller.register(self.broker.node_id, transport)
            self._setup_expires_at = now + self._setup_timeout.delay_ms(self.failures)
            self.state = NodeState.CONNECTING
            return
        self._fail_round(self.last_error, now)

    def _new_transport(self, address: Address) -> Transport:
        if self._tls is None:
            return Transport(address, self._config)
        return TlsTransport(address, self._config, self._tls, self._host)

    def _fail_round(self, reason: str, now: int) -> None:
        self.last_error = reason
        self.state = NodeState.DISCONNECTED
        self._next_attempt_at = now + self._backoff.delay_ms(self.failures)
        self.failures += 1
        self.failed_rounds += 1

    # moving bytes

    def send(
        self, request: Request[Any], now: int, timeout_ms: int, max_version: int | None, min_version: int | None
    ) -> PendingRequest:
        """Put a request in flight and write what the kernel takes; a broken socket shows at the next poll."""
        assert self.connection is not None
        pending = self.connection.send(
            request, now=now, timeout_ms=timeout_ms, max_version=max_version, min_version=min_version
        )
        self.last_active_at = now
        self._write()
        return pending

    def _write(self) -> None:
        assert self.connection is not None
        assert self._transport is not None
        try:
            self._transport.write(self.connection.data_to_send())
        except OSError:
            # The poller reports a broken socket as readable, and reading says why; answers that came before the break
            # are read first.
            return

    def handle_io(self, readable: bool, writable: bool, now: int) -> Moved:
        """Move bytes as far as possible."""
        moved = Moved()
        if self._transport is None:
            return moved
        try:
            if self.state is NodeState.CONNECTING:
                if not self._transport.continue_connect(writable):
                    return moved
                self._begin_handshake(now)
            elif writable:
                self._transport.flush()
            if readable:
                self._read(moved.responses, now)
        except Exception as error:
            self._broke(error, moved, now)
        return moved

    def reauthenticate_if_wanted(self, now: int) -> Moved:
        """Begin to prolong the session where `takes_requests` found that to be due (KIP-368).

        Not by the clock alone: a connection that nobody uses may end with its session.
        """
        moved = Moved()
        if not self._reauthentication_wanted:
            return moved
        self._reauthentication_wanted = False
        assert self.connection is not None
        try:
            self.connection.reauthenticate(now)
            self._write()
        except Exception as error:
            self._broke(error, moved, now)
        return moved

    def _broke(self, error: Exception, moved: Moved, now: int) -> None:
        assert self._transport is not None
        where = f"{self.broker} at {self._transport.address}"
        if isinstance(error, TlsError) and self.state is not NodeState.READY:
            error = AuthenticationError("TLS_FAILED", f"{where}: {error}")
        elif isinstance(error, AuthenticationError):
            error = AuthenticationError(error.code, f"{where}: {error.message}")
        if isinstance(error, (OSError, ProtocolError)):
            reason = error.message if isinstance(error, ProtocolError) else str(error)
            moved.lost = self.disconnect(f"{where}: {reason}", now)
            return
        # Refused: version or principal. It would be refused again at the host's next address.
        self._addresses.clear()
        moved.lost = self.disconnect(str(error), now)
        moved.refusal = error

    def _begin_handshake(self, now: int) -> None:
        self.state = NodeState.HANDSHAKING
        self.connection = Connection(
            node_id=self.broker.node_id,
            broker=str(self.broker),
            client_id=self._config.client_id,
            now=now,
            request_timeout_ms=self._config.request_timeout_ms,
            authentication=self._authentication,
        )
        self._write()

    def _read(self, responses: list[ResponseReceived], now: int) -> None:
        assert self.connection is not None
        assert self._transport is not None
        for _ in range(_READS_PER_POLL):
            data = self._transport.read()
            if data is None:
                return
            self.last_active_at = now
            self.connection.receive_data(data, now)
            while (event := self.connection.next_event()) is not None:
                if isinstance(event, ConnectionReady):
                    self.state = NodeState.READY
                    self.failures = 0
                    self.last_error = ""
                    self._addresses.clear()
                else:
                    responses.append(event)
            self._write()

    # ending

    def expire(self, now: int) -> Lost:
        """Give up what is overdue: a connection attempt, or a request and with it the connection.

        Answers come in order, so behind one that is overdue none can be awaited on this connection.
        """
        if self.state is NodeState.CONNECTING and now >= self._setup_expires_at:
            assert self._transport is not None
            address = self._transport.address
            return self.disconnect(f"{self.broker}: no connection to {address} within the setup timeout", now)
        if self.connection is None:
            return ()
        expires_at = self.connection.expires_at
        if expires_at is None or now < expires_at:
            return ()
        lost = self.disconnect(f"{self.broker}: no answer within the request timeout", now)
        return tuple(
            (pending, RequestTimedOut("REQUEST_TIMED_OUT", error.message) if now >= pending.expires_at else error)
            for pending, error in lost
        )

    def disconnect(self, reason: str, now: int) -> Lost:
        """Close; where the node was not ready yet, go on with its next address or back off."""
        if self.state is NodeState.DISCONNECTED:
            return ()
        was_ready = self.state is NodeState.READY
        lost = () if self.connection is None else self.connection.abandon()
        self.close()
        self.last_error = reason
        if was_ready:
            self._next_attempt_at = now + self._backoff.delay_ms(0)
        else:
            self._connect_next_address(now)
        error = ConnectionLost("CONNECTION_LOST", reason)
        return tuple((pending, error) for pending in lost)

    def close(self) -> None:
        """Close the socket, nothing more."""
        self.state = NodeState.DISCONNECTED
        self.connection = None
        self._reauthentication_wanted = False
        if self._transport is not None:
            self._poller.unregister(self.broker.node_id)
            self._transport.close()
            self._transport = None
