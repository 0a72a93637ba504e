"""The types of Kafka's wire format, and their codecs.

The peer may be broken or hostile. A reader therefore stays within the received bytes, and allocates no more than they
justify. For malformed bytes, a reader raises ``ProtocolError``. For bytes that end too early, it raises ``IndexError`` or
``struct.error``, which the codec of the enclosing struct converts to ``ProtocolError``.
"""

from __future__ import annotations

import struct as _struct
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from kafka_eos_sink.errors import ProtocolError

MAX_VALUES = 1_000_000
"""Limit on the array elements of one message. A struct of three bytes on the wire takes 65 bytes of memory."""
ZERO_UUID = uuid.UUID(int=0)  # Kafka's value for "no UUID"


class _Room(threading.local):
    """The array elements that are left for the message that this thread reads."""

    left = MAX_VALUES


room = _Room()


class Output(bytearray):
    """A message under construction, with separate record sections to avoid a copy."""

    __slots__ = ("sections",)

    def __init__(self) -> None:
        super().__init__()
        self.sections: list[tuple[int, memoryview]] = []

    def total_bytes(self) -> int:
        """Return the length of the message including record sections."""
        return len(self) + sum(len(section) for _, section in self.sections)

    def parts(self) -> list[bytes | memoryview]:
        """Return the message in pieces, in wire order."""
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


class FieldCodec(NamedTuple):
    """The writer and reader of one wire type.

    ``name`` is the type in Kafka's message definitions. ``minimum`` is the size of the smallest value in bytes.
    """

    name: str
    write: Write
    read: Read
    minimum: int
    nullable: bool = False


Make = Callable[[bool, bool], FieldCodec]
"""Builds the codec of a wire type from ``flexible`` and ``nullable``."""


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint of at most 32 bits."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise ProtocolError(f"{value} does not fit an unsigned varint of 32 bits")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; return it and the position after it."""
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
    """The writer and reader of a length; -1 means null, 0 means empty."""

    write: Callable[[bytearray, int], None]
    read: Callable[[memoryview, int], tuple[int, int]]
    size: int


def _write_compact_length(out: bytearray, length: int) -> None:
    # A compact length is unsigned: null is 0, and any length is sent as length + 1 (KIP-482).
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
            raise ProtocolError(f"negative length {length}")
        return length, at + packer.size

    return Length(write, read, packer.size)


COMPACT_LENGTH = Length(_write_compact_length, _read_compact_length, 1)
INT16_LENGTH = _classic_length("h")
INT32_LENGTH = _classic_length("i")


def _same(value: Any) -> Any:
    return value


def fixed(name: str, layout: str, dump: Callable[[Any], Any] = _same, load: Callable[[Any], Any] = _same) -> Make:
    """Build the codec of a fixed-width value, which ``dump`` and ``load`` convert."""
    packer = _struct.Struct(">" + layout)

    def write(out: Output, value: Any) -> None:
        out += packer.pack(dump(value))

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        return load(packer.unpack_from(data, at)[0]), at + packer.size

    def make(flexible: bool, nullable: bool) -> FieldCodec:
        if nullable:
            raise TypeError(f"{name} cannot be null")
        return FieldCodec(name, write, read, packer.size)

    return make


def _with_length(
    name: str,
    length_of: Length,
    nullable: bool,
    append: Callable[[Output, Any], None],
    load: Callable[[memoryview, int, int], tuple[Any, int]],
) -> FieldCodec:
    """Build a codec: ``append`` writes length and value, ``load`` reads the value."""

    def write(out: Output, value: Any) -> None:
        if value is not None:
            append(out, value)
        elif nullable:
            length_of.write(out, -1)
        else:
            raise ProtocolError("must not be null in this version")

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        length, at = length_of.read(data, at)
        if length >= 0:
            return load(data, at, length)
        if not nullable:
            raise ProtocolError(f"null instead of a value of type {name}")
        return None, at

    return FieldCodec(name, write, read, length_of.size, nullable)


def sized(
    name: str,
    append: Callable[[Output, Length, Any], None],
    load: Callable[[memoryview], Any],
    classic: Length,
    compact: Length = COMPACT_LENGTH,
) -> Make:
    """Build a codec: ``append`` writes length and bytes, ``load`` converts the bytes."""

    def make(flexible: bool, nullable: bool) -> FieldCodec:
        length_of = compact if flexible else classic

        def write(out: Output, value: Any) -> None:
            append(out, length_of, value)

        def read(data: memoryview, at: int, length: int) -> tuple[Any, int]:
            end = at + length
            if end > len(data):
                raise ProtocolError(f"{name} of {length} bytes, but only {len(data) - at} bytes are left")
            return load(data[at:end]), end

        return _with_length(name, length_of, nullable, write, read)

    return make


def array_of(item: FieldCodec, flexible: bool, nullable: bool) -> FieldCodec:
    """Build the codec of an array, which is a tuple of values."""
    length_of = COMPACT_LENGTH if flexible else INT32_LENGTH

    def write(out: Output, values: Any) -> None:
        length_of.write(out, len(values))
        for value in values:
            item.write(out, value)

    def read(data: memoryview, at: int, length: int) -> tuple[Any, int]:
        # The peer chose this length: reject it before a loop or a list grows.
        if length * item.minimum > len(data) - at:
            raise ProtocolError(f"array of {length} values, but only {len(data) - at} bytes are left")
        room.left -= length
        if room.left < 0:
            raise ProtocolError(f"more than {MAX_VALUES:,} values in the arrays of one message")
        values = []
        for _ in range(length):
            value, at = item.read(data, at)
            values.append(value)
        return tuple(values), at

    return _with_length("[]" + item.name, length_of, nullable, write, read)


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


Boolean = Annotated[bool, fixed("bool", "?")]
Int8 = Annotated[int, fixed("int8", "b")]
Int16 = Annotated[int, fixed("int16", "h")]
Int32 = Annotated[int, fixed("int32", "i")]
Int64 = Annotated[int, fixed("int64", "q")]
Uuid = Annotated[uuid.UUID, fixed("uuid", "16s", lambda value: value.bytes, lambda raw: uuid.UUID(bytes=raw))]
String = Annotated[str, sized("string", _append_string, _load_string, INT16_LENGTH)]
# The client id of a request header has an int16 length even in flexible versions. An old broker must be able to read
# this header although it does not know the version of the ApiVersions request (KIP-511).
ClassicString = Annotated[str, sized("string", _append_string, _load_string, INT16_LENGTH, INT16_LENGTH)]
Bytes = Annotated[bytes, sized("bytes", _append_bytes, bytes, INT32_LENGTH)]
Records = Annotated[bytes, sized("records", _append_bytes, bytes, INT32_LENGTH)]  # received record batches
# Record batches for Produce, in one or more buffers. They take megabytes, so ``Output`` does not copy them.
RecordParts = Annotated[
    bytes | memoryview | Sequence[bytes | bytearray | memoryview],
    sized("records", _append_record_parts, bytes, INT32_LENGTH),
]
