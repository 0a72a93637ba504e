"""Frames and headers: what stands around a message on the connection.

A frame is a size in four bytes and as many bytes. Requests carry header version 2 where they are flexible and 1 where
not; responses carry header version 1 and 0, except ApiVersions, whose response always has version 0: the client cannot
know yet what the broker speaks (KIP-511).
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
ERROR_CODE = _struct.Struct(">h")

LARGEST_FRAME = 2**31 - 1
"""What the size in front of a frame can say."""


@struct
class RequestHeader:
    """What stands before a request. The client id keeps its old form in version 2."""

    FIRST_FLEXIBLE: ClassVar[int] = 2

    request_api_key: Int16
    request_api_version: Int16
    correlation_id: Int32
    client_id: ClassicString | None


@struct
class ResponseHeader:
    """What stands before a response: the correlation id of its request."""

    FIRST_FLEXIBLE: ClassVar[int] = 1

    correlation_id: Int32


def request_header_version(request_cls: type[Request[Any]], version: int) -> int:
    """The version of the header before a request."""
    return 2 if is_flexible(request_cls, version) else 1


def response_header_version(request_cls: type[Request[Any]], version: int) -> int:
    """The version of the header before the answer to a request."""
    return 1 if is_flexible(request_cls, version) and request_cls is not ApiVersionsRequest else 0


def encode_request(
    request: Request[Any], version: int, correlation_id: int, client_id: str | None
) -> list[bytes | memoryview]:
    """The frame of a request, in pieces to be sent one after the other; the records of a Produce are not copied.

    Raises `ProtocolError` where we do not speak the version or the request cannot be said in it.
    """
    cls = type(request)
    if version not in cls.VERSIONS:
        spoken = f"{cls.VERSIONS.start} to {cls.VERSIONS.stop - 1}"
        raise ProtocolError(f"{cls.__name__} is spoken in versions {spoken}, not in {version}")
    header = RequestHeader(
        request_api_key=cls.API_KEY,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    out = Output()
    out += bytes(SIZE.size)
    write_message(out, header, request_header_version(cls, version))
    write_message(out, request, version)
    size = out.total_bytes() - SIZE.size
    if size > LARGEST_FRAME:
        raise ProtocolError(f"{cls.__name__} takes {size} bytes; a frame holds {LARGEST_FRAME}")
    SIZE.pack_into(out, 0, size)
    return out.parts()


class FrameReader:
    """Cuts the bytes of a connection into frames; no I/O.

    Feed it what was received, then take frames until there is none. `max_frame_bytes` may be changed between calls:
    before a peer is authenticated it deserves less. A size beyond it ends the connection: `next_frame` raises
    `ProtocolError` then and ever after.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._received = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take over received bytes; they are copied."""
        self._received += data

    @property
    def buffered(self) -> int:
        """How many bytes were fed and not yet taken as frames."""
        return len(self._received)

    def next_frame(self) -> memoryview | None:
        """The next frame without its size, or None until all of it was fed."""
        if len(self._received) < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(self._received)
        if not 0 <= size <= self.max_frame_bytes:
            # The size comes from the peer: nothing is set aside for it before the bytes are here.
            raise ProtocolError(
                f"frame of {size} bytes where at most {self.max_frame_bytes} are allowed, beginning with "
                f"{bytes(self._received[:16]).hex()}; the peer is no Kafka broker, or it expects another "
                "security.protocol on this port"
            )
        end = SIZE.size + size
        if len(self._received) < end:
            return None
        frame = bytes(memoryview(self._received)[SIZE.size : end])
        del self._received[:end]
        return memoryview(frame)


def decode_response_header(
    request_cls: type[Request[Any]], version: int, frame: bytes | memoryview
) -> tuple[int, memoryview]:
    """The correlation id of a response and what follows its header."""
    data = memoryview(frame)
    header, at = read_message(ResponseHeader, response_header_version(request_cls, version), data, 0)
    return header.correlation_id, data[at:]


def decode_response(request_cls: type[Request[R]], version: int, frame: bytes | memoryview, correlation_id: int) -> R:
    """The answer to the request with this correlation id.

    Raises `ProtocolError` where the frame is the answer to another request or none at all.
    """
    answered, body = decode_response_header(request_cls, version, frame)
    if answered != correlation_id:
        raise ProtocolError(
            f"answer to correlation id {answered} where {request_cls.__name__} v{version} with correlation id "
            f"{correlation_id} is next"
        )
    if request_cls is ApiVersionsRequest and _is_unsupported_version(body):
        version = 0
    response: R = decode(request_cls.RESPONSE, version, body)
    return response


def _is_unsupported_version(body: memoryview) -> bool:
    """A broker that does not know the version of an ApiVersions request answers in version 0 (KIP-511)."""
    return len(body) >= 2 and ERROR_CODE.unpack_from(body)[0] == ErrorCode.UNSUPPORTED_VERSION
