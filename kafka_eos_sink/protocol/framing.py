"""Encode and decode the frame and header of each message.

A frame is a size of four bytes, a header and a message; the size counts header and message. The header of a request has
version 2 if the request is flexible, else 1. The header of a response has version 1 if flexible, else 0.
"""

from __future__ import annotations

import struct as _struct
from typing import Any, ClassVar, TypeVar

from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.messages import ApiVersionsRequest
from kafka_eos_sink.protocol.schema import Request, decode, is_flexible, read_message, struct, write_message
from kafka_eos_sink.protocol.wire_types import ClassicString, Int16, Int32, Output

R = TypeVar("R")

SIZE = _struct.Struct(">i")
UNSUPPORTED_VERSION = _struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)

LARGEST_FRAME = 2**31 - 1  # the size is a signed int32


@struct
class RequestHeader:
    """The header of a request. The client id has a classic length even in version 2."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    request_api_key: Int16
    request_api_version: Int16
    correlation_id: Int32
    client_id: ClassicString | None


@struct
class ResponseHeader:
    """The header of a response, with the correlation id of its request."""

    FIRST_FLEXIBLE: ClassVar[int] = 1

    correlation_id: Int32


def request_header_version(request_cls: type[Request[Any]], version: int) -> int:
    return 2 if is_flexible(request_cls, version) else 1


def response_header_version(request_cls: type[Request[Any]], version: int) -> int:
    """Return the version of the header of the response to a request."""
    # An ApiVersions response always has header version 0: its reader does not know the broker's versions yet (KIP-511).
    return 1 if is_flexible(request_cls, version) and request_cls is not ApiVersionsRequest else 0


def encode_request(
    request: Request[Any], version: int, correlation_id: int, client_id: str | None
) -> list[bytes | memoryview]:
    """Encode the frame of a request, in pieces, without a copy of Produce records.

    Raises ``ProtocolError`` if this client does not support the version, or if the version cannot express the request.
    """
    cls = type(request)
    if version not in cls.VERSIONS:
        supported = f"{cls.VERSIONS.start} to {cls.VERSIONS.stop - 1}"
        raise ProtocolError(f"this client supports {cls.__name__} in versions {supported}, not in {version}")
    header = RequestHeader(
        request_api_key=cls.API_KEY, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    out = Output()
    out += bytes(SIZE.size)  # overwritten below, when the size is known
    write_message(out, header, request_header_version(cls, version))
    write_message(out, request, version)
    size = out.total_bytes() - SIZE.size
    if size > LARGEST_FRAME:
        raise ProtocolError(f"{cls.__name__} takes {size} bytes, above a frame's maximum of {LARGEST_FRAME}")
    SIZE.pack_into(out, 0, size)
    return out.parts()


class FrameReader:
    """Cut the bytes of a connection into frames, without I/O.

    Feed the received bytes, then call ``next_frame`` until it returns None. The caller may change ``max_frame_bytes``:
    before authentication, a smaller limit is enough. After a larger frame, every ``next_frame`` raises ``ProtocolError``.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._received = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append a copy of received bytes."""
        self._received += data

    @property
    def buffered(self) -> int:
        """The number of fed bytes that ``next_frame`` has not returned."""
        return len(self._received)

    def next_frame(self) -> memoryview | None:
        """Return the next frame without its size, or None if it is incomplete."""
        if len(self._received) < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(self._received)
        if not 0 <= size <= self.max_frame_bytes:
            # The peer chose this size. The reader allocates memory only for bytes that have arrived.
            raise ProtocolError(
                f"frame of {size} bytes, but at most {self.max_frame_bytes} are allowed; the peer sent "
                f"{bytes(self._received[:16]).hex()}. The peer is not a Kafka broker, or it expects another "
                "security.protocol on this port, or its response is larger than this client reads"
            )
        end = SIZE.size + size
        if len(self._received) < end:
            return None
        frame = bytes(memoryview(self._received)[SIZE.size : end])
        del self._received[:end]
        return memoryview(frame)


def decode_response(request_cls: type[Request[R]], version: int, frame: bytes | memoryview, correlation_id: int) -> R:
    """Decode the response to the request with this correlation id.

    Raises ``ProtocolError`` if the frame is the response to another request, or not a response.
    """
    data = memoryview(frame)
    header, at = read_message(ResponseHeader, response_header_version(request_cls, version), data, 0)
    body = data[at:]
    if header.correlation_id != correlation_id:
        raise ProtocolError(
            f"response with correlation id {header.correlation_id}, but the oldest request in flight is {request_cls.__name__} v{version} "
            f"with correlation id {correlation_id}"
        )
    if request_cls is ApiVersionsRequest and body[:2] == UNSUPPORTED_VERSION:
        # A broker that does not support the version of ApiVersions responds in version 0 (KIP-511).
        version = 0
    response: R = decode(request_cls.RESPONSE, version, body)
    return response
