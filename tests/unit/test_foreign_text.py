"""Text that another program, a user or a server wrote: a decoder raises only the errors that it declares, whatever the bytes are."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kafka_eos_sink.client import oauth
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.runtime.batch_record import parse_record
from kafka_eos_sink.settings.jaas import parse_jaas
from kafka_eos_sink.settings.java_properties import parse_properties
from kafka_eos_sink.spark import checkpoint
from tests.fuzz.hostile_log import changed_text

CASES = 1_000
PLAIN = b'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b\\"c";'
OFFSETS = b'{"orders":{"0":12,"1":-1}}'
Decode = Callable[[bytes], object]


def of_text(decode: Callable[[str], object]) -> Decode:
    return lambda data: decode(data.decode(errors="replace"))


@pytest.mark.parametrize(
    ("decode", "raises", "valid"),
    [
        (oauth._json_object, (), b'{"access_token":"t","expires_in":60}'),
        (of_text(parse_jaas), (ConfigurationError, ValueError), PLAIN),
        (of_text(parse_properties), (ConfigurationError, ValueError), b"a.b=c\\\n  d\nx\\u0041 : y"),
        (of_text(checkpoint._kafka_offsets), (ValueError,), OFFSETS),
        (lambda data: parse_record(b"w", data), (), b'{"write_id":"w","version":4,"rows":10,"offsets":[["t",0,1,2]]}'),
    ],
    ids=["token response", "JAAS", "properties", "offsets of a checkpoint", "history record"],
)
def test_changed_text_raises_only_declared_errors(
    decode: Decode, raises: tuple[type[Exception], ...], valid: bytes
) -> None:
    decode(valid)
    chance = random.Random(0)
    for _ in range(CASES):
        data = valid
        for _ in range(chance.randint(1, 3)):
            data = changed_text(data, chance)
        try:
            decode(data)
        except raises:
            continue
