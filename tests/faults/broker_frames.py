"""The broker's side of Kafka's frames: requests as they come from a client, answers as they go back."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.framing import (
    RequestHeader,
    ResponseHeader,
    request_header_version,
    response_header_version,
)
from kafka_eos_sink.protocol.schema import Request, decode, read_message, write_message
from kafka_eos_sink.protocol.wire_types import Output

SIZE = struct.Struct(">i")
_KEY_AND_VERSION = struct.Struct(">hh")
_APIS: dict[int, type[Request[Any]]] = {request.API_KEY: request for request in m.REQUESTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """A request and its header; `digest` is of its body, without the correlation id."""

    api: type[Request[Any]]
    version: int
    header: RequestHeader
    request: Any
    digest: str


def read_request(frame: bytes) -> ReadRequest:
    """What a frame, its size included, asks for."""
    data = memoryview(frame)[SIZE.size :]
    key, version = _KEY_AND_VERSION.unpack_from(data)
    api = _APIS[key]
    header, at = read_message(RequestHeader, request_header_version(api, version), data, 0)
    return ReadRequest(
        api=api,
        version=version,
        header=header,
        request=decode(api, version, data[at:]),
        digest=hashlib.sha256(data[at:]).hexdigest(),
    )


def answer_frame(api: type[Request[Any]], version: int, correlation_id: int, response: Any) -> bytes:
    """The frame of an answer to a request in this version."""
    # KIP-511: a version that the broker does not know is answered so that a client of any age can read it.
    refused = api is m.ApiVersionsRequest and response.error_code == ErrorCode.UNSUPPORTED_VERSION
    out = Output()
    out += bytes(SIZE.size)
    write_message(out, ResponseHeader(correlation_id=correlation_id), response_header_version(api, version))
    write_message(out, response, 0 if refused else version)
    frame = bytearray(b"".join(out.parts()))
    SIZE.pack_into(frame, 0, len(frame) - SIZE.size)
    return bytes(frame)
