"""Declare Kafka protocol structs as dataclasses, and encode and decode them.

One class serves all supported versions of a message. The annotation of a field is its wire type. ``versions`` or
``tagged`` give the versions of a field::

    @struct
    class EndTxnResponse:
        throttle_time_ms: Int32
        error_code: Int16
        producer_id: Int64 = versions(5, default=-1)

Flexible versions (KIP-482) have compact lengths and tagged fields. ``FIRST_FLEXIBLE`` is the first flexible version, 0 by
default. The peer may be broken or hostile: for any bytes, ``decode`` returns a value or raises ``ProtocolError``, and
allocates no more than the bytes justify.
"""

from __future__ import annotations

import struct as _struct
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar, dataclass_transform

from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol.wire_types import (
    MAX_VALUES,
    FieldCodec,
    Make,
    Output,
    array_of,
    read_uvarint,
    room,
    write_uvarint,
)

T = TypeVar("T")
Response = TypeVar("Response", covariant=True)

LATEST = 32767  # the largest int16
NEVER_FLEXIBLE = LATEST + 1  # FIRST_FLEXIBLE of a message that has no flexible version


class Presence(NamedTuple):
    """The versions that have a field or allow null, and the field's tag."""

    first: int = 0
    last: int = LATEST
    tag: int | None = None
    nullable_from: int = 0
    ignorable: bool = False  # versions without the field drop its value

    def covers(self, version: int) -> bool:
        return self.first <= version <= self.last


ALWAYS = Presence()


def versions(
    first: int = 0, last: int = LATEST, *, default: Any = MISSING, nullable_from: int = 0, ignorable: bool = False
) -> Any:
    """Declare a field of versions ``first`` to ``last``."""
    return field(default=default, metadata={"presence": Presence(first, last, None, nullable_from, ignorable)})


def tagged(tag: int, first: int = 0, *, default: Any, ignorable: bool = False) -> Any:
    """Declare a tagged field (KIP-482), encoded only if it differs from its default."""
    return field(default=default, metadata={"presence": Presence(first, LATEST, tag, 0, ignorable)})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(versions, tagged))
def struct(cls: type[T]) -> type[T]:
    """Make a class a protocol struct: a frozen, keyword-only dataclass with slots."""
    return dataclass(frozen=True, kw_only=True, slots=True)(cls)


class Request(Generic[Response]):
    """A request with its API key, supported versions and response class."""

    __slots__ = ()

    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[range]
    RESPONSE: ClassVar[type[Any]]


R = TypeVar("R", bound=Request[Any])

registered: list[type[Request[Any]]] = []  # the classes of ``@request``, in import order


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(versions, tagged))
def request(*, key: int, versions: range) -> Callable[[type[R]], type[R]]:
    """Make a class a protocol struct and register it as a request.

    The response class is the type argument of the base: ``class EndTxnRequest(Request[EndTxnResponse])``.

    Args:
        key: The API key (``apiKey`` in Kafka's definition).
        versions: The versions that this client supports, ascending.
    """

    def register(cls: type[R]) -> type[R]:
        # A dataclass with slots copies the decorated class, so ``__init_subclass__`` would register both.
        made = struct(cls)
        (base,) = vars(made)["__orig_bases__"]
        made.API_KEY, made.VERSIONS, (made.RESPONSE,) = key, versions, typing.get_args(base)
        registered.append(made)
        return made

    return register


class Field(NamedTuple):
    """A field of a struct in one version."""

    name: str
    codec: FieldCodec
    presence: Presence
    default: Any


def is_flexible(cls: type, version: int) -> bool:
    """Return True if this version has compact lengths and tagged fields."""
    first: int = getattr(cls, "FIRST_FLEXIBLE", 0)
    return version >= first


