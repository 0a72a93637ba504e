"""The protocol of one connection to a broker, without its socket (sans-IO).

A connection sends ApiVersions, authenticates if the listener requires it, and is then ready for requests. A node without
a socket is DISCONNECTED. CONNECTING lasts until TCP and TLS are set up. This module holds the other states:

    HANDSHAKING ──ApiVersions──▶ AUTHENTICATING ──dialogue ends──▶ READY ◀──dialogue ends── REAUTHENTICATING
         ╰──────────────── no authentication ─────────────────────▲  ╰───── reauthenticate ─────▲

A broker may limit a session (``connections.max.reauth.ms``, the lifetime of a token). The connection re-authenticates
before the session expires (KIP-368). Meanwhile it sends no other request, but responses to earlier requests still arrive.

Responses arrive in the order of the requests, because a broker processes one request per connection at a time. A
correlation id out of order is a protocol error.

At DEBUG the module logs every request and response: names, numbers and error codes, never contents.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from kafka_eos_sink import __version__
from kafka_eos_sink.client.metadata import NEVER
from kafka_eos_sink.errors import BrokerRefusedError, KafkaEosError, MissingApiError, ProtocolError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.framing import FrameReader, decode_response, encode_request
from kafka_eos_sink.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    ListTransactionsRequest,
)
from kafka_eos_sink.protocol.schema import Request

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_LARGE_FRAME_BYTES = 100 * 1024 * 1024
LARGE_RESPONSES = (
    FetchRequest,
    ListTransactionsRequest,
    FindCoordinatorRequest,
    DescribeTransactionsRequest,
    DescribeProducersRequest,
)
"""Other programs decide the size of these responses. Fetch returns the first batch whatever its size, a transactional id can take
32 KiB, and DescribeProducers lists every producer id of the last day."""
# Before authentication, a few bytes from a stranger must not make the client reserve much memory.
MAX_FRAME_BYTES_BEFORE_READY = 64 * 1024
_NAMES_AT_MOST = 5
UNSOLICITED = "sent a response to no request"
API_VERSIONS = ApiVersionsRequest(client_software_name="kafka-eos-sink", client_software_version=__version__)

REAUTHENTICATE_AFTER = (0.85, 0.95)
"""A connection re-authenticates after a random fraction of the session's lifetime, between these bounds, as in Java."""

Versions = tuple[int | None, int | None]
"""The lowest and the highest API version of a request, None for any."""
ANY_VERSION: Versions = (None, None)

Dialogue = Generator[Request[Any], Any, int | None]
"""The client's side of an authentication: yields requests, receives their responses, raises to reject the broker.

Returns the session's lifetime in ms; 0 or None if the session does not expire.
"""
Authentication = Callable[[], Dialogue]


class LostResponse(KafkaEosError):
    """The response was lost: the broker may or may not have processed the request."""


class ConnectionLost(LostResponse):
    """The connection broke while the request was in flight (code CONNECTION_LOST)."""


class RequestTimedOut(LostResponse):
    """No response in time; the connection was closed (code REQUEST_TIMED_OUT)."""


@dataclass(slots=True, kw_only=True, eq=False)
class PendingRequest:
    """A request in flight with its API version; times are ms of the client's clock.

    ``expires_at`` moves, but not beyond ``deadline_ms``, if the broker throttles the connection.
    """

    node_id: int
    # Never in a repr: the fields of requests hold records and credentials.
    request: Request[Any] = field(repr=False)
    version: int
    correlation_id: int
    sent_at: int
    expires_at: int
    deadline_ms: int = NEVER

    def __str__(self) -> str:
        api = api_name(type(self.request))
        return f"{api} v{self.version}, node {self.node_id}, correlation id {self.correlation_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The end of a request: exactly one of ``response`` and ``error`` is set."""

    pending: PendingRequest
    response: Any | None = None
    error: LostResponse | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionReady:
    """The event after versions and authentication: requests may be sent."""


