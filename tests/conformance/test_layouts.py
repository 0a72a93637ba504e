"""Every message has, at every version that we speak, the fields that Kafka's own definition gives it."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import pytest

from kafka_eos_sink.protocol.framing import RequestHeader, ResponseHeader
from kafka_eos_sink.protocol.messages import REQUESTS, ApiVersionsResponse
from kafka_eos_sink.protocol.schema import ALWAYS, is_flexible, layout
from kafka_eos_sink.protocol.wire_types import ZERO_UUID

Definition = dict[str, Any]
Definitions = Callable[[str], Definition]

MESSAGES = [
    (cls, version) for request in REQUESTS for version in request.VERSIONS for cls in (request, request.RESPONSE)
]
MESSAGES += [
    # The answer of a broker that does not know the version of an ApiVersions request.
    (ApiVersionsResponse, 0),
    (RequestHeader, 1),
    (RequestHeader, 2),
    (ResponseHeader, 0),
    (ResponseHeader, 1),
]
EMPTY = {"bool": False, "string": "", "bytes": b"", "uuid": ZERO_UUID, "records": None}


EARLIER_NAMES = {"GenerationIdOrMemberEpoch": "GenerationId"}
"""Fields that Kafka has renamed (4.4: KIP-1319), by their new names. The bytes do not depend on a name."""


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", EARLIER_NAMES.get(name, name)).lower()


def within(versions: str | None, version: int) -> bool:
    """Whether Kafka's version range, such as "3+", "1-4" or "none", holds a version."""
    if versions is None or versions == "none":
        return False
    first, _, last = versions.rstrip("+").partition("-")
    return int(first) <= version and (versions.endswith("+") or version <= int(last or first))


def common_structs(definition: Definition) -> dict[str, list[Definition]]:
    return {common["name"]: common["fields"] for common in definition.get("commonStructs", [])}


def members_of(field: Definition, common: dict[str, list[Definition]]) -> list[Definition]:
    return field.get("fields") or common.get(field["type"].removeprefix("[]")) or []


def default_of(field: Definition, is_struct: bool) -> Any:
    """The value of a field that was not sent."""
    stated = field.get("default")
    if field["type"].startswith("[]"):
        return () if stated is None else None
    if is_struct:
        return MISSING if stated is None else None
    if stated is None:
        return EMPTY.get(field["type"], 0)
    if stated == "null":
        return None
    if field["type"] == "bool":
        return stated in (True, "true")
    return stated if field["type"] == "string" else int(str(stated), 0)


def expected(
    definitions: list[Definition], common: dict[str, list[Definition]], version: int
) -> Iterator[tuple[str, str, bool, int | None, tuple[Any, ...]]]:
    """Name, type, nullability, tag and members of each field, as Kafka defines them."""
    for field in definitions:
        if not within(field.get("versions", field.get("taggedVersions")), version):
            continue
        members = members_of(field, common)
        array = "[]" if field["type"].startswith("[]") else ""
        yield (
            snake_case(field["name"]),
            array + ("struct" if members else field["type"].removeprefix("[]")),
            within(field.get("nullableVersions"), version),
            field.get("tag") if within(field.get("taggedVersions"), version) else None,
            tuple(expected(members, common, version)),
        )


def struct_in(hint: Any) -> type | None:
    """The struct that an annotation speaks of, alone, in an array or as something that may be null."""
    while typing.get_origin(hint) in (tuple, typing.Union, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg not in (type(None), ...))
    return hint if is_dataclass(hint) else None


def declared(cls: type, version: int, flexible: bool) -> Iterator[tuple[str, str, bool, int | None, tuple[Any, ...]]]:
    """Name, type, nullability, tag and members of each field, as we declare them."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for member in layout(cls, version, flexible):
        inner = struct_in(hints[member.name])
        kind = member.codec.name
        if inner is not None:
            kind = "[]struct" if kind.startswith("[]") else "struct"
        members = tuple(declared(inner, version, flexible)) if inner is not None else ()
        yield member.name, kind, member.codec.nullable, member.presence.tag, members


def name_of(value: Any) -> str:
    return str(getattr(value, "__name__", value))


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=name_of)
def test_fields_of_a_message_version_are_those_of_kafka(
    cls: type, version: int, message_definition: Definitions
) -> None:
    definition = message_definition(cls.__name__)
    flexible = is_flexible(cls, version)
    assert flexible is within(definition["flexibleVersions"], version), (
        f"give {cls.__name__} the FIRST_FLEXIBLE of Kafka's definition ({definition['flexibleVersions']})"
    )
    assert tuple(declared(cls, version, flexible)) == tuple(
        expected(definition["fields"], common_structs(definition), version)
    )


@pytest.mark.parametrize("request_cls", REQUESTS, ids=name_of)
def test_versions_that_we_speak_exist(request_cls: Any, message_definition: Definitions) -> None:
    definition = message_definition(request_cls.__name__)
    assert definition["apiKey"] == request_cls.API_KEY
    for version in (request_cls.VERSIONS.start, request_cls.VERSIONS.stop - 1):
        assert within(definition["validVersions"], version)
    assert request_cls.RESPONSE.__name__ == request_cls.__name__.removesuffix("Request") + "Response"
    # The type that a reader of the code sees is the one that answers are decoded to.
    (base,) = request_cls.__orig_bases__
    assert typing.get_args(base) == (request_cls.RESPONSE,)


@pytest.mark.parametrize(
    ("request_cls", "cls"),
    [(request, cls) for request in REQUESTS for cls in (request, request.RESPONSE)],
    ids=name_of,
)
def test_unsent_fields_have_kafka_defaults(request_cls: Any, cls: type, message_definition: Definitions) -> None:
    """Holds defaults and `ignorable` of all fields that some version lacks and of all tagged fields."""
    definition = message_definition(cls.__name__)
    spoken = set(request_cls.VERSIONS)

    def check(struct: type, definitions: list[Definition], reachable: set[int]) -> None:
        hints = typing.get_type_hints(struct, include_extras=True)
        theirs = {snake_case(field["name"]): field for field in definitions}
        for spec in fields(struct):
            assert spec.name in theirs, f"Kafka's definition has no {struct.__name__}.{spec.name}, but {sorted(theirs)}"
            field = theirs[spec.name]
            presence = spec.metadata.get("presence", ALWAYS)
            members = members_of(field, common_structs(definition))
            present = {version for version in reachable if presence.first <= version <= presence.last}
            assert present, f"{struct.__name__}.{spec.name} is in no version that we speak"
            kafka_default = default_of(field, is_struct=bool(members))
            if present != reachable or presence.tag is not None:
                if kafka_default is MISSING:  # a struct whose members all have their defaults
                    inner: Any = struct_in(hints[spec.name])
                    kafka_default = inner()
                assert spec.default == kafka_default, f"{struct.__name__}.{spec.name}"
            if present != reachable:
                assert presence.ignorable is bool(field.get("ignorable")), f"{struct.__name__}.{spec.name}"
            elif spec.default is not MISSING and "default" in field:
                assert spec.default == kafka_default, f"{struct.__name__}.{spec.name}"
            if members:
                nested = struct_in(hints[spec.name])
                assert nested is not None
                check(nested, members, present)

    check(cls, definition["fields"], spoken)
