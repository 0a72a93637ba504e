"""The life of a connection in bytes: whole, byte by byte, and from peers that violate the protocol."""

from __future__ import annotations

import logging
import struct
from collections.abc import Generator
from typing import Any

import pytest

from kafka_eos_sink.client.connection import (
    MAX_FRAME_BYTES,
    MAX_FRAME_BYTES_BEFORE_READY,
    MAX_LARGE_FRAME_BYTES,
    Completion,
    Connection,
    ConnectionReady,
    ConnectionState,
    Event,
    PendingRequest,
)
from kafka_eos_sink.errors import BrokerRefusedError, ProtocolError
from kafka_eos_sink.protocol.messages import (
    ApiVersionsResponse,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    FetchRequest,
    FindCoordinatorRequest,
    ListTransactionsRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafka_eos_sink.protocol.schema import Request, encode

UNSUPPORTED_VERSION = 35


def connection(authentication: Any = None, now: int = 0) -> Connection:
    return Connection(
        node_id=1,
        broker="broker 1 (kafka:9092)",
        client_id="test",
        now=now,
        request_timeout_ms=30_000,
        authentication=authentication,
    )


def sent_requests(peer: Connection) -> list[tuple[int, int, int]]:
    """(API key, version, correlation id) of each request that waits to be written."""
    data = b"".join(bytes(part) for part in peer.data_to_send())
    requests = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        requests.append(struct.unpack_from(">hhi", data, 4))
        data = data[4 + size :]
    return requests


def frame(correlation_id: int, body: bytes, *, flexible_header: bool = True) -> bytes:
    payload = struct.pack(">i", correlation_id) + (b"\0" if flexible_header else b"") + body
    return struct.pack(">i", len(payload)) + payload


def api_versions(correlation_id: int = 0, version: int = 4, **fields: Any) -> bytes:
    spoken = [(18, 0, 4), (26, 0, 5), (17, 0, 1), (36, 0, 2)]
    response = ApiVersionsResponse(
        **{
            "error_code": 0,
            "api_keys": tuple(
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, low, high in spoken
            ),
            "finalized_features_epoch": 7,
            "finalized_features": (
                ApiVersionsResponse.FinalizedFeature(
                    name="transaction.version", max_version_level=2, min_version_level=2
                ),
            ),
            **fields,
        }
    )
    return frame(correlation_id, bytes(encode(response, version)), flexible_header=False)


def end_txn_answer(correlation_id: int, error_code: int = 0, version: int = 5) -> bytes:
    return frame(correlation_id, bytes(encode(EndTxnResponse(throttle_time_ms=0, error_code=error_code), version)))


def events(peer: Connection, data: bytes, chunk: int | None = None, now: int = 1) -> list[Event]:
    found: list[Event] = []
    for at in range(0, len(data), chunk or len(data)):
        peer.receive_data(data[at : at + (chunk or len(data))], now=now)
        while (event := peer.next_event()) is not None:
            found.append(event)
    return found


def end_txn() -> EndTxnRequest:
    return EndTxnRequest(transactional_id="a", producer_id=1, producer_epoch=2, committed=True)


def ready_connection() -> Connection:
    peer = connection()
    peer.data_to_send()
    assert events(peer, api_versions()) == [ConnectionReady()]
    return peer


def send(peer: Connection, **options: Any) -> PendingRequest:
    return peer.send(end_txn(), now=10, deadline_ms=1_010, **options)


@pytest.mark.parametrize("chunk", [None, 1, 7])
def test_connection_is_ready_after_response_in_any_chunks(chunk: int | None) -> None:
    peer = connection()
    assert events(peer, api_versions(), chunk) == [ConnectionReady()]
    assert peer.state is ConnectionState.READY
    assert peer.versions.finalized_features == {"transaction.version": 2}
    assert peer.in_flight == 0


def test_api_versions_falls_back_to_version_of_broker() -> None:
    peer = connection()
    peer.data_to_send()
    named = (ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=3),)
    refused = ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=named)
    assert events(peer, frame(0, bytes(encode(refused, 0)), flexible_header=False)) == []
    assert sent_requests(peer) == [(18, 3, 1)]
    assert events(peer, api_versions(1, version=3)) == [ConnectionReady()]


@pytest.mark.parametrize("named", [(), (ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2),)])
def test_broker_before_kafka_3_is_rejected_by_name(named: tuple[ApiVersionsResponse.ApiVersion, ...]) -> None:
    peer = connection()
    refused = ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=named)
    with pytest.raises(BrokerRefusedError, match=r"broker 1 \(kafka:9092\) does not offer ApiVersions") as too_old:
        events(peer, frame(0, bytes(encode(refused, 0)), flexible_header=False))
    assert too_old.value.code == "MISSING_API"