Event = Completion | ConnectionReady


class ConnectionState(Enum):
    """The states of a node's connection; see the module's docstring."""

    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    HANDSHAKING = "waiting for ApiVersions"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    REAUTHENTICATING = "authenticating again"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerVersions:
    """A broker's versions (API key -> lowest, highest) and finalized feature levels.

    ``features_epoch`` orders the responses of different brokers; -1 if the broker does not know the features yet.
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

    def highest(self, request: type[Request[Any]]) -> int:
        """Return the broker's highest version of a request, -1 if it has none."""
        return self.api_versions.get(request.API_KEY, (0, -1))[1]

    def offered(self, request: type[Request[Any]]) -> str:
        """Describe the broker's versions of a request, for messages."""
        lowest, highest = self.api_versions.get(request.API_KEY, (0, -1))
        return f"{lowest} to {highest}" if highest >= 0 else "none"

    def negotiate(self, request: type[Request[Any]], broker: str, versions: Versions = ANY_VERSION) -> int:
        """Return the highest version that broker and client share.

        Args:
            broker: The broker's name for messages.
            versions: Bounds of the result.

        Raises:
            MissingApiError: Broker and client have no version in common.
            BrokerRefusedError: NO_COMMON_VERSION, if the bounds leave no version.
        """
        api = api_name(request)
        first, last = request.VERSIONS[0], request.VERSIONS[-1]
        lowest, highest = self.api_versions.get(request.API_KEY, (0, -1))
        if highest < first or lowest > last:
            raise MissingApiError(
                "MISSING_API",
                f"{broker} does not offer {api} in a version that this client speaks ({first} to {last}, offered: "
                f"{self.offered(request)}); kafka-eos check shows all missing APIs",
            )
        first = first if versions[0] is None else max(first, versions[0])
        last = last if versions[1] is None else min(last, versions[1])
        common = min(last, highest)
        if common < max(first, lowest):
            raise BrokerRefusedError(
                "NO_COMMON_VERSION",
                f"{broker} speaks {api} in versions {lowest} to {highest}, and this request requires one from {first} to {last}",
            )
        return common


def api_name(request: type[Request[Any]]) -> str:
    """Return the API's name in Kafka's documentation, such as ``EndTxn``."""
    return request.__name__.removesuffix("Request")


