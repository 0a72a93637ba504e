"""Whatever the bytes: a message is decoded to what was encoded, or refused with ProtocolError and nothing else."""

from __future__ import annotations

import typing
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol.framing import FrameReader, decode_response
from kafka_eos_sink.protocol.messages import REQUESTS, ApiVersionsResponse
from kafka_eos_sink.protocol.schema import decode, encode, is_flexible, layout

MESSAGES = [
    (cls, version) for request in REQUESTS for version in request.VERSIONS for cls in (request, request.RESPONSE)
]
MESSAGES += [(ApiVersionsResponse, 0)]
EXCHANGES = [(request, version) for request in REQUESTS for version in request.VERSIONS]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "string": TEXT,
    "bytes": st.binary(max_size=6),
    "records": st.binary(max_size=12),
    "uuid": st.uuids(),
}

every_message = pytest.mark.parametrize(
    ("cls", "version"), MESSAGES, ids=lambda value: str(getattr(value, "__name__", value))
)
every_exchange = pytest.mark.parametrize(
    ("request_cls", "version"), EXCHANGES, ids=lambda value: str(getattr(value, "__name__", value))
)
few = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


@cache
def messages(cls: type, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    """Any message of a version; the fields that it lacks have their defaults."""
    hints = typing.get_type_hints(cls, include_extras=True)
    members = {}
    for member in layout(cls, version, flexible):
        kind = member.codec.name
        item = SCALARS.get(kind.removeprefix("[]"))
        if item is None:
            hint = hints[member.name]
            while typing.get_args(hint):
                hint = typing.get_args(hint)[0]
            item = messages(hint, version, flexible)
        value = st.lists(item, max_size=2).map(tuple) if kind.startswith("[]") else item
        members[member.name] = st.none() | value if member.codec.nullable else value
    return st.builds(cls, **members)


def decodes_or_refuses(cls: type, version: int, raw: bytes) -> None:
    try:
        value = decode(cls, version, raw)
    except ProtocolError:
        return
    # What was accepted can be said again, and means the same.
    assert decode(cls, version, encode(value, version)) == value


@every_message
@few
@given(data=st.data())
def test_a_message_survives_the_wire(cls: type, version: int, data: st.DataObject) -> None:
    value = data.draw(messages(cls, version, is_flexible(cls, version)))
    assert decode(cls, version, encode(value, version)) == value


@every_message
@few
@given(data=st.data())
def test_a_message_cut_off_at_any_byte_is_refused(cls: type, version: int, data: st.DataObject) -> None:
    raw = encode(data.draw(messages(cls, version, is_flexible(cls, version))), version)
    for length in range(len(raw)):
        with pytest.raises(ProtocolError, match=cls.__name__):
            decode(cls, version, raw[:length])


@every_message
@few
@given(data=st.data(), rest=st.binary(min_size=1, max_size=3))
def test_trailing_bytes_are_refused(cls: type, version: int, data: st.DataObject, rest: bytes) -> None:
    raw = encode(data.draw(messages(cls, version, is_flexible(cls, version))), version)
    with pytest.raises(ProtocolError, match="bytes left after the message"):
        decode(cls, version, raw + rest)


@every_message
@few
@given(data=st.data())
def test_changed_bytes_are_decoded_or_refused(cls: type, version: int, data: st.DataObject) -> None:
    raw = bytearray(encode(data.draw(messages(cls, version, is_flexible(cls, version))), version))
    assume(raw)
    for _ in range(20):
        changed = bytearray(raw)
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(raw) - 1))
            changed[place] ^= data.draw(st.integers(1, 255))
        decodes_or_refuses(cls, version, bytes(changed))


@every_message
@few
@given(raw=st.binary(max_size=200))
def test_random_bytes_are_decoded_or_refused(cls: type, version: int, raw: bytes) -> None:
    decodes_or_refuses(cls, version, raw)


@every_message
def test_the_largest_lengths_cost_no_memory(cls: type, version: int) -> None:
    """A peer that promises 2^32 of something gets no more memory than it has sent bytes."""
    for byte in (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xff", b"\x80"):
        for before in range(12):
            decodes_or_refuses(cls, version, bytes(before) + byte * 40)


@every_exchange
@few
@given(frame=st.binary(max_size=100))
def test_random_response_is_decoded_or_rejected(request_cls: type[Any], version: int, frame: bytes) -> None:
    try:
        response = decode_response(request_cls, version, frame, 0)
    except ProtocolError:
        return
    assert isinstance(response, request_cls.RESPONSE)


@given(st.lists(st.binary(max_size=30), max_size=10), st.integers(0, 100))
def test_random_streams_are_framed_or_refused(pieces: list[bytes], limit: int) -> None:
    reader = FrameReader(limit)
    fed = taken = 0
    for piece in pieces:
        reader.feed(piece)
        fed += len(piece)
        try:
            while (frame := reader.next_frame()) is not None:
                assert len(frame) <= limit
                taken += 4 + len(frame)
        except ProtocolError:
            return
        assert taken + reader.buffered == fed
