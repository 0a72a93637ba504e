"""Encode Arrow columns as the records section of a batch, without Python per row.

A record is a sequence of byte strings: length, attributes, timestamp delta, offset delta, key length, key, value
length, value, number of headers, headers. Each byte string exists in a *source*: a column, or a table of pre-computed
varints. numpy computes one index per byte string. One Arrow ``take`` over the concatenated sources then writes the
whole section. Two alternatives were two to three times slower: ``binary_join_element_wise``, and scattering bytes
with numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kafka_eos_sink.protocol import binary_columns as binary
from kafka_eos_sink.protocol.compression import Compression, compress_pieces
from kafka_eos_sink.protocol.record_batch import RecordsBlock
from kafka_eos_sink.protocol.varints import Int64Array, encode_varint, varint_sizes

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

NO_HEADERS = encode_varint(0)
NULL_FIELD = encode_varint(-1)  # length -1: Kafka distinguishes null from empty
_ATTRIBUTES = b"\x00"  # of a record; Kafka defines no record attributes
_NO_TIMESTAMP_DELTA = encode_varint(0)
_MAX_OFFSET_DELTA_SIZE = 5
_MAX_TIMESTAMP_DELTA_SIZE = 10
# RFC 3629, without surrogates and overlong forms. Arrow matches binary columns byte by byte.
_UTF8 = (
    r"\A(?:[\x00-\x7F]|[\xC2-\xDF][\x80-\xBF]|\xE0[\xA0-\xBF][\x80-\xBF]|[\xE1-\xEC\xEE\xEF][\x80-\xBF]{2}|\xED[\x80-\x9F][\x80-\xBF]"
    r"|\xF0[\x90-\xBF][\x80-\xBF]{2}|[\xF1-\xF3][\x80-\xBF]{3}|\xF4[\x80-\x8F][\x80-\xBF]{2})*\z"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """The columns of records, with one row per record.

    Args:
        value: Any type that ``as_binary`` accepts, converted to binary.
        key: As ``value``. ``None`` means that all keys are null.
        headers: A list of structs with a string ``key`` and a binary or string ``value``, or a map of those types,
            converted to ``HEADERS_TYPE``. ``None`` or a null list means no headers.
        timestamp: int64 ms or an Arrow timestamp, converted to int64 ms. ``None`` or null means the time of writing.

    Raises:
        TypeError: A column has another type.
        ValueError: The columns have unequal lengths, or a column takes 2 GiB or more.
    """

    value: pa.Array
    key: pa.Array | None = None
    headers: pa.Array | None = None
    timestamp: pa.Array | None = None

    def __post_init__(self) -> None:
        normalised = (
            ("value", binary.as_binary(self.value)),
            ("key", None if self.key is None else binary.as_binary(self.key)),
            ("headers", None if self.headers is None else _as_headers(self.headers)),
            ("timestamp", None if self.timestamp is None else _as_milliseconds(self.timestamp)),
        )
        for name, column in normalised:
            object.__setattr__(self, name, column)
            if column is not None and len(column) != len(self.value):
                raise ValueError(f"{name} has {len(column)} rows, value has {len(self.value)}")

    @property
    def num_rows(self) -> int:
        """The number of rows and of records."""
        return len(self.value)

    @property
    def nbytes(self) -> int:
        """Bytes of this slice, including Arrow's offsets and bitmaps."""
        return sum(column.nbytes for column in self._columns() if column is not None)

    def slice(self, offset: int, length: int | None = None) -> RecordColumns:
        """Return at most ``length`` rows from ``offset`` on, without a copy."""
        return self._map(lambda column: column.slice(offset, length))

    def take(self, indices: pa.Array | binary.Indices) -> RecordColumns:
        """Return a copy of the rows at ``indices``, in that order."""
        picked = indices if isinstance(indices, pa.Array) else pa.array(indices)
        return self._map(lambda column: column.take(picked))

    @classmethod
    def concat(cls, parts: Sequence[RecordColumns]) -> RecordColumns:
        """Concatenate at least one part; a column that a part lacks becomes null."""

        def joined(name: str, kind: pa.DataType) -> pa.Array | None:
            return concat_columns([(getattr(part, name), part.num_rows) for part in parts], kind)

        binary.check_column_bytes("value", sum(binary.data_bytes(part.value) for part in parts))
        binary.check_column_bytes("key", sum(binary.data_bytes(part.key) for part in parts if part.key is not None))
        return cls(
            value=joined("value", pa.binary()),
            key=joined("key", pa.binary()),
            headers=joined("headers", HEADERS_TYPE),
            timestamp=joined("timestamp", pa.int64()),
        )

    def _columns(self) -> tuple[pa.Array | None, ...]:
        return self.value, self.key, self.headers, self.timestamp

    def _map(self, change: Any) -> RecordColumns:
        value, key, headers, timestamp = (None if column is None else change(column) for column in self._columns())
        return RecordColumns(value=value, key=key, headers=headers, timestamp=timestamp)