def test_broker_that_rejects_its_own_version_makes_no_loop() -> None:
    peer = connection()
    named = (ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4),)
    refused = ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=named)
    with pytest.raises(ProtocolError, match="rejected ApiVersions 4 and offers 4"):
        events(peer, frame(0, bytes(encode(refused, 0)), flexible_header=False))


@pytest.mark.parametrize("chunk", [None, 1, 13])
def test_responses_arrive_in_request_order_in_any_chunks(chunk: int | None) -> None:
    peer = ready_connection()
    first, second = send(peer), send(peer)
    assert peer.in_flight == 2
    answers = events(peer, end_txn_answer(1) + end_txn_answer(2, error_code=51), chunk)
    assert [(type(event), getattr(event, "pending", None)) for event in answers] == [
        (Completion, first),
        (Completion, second),
    ]
    assert [event.response.error_code for event in answers if isinstance(event, Completion)] == [0, 51]
    assert peer.in_flight == 0


def test_response_out_of_order_is_protocol_error() -> None:
    peer = ready_connection()
    send(peer)
    send(peer)
    with pytest.raises(ProtocolError, match="correlation id"):
        events(peer, end_txn_answer(2))


def test_response_to_no_request_is_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="a response to no request"):
        events(ready_connection(), end_txn_answer(1))


def test_bytes_behind_handshake_are_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="a response to no request"):
        events(connection(), api_versions() + b"\0")


def test_frame_size_is_limited_before_connection_is_ready() -> None:
    size = struct.pack(">i", MAX_FRAME_BYTES_BEFORE_READY + 1)
    with pytest.raises(ProtocolError, match=r"security\.protocol"):
        events(connection(), size)
    authenticating = connection(session_dialogue)
    events(authenticating, api_versions())
    with pytest.raises(ProtocolError, match=r"security\.protocol"):
        events(authenticating, size)
    assert events(ready_connection(), size) == []


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=()), 12),
        (ListTransactionsRequest(), 1),
        (FindCoordinatorRequest(key_type=1, coordinator_keys=()), 4),
        (DescribeTransactionsRequest(transactional_ids=()), 0),
        (DescribeProducersRequest(topics=()), 0),
    ],
)
def test_only_records_and_ids_of_others_may_be_large(request_: Request[Any], version: int) -> None:
    peer = connection()
    api_key = request_.API_KEY
    offered = ApiVersionsResponse.ApiVersion(api_key=api_key, min_version=version, max_version=version)
    assert events(peer, api_versions(api_keys=(offered,))) == [ConnectionReady()]
    peer.send(request_, now=0, deadline_ms=1_000)
    assert events(peer, struct.pack(">i", MAX_LARGE_FRAME_BYTES)) == []
    other = ready_connection()
    send(other)
    with pytest.raises(ProtocolError, match=f"at most {MAX_FRAME_BYTES} are allowed"):
        events(other, struct.pack(">i", MAX_FRAME_BYTES + 1))
    assert MAX_FRAME_BYTES == 16 * 1024 * 1024


def test_request_uses_highest_common_version_within_bounds() -> None:
    peer = ready_connection()
    assert [send(peer).version, send(peer, versions=(None, 4)).version] == [5, 4]
    assert sent_requests(peer) == [(26, 5, 1), (26, 4, 2)]
    with pytest.raises(BrokerRefusedError) as refused:
        send(peer, versions=(6, 6))
    assert refused.value.code == "NO_COMMON_VERSION"
    assert peer.in_flight == 2
    assert peer.data_to_send() == []


def test_throttle_postpones_timeouts_up_to_each_deadline() -> None:
    """A broker reads nothing from a throttled connection (KIP-219), so what is in flight there is not overdue."""
    peer = ready_connection()
    endless = peer.send(end_txn(), now=10)
    bounded = peer.send(end_txn(), now=20, deadline_ms=50_000)
    peer.postpone_timeouts(15_000)
    peer.postpone_timeouts(20_000)
    after = peer.send(end_txn(), now=30)
    assert (endless.expires_at, bounded.expires_at, after.expires_at) == (65_010, 50_000, 30_030)


def test_abandon_returns_requests_without_handshake() -> None:
    assert connection().abandon() == ()
    peer = ready_connection()
    lost = send(peer), send(peer)
    assert peer.abandon() == lost
    assert peer.in_flight == 0


def test_correlation_id_wraps_without_becoming_negative() -> None:
    peer = ready_connection()
    peer.next_correlation_id = 2**31 - 1
    assert [send(peer).correlation_id, send(peer).correlation_id] == [2**31 - 1, 0]


