"""Frames and headers: whole, byte by byte and broken."""

from __future__ import annotations

import struct as binary

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.framing import (
    FrameReader,
    decode_response,
    encode_request,
    request_header_version,
    response_header_version,
)
from kafka_eos_sink.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    SaslHandshakeRequest,
)
from kafka_eos_sink.protocol.schema import encode

END = EndTxnRequest(transactional_id="a", producer_id=1, producer_epoch=2, committed=True)
ENDED = EndTxnResponse(throttle_time_ms=0, error_code=0, producer_id=1, producer_epoch=3)


def framed(body: bytes) -> bytes:
    return binary.pack(">i", len(body)) + body


# Requests


def test_flexible_request_has_header_v2_and_old_style_client_id() -> None:
    frame = b"".join(encode_request(END, 5, 7, "me"))
    assert frame == framed(
        b"\x00\x1a\x00\x05\x00\x00\x00\x07\x00\x02me\x00"  # EndTxn, version 5, correlation id 7, "me", no tags
        b"\x02a\x00\x00\x00\x00\x00\x00\x00\x01\x00\x02\x01\x00"
    )


# Responses


@pytest.mark.parametrize(
    ("request_cls", "version", "request_header", "response_header"),
    [
        (EndTxnRequest, 5, 2, 1),
        (ApiVersionsRequest, 3, 2, 0),
        (ApiVersionsRequest, 4, 2, 0),
        (SaslHandshakeRequest, 1, 1, 0),
    ],
)
def test_header_versions(request_cls: type, version: int, request_header: int, response_header: int) -> None:
    assert request_header_version(request_cls, version) == request_header
    assert response_header_version(request_cls, version) == response_header


def test_a_response_is_decoded_after_its_header() -> None:
    frame = b"\x00\x00\x00\x07\x00" + encode(ENDED, 5)
    assert decode_response(EndTxnRequest, 5, frame, 7) == ENDED


def test_a_response_to_another_request_is_refused() -> None:
    frame = b"\x00\x00\x00\x07\x00" + encode(ENDED, 5)
    with pytest.raises(
        ProtocolError, match=r"response with correlation id 7, but .* EndTxnRequest v5 with correlation id 8"
    ):
        decode_response(EndTxnRequest, 5, frame, 8)


@pytest.mark.parametrize("length", range(5))
def test_a_frame_that_ends_within_its_header_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match="ResponseHeader"):
        decode_response(EndTxnRequest, 5, b"\x00\x00\x00\x07\x00"[:length], 7)


def test_old_brokers_api_versions_response_is_read_in_version_0() -> None:
    answer = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=(ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=3),),
    )
    frame = b"\x00\x00\x00\x01" + encode(answer, 0)
    assert frame[4:] == b"\x00\x23\x00\x00\x00\x01\x00\x12\x00\x00\x00\x03"
    assert decode_response(ApiVersionsRequest, 4, frame, 1) == answer


# Frames


@given(st.lists(st.binary(max_size=50), max_size=8), st.data())
def test_frames_fed_in_any_pieces(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(framed(frame) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader = FrameReader(50)
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(memoryview(stream)[start:end])
        while (frame := reader.next_frame()) is not None:
            found.append(bytes(frame))
    assert found == frames


def test_returned_frame_is_unchanged_by_later_input() -> None:
    reader = FrameReader(1000)
    reader.feed(framed(b"one"))
    frame = reader.next_frame()
    reader.feed(framed(b"two"))
    assert reader.next_frame() == b"two"
    assert frame == b"one"


@pytest.mark.parametrize("size", [11, 2**31 - 1, -1, -(2**31)])
def test_a_frame_of_a_size_that_is_not_allowed_ends_the_stream(size: int) -> None:
    reader = FrameReader(10)
    reader.feed(framed(b"0123456789") + binary.pack(">i", size))
    assert reader.next_frame() == b"0123456789"
    for _ in range(2):
        with pytest.raises(ProtocolError, match=f"frame of {size} bytes, but at most 10 are allowed"):
            reader.next_frame()


def test_non_kafka_response_names_the_property_to_check() -> None:
    reader = FrameReader(65536)
    reader.feed(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(ProtocolError, match=r"security\.protocol"):
        reader.next_frame()
