"""The types that Kafka's wire format is made of: how each is written and read.

What is read comes from a peer that may be broken or hostile. A reader either raises - `ProtocolError`, or `IndexError`
and `struct.error` where the bytes end too soon, which the struct around it turns into `ProtocolError` - or it stays
within the bytes that it was given, and allocates no more than they can justify.
"""

from __future__ import annotations

import struct as _struct
import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from kafka_eos_sink.errors import ProtocolError

ZERO_UUID = uuid.UUID(int=0)
"""What Kafka sends where there is no UUID."""


class Output(bytearray):
    """The bytes of a message under construction; record sections are only noted with their place, not copied."""

    __slots__ = ("sections",)

    def __init__(self) -> None:
        super().__init__()
        self.sections: list[tuple[int, memoryview]] = []

    def total_bytes(self) -> int:
        """The length of the message, record sections included."""
        return len(self) + sum(len(section) for _, section in self.sections)

    def parts(self) -> list[bytes | memoryview]:
        """The message in pieces that are to be sent one after the other."""
        if not self.sections:
            return [bytes(self)]
        whole = memoryview(bytes(self))
        pieces: list[bytes | memoryview] = []
        start = 0
        for place, section in self.sections:
            if place > start:
                pieces.append(whole[start:place])
            pieces.append(section)
            start = place
        if start < len(whole):
            pieces.append(whole[start:])
        return pieces


Write = Callable[[Output, Any], None]
Read = Callable[[memoryview, int], tuple[Any, int]]


class Codec(NamedTuple):
    """How one wire type is written and read.

    `name` is its name in Kafka's message definitions, `minimum` the smallest number of bytes that a value takes.
    """

    name: str
    write: Write
    read: Read
    minimum: int
    nullable: bool = False


class Wire(NamedTuple):
    """A wire type before it is known whether it is used in a flexible version and whether it may be null."""

    make: Callable[[bool, bool], Codec]


# Varints and lengths


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint of at most 32 bits."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise ProtocolError(f"{value} does not fit an unsigned varint of 32 bits")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """The unsigned varint at `at` and the place after it; at most five bytes and 32 bits."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise ProtocolError(f"varint {value} is longer than 32 bits")
            return value, at
    raise ProtocolError("varint is longer than five bytes")


class Length(NamedTuple):
    """How the length of a string, of bytes or of an array is written; -1 stands for null."""

    write: Callable[[bytearray, int], None]
    read: Callable[[memoryview, int], tuple[int, int]]
    size: int


def _write_compact_length(out: bytearray, length: int) -> None:
    write_uvarint(out, length + 1)


def _read_compact_length(data: memoryview, at: int) -> tuple[int, int]:
    length, at = read_uvarint(data, at)
    return length - 1, at


def _classic_length(layout: str) -> Length:
    packer = _struct.Struct(">" + layout)

    def write(out: bytearray, length: int) -> None:
        out += packer.pack(length)

    def read(data: memoryview, at: int) -> tuple[int, int]:
        length: int = packer.unpack_from(data, at)[0]
        if length < -1:
            raise ProtocolError(f"length {length}")
        return length, at + packer.size

    return Length(write, read, packer.size)


COMPACT_LENGTH = Length(_write_compact_length, _read_compact_length, 1)
INT16_LENGTH = _classic_length("h")
INT32_LENGTH = _classic_length("i")


# Wire types


def fixed(name: str, layout: str) -> Wire:
    """A number of a fixed width; `layout` is its character in the `struct` module."""
    packer = _struct.Struct(">" + layout)

    def write(out: Output, value: Any) -> None:
        out += packer.pack(value)

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        return packer.unpack_from(data, at)[0], at + packer.size

    def make(flexible: bool, nullable: bool) -> Codec:
        if nullable:
            raise TypeError(f"{name} has no null")
        return Codec(name, write, read, packer.size)

    return Wire(make)


def sized(
    name: str,
    append: Callable[[Output, Length, Any], None],
    load: Callable[[memoryview], Any],
    classic: Length,
    compact: Length = COMPACT_LENGTH,
) -> Wire:
    """A value with its length in front. `append` writes length and value."""

    def make(flexible: bool, nullable: bool) -> Codec:
        length_of = compact if flexible else classic

        def write(out: Output, value: Any) -> None:
            if value is None:
                if not nullable:
                    raise ProtocolError("must not be null in this version")
                length_of.write(out, -1)
            else:
                append(out, length_of, value)

        def read(data: memoryview, at: int) -> tuple[Any, int]:
            length, at = length_of.read(data, at)
            if length < 0:
                if not nullable:
                    raise ProtocolError(f"null where a {name} must be")
                return None, at
            end = at + length
            if end > len(data):
                raise ProtocolError(f"{name} of {length} bytes where {len(data) - at} are left")
            return load(data[at:end]), end

        return Codec(name, write, read, length_of.size, nullable)

    return Wire(make)


