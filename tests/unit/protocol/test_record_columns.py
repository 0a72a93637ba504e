"""Records encoded from Arrow columns are, byte for byte, those of an encoder that writes one row after the other."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos_sink.protocol.binary_columns import as_binary
from kafka_eos_sink.protocol.compression import Compression
from kafka_eos_sink.protocol.record_batch import read_record_batches, seal
from kafka_eos_sink.protocol.record_columns import (
    HEADERS_TYPE,
    RecordColumns,
    Section,
    encode_block,
    encode_records,
    encode_sections,
    header_bytes,
    header_keys_not_utf8,
    headers_array,
    record_sizes,
)

NOW = 1_700_000_000_000

Headers = Sequence[tuple[str, bytes | None]] | None
Row = tuple[bytes | None, bytes | None, Headers, int | None]
"""Key, value, headers, timestamp."""


def varint(value: int) -> bytes:
    zigzag = value * 2 if value >= 0 else -value * 2 - 1
    out = b""
    while zigzag >= 128:
        out += bytes([zigzag % 128 + 128])
        zigzag //= 128
    return out + bytes([zigzag])


def field(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def record(row: Row, offset_delta: int, base_timestamp: int) -> bytes:
    key, value, headers, timestamp = row
    body = b"\0" + varint((NOW if timestamp is None else timestamp) - base_timestamp) + varint(offset_delta)
    body += field(key) + field(value) + varint(len(headers or ()))
    for name, content in headers or ():
        body += field(name.encode()) + field(content)
    return varint(len(body)) + body


def section(rows: Sequence[Row]) -> bytes:
    base = NOW if rows[0][3] is None else rows[0][3]
    return b"".join(record(row, delta, base) for delta, row in enumerate(rows))


def plain_columns(rows: Sequence[Row]) -> RecordColumns:
    keys, values, headers, timestamps = zip(*rows, strict=True) if rows else ((), (), (), ())
    entries = [
        None if some is None else [{"key": name, "value": content} for name, content in some] for some in headers
    ]
    return RecordColumns(
        key=pa.array(keys, pa.binary()),
        value=pa.array(values, pa.binary()),
        headers=pa.array(entries, HEADERS_TYPE),
        timestamp=pa.array(timestamps, pa.int64()),
    )


small_bytes = st.binary(max_size=40) | st.binary(min_size=60, max_size=70) | st.integers(0, 300).map(bytes)
header_lists = st.none() | st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=80)), max_size=4)
timestamps = st.none() | st.integers(0, 2**62) | st.integers(NOW - 100_000, NOW + 100_000)
rows_of_all_kinds = st.lists(
    st.tuples(st.none() | small_bytes, st.none() | small_bytes, header_lists, timestamps), min_size=1, max_size=40
)


@settings(deadline=None)
@given(rows_of_all_kinds)
def test_columns_give_the_bytes_of_the_row_by_row_encoder(rows: list[Row]) -> None:
    data, base, highest = encode_records(plain_columns(rows), NOW)
    assert bytes(data) == section(rows)
    times = [NOW if row[3] is None else row[3] for row in rows]
    assert (base, highest) == (times[0], max(times))


@settings(deadline=None)
@given(rows_of_all_kinds, st.booleans(), st.booleans(), st.booleans())
def test_a_missing_column_is_a_column_of_nulls(rows: list[Row], key: bool, headers: bool, timestamp: bool) -> None:
    full = plain_columns(rows)
    some = RecordColumns(
        value=full.value,
        key=full.key if key else None,
        headers=full.headers if headers else None,
        timestamp=full.timestamp if timestamp else None,
    )
    reduced = [(k if key else None, v, h if headers else None, t if timestamp else None) for k, v, h, t in rows]
    assert bytes(encode_records(some, NOW)[0]) == section(reduced)


def dictionary(kind: pa.DataType) -> Callable[[list[bytes | None]], pa.Array]:
    return lambda values: pa.array(values, kind).dictionary_encode()


BYTES_AS: dict[str, Callable[[list[bytes | None]], pa.Array | pa.ChunkedArray]] = {
    "binary": lambda values: pa.array(values, pa.binary()),
    "large_binary": lambda values: pa.array(values, pa.large_binary()),
    "binary_view": lambda values: pa.array(values, pa.binary_view()),
    "dictionary of binary": dictionary(pa.binary()),
    "dictionary of large_binary": dictionary(pa.large_binary()),
    "chunks": lambda values: pa.chunked_array(
        [pa.array(values[:3], pa.binary()), pa.array([], pa.binary()), pa.array(values[3:], pa.binary())]
    ),
    "slice": lambda values: pa.array([b"before", None, *values, b"after"], pa.binary()).slice(2, len(values)),
    "slice of large_binary": lambda values: pa.array([b"x", None, *values, b"y"], pa.large_binary()).slice(
        2, len(values)
    ),
    "slice of a dictionary": lambda values: (
        pa.array([b"x", None, *values, b"y"], pa.binary()).dictionary_encode().slice(2, len(values))
    ),
    "chunks of slices": lambda values: pa.chunked_array(
        [pa.array([b"q", *values[:2]]).slice(1).cast(pa.binary()), pa.array(values[2:], pa.binary())]
    ),
}


@pytest.mark.parametrize("representation", BYTES_AS)
@settings(deadline=None)
@given(values=st.lists(st.none() | small_bytes, min_size=1, max_size=20))
def test_every_representation_of_bytes_gives_the_same_records(representation: str, values: list[bytes | None]) -> None:
    column = BYTES_AS[representation](values)
    assert as_binary(column).to_pylist() == values
    columns = RecordColumns(value=column, key=column)
    assert columns.value.type == pa.binary()
    assert bytes(encode_records(columns, NOW)[0]) == section([(value, value, None, None) for value in values])


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.binary()), pa.float64(), pa.bool_()], ids=str)
def test_a_column_that_is_not_bytes_is_refused_by_its_type(kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match=str(kind).replace("<", ".").replace(">", ".")):
        RecordColumns(value=pa.array([None], kind))


def test_bytes_under_a_null_are_not_written() -> None:
    offsets = pa.py_buffer(np.array([0, 2, 5, 6], np.int32))
    validity = pa.py_buffer(bytes([0b101]))
    column = pa.Array.from_buffers(pa.binary(), 3, [validity, offsets, pa.py_buffer(b"abhidc")])
    rows: list[Row] = [(b"ab", b"ab", None, None), (None, None, None, None), (b"c", b"c", None, None)]
    assert bytes(encode_records(RecordColumns(value=column, key=column), NOW)[0]) == section(rows)


def test_headers_under_a_null_list_are_not_written() -> None:
    entries = pa.StructArray.from_arrays(
        [pa.array([None, "k", "hidden"], pa.string()), pa.array([b"1", b"2", b"3"])], names=["key", "value"]
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), entries, mask=pa.array([True, False, True]))
    columns = RecordColumns(value=pa.array([b"a", b"b", b"c"]), headers=lists)
    rows: list[Row] = [(None, b"a", None, None), (None, b"b", [("k", b"2")], None), (None, b"c", None, None)]
    assert bytes(encode_records(columns, NOW)[0]) == section(rows)


HEADERS_AS = {
    "large text and bytes": pa.list_(
        pa.struct([pa.field("key", pa.large_string()), pa.field("value", pa.large_binary())])
    ),
    "text values": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())])),
    "large list": pa.large_list(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    "not nullable": pa.list_(
        pa.field("element", pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]), False)
    ),
}


@pytest.mark.parametrize("representation", HEADERS_AS)
def test_every_representation_of_headers_gives_the_same_records(representation: str) -> None:
    headers: list[Headers] = [[("a", b"1"), ("ä", b"")], None, [], [("b", None)]]
    entries = [None if one is None else [{"key": k, "value": v} for k, v in one] for one in headers]
    column = pa.array([[{"key": "no", "value": b"no"}], *entries], HEADERS_AS[representation]).slice(1)
    columns = RecordColumns(value=pa.array([b"v"] * 4), headers=column)
    assert bytes(encode_records(columns, NOW)[0]) == section([(None, b"v", one, None) for one in headers])
    chunked = RecordColumns(value=pa.array([b"v"] * 4), headers=pa.chunked_array([column.slice(0, 1), column.slice(1)]))
    assert bytes(encode_records(chunked, NOW)[0]) == section([(None, b"v", one, None) for one in headers])


NOT_UTF8 = b"\xff", b"a\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"ok\n\x80"
"""A wrong byte, a cut character, an overlong form, a surrogate, a code point above the last one, a second line."""


@given(st.lists(st.lists(st.text(max_size=4).map(str.encode) | st.binary(max_size=4) | st.sampled_from(NOT_UTF8))))
def test_rows_with_a_header_key_that_is_not_utf8_are_found(rows: list[list[bytes]]) -> None:
    def decodes(key: bytes) -> bool:
        try:
            return bool(key.decode()) or True
        except UnicodeDecodeError:
            return False

    headers = headers_array([[(key, None) for key in row] for row in rows])
    assert header_keys_not_utf8(headers).tolist() == [not all(map(decodes, row)) for row in rows]


@pytest.mark.parametrize(
    "text", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
@pytest.mark.parametrize("content", [pa.binary(), pa.string(), pa.large_binary(), pa.string_view()])
@pytest.mark.parametrize("shape", ["list", "large list", "list view", "map"])
def test_keys_that_are_not_utf8_are_found_in_every_shape(text: pa.DataType, content: pa.DataType, shape: str) -> None:
    octets = [b"hidden \xff", b"k", b"\xff", b"\xd0\xba", b"under null \xff", b"k"]
    keys, values = (_unchecked(octets, kind) for kind in (text, content))
    ends, no = pa.array([0, 1, 3, 4, 5, 6], pa.int32()), pa.array([False, False, False, True, False])
    if shape == "map":
        headers = pa.MapArray.from_arrays(ends, keys, values, mask=no)
    else:
        entries = pa.StructArray.from_arrays([keys, values], ["key", "value"])
        offsets, sizes = ends.slice(0, 5), pa.array([1, 2, 1, 1, 1], pa.int32())
        headers = {
            "list": lambda: pa.ListArray.from_arrays(ends, entries, mask=no),
            "large list": lambda: pa.LargeListArray.from_arrays(ends.cast(pa.int64()), entries, mask=no),
            "list view": lambda: pa.ListViewArray.from_arrays(offsets, sizes, entries, mask=no),
        }[shape]()
    columns = RecordColumns(value=pa.array([b"v"] * 5), headers=headers)
    assert columns.headers is not None
    # Values may be any bytes, also in columns of text.
    assert header_bytes(columns.headers, 1) == [(b"k", b"k"), (b"\xff", b"\xff")]
    assert header_keys_not_utf8(columns.headers.slice(1)).tolist() == [True, False, False, False]
    assert header_keys_not_utf8(columns.headers.slice(2)).tolist() == [False, False, False]
    assert header_keys_not_utf8(columns.headers.slice(0, 0)).tolist() == []


def _unchecked(octets: list[bytes], kind: pa.DataType) -> pa.Array:
    """As Spark delivers it: Arrow does not check text that it receives."""
    text = pa.array(octets, pa.binary()).view(pa.string())
    if pa.types.is_string_view(kind):
        return pa.array(octets, pa.binary_view()).view(kind)
    return text.dictionary_encode() if pa.types.is_dictionary(kind) else text.cast(kind)


def test_timestamps_of_every_unit_become_milliseconds() -> None:
    values = pa.array([b"v"] * 3)
    for unit, ticks in (
        ("s", [1, None, -1]),
        ("ms", [1000, None, -1000]),
        ("us", [1_000_999, None, -999_001]),
        ("ns", [1_000_999_999, None, -999_000_001]),
    ):
        column = pa.array([0, *ticks], pa.timestamp(unit, tz="UTC")).slice(1)
        columns = RecordColumns(value=values, timestamp=pa.chunked_array([column.slice(0, 1), column.slice(1)]))
        assert columns.timestamp is not None
        assert columns.timestamp.type == pa.int64()
        assert columns.timestamp.to_pylist() == [1000, None, -1000]
    with pytest.raises(TypeError, match="date32"):
        RecordColumns(value=values, timestamp=pa.array([1, 2, 3], pa.date32()))


def test_values_and_places_beyond_the_varint_tables() -> None:
    rows: list[Row] = [
        (b"k" * size, b"v" * size, None, None) for size in (0, 63, 64, 65_534, 65_535, 65_536, 70_000, 1_100_000)
    ]
    assert bytes(encode_records(plain_columns(rows), NOW)[0]) == section(rows)
    many: list[Row] = [(None, b"x" * (number % 3), None, None) for number in range(66_000)]
    assert bytes(encode_records(plain_columns(many), NOW)[0]) == section(many)


@settings(deadline=None)
@given(rows_of_all_kinds)
def test_record_sizes_are_upper_bounds_and_close(rows: list[Row]) -> None:
    columns = plain_columns(rows)
    real = np.array([len(record(row, delta, NOW)) for delta, row in enumerate(rows)])
    slack = record_sizes(columns) - real
    assert (slack >= 0).all()
    assert (slack <= 15).all()
    without_times = [(key, value, headers, None) for key, value, headers, _ in rows]
    real = np.array([len(record(row, delta, NOW)) for delta, row in enumerate(without_times)])
    slack = record_sizes(RecordColumns(value=columns.value, key=columns.key, headers=columns.headers)) - real
    assert (slack >= 0).all()
    assert (slack <= 5).all()


@settings(deadline=None)
@given(rows_of_all_kinds, st.data())
def test_slice_take_and_concat_are_those_of_rows(rows: list[Row], data: st.DataObject) -> None:
    columns = plain_columns(rows)
    start = data.draw(st.integers(0, len(rows) - 1))
    length = data.draw(st.integers(1, len(rows)))
    assert bytes(encode_records(columns.slice(start, length), NOW)[0]) == section(rows[start : start + length])
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=30))
    for taken in (columns.take(np.array(indices)), columns.take(pa.array(indices))):
        assert bytes(encode_records(taken, NOW)[0]) == section([rows[index] for index in indices])
    joined = RecordColumns.concat([columns.slice(start), columns.slice(0, start), columns])
    assert bytes(encode_records(joined, NOW)[0]) == section([*rows[start:], *rows[:start], *rows])


@settings(deadline=None)
@given(rows_of_all_kinds, st.data())
def test_sections_of_batches_join_to_the_batches(rows: list[Row], data: st.DataObject) -> None:
    """Rows in any order, cut into batches, each of which is encoded in one or two passes."""
    columns = plain_columns(rows)
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows)))) | {len(rows)})
    batches = [(start, end, data.draw(st.integers(start, end))) for start, end in zip([0, *cuts], cuts, strict=False)]
    first = encode_sections(columns, order, [Section(start, end) for start, end, _ in batches], NOW)
    assert [bytes(section.records) for section in first] == [
        section([rows[at] for at in order[start:end]]) for start, end, _ in batches
    ]
    for whole, (start, end, half) in zip(first, batches, strict=True):
        if not start < half < end:
            continue
        begun, rest = order[start:half], order[half:end]
        (one,) = encode_sections(columns, begun, [Section(0, len(begun))], NOW)
        (two,) = encode_sections(columns, rest, [Section(0, len(rest), len(begun), one.base_timestamp)], NOW)
        assert bytes(one.records) + bytes(two.records) == bytes(whole.records)
        assert (one.base_timestamp, two.base_timestamp) == (whole.base_timestamp,) * 2
        assert max(one.max_timestamp, two.max_timestamp) == whole.max_timestamp


def test_a_section_keeps_no_other_section_in_memory() -> None:
    columns = RecordColumns(value=pa.array([b"x" * 1_000] * 10_000, pa.binary()))
    before = pa.total_allocated_bytes()
    sections = encode_sections(columns, None, [Section(0, 9_000), Section(9_000, 10_000)], NOW)
    kept = sections.pop()
    del sections
    assert len(kept.records) <= pa.total_allocated_bytes() - before <= 1.1 * len(kept.records)


@settings(max_examples=25, deadline=None)
@given(rows_of_all_kinds, st.sampled_from(Compression))
def test_a_block_of_columns_is_read_back(rows: list[Row], codec: Compression) -> None:
    block = encode_block(plain_columns(rows), NOW, codec)
    parts = seal(block, producer_id=7, producer_epoch=1, base_sequence=3, transactional=True)
    (batch,) = read_record_batches(b"".join(parts))
    assert [(one.key, one.value, one.headers, one.timestamp) for one in batch.records] == [
        (key, value, tuple(headers or ()), NOW if time is None else time) for key, value, headers, time in rows
    ]
    assert block.uncompressed_bytes == len(section(rows))


def sparse_large_binary(offsets: list[int]) -> pa.Array:
    """Rows that lie beyond 2 GiB of a buffer whose pages are never touched."""
    data = pa.py_buffer(mmap.mmap(-1, offsets[-1]))
    return pa.Array.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(np.array(offsets, np.int64)), data]
    )


def test_slice_past_two_gigabytes_is_written_more_is_rejected() -> None:
    column = sparse_large_binary([0, 2**31 + 10, 2**31 + 13, 2**31 + 14])
    columns = RecordColumns(value=column.slice(1))
    rows: list[Row] = [(None, bytes(3), None, None), (None, bytes(1), None, None)]
    assert bytes(encode_records(columns, NOW)[0]) == section(rows)
    with pytest.raises(ValueError, match="split the rows"):
        RecordColumns(value=column)
    halves = [RecordColumns(value=sparse_large_binary([0, 2**30 + 1])) for _ in range(2)]
    with pytest.raises(ValueError, match="split the rows"):
        RecordColumns.concat(halves)
    with pytest.raises(ValueError, match="split the rows"):
        encode_records(RecordColumns(value=halves[0].value, key=halves[1].value), NOW)
    assert record_sizes(halves[0])[0] > 2**30