class Connection:
    """The protocol of one connection. ``broker`` is the broker's name in messages."""

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
        self.next_correlation_id = 0
        self.reauthenticate_at: int | None = None
        self._node_id = node_id
        self._broker = broker
        self._client_id = client_id
        self._now = now
        self._request_timeout_ms = request_timeout_ms
        self.authentication = authentication
        self._dialogue: Dialogue | None = None
        self._dialogue_request: PendingRequest | None = None
        self._frames = FrameReader(MAX_FRAME_BYTES_BEFORE_READY)
        self._in_flight: deque[PendingRequest] = deque()
        self._output: list[bytes | memoryview] = []
        self._send(API_VERSIONS, ApiVersionsRequest.VERSIONS[-1], now)

    def send(
        self, request: Request[Any], *, now: int, deadline_ms: int = NEVER, versions: Versions = ANY_VERSION
    ) -> PendingRequest:
        """Put a request in flight in the highest common version; raises as ``negotiate``."""
        if self.state is not ConnectionState.READY:
            raise RuntimeError(f"{self._broker} is not ready for requests: {self.state.value}")
        version = self.versions.negotiate(type(request), self._broker, versions)
        return self._send(request, version, now, deadline_ms)

    def receive_data(self, data: bytes | memoryview, now: int) -> None:
        """Store bytes from the broker for ``next_event``."""
        self._now = now
        self._frames.feed(data)

    def next_event(self) -> Event | None:
        """Return the next event, None if more bytes are needed.

        Raises:
            ProtocolError: The broker sent bytes that are not Kafka's protocol.
            MissingApiError: The broker offers no version that the handshake needs.
            AuthenticationError: The dialogue rejected the broker, or the broker rejected the client.

        After an error, close the connection.
        """
        while (frame := self._next_frame()) is not None:
            if not self._in_flight:
                raise ProtocolError(UNSOLICITED)
            # Decode first, remove second: if the response cannot be decoded, `abandon` must report its request as lost.
            response = self._decode(self._in_flight[0], frame)
            pending = self._in_flight.popleft()
            if self.state is ConnectionState.HANDSHAKING:
                if self._receive_api_versions(pending, response):
                    return self._become_ready()
            elif pending is self._dialogue_request:
                # Requests from before the re-authentication get their responses first, in the branch below.
                if self._continue_authentication(response):
                    return self._become_ready()
            else:
                return Completion(pending=pending, response=response)
        return None

    def data_to_send(self) -> list[bytes | memoryview]:
        """Return the buffers to write, each once and without copies of record data."""
        output, self._output = self._output, []
        return output

    # in flight

    @property
    def in_flight(self) -> int:
        """The number of requests without a response, including the handshake's."""
        return len(self._in_flight)

    @property
    def expires_at(self) -> int | None:
        """The clock ms at which the first response is overdue, None without a request."""
        # A later request may have a shorter timeout than the oldest one.
        return min((pending.expires_at for pending in self._in_flight), default=None)

    def postpone_timeouts(self, ms: int) -> None:
        """Give requests in flight ``ms`` more: the broker reads none now (KIP-219)."""
        for pending in self._in_flight:
            pending.expires_at = min(pending.expires_at + ms, pending.deadline_ms)

    @property
    def is_established(self) -> bool:
        """Whether the connection is ready, or re-authenticates after it was."""
        return self.state in (ConnectionState.READY, ConnectionState.REAUTHENTICATING)

    def abandon(self, reason: str = "") -> tuple[PendingRequest, ...]:
        """Return the lost requests, oldest first, without requests of the handshake."""
        if log.isEnabledFor(logging.DEBUG):
            for pending in self._in_flight:
                log.debug("[%s] lost response: %s: %s", self._client_id, pending, reason)
        lost = tuple(each for each in self._in_flight if each is not self._dialogue_request)
        self._in_flight.clear()
        return lost if self.is_established else ()

    # the session

    def reauthentication_due(self, now: int) -> bool:
        """Whether the connection must re-authenticate before it sends another request."""
        return self.state is ConnectionState.READY and (
            self.reauthenticate_at is not None and now >= self.reauthenticate_at
        )

    def reauthenticate(self, now: int) -> None:
        """Re-authenticate until ConnectionReady; raises as ``next_event``."""
        assert self.state is ConnectionState.READY
        self._now = now
        # Not READY any more: a broker closes the connection if another request arrives during the dialogue (KIP-368).
        self.state = ConnectionState.REAUTHENTICATING
        self._begin_authentication()

    # inside

    def _send(self, request: Request[Any], version: int, now: int, deadline_ms: int = NEVER) -> PendingRequest:
        # The header holds a signed int32: after its maximum the ids begin at 0 again.
        correlation_id = self.next_correlation_id
        self.next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        buffers = encode_request(request, version, correlation_id, self._client_id)
        pending = PendingRequest(
            node_id=self._node_id,
            request=request,
            version=version,
            correlation_id=correlation_id,
            sent_at=now,
            expires_at=min(now + self._request_timeout_ms, deadline_ms),
            deadline_ms=deadline_ms,
        )
        self._output.extend(buffers)
        self._in_flight.append(pending)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("[%s] request: %s", self._client_id, pending)
        return pending

    def _next_frame(self) -> memoryview | None:
        """Return the next frame; only `LARGE_RESPONSES` may be large."""
        if self.is_established:
            is_large = self._in_flight and isinstance(self._in_flight[0].request, LARGE_RESPONSES)
            self._frames.max_frame_bytes = MAX_LARGE_FRAME_BYTES if is_large else MAX_FRAME_BYTES
        return self._frames.next_frame()

    def _decode(self, pending: PendingRequest, frame: memoryview) -> Any:
        response = decode_response(type(pending.request), pending.version, frame, pending.correlation_id)
        if log.isEnabledFor(logging.DEBUG):
            took_ms = self._now - pending.sent_at
            log.debug("[%s] response: %s, %d ms: %s", self._client_id, pending, took_ms, describe_errors(response))
        return response

    def _receive_api_versions(self, pending: PendingRequest, response: ApiVersionsResponse) -> bool:
        """Store the broker's versions; return True if the connection is then ready."""
        versions = BrokerVersions.from_response(response)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # KIP-511: a broker that does not know this version of ApiVersions responds in version 0 and lists the
            # versions it knows. A broker that lists none knows only version 0.
            versions = replace(versions, api_versions={ApiVersionsRequest.API_KEY: (0, 0), **versions.api_versions})
            version = versions.negotiate(ApiVersionsRequest, self._broker)
            if version >= pending.version:
                raise ProtocolError(f"rejected ApiVersions {pending.version} and offers {version}, which is not lower")
            self._send(API_VERSIONS, version, self._now)
            return False
        if response.error_code:
            raise ProtocolError(f"failed ApiVersions with {ErrorCode.of(response.error_code).name}")
        self.versions = versions
        if self.authentication is None:
            return True
        self.state = ConnectionState.AUTHENTICATING
        return self._begin_authentication()

    def _begin_authentication(self) -> bool:
        assert self.authentication is not None
        self._dialogue = self.authentication()
        return self._continue_authentication(None)

    def _continue_authentication(self, response: Any) -> bool:
        """Advance the dialogue by a response; return True when the dialogue ends."""
        assert self._dialogue is not None
        try:
            request = self._dialogue.send(response)
        except StopIteration as end:
            self._plan_reauthentication(end.value or 0)
            self._dialogue = self._dialogue_request = None
            return True
        version = self.versions.negotiate(type(request), self._broker)
        self._dialogue_request = self._send(request, version, self._now)
        return False

    def _plan_reauthentication(self, lifetime_ms: int) -> None:
        self.reauthenticate_at = None
        if lifetime_ms > 0:
            # The broker counts from its response. Counting from the earlier request can only renew the session earlier.
            began = self._now if self._dialogue_request is None else self._dialogue_request.sent_at
            self.reauthenticate_at = began + int(lifetime_ms * random.uniform(*REAUTHENTICATE_AFTER))

    def _become_ready(self) -> ConnectionReady:
        if self._frames.buffered:
            # The client has sent nothing since the dialogue's last request, so no other response can be outstanding.
            raise ProtocolError(UNSOLICITED)
        self.state = ConnectionState.READY
        return ConnectionReady()


def describe_errors(response: Any) -> str:
    """Describe a response for the log, as ``no error`` or ``NOT_COORDINATOR x 3``."""
    counts = Counter(code for code in _error_codes(response) if code)
    if not counts:
        return "no error"
    names = [
        ErrorCode.of(code).name + (f" x {count}" if count > 1 else "")
        for code, count in counts.most_common(_NAMES_AT_MOST)
    ]
    return ", ".join(names) + (", ..." if len(counts) > _NAMES_AT_MOST else "")


def _error_codes(value: Any) -> Iterator[int]:
    """Yield every ``*error_code`` field of a struct, at any depth."""
    if isinstance(value, tuple):
        for element in value:
            # Stop at the first number or string: such an array holds no codes, and it may be long.
            if not is_dataclass(element):
                return
            yield from _error_codes(element)
    elif is_dataclass(value):
        for each in fields(value):
            found = getattr(value, each.name)
            if each.name.endswith("error_code"):
                yield found
            else:
                yield from _error_codes(found)