def test_authentication_follows_api_versions() -> None:
    peer = connection(session_dialogue)
    assert events(peer, api_versions()) == []
    assert peer.state is ConnectionState.AUTHENTICATING
    assert events(peer, sasl_answers(1)[0]) == []
    assert sent_requests(peer) == [(18, 4, 0), (17, 1, 1), (36, 2, 2)]
    assert events(peer, sasl_answers(1)[1]) == [ConnectionReady()]


# sessions that end (KIP-368)


def session_dialogue() -> Generator[Any, Any, int]:
    yield SaslHandshakeRequest(mechanism="PLAIN")
    answer = yield SaslAuthenticateRequest(auth_bytes=b"\0user\0secret")
    if answer.error_code:
        raise BrokerRefusedError("SASL_AUTHENTICATION_FAILED", answer.error_message)
    lifetime: int = answer.session_lifetime_ms
    return lifetime


def sasl_answers(first: int, **fields: Any) -> tuple[bytes, bytes]:
    """The answers to handshake and token, the first with this correlation id."""
    handshake = bytes(encode(SaslHandshakeResponse(error_code=0, mechanisms=("PLAIN",)), 1))
    defaults = {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime_ms": 0}
    token = bytes(encode(SaslAuthenticateResponse(**(defaults | fields)), 2))
    return frame(first, handshake, flexible_header=False), frame(first + 1, token)


def session(lifetime_ms: int) -> Connection:
    peer = connection(session_dialogue)
    events(peer, api_versions())
    handshake, token = sasl_answers(1, session_lifetime_ms=lifetime_ms)
    assert events(peer, handshake) == []
    assert events(peer, token) == [ConnectionReady()]
    peer.data_to_send()
    return peer


def test_reauthentication_is_due_before_session_expires() -> None:
    peer = session(10_000)
    due = next(now for now in range(20_000) if peer.reauthentication_due(now))
    assert 8_500 <= due <= 9_501
    assert len({peer.reauthenticate_at for peer in (session(10_000_000) for _ in range(20))}) > 1
    assert not session(0).reauthentication_due(10**12)


def test_session_counts_from_the_request() -> None:
    """The broker counts from its response, which is later than the request and earlier than its arrival here."""
    peer = connection(session_dialogue)
    events(peer, api_versions())
    handshake, token = sasl_answers(1, session_lifetime_ms=10_000)
    assert events(peer, handshake) == []
    peer.receive_data(token, 5_000)
    assert peer.next_event() == ConnectionReady()
    assert peer.reauthenticate_at is not None
    assert peer.reauthenticate_at < 10_000


@pytest.mark.parametrize("chunk", [None, 1, 9])
def test_earlier_responses_arrive_during_reauthentication(chunk: int | None) -> None:
    peer = session(10_000)
    earlier = send(peer), send(peer)
    peer.reauthenticate(9_600)
    assert peer.state is ConnectionState.REAUTHENTICATING
    with pytest.raises(RuntimeError, match="authenticating again"):
        send(peer)
    handshake, token = sasl_answers(5, session_lifetime_ms=10_000)
    answers = events(peer, end_txn_answer(3) + end_txn_answer(4) + handshake, chunk, now=9_610)
    assert [event.pending for event in answers if isinstance(event, Completion)] == list(earlier)
    assert events(peer, token, chunk, now=9_620) == [ConnectionReady()]
    assert [request[0] for request in sent_requests(peer)] == [26, 26, 17, 36]
    assert not peer.reauthentication_due(9_700)
    assert peer.reauthentication_due(9_610 + 9_501)
    assert send(peer).correlation_id == 7


def test_request_whose_response_is_malformed_counts_as_lost() -> None:
    peer = ready_connection()
    sent = send(peer), send(peer)
    body = bytes(encode(EndTxnResponse(throttle_time_ms=0, error_code=0), 5))
    with pytest.raises(ProtocolError):
        events(peer, frame(1, body + b"\0"))
    assert peer.abandon() == sent


# the log


def test_debug_log_holds_no_credentials(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    peer = connection(session_dialogue)
    events(peer, api_versions())
    events(peer, sasl_answers(1)[0])
    with pytest.raises(BrokerRefusedError):
        events(peer, sasl_answers(1, error_code=58, error_message="user, secret: no", auth_bytes=b"secret")[1])
    assert "response: SaslAuthenticate v2, node 1, correlation id 2, 0 ms: SASL_AUTHENTICATION_FAILED" in caplog.text
    assert "secret" not in caplog.text
