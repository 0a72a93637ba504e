"""One broker's connection without its socket: bytes in, answers out (sans-IO, three verbs).

A connection begins with ApiVersions, authenticates where it is told to, and is then ready for requests:

    HANDSHAKING ──ApiVersions──▶ AUTHENTICATING ──generator ends──▶ READY ◀──generator ends── REAUTHENTICATING
         ╰──────────────── no authentication ──────────────────────▲  ╰───── reauthenticate ─────────▲

A broker may let a session end (`connections.max.reauth.ms`, the life of a token): before it does, the connection must
authenticate anew (KIP-368). Meanwhile no request goes out, but answers to earlier ones still come in.

`send` puts a request in flight, `receive_data` takes what the broker sent, `next_event` says what it meant. The bytes
to write come from `data_to_send`. Answers come in the order of the requests: a broker works on one request of a
connection at a time, and a correlation id out of order is a broken peer.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from kafka_eos_sink.errors import BrokerRefusedError, KafkaEosError, ProtocolError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.framing import FrameReader, decode_response, encode_request
from kafka_eos_sink.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from kafka_eos_sink.protocol.schema import Request

MAX_FRAME_BYTES = 100 * 1024 * 1024
MAX_FRAME_BYTES_BEFORE_READY = 64 * 1024
API_VERSIONS_KEY = ApiVersionsRequest.API_KEY
NOTHING_ASKED = "sent an answer that nothing asked for"
API_VERSIONS = ApiVersionsRequest(client_software_name="kafka-eos-sink", client_software_version="0.1.0")

REAUTHENTICATE_AFTER = (0.85, 0.95)
"""The part of a session's life after which it is prolonged, as in Java: random, lest all clients come at once."""

Dialogue = Generator[Request[Any], Any, int | None]
Authentication = Callable[[], Dialogue]
"""Makes the client's side of an authentication: yields requests, is sent their responses, raises to refuse, returns
the session's lifetime in ms (0 or None: it does not end)."""


class LostAnswer(KafkaEosError):
    """A request was sent and its answer did not come: it may have been processed, nobody here can know."""


class ConnectionLost(LostAnswer):
    """The connection broke while the request was in flight (code CONNECTION_LOST)."""