def concat_columns(parts: Sequence[tuple[pa.Array | None, int]], kind: pa.DataType) -> pa.Array | None:
    """Concatenate (column, number of rows); None becomes nulls, all None become None."""
    if all(column is None for column, _ in parts):
        return None
    return pa.concat_arrays(pa.nulls(count, kind) if column is None else column for column, count in parts)


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _as_headers(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = _one_array(column)
    if array.type != HEADERS_TYPE:
        array = _with_names_of_headers(array)
        try:
            array = array.cast(HEADERS_TYPE)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid, ValueError) as error:
            raise TypeError(
                f"headers of type {array.type} cannot be written; "
                "cast them to array<struct<key: string, value: binary>>"
            ) from error
    return array


def _with_names_of_headers(array: pa.Array) -> pa.Array:
    """Rename ``Key`` and ``VALUE`` to lower case.

    Arrow casts structs by name, and makes nulls of a field with another name.
    """
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return array
    entry = pa.struct([field.with_name(field.name.lower()) for field in kind.value_type])
    listed = pa.list_ if pa.types.is_list(kind) else pa.large_list
    return array if entry == kind.value_type else array.view(listed(kind.value_field.with_type(entry)))


def headers_array(rows: Sequence[Sequence[tuple[bytes, bytes | None]]]) -> pa.Array:
    """Make a ``HEADERS_TYPE`` array; unlike Arrow, accept keys that are not UTF-8."""
    entries = [entry for row in rows for entry in row]
    keys = pa.array([key for key, _ in entries], pa.binary()).view(pa.string())
    values = pa.array([value for _, value in entries], pa.binary())
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    return pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays([keys, values], ["key", "value"])).cast(
        HEADERS_TYPE
    )


def header_bytes(headers: pa.Array, row: int) -> list[tuple[bytes, bytes | None]]:
    """Return the headers of one row, without those that have no key."""
    keys, values = headers.slice(row, 1).flatten().flatten()
    pairs = zip(binary.as_binary(keys).to_pylist(), values.to_pylist(), strict=True)
    return [(key, value) for key, value in pairs if key is not None]


def null_header_keys(headers: pa.Array) -> npt.NDArray[np.bool_]:
    """Mark the rows that have a header with a null key, which Kafka cannot store."""
    entries = headers.values
    if not entries.null_count and not entries.field(0).null_count:
        return np.zeros(len(headers), np.bool_)
    return _rows_of_headers(headers, _header_keys(headers).is_null())


def header_keys_not_utf8(headers: pa.Array) -> npt.NDArray[np.bool_]:
    """Mark the rows that have a header whose key is not UTF-8, which Kafka requires."""
    keys = _header_keys(headers)
    # Arrow does not check strings that it receives, and Spark makes others by CAST(X'FF' AS STRING).
    if pc.all(pc.string_is_ascii(keys), min_count=0).as_py():  # nearly always, and ten times faster
        return np.zeros(len(headers), np.bool_)
    return _rows_of_headers(headers, pc.invert(pc.match_substring_regex(binary.as_binary(keys), _UTF8)))


def _header_keys(headers: pa.Array) -> pa.Array:
    # Child arrays may hold keys outside this slice or under null lists. No record contains these, so `flatten` drops them.
    return headers.flatten().flatten()[0]


def _rows_of_headers(headers: pa.Array, marked: pa.Array) -> npt.NDArray[np.bool_]:
    """Mark the rows of the marked headers; a null marks none."""
    found = np.zeros(len(headers), np.bool_)
    at = np.flatnonzero(marked.fill_null(False).to_numpy(zero_copy_only=False))
    found[np.searchsorted(np.cumsum(_list_lengths(headers)), at, side="right")] = True
    return found