def codec_for(hint: Any, version: int, flexible: bool, nullable_from: int, nullable: bool = False) -> FieldCodec:
    """Build the codec of an annotation."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        make: Make = hint.__metadata__[0]
        return make(flexible, nullable)
    if origin is tuple:
        item = codec_for(typing.get_args(hint)[0], version, flexible, nullable_from)
        return array_of(item, flexible, nullable)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        return codec_for(inner, version, flexible, nullable_from, version >= nullable_from)
    if nullable:
        raise TypeError(f"{hint.__qualname__}: no supported message has a struct that may be null")
    return struct_codec(hint, version, flexible)


@cache
def layout(cls: type, version: int, flexible: bool) -> tuple[Field, ...]:
    """Return the fields of ``cls`` in ``version``, in wire order."""
    hints = typing.get_type_hints(cls, include_extras=True)
    members = []
    for spec in fields(cls):
        presence = spec.metadata.get("presence", ALWAYS)
        if presence.covers(version):
            codec = codec_for(hints[spec.name], version, flexible, presence.nullable_from)
            members.append(Field(spec.name, codec, presence, spec.default))
    return tuple(members)


@cache
def struct_codec(cls: type, version: int, flexible: bool) -> FieldCodec:
    """Build the codec of a struct in one version."""
    members = layout(cls, version, flexible)
    plain = [(member.name, member.codec) for member in members if member.presence.tag is None]
    tags = {member.presence.tag: member for member in members if member.presence.tag is not None}
    in_tag_order = sorted(tags.items())
    absent = [
        (spec.name, spec.default)
        for spec in fields(cls)
        if not (presence := spec.metadata.get("presence", ALWAYS)).covers(version) and not presence.ignorable
    ]

    def write(out: Output, value: Any) -> None:
        # Dropping a field that the caller has set would change the meaning of the request.
        for name, default in absent:
            if getattr(value, name) != default:
                raise ProtocolError(
                    f"{cls.__qualname__}.{name} is {getattr(value, name)!r}, but version {version} has no such field"
                )
        name = "?"
        try:
            for name, codec in plain:
                codec.write(out, getattr(value, name))
            if flexible:
                present = [
                    (tag, member) for tag, member in in_tag_order if getattr(value, member.name) != member.default
                ]
                write_uvarint(out, len(present))
                for tag, member in present:
                    name = member.name
                    body = Output()
                    member.codec.write(body, getattr(value, name))
                    if body.sections:
                        raise TypeError("records in a tagged field are not supported")
                    write_uvarint(out, tag)
                    write_uvarint(out, len(body))
                    out += body
        except ProtocolError as error:
            raise ProtocolError(f"{cls.__qualname__}.{name}: {error.message}") from None
        except (_struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
            raise ProtocolError(f"{cls.__qualname__}.{name} cannot be encoded: {error}") from None

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        name = "tagged fields"
        try:
            for name, codec in plain:
                values[name], at = codec.read(data, at)
            if flexible:
                name = "tagged fields"
                at = read_tagged_fields(data, at, values)
        except ProtocolError as error:
            raise ProtocolError(f"{cls.__qualname__}.{name}: {error.message}") from None
        except (_struct.error, IndexError):
            raise ProtocolError(f"{cls.__qualname__}.{name}: the data ends within the value") from None
        return cls(**values), at

    def read_tagged_fields(data: memoryview, at: int, values: dict[str, Any]) -> int:
        count, at = read_uvarint(data, at)
        previous = -1
        for _ in range(count):
            tag, at = read_uvarint(data, at)
            size, at = read_uvarint(data, at)
            end = at + size
            if tag <= previous:
                raise ProtocolError(f"tag {tag} after tag {previous}")
            if end > len(data):
                raise ProtocolError(f"tag {tag} of {size} bytes, but only {len(data) - at} bytes are left")
            if (member := tags.get(tag)) is not None:
                values[member.name], used = member.codec.read(data[at:end], 0)
                if used != size:
                    raise ProtocolError(f"tag {tag} has {size} bytes, but its value has {used}")
            # A newer broker may send an unknown tag, which a reader must skip (KIP-482).
            previous, at = tag, end
        return at

    smallest = sum(codec.minimum for _, codec in plain) + (1 if flexible else 0)
    return FieldCodec(cls.__qualname__, write, read, smallest)


def write_message(out: Output, message: Any, version: int) -> None:
    """Append a message; raise ``ProtocolError`` if this version cannot express it."""
    cls: type = type(message)
    struct_codec(cls, version, is_flexible(cls, version)).write(out, message)


def encode(message: Any, version: int) -> bytes:
    """Encode a message; raise ``ProtocolError`` if this version cannot express it."""
    out = Output()
    write_message(out, message, version)
    return b"".join(out.parts())


def decode(cls: type[T], version: int, data: bytes | memoryview) -> T:
    """Decode one message; raise only ``ProtocolError``."""
    value, end = read_message(cls, version, memoryview(data), 0)
    if end != len(data):
        raise ProtocolError(f"{cls.__qualname__} v{version}: {len(data) - end} bytes left after the message")
    return value


def read_message(cls: type[T], version: int, data: memoryview, at: int) -> tuple[T, int]:
    """Decode the message at ``at``; return it and the position after it."""
    plain_cls: type = cls
    room.left = MAX_VALUES
    try:
        value, end = struct_codec(plain_cls, version, is_flexible(cls, version)).read(data, at)
    except ProtocolError as error:
        raise ProtocolError(f"version {version} of {error.message}") from None
    except MemoryError:
        raise ProtocolError(f"version {version} of {cls.__qualname__} needs more memory than is free") from None
    return typing.cast(T, value), end