class RequestTimedOut(LostAnswer):
    """No answer within the request's timeout; the connection was closed over it (code REQUEST_TIMED_OUT)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingRequest:
    """A request in flight, equal only to itself: `version` is the API version it was encoded in; times are clock ms."""

    node_id: int
    request: Request[Any]
    version: int
    correlation_id: int
    sent_at: int
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseReceived:
    """The answer to the oldest request in flight."""

    pending: PendingRequest
    response: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionReady:
    """Versions are agreed and the principal is authenticated: requests may be sent."""


Event = ResponseReceived | ConnectionReady


class ConnectionState(Enum):
    HANDSHAKING = "waiting for ApiVersions"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    REAUTHENTICATING = "authenticating again"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerVersions:
    """What a broker said in its ApiVersions answer: API key -> (lowest, highest version), and the cluster's features.

    `features_epoch` orders the answers of different brokers; -1 where the broker does not know (then no features).
    """

    api_versions: Mapping[int, tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    finalized_features: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    features_epoch: int = -1

    @classmethod
    def from_response(cls, response: ApiVersionsResponse) -> BrokerVersions:
        known = response.finalized_features_epoch >= 0
        return cls(
            api_versions={api.api_key: (api.min_version, api.max_version) for api in response.api_keys},
            finalized_features=MappingProxyType(
                {feature.name: feature.max_version_level for feature in response.finalized_features} if known else {}
            ),
            features_epoch=response.finalized_features_epoch,
        )

    def negotiate(
        self,
        request: type[Request[Any]],
        broker: str,
        *,
        max_version: int | None = None,
        min_version: int | None = None,
    ) -> int:
        """The highest version that the broker and `request` share, between `min_version` and `max_version`.

        `broker` is its name for messages. Raises BrokerRefusedError: BROKER_TOO_OLD where the broker stops before our
        first version, NO_COMMON_VERSION where it begins after our last one or the bounds leave nothing.
        """
        api = request.__name__.removesuffix("Request")
        first, last = request.VERSIONS[0], request.VERSIONS[-1]
        lowest, highest = self.api_versions.get(request.API_KEY, (0, -1))
        if highest < first:
            spoken = f"only up to version {highest}" if highest >= 0 else "not at all"
            raise BrokerRefusedError(
                "BROKER_TOO_OLD",
                f"{broker} speaks {api} {spoken}; version {first} is the first one that this client speaks: "
                "Apache Kafka 3.0 or later is needed",
            )
        first = first if min_version is None else max(first, min_version)
        last = last if max_version is None else min(last, max_version)
        common = min(last, highest)
        if common < max(first, lowest):
            raise BrokerRefusedError(
                "NO_COMMON_VERSION",
                f"{broker} speaks {api} {lowest} to {highest}; here a version from {first} to {last} is needed",
            )
        return common


class Connection:
    """The protocol of one connection to `broker` (its name for messages); see the module's text for its life."""

    def __init__(
        self,
        *,
        node_id: int,
        broker: str,
        client_id: str,
        now: int,
        request_timeout_ms: int,
        authentication: Authentication | None = None,
    ) -> None:
        self.state = ConnectionState.HANDSHAKING
        self.versions = BrokerVersions()
        self._node_id = node_id
        self._broker = broker
        self._client_id = client_id
        self._now = now
        self._request_timeout_ms = request_timeout_ms
        self._authentication = authentication
        self._dialogue: Dialogue | None = None
        self._dialogue_request: PendingRequest | None = None
        self._reauthenticate_at: int | None = None
        self._frames = FrameReader(MAX_FRAME_BYTES_BEFORE_READY)
        self._in_flight: deque[PendingRequest] = deque()
        self._output: list[bytes | memoryview] = []
        self._next_correlation_id = 0
        self._send(API_VERSIONS, ApiVersionsRequest.VERSIONS[-1], now, request_timeout_ms)

    # the three verbs

    def send(
        self,
        request: Request[Any],
        *,
        now: int,
        timeout_ms: int,
        max_version: int | None = None,
        min_version: int | None = None,
    ) -> PendingRequest:
        """Put a request in flight, in the highest common version. Raises BrokerRefusedError where there is none."""
        if self.state is not ConnectionState.READY:
            raise RuntimeError(f"{self._broker} is {self.state.value}, not ready for requests")
        version = self.versions.negotiate(type(request), self._broker, max_version=max_version, min_version=min_version)
        return self._send(request, version, now, timeout_ms)

    def receive_data(self, data: bytes | memoryview, now: int) -> None:
        """Take bytes from the broker; `next_event` tells what they were."""
        self._now = now
        self._frames.feed(data)

    def next_event(self) -> Event | None:
        """The next thing that happened, None where more bytes are needed.

        Raises ProtocolError for a peer that does not speak Kafka, BrokerRefusedError for one that is too old; the
        connection is of no use after either.
        """
        while (frame := self._frames.next_frame()) is not None:
            if not self._in_flight:
                raise ProtocolError(NOTHING_ASKED)
            pending = self._in_flight.popleft()
            if self.state is ConnectionState.HANDSHAKING:
                if self._receive_api_versions(pending, frame):
                    return self._become_ready()
            elif pending is self._dialogue_request:
                if self._continue_authentication(self._decode(pending, frame)):
                    return self._become_ready()
            else:
                return ResponseReceived(pending=pending, response=self._decode(pending, frame))
        return None

    def data_to_send(self) -> list[bytes | memoryview]:
        """The buffers to write, once; bodies of records are not copied into them."""
        output, self._output = self._output, []
        return output

    # in flight

    @property
    def in_flight(self) -> int:
        """How many requests await an answer, those of the handshake included."""
        return len(self._in_flight)

    @property
    def expires_at(self) -> int | None:
        """When the first answer is overdue, in clock ms."""
        # A later request may have the shorter timeout, so the oldest is not enough to look at.
        return min((pending.expires_at for pending in self._in_flight), default=None)

    def abandon(self) -> tuple[PendingRequest, ...]:
        """The connection broke: the requests that will have no answer, oldest first, without those of the handshake."""
        was_ready = self.state in (ConnectionState.READY, ConnectionState.REAUTHENTICATING)
        lost = tuple(each for each in self._in_flight if each is not self._dialogue_request) if was_ready else ()
        self._in_flight.clear()
        return lost

    # the session

    def reauthentication_due(self, now: int) -> bool:
        """Whether the session is to be prolonged before another request is sent."""
        return self.state is ConnectionState.READY and (
            self._reauthenticate_at is not None and now >= self._reauthenticate_at
        )

    def reauthenticate(self, now: int) -> None:
        """Authenticate anew on the living connection; ConnectionReady comes when that is done. Raises as next_event."""
        assert self.state is ConnectionState.READY
        self._now = now
        self.state = ConnectionState.REAUTHENTICATING
        self._begin_authentication()

    # inside

    def _send(self, request: Request[Any], version: int, now: int, timeout_ms: int) -> PendingRequest:
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        buffers = encode_request(request, version, correlation_id, self._client_id)
        pending = PendingRequest(
            node_id=self._node_id,
            request=request,
            version=version,
            correlation_id=correlation_id,
            sent_at=now,
            expires_at=now + timeout_ms,
        )
        self._output.extend(buffers)
        self._in_flight.append(pending)
        return pending

    def _decode(self, pending: PendingRequest, frame: memoryview) -> Any:
        return decode_response(type(pending.request), pending.version, frame, pending.correlation_id)

    def _receive_api_versions(self, pending: PendingRequest, frame: memoryview) -> bool:
        """Take the versions over; True where nothing more is to be done, False where another answer must come."""
        response: ApiVersionsResponse = self._decode(pending, frame)
        versions = BrokerVersions.from_response(response)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # KIP-511: a broker that does not know this version of this one request names those that it does know. One
            # that names none knows version 0 only.
            versions = replace(versions, api_versions={API_VERSIONS_KEY: (0, 0), **versions.api_versions})
            version = versions.negotiate(ApiVersionsRequest, self._broker)
            if version >= pending.version:
                raise ProtocolError(f"refused ApiVersions {pending.version} and offers {version}")
            self._send(API_VERSIONS, version, self._now, self._request_timeout_ms)
            return False
        if response.error_code:
            raise ProtocolError(f"answered ApiVersions with {ErrorCode.of(response.error_code).name}")
        self.versions = versions
        if self._authentication is None:
            return True
        self.state = ConnectionState.AUTHENTICATING
        return self._begin_authentication()

    def _begin_authentication(self) -> bool:
        assert self._authentication is not None
        self._dialogue = self._authentication()
        return self._continue_authentication(None)

    def _continue_authentication(self, response: Any) -> bool:
        """Hand an answer to the authentication and send what it says next; True when it is done."""
        assert self._dialogue is not None
        try:
            request = self._dialogue.send(response)
        except StopIteration as end:
            self._plan_reauthentication(end.value or 0)
            self._dialogue = self._dialogue_request = None
            return True
        version = self.versions.negotiate(type(request), self._broker)
        self._dialogue_request = self._send(request, version, self._now, self._request_timeout_ms)
        return False

    def _plan_reauthentication(self, lifetime_ms: int) -> None:
        self._reauthenticate_at = None
        if lifetime_ms > 0:
            # The broker counts from its answer; from the last question on is on the safe side.
            began = self._now if self._dialogue_request is None else self._dialogue_request.sent_at
            self._reauthenticate_at = began + int(lifetime_ms * random.uniform(*REAUTHENTICATE_AFTER))

    def _become_ready(self) -> ConnectionReady:
        if self._frames.buffered:
            raise ProtocolError(NOTHING_ASKED)
        self.state = ConnectionState.READY
        self._frames.max_frame_bytes = MAX_FRAME_BYTES
        return ConnectionReady()