def _as_milliseconds(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = _one_array(column)
    if array.type == pa.int64():
        return array
    if pa.types.is_null(array.type):
        return array.cast(pa.int64())
    if not pa.types.is_timestamp(array.type):
        raise TypeError(
            f"a timestamp column of type {array.type} cannot be written; cast it to int64 ms or a timestamp"
        )
    ticks = array.cast(pa.int64())
    unit = array.type.unit
    if unit == "ms":
        return ticks
    if unit == "s":
        return pc.multiply_checked(ticks, pa.scalar(1000, pa.int64()))
    per_ms = {"us": 1000, "ns": 1_000_000}[unit]
    mask = ticks.is_null().to_numpy(zero_copy_only=False) if ticks.null_count else None
    # numpy rounds down even before 1970. Arrow's division would round towards zero.
    return pa.array(ticks.fill_null(0).to_numpy() // per_ms, mask=mask)


def record_sizes(columns: RecordColumns) -> Int64Array:
    """Return an upper bound of each record's uncompressed bytes.

    The offset delta and the timestamp delta depend on the batch. The bound is therefore at most 5 bytes too large, or
    15 bytes with a timestamp column.
    """
    sizes = 1 + _MAX_OFFSET_DELTA_SIZE + _body_sizes(columns)
    sizes += 1 if columns.timestamp is None else _MAX_TIMESTAMP_DELTA_SIZE
    return sizes + varint_sizes(sizes)


def _body_sizes(columns: RecordColumns) -> Int64Array:
    """Return the bytes per row of key, value and headers, with their lengths."""
    sizes = _field_sizes(binary.byte_lengths(columns.value))
    sizes += len(NULL_FIELD) if columns.key is None else _field_sizes(binary.byte_lengths(columns.key))
    if columns.headers is None:
        sizes += len(NO_HEADERS)
    else:
        counts = _list_lengths(columns.headers)
        ends = np.concatenate(([0], np.cumsum(_header_sizes(columns.headers.flatten()))))
        row_ends = np.concatenate(([0], np.cumsum(counts)))
        sizes += varint_sizes(counts) + np.diff(ends[row_ends])
    return sizes


def _header_sizes(entries: pa.Array) -> Int64Array:
    keys, values = entries.flatten()
    return _field_sizes(binary.byte_lengths(binary.as_binary(keys))) + _field_sizes(binary.byte_lengths(values))


def _field_sizes(lengths: Int64Array) -> Int64Array:
    return varint_sizes(lengths) + np.maximum(lengths, 0)


class Section(NamedTuple):
    """Consecutive rows of a batch: ``start`` to ``end`` of ``encode_sections``' order.

    ``first_place`` counts the records that the batch already holds. ``base_timestamp`` is the batch's, or None in its first section.
    """

    start: int
    end: int
    first_place: int = 0
    base_timestamp: int | None = None


class EncodedSection(NamedTuple):
    """The encoded records of one section of a batch; timestamps in ms."""

    records: memoryview
    base_timestamp: int
    max_timestamp: int


def encode_block(columns: RecordColumns, now_ms: int, codec: Compression, level: int | None = None) -> RecordsBlock:
    """Encode and compress all rows as one batch, ready for ``record_batch.seal``."""
    records, base_timestamp, max_timestamp = encode_records(columns, now_ms)
    return RecordsBlock(
        pieces=compress_pieces(codec, level, [records]),
        record_count=columns.num_rows,
        compression=codec,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        uncompressed_bytes=len(records),
    )


def encode_records(columns: RecordColumns, now_ms: int) -> EncodedSection:
    """Encode all rows as one batch's records section; raises as ``encode_sections``."""
    (section,) = encode_sections(columns, None, [Section(0, columns.num_rows)], now_ms)
    return section


def encode_sections(
    columns: RecordColumns, order: Int64Array | None, sections: Sequence[Section], now_ms: int
) -> list[EncodedSection]:
    """Encode all rows in one pass, cut into sections of batches.

    One pass costs far less than one pass per section. Indexing by ``order`` costs less than sorting the columns.

    Args:
        order: The row of each record; None keeps the order of the rows.
        sections: Consecutive sections that together cover ``order``.
        now_ms: Timestamp of rows whose timestamp is null. Without a timestamp column, all rows get their batch's timestamp.

    Returns:
        Each section in its own buffer. As in Java, a batch's base timestamp is the timestamp of its first row.

    Raises:
        ValueError: A section has no rows, or all sections together take 2 GiB or more (see ``record_sizes``).
    """
    starts = np.array([section.start for section in sections])
    counts = np.array([section.end - section.start for section in sections])
    count = int(counts.sum())
    if not count or not counts.all():
        raise ValueError("a batch needs at least one record")
    places = np.arange(count) - np.repeat(starts - [section.first_place for section in sections], counts)
    bases, highest, deltas = _section_times(columns, order, sections, now_ms)
    sources = binary.Sources()
    fields, sizes = _row_fields(sources, columns)
    if order is not None:
        fields = [field if isinstance(field, int) else field[order] for field in fields]
        sizes = sizes[order]
    # Join the header count 0 of each record with the length of the next record: one byte string less per record. A section
    # skips the 0 before its first record, and ends with the 0 before the next section's first record, or with the tail.
    prefix = NO_HEADERS if columns.headers is None else b""
    sizes = sizes + (len(_ATTRIBUTES) + varint_sizes(places))
    offsets = sources.varints(places, suffix=NULL_FIELD if columns.key is None else b"")
    if deltas is None or not deltas.any():
        sizes += len(_NO_TIMESTAMP_DELTA)
        heads = [sources.varints(sizes, prefix, _ATTRIBUTES + _NO_TIMESTAMP_DELTA), offsets]
    else:
        sizes += varint_sizes(deltas)
        heads = [sources.varints(sizes, prefix, _ATTRIBUTES), sources.varints(deltas), offsets]
    fields = [*heads, *fields]
    # Check the size before Arrow gathers, because Arrow's offsets have 32 bits.
    binary.check_column_bytes("the records section", int((sizes + varint_sizes(sizes)).sum()) + len(prefix))
    gathered = sources.gather(fields, counts.tolist(), tail=prefix)
    return [
        EncodedSection(data[len(prefix) : int(offsets[-1]) + len(prefix)], base, maximum)
        for (data, offsets), base, maximum in zip(gathered, bases, highest, strict=True)
    ]


def _section_times(
    columns: RecordColumns, order: Int64Array | None, sections: Sequence[Section], now_ms: int
) -> tuple[list[int], list[int], Int64Array | None]:
    """Return base and largest timestamp per section, and delta per record or None."""
    continues = any(section.base_timestamp is not None for section in sections)
    column = columns.timestamp
    if column is None or (column.null_count == len(column) and not continues):
        bases = [now_ms if section.base_timestamp is None else section.base_timestamp for section in sections]
        return bases, bases, None
    timestamps: Int64Array = column.fill_null(now_ms).to_numpy()
    timestamps = timestamps if order is None else timestamps[order]
    bases = [
        int(timestamps[section.start]) if section.base_timestamp is None else section.base_timestamp
        for section in sections
    ]
    starts = np.array([section.start for section in sections])
    highest = np.maximum(bases, np.maximum.reduceat(timestamps, starts)).tolist()
    return bases, highest, timestamps - np.repeat(bases, [section.end - section.start for section in sections])


def _row_fields(sources: binary.Sources, columns: RecordColumns) -> tuple[list[Int64Array | int], Int64Array]:
    """Return the indices of each row's byte strings, and the bytes per row.

    The order is key length, key, value length, value, number of headers, headers. A missing column adds no byte strings, but
    the bytes per row include its length -1 or number 0.
    """
    fields: list[Int64Array | int] = []
    sizes = np.zeros(columns.num_rows, np.int64)
    if columns.key is None:
        sizes += len(NULL_FIELD)
    for column in (columns.key, columns.value):
        if column is not None:
            lengths = binary.byte_lengths(column)
            fields += (sources.varints(lengths), sources.contents(column, lengths))
            sizes += _field_sizes(lengths)
    if columns.headers is None:
        sizes += len(NO_HEADERS)
    else:
        counts = _list_lengths(columns.headers)
        encoded = encoded_headers(columns.headers)
        lengths = binary.byte_lengths(encoded)
        fields += (sources.varints(counts), sources.contents(encoded, lengths))
        sizes += varint_sizes(counts) + lengths
    return fields, sizes


def encoded_headers(headers: pa.Array) -> pa.Array:
    """Return each row's encoded headers as one binary value, without their number."""
    counts = _list_lengths(headers)
    row_ends = np.concatenate(([0], np.cumsum(counts)))
    entries = headers.flatten()
    if not len(entries):
        offsets, data = np.zeros(1, np.int32), memoryview(b"")
    else:
        sources = binary.Sources()
        fields: list[Int64Array | int] = []
        for column in map(binary.as_binary, entries.flatten()):
            lengths = binary.byte_lengths(column)
            fields += (sources.varints(lengths), sources.contents(column, lengths))
        binary.check_column_bytes("the headers", int(_header_sizes(entries).sum()))
        ((data, offsets),) = sources.gather(fields, [len(entries)])
        offsets = offsets[:: len(fields)]
    return pa.Array.from_buffers(
        pa.binary(), len(headers), [None, pa.py_buffer(offsets[row_ends]), pa.py_buffer(data)], null_count=0
    )


def _list_lengths(column: pa.Array) -> Int64Array:
    lengths: Int64Array = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
    return lengths
