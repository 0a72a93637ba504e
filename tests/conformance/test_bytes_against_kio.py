"""Our bytes are those of kio, an implementation of its own that is generated from Kafka's definitions."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import re
import types
import typing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import from_type, register_type_strategy
from kio.serial import entity_writer
from kio.static.primitive import Records

from kafka_eos_sink.protocol.messages import REQUESTS, ApiVersionsResponse
from kafka_eos_sink.protocol.schema import decode, encode
from kafka_eos_sink.protocol.wire_types import ZERO_UUID

register_type_strategy(Records, st.binary(max_size=40))

MESSAGES = [
    (cls, version) for request in REQUESTS for version in request.VERSIONS for cls in (request, request.RESPONSE)
]
MESSAGES += [(ApiVersionsResponse, 0)]


def in_kio(cls: type, version: int) -> type:
    """kio's class for a version of one of our messages."""
    name, kind = re.fullmatch(r"(\w+)(Request|Response)", cls.__name__).groups()  # type: ignore[union-attr]
    package = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    module = importlib.import_module(f"kio.schema.{package}.v{version}.{kind.lower()}")
    found: type = getattr(module, cls.__name__)
    return found


def innermost(hint: Any) -> Any:
    while typing.get_origin(hint) in (tuple, typing.Union, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg not in (type(None), ...))
    return hint


def converted(theirs: Any, cls: type) -> Any:
    """The value of one of kio's classes as a value of ours."""
    hints = typing.get_type_hints(cls, include_extras=True)
    ours = {}
    for field in dataclasses.fields(theirs):
        name, value = field.name, getattr(theirs, field.name)
        if name not in hints:
            # kio speaks of time in datetime's types, and drops the unit from the name.
            name += "_ms"
            if isinstance(value, datetime.timedelta):
                value = round(value.total_seconds() * 1000)
            else:
                value = -1 if value is None else round(value.timestamp() * 1000)
        inner = innermost(hints[name])
        if isinstance(value, tuple):
            value = tuple(converted(item, inner) if dataclasses.is_dataclass(item) else item for item in value)
        elif dataclasses.is_dataclass(value):
            value = converted(value, inner)
        elif hasattr(value, "value") and not isinstance(value, int | str):
            value = value.value
        ours[name] = ZERO_UUID if name == "topic_id" and value is None else value
    return cls(**ours)


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=lambda value: str(getattr(value, "__name__", value)))
def test_a_message_has_the_bytes_that_kio_gives_it(cls: type, version: int) -> None:
    theirs = in_kio(cls, version)
    write = entity_writer(theirs)  # type: ignore[type-var]

    @settings(
        max_examples=20,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(from_type(theirs))
    def check(value: Any) -> None:
        buffer = io.BytesIO()
        write(buffer, value)
        ours = converted(value, cls)
        raw = encode(ours, version)
        assert raw == buffer.getvalue()
        assert decode(cls, version, raw) == ours

    check()