def _append_string(out: Output, length: Length, value: str) -> None:
    raw = value.encode()
    length.write(out, len(raw))
    out += raw


def _load_string(raw: memoryview) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"string is not UTF-8: {error.reason} at byte {error.start}") from None


def _append_bytes(out: Output, length: Length, value: bytes | memoryview) -> None:
    raw = memoryview(value).cast("B")
    length.write(out, len(raw))
    out += raw


def _append_record_parts(out: Output, length: Length, value: bytes | memoryview | Sequence[bytes | memoryview]) -> None:
    pieces = (value,) if isinstance(value, bytes | bytearray | memoryview) else value
    views = [memoryview(piece).cast("B") for piece in pieces]
    length.write(out, sum(len(view) for view in views))
    out.sections += [(len(out), view) for view in views if len(view)]


def _make_uuid(flexible: bool, nullable: bool) -> Codec:
    if nullable:
        raise TypeError("uuid has no null")

    def write(out: Output, value: Any) -> None:
        out += value.bytes

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        end = at + 16
        if end > len(data):
            raise ProtocolError(f"uuid where {len(data) - at} bytes are left")
        return uuid.UUID(bytes=bytes(data[at:end])), end

    return Codec("uuid", write, read, 16)


Boolean = Annotated[bool, fixed("bool", "?")]
Int8 = Annotated[int, fixed("int8", "b")]
Int16 = Annotated[int, fixed("int16", "h")]
UInt16 = Annotated[int, fixed("uint16", "H")]
Int32 = Annotated[int, fixed("int32", "i")]
Int64 = Annotated[int, fixed("int64", "q")]
Uuid = Annotated[uuid.UUID, Wire(_make_uuid)]
String = Annotated[str, sized("string", _append_string, _load_string, INT16_LENGTH)]
# The client id of a request header keeps its old form in flexible versions too: an old broker must be able to read the
# header of an ApiVersions request that is newer than itself.
ClassicString = Annotated[str, sized("string", _append_string, _load_string, INT16_LENGTH, INT16_LENGTH)]
Bytes = Annotated[bytes, sized("bytes", _append_bytes, bytes, INT32_LENGTH)]
# Record batches as they are received.
Records = Annotated[bytes, sized("records", _append_bytes, bytes, INT32_LENGTH)]
# Record batches as they are sent: one buffer or several in a row. `encode_parts` does not copy them.
RecordParts = Annotated[
    bytes | memoryview | Sequence[bytes | memoryview],
    sized("records", _append_record_parts, bytes, INT32_LENGTH),
]


def array_of(item: Codec, flexible: bool, nullable: bool) -> Codec:
    """The codec of an array: a tuple of values."""
    length_of = COMPACT_LENGTH if flexible else INT32_LENGTH

    def write(out: Output, values: Any) -> None:
        if values is None:
            if not nullable:
                raise ProtocolError("must not be null in this version")
            length_of.write(out, -1)
            return
        length_of.write(out, len(values))
        for value in values:
            item.write(out, value)

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        length, at = length_of.read(data, at)
        if length < 0:
            if not nullable:
                raise ProtocolError("null where an array must be")
            return None, at
        # Believe no count that the bytes at hand cannot hold.
        if length * item.minimum > len(data) - at:
            raise ProtocolError(f"array of {length} where {len(data) - at} bytes are left")
        values = []
        for _ in range(length):
            value, at = item.read(data, at)
            values.append(value)
        return tuple(values), at

    return Codec("[]" + item.name, write, read, length_of.size, nullable)


def nullable_struct(codec: Codec) -> Codec:
    """A struct with a byte in front: 1, or -1 for null."""

    def write(out: Output, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            codec.write(out, value)

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        match data[at]:
            case 0xFF:
                return None, at + 1
            case 1:
                return codec.read(data, at + 1)
            case marker:
                raise ProtocolError(f"{marker} where a nullable struct says whether it is there")

    return Codec(codec.name, write, read, 1, nullable=True)
