"""Declaring, encoding and decoding protocol structs."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol import schema, wire_types
from kafka_eos_sink.protocol.messages import REQUESTS, EndTxnRequest, EndTxnResponse, MetadataRequest
from kafka_eos_sink.protocol.schema import (
    NEVER_FLEXIBLE,
    decode,
    encode,
    struct,
    tagged,
    versions,
    write_message,
)
from kafka_eos_sink.protocol.wire_types import (
    Boolean,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Output,
    RecordParts,
    Records,
    String,
    Uuid,
    fixed,
    read_uvarint,
    write_uvarint,
)

UInt16 = Annotated[int, fixed("uint16", "H")]


@struct
class Inner:
    number: Int32
    tag: String = tagged(0, default="")


@struct
class Row:
    numbers: tuple[Int8, ...]


@struct
class Rows:
    rows: tuple[Row, ...]


@struct
class Everything:
    flag: Boolean
    tiny: Int8
    short: Int16
    unsigned: UInt16
    number: Int32
    long: Int64
    id: Uuid
    text: String
    text_or_none: String | None
    raw: Bytes
    raw_or_none: Bytes | None
    records: Records | None
    items: tuple[Int32, ...]
    items_or_none: tuple[String, ...] | None
    inner: Inner
    inners: tuple[Inner, ...]
    tagged_number: Int32 = tagged(3, default=-1)
    tagged_inner: Inner = tagged(1, default=Inner(number=0))


@struct
class Classic:
    FIRST_FLEXIBLE: ClassVar[int] = NEVER_FLEXIBLE

    text: String
    text_or_none: String | None
    raw: Bytes | None
    items: tuple[Int16, ...] | None
    inner: tuple[Inner, ...]


@struct
class Numbers:
    numbers: tuple[Int32, ...]


@struct
class Text:
    text: String


@struct
class Cursor:
    position: Inner


@struct
class Batch:
    records: RecordParts | None
    after: Int8


@struct
class Changing:
    always: Int8
    old: Int8 = versions(0, 2, default=5)
    new: String = versions(2, default="")
    hint: Int8 = versions(2, default=0, ignorable=True)
    name: String | None = versions(nullable_from=1)
    extra: Int8 = tagged(0, 2, default=-1)


VALUE = Everything(
    flag=True,
    tiny=-1,
    short=-2,
    unsigned=65535,
    number=-3,
    long=-(2**63),
    id=uuid.UUID(int=5),
    text="grün",
    text_or_none=None,
    raw=b"ab",
    raw_or_none=None,
    records=b"records",
    items=(1, 2),
    items_or_none=None,
    inner=Inner(number=7),
    inners=(Inner(number=9), Inner(number=10)),
    tagged_number=11,
)
ENCODED = bytes.fromhex(
    "01 ff fffe ffff fffffffd 8000000000000000"
    "00000000000000000000000000000005"
    "06 6772c3bc6e 00"
    "03 6162 00 08 7265636f726473"
    "03 00000001 00000002 00"
    "00000007 00"
    "03 00000009 00 0000000a 00"
    "01 03 04 0000000b"
)


def test_every_type_in_its_flexible_form() -> None:
    assert encode(VALUE, 0) == ENCODED
    assert decode(Everything, 0, ENCODED) == VALUE


def test_types_in_their_old_form() -> None:
    value = Classic(text="ab", text_or_none=None, raw=b"c", items=None, inner=(Inner(number=1),))
    raw = bytes.fromhex("0002 6162 ffff 00000001 63 ffffffff 00000001 00000001")
    assert encode(value, 0) == raw
    assert decode(Classic, 0, raw) == value


@pytest.mark.parametrize("length", range(len(ENCODED)))
def test_truncated_at_any_byte_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match="version 0 of Everything"):
        decode(Everything, 0, ENCODED[:length])


def test_array_elements_of_one_message_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wire_types.MAX_VALUES == 1_000_000
    monkeypatch.setattr(schema, "MAX_VALUES", 10)
    fits, too_many = (Rows(rows=(Row(numbers=(1, 2, 3, 4)), Row(numbers=(1,) * last))) for last in (4, 5))
    # Each message has its own room.
    for _ in range(3):
        assert decode(Rows, 0, encode(fits, 0)) == fits
        with pytest.raises(ProtocolError, match="values in the arrays of one message"):
            decode(Rows, 0, encode(too_many, 0))


# Tagged fields


def test_an_unknown_tag_is_skipped() -> None:
    raw = b"\x00\x00\x00\x01" + b"\x02" + b"\x00\x02\x02t" + b"\x63\x03abc"
    assert decode(Inner, 0, raw) == Inner(number=1, tag="t")


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        (b"\x01\x63\x04abc", "tag 99 of 4 bytes, but only 3 bytes are left"),
        (b"\x01\x00\x03\x02tx", "tag 0 has 3 bytes, but its value has 2"),
        (b"\x01\x00\x01\x02t", "string of 1 bytes, but only 0 bytes are left"),
        (b"\x02\x00\x02\x02t\x00\x02\x02t", "tag 0 after tag 0"),
        (b"\x02\x05\x00\x04\x00", "tag 4 after tag 5"),
        (b"\xff\xff\xff\xff\x0f", "ends within"),
        (b"\x01\x63\xff\xff\xff\xff\x0f", "tag 99 of 4294967295 bytes"),
    ],
)
def test_broken_tagged_fields_are_refused(section: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode(Inner, 0, b"\x00\x00\x00\x01" + section)


# Versions


def test_fields_are_present_in_their_versions_only() -> None:
    assert encode(Changing(always=1, name="n"), 0) == b"\x01\x05\x02n\x00"
    assert encode(Changing(always=1, name="n"), 2) == b"\x01\x05\x01\x00\x02n\x00"
    assert encode(Changing(always=1, name="n"), 3) == b"\x01\x01\x00\x02n\x00"
    assert decode(Changing, 0, b"\x01\x06\x02n\x00") == Changing(always=1, old=6, name="n")


@pytest.mark.parametrize(
    ("value", "version", "complaint"),
    [
        (Changing(always=1, name="n", new="x"), 1, "Changing.new is 'x', but version 1 has no such field"),
        (Changing(always=1, name="n", old=6), 3, "Changing.old is 6, but version 3 has no such field"),
        (Changing(always=1, name="n", extra=0), 1, "Changing.extra is 0, but version 1 has no such field"),
        (
            MetadataRequest(topics=None, include_cluster_authorized_operations=True),
            11,
            "MetadataRequest.include_cluster_authorized_operations is True, but version 11 has no such field",
        ),
    ],
)
def test_a_value_that_the_version_cannot_carry_is_refused(value: Any, version: int, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        encode(value, version)


def test_a_value_that_kafka_calls_ignorable_is_dropped() -> None:
    assert encode(Changing(always=1, name="n", hint=3), 0) == encode(Changing(always=1, name="n"), 0)
    response = EndTxnResponse(throttle_time_ms=0, error_code=0, producer_id=5, producer_epoch=6)
    assert encode(response, 4) == bytes(7)


def test_null_is_allowed_from_its_version_on() -> None:
    value = Changing(always=1, name=None)
    assert decode(Changing, 1, encode(value, 1)) == value
    with pytest.raises(ProtocolError, match=r"Changing\.name: must not be null in this version"):
        encode(value, 0)
    with pytest.raises(ProtocolError, match=r"Changing\.name: null instead of a value of type string"):
        decode(Changing, 0, b"\x01\x05\x00\x00")
    by_id = MetadataRequest(topics=(MetadataRequest.Topic(name=None, topic_id=uuid.UUID(int=1)),))
    assert decode(MetadataRequest, 12, encode(by_id, 12)) == by_id
    with pytest.raises(ProtocolError, match=r"MetadataRequest\.topics: MetadataRequest\.Topic\.name: must not be null"):
        encode(by_id, 9)


# What cannot be encoded


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (Inner(number=2**31), r"Inner\.number cannot be encoded"),
        (Inner(number="1"), r"Inner\.number cannot be encoded"),  # type: ignore[arg-type]
        (Inner(number=None), r"Inner\.number cannot be encoded"),  # type: ignore[arg-type]
        (Text(text=None), r"Text\.text: must not be null"),  # type: ignore[arg-type]
        (Text(text=b"raw"), r"Text\.text cannot be encoded"),  # type: ignore[arg-type]
        (Text(text="\ud800"), r"Text\.text cannot be encoded"),
        (Numbers(numbers=None), r"Numbers\.numbers: must not be null"),  # type: ignore[arg-type]
        (Numbers(numbers=3), r"Numbers\.numbers cannot be encoded"),  # type: ignore[arg-type]
        (Batch(records="text", after=1), r"Batch\.records cannot be encoded"),  # type: ignore[arg-type]
        (Cursor(position=Text(text="")), r"Inner\.number cannot be encoded"),  # type: ignore[arg-type]
        (
            Classic(text="x" * 2**15, text_or_none=None, raw=None, items=None, inner=()),
            r"Classic\.text cannot be encoded",
        ),
        (EndTxnRequest(transactional_id="a", producer_id=2**63, producer_epoch=0, committed=True), "producer_id"),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_refused(value: Any, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        encode(value, 0 if not isinstance(value, EndTxnRequest) else 5)


# What cannot be decoded


@pytest.mark.parametrize(
    ("cls", "raw", "complaint"),
    [
        (Text, b"\x00\x00", "null instead of a value of type string"),
        (Text, b"\x03\xff\xfe\x00", "not UTF-8"),
        (Text, b"\xff\xff\xff\xff\x0f\x00", "string of 4294967294 bytes, but only 1 bytes are left"),
        (Text, b"\xff\xff\xff\xff\x10\x00", "longer than 32 bits"),
        (Text, b"\x80\x80\x80\x80\x80\x01\x00", "longer than five bytes"),
        (Numbers, b"\x00\x00", r"null instead of a value of type \[\]int32"),
        (Numbers, b"\x03\x00\x00\x00\x01\x00", "array of 2 values, but only 5 bytes are left"),
        (Numbers, b"\xff\xff\xff\xff\x0f\x00", "array of 4294967294 values, but only 1 bytes are left"),
        (Classic, b"\xff\xfe", "negative length -2"),
        (Classic, b"\xff\xff", "null instead of a value of type string"),
        (Classic, b"\x00\x00\x80\x00", "negative length -32768"),
        (Classic, b"\x00\x00\xff\xff\x7f\xff\xff\xff", "bytes of 2147483647 bytes, but only 0 bytes are left"),
        (
            Classic,
            b"\x00\x00\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff",
            "array of 2147483647 values, but only 0 bytes are left",
        ),
    ],
)
def test_nonsense_is_refused(cls: type, raw: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode(cls, 0, raw)


# Records


def test_records_are_encoded_without_a_copy() -> None:
    first, second = bytearray(b"first"), b"second"
    out = Output()
    write_message(out, Batch(records=[first, memoryview(second)], after=1), 0)
    parts = out.parts()
    first[0] = ord("F")
    assert [bytes(part) for part in parts] == [b"\x0c", b"First", b"second", b"\x01\x00"]
    assert decode(Batch, 0, b"".join(parts)) == Batch(records=b"Firstsecond", after=1)


# Varints


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3))
def test_any_unsigned_varint_is_read_back(value: int, rest: bytes) -> None:
    out = bytearray(b"before")
    write_uvarint(out, value)
    end = len(out)
    assert read_uvarint(memoryview(out + rest), 6) == (value, end)


def nested_in(outer: type) -> Iterator[type]:
    for each in vars(outer).values():
        if isinstance(each, type) and each.__qualname__.startswith(f"{outer.__qualname__}."):
            yield each
            yield from nested_in(each)


def test_no_nested_struct_has_the_name_of_a_struct_of_its_module() -> None:
    """Kills the mutation that renames a nested struct so: its message would get the fields of the other."""
    shadowed = [
        each.__qualname__
        for request in REQUESTS
        for message in (request, request.RESPONSE)
        for each in nested_in(message)
        if each.__name__ in vars(sys.modules[each.__module__])
    ]
    assert not shadowed, f"rename {shadowed}: typing.get_type_hints takes the module's struct of that name instead"
