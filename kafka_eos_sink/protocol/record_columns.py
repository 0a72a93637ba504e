"""Arrow columns to the records section of a record batch v2, with no Python per row.

A record is a run of short and long byte strings: its length, attributes, timestamp delta, offset delta, key length,
key, value length, value, number of headers, headers. All of them lie ready in *sources*: the columns themselves and
tables of pre-computed varints. One Arrow ``take`` over the concatenated sources, with one index per byte string, writes
the whole section; numpy computes the indices. Tried beside it: joining the columns element by element
(``binary_join_element_wise``) and scattering bytes with numpy, both two to three times slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_eos_sink.errors import InvalidRowError
from kafka_eos_sink.protocol.binary_columns import (
    MAX_COLUMN_BYTES,
    Indices,
    Sources,
    as_binary,
    byte_lengths,
    check_column_bytes,
    data_bytes,
)
from kafka_eos_sink.protocol.compression import Codec, compress
from kafka_eos_sink.protocol.record_batch import RecordsBlock
from kafka_eos_sink.protocol.varints import Int64Array, encode_varint, varint_sizes

__all__ = [
    "HEADERS_TYPE",
    "MAX_COLUMN_BYTES",
    "EncodedRecords",
    "RecordColumns",
    "as_binary",
    "encode_block",
    "encode_records",
    "encode_rows_at",
    "encoded_headers",
    "record_sizes",
]

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

NO_HEADERS = encode_varint(0)
NULL_FIELD = encode_varint(-1)
_ATTRIBUTES = b"\x00"
_NO_TIMESTAMP_DELTA = encode_varint(0)
_MAX_OFFSET_DELTA_SIZE = 5
_MAX_TIMESTAMP_DELTA_SIZE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """What records are made of: columns of equal length, one row per record.

    ``value`` and ``key`` may be given as anything that ``as_binary`` takes; ``headers`` as a list of structs with a
    string ``key`` and a binary or string ``value``; ``timestamp`` as int64 ms or an Arrow timestamp. They are kept as
    binary, ``HEADERS_TYPE`` and int64 ms. ``key`` ``None`` means null keys throughout, ``headers`` ``None`` no headers;
    ``timestamp`` ``None``, or null in a row, means the time of writing. A null list of headers is an empty one.

    Raises ``TypeError`` for other types, ``ValueError`` for columns of unequal length or 2 GiB and more, and
    ``InvalidRowError`` (``INVALID_HEADER``) for a header whose key is null.
    """

    value: pa.Array
    key: pa.Array | None = None
    headers: pa.Array | None = None
    timestamp: pa.Array | None = None

    def __post_init__(self) -> None:
        normalised = (
            ("value", as_binary(self.value)),
            ("key", None if self.key is None else as_binary(self.key)),
            ("headers", None if self.headers is None else _as_headers(self.headers)),
            ("timestamp", None if self.timestamp is None else _as_milliseconds(self.timestamp)),
        )
        for name, column in normalised:
            object.__setattr__(self, name, column)
            if column is not None and len(column) != len(self.value):
                raise ValueError(f"{name} has {len(column)} rows, value has {len(self.value)}")

    @property
    def num_rows(self) -> int:
        """Rows, hence records."""
        return len(self.value)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns' rows, with Arrow's own offsets and bitmaps; shared buffers count by the slice."""
        return sum(column.nbytes for column in self._columns() if column is not None)

    def slice(self, offset: int, length: int | None = None) -> RecordColumns:
        """The rows from ``offset`` on, at most ``length`` of them, without copying."""
        return self._map(lambda column: column.slice(offset, length))

    def take(self, indices: pa.Array | Indices) -> RecordColumns:
        """The rows at ``indices``, in their order, copied."""
        picked = indices if isinstance(indices, pa.Array) else pa.array(indices)
        return self._map(lambda column: column.take(picked))

    @classmethod
    def concat(cls, parts: Sequence[RecordColumns]) -> RecordColumns:
        """The rows of all ``parts`` one after the other; a column that only some of them have is null in the others."""
        if not parts:
            return cls(value=pa.array([], pa.binary()))
        if len(parts) == 1:
            return parts[0]

        def joined(name: str, kind: pa.DataType) -> pa.Array | None:
            columns = [getattr(part, name) for part in parts]
            if all(column is None for column in columns):
                return None
            return pa.concat_arrays(
                pa.nulls(part.num_rows, kind) if column is None else column
                for part, column in zip(parts, columns, strict=True)
            )

        check_column_bytes("value", sum(data_bytes(part.value) for part in parts))
        check_column_bytes("key", sum(data_bytes(part.key) for part in parts if part.key is not None))
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


def _as_headers(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = column
    if isinstance(column, pa.ChunkedArray):
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if array.type != HEADERS_TYPE:
        try:
            array = array.cast(HEADERS_TYPE)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid, ValueError) as error:
            raise TypeError(
                f"headers of type {array.type} cannot be written; "
                "cast them to array<struct<key: string, value: binary>>"
            ) from error
    entries = array.values
    if entries.null_count or entries.field(0).null_count:
        # The children may hold nulls outside this slice or under null lists, which do not matter.
        keys = array.flatten().flatten()[0]
        if keys.null_count:
            entry = int(np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))[0])
            row = int(np.searchsorted(np.cumsum(_list_lengths(array)), entry, side="right"))
            raise InvalidRowError("INVALID_HEADER", f"row {row} has a header whose key is null; Kafka needs a key")
    return array


def _as_milliseconds(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = column
    if isinstance(column, pa.ChunkedArray):
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
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
    # numpy rounds down before 1970 as well, Arrow's division would round towards it.
    return pa.array(ticks.fill_null(0).to_numpy() // per_ms, mask=mask)


def record_sizes(columns: RecordColumns) -> Int64Array:
    """An upper bound of the bytes that each record takes in an uncompressed batch, beside ``BATCH_OVERHEAD``.

    It differs from the real size only in the offset delta and timestamp delta, which depend on the batch: at most 5
    bytes too many, 15 with a column of timestamps.
    """
    sizes = 1 + _MAX_OFFSET_DELTA_SIZE + _body_sizes(columns)
    sizes += 1 if columns.timestamp is None else _MAX_TIMESTAMP_DELTA_SIZE
    return sizes + varint_sizes(sizes)


def _body_sizes(columns: RecordColumns) -> Int64Array:
    """Bytes of key, value and headers with their lengths, per row."""
    sizes = _field_sizes(byte_lengths(columns.value))
    sizes += len(NULL_FIELD) if columns.key is None else _field_sizes(byte_lengths(columns.key))
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
    return _field_sizes(byte_lengths(as_binary(keys))) + _field_sizes(byte_lengths(values))


def _field_sizes(lengths: Int64Array) -> Int64Array:
    return varint_sizes(lengths) + np.maximum(lengths, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRecords:
    """Records one after the other, uncompressed: record ``i`` is ``data[ends[i - 1]:ends[i]]``."""

    data: memoryview
    ends: Int64Array


def encode_records(columns: RecordColumns, now_ms: int) -> tuple[memoryview, int, int]:
    """The records section of one batch with all rows: ``(records, base_timestamp, max_timestamp)``, uncompressed.

    Offset deltas run from 0. The base timestamp is the first row's, as in Java. Raises ``ValueError`` when there are no
    rows or the section would take 2 GiB or more; ``record_sizes`` tells where to split.
    """
    if not columns.num_rows:
        raise ValueError("a batch to be written needs at least one record")
    timestamps = _timestamps(columns, now_ms)
    if timestamps is None:
        base = highest = now_ms
    else:
        base, highest = int(timestamps[0]), int(timestamps.max())
    encoded = encode_rows_at(columns, now_ms=now_ms, offset_deltas=np.arange(columns.num_rows), base_timestamp=base)
    return encoded.data, base, highest


def encode_block(columns: RecordColumns, now_ms: int, codec: Codec, level: int | None = None) -> RecordsBlock:
    """``encode_records``, compressed: what ``record_batch.seal`` takes."""
    records, base_timestamp, max_timestamp = encode_records(columns, now_ms)
    return RecordsBlock(
        records=compress(codec, level, records),
        record_count=columns.num_rows,
        compression=codec,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        uncompressed_bytes=len(records),
    )


def encode_rows_at(
    columns: RecordColumns,
    *,
    now_ms: int,
    offset_deltas: Indices,
    base_timestamp: int | Int64Array,
    rows: Indices | None = None,
) -> EncodedRecords:
    """Rows encoded for places in batches that the caller keeps, possibly several at once.

    ``rows`` picks and orders the rows (default: all); ``offset_deltas`` holds the place of each picked row in its batch
    and ``base_timestamp`` the base of that batch, one for all or one per picked row. So the rows of many partitions can
    be encoded in one call, sorted by partition, and cut at ``ends``. Raises ``ValueError`` at 2 GiB.
    """
    timestamps = _timestamps(columns, now_ms)
    if timestamps is not None and rows is not None:
        timestamps = timestamps[rows]
    count = columns.num_rows if rows is None else len(rows)
    if not count:
        return EncodedRecords(data=memoryview(b""), ends=np.zeros(0, np.int64))
    places = offset_deltas.astype(np.int64, copy=False)
    # Without a column the rows carry the time of writing; a batch begun earlier has another base.
    deltas = (now_ms if timestamps is None else timestamps) - np.asarray(base_timestamp, np.int64)
    all_at_base = not deltas.any()

    sources = Sources()
    fields, sizes = _row_fields(sources, columns, rows)
    prefix = b""
    if columns.headers is None:
        # The zero that counts a record's headers is written with the next record's length; the first one is cut off
        # and the last one added. It saves a byte string per record.
        fields = fields[:-1]
        prefix = NO_HEADERS
    sizes += len(_ATTRIBUTES) + varint_sizes(places)
    offset_suffix = b""
    if columns.key is None:
        fields = fields[1:]
        offset_suffix = NULL_FIELD
    offsets = sources.varints(places, suffix=offset_suffix)
    if all_at_base:
        sizes += len(_NO_TIMESTAMP_DELTA)
        heads = [sources.varints(sizes, prefix, _ATTRIBUTES + _NO_TIMESTAMP_DELTA), offsets]
    else:
        deltas = np.broadcast_to(deltas, count)
        sizes += varint_sizes(deltas)
        heads = [sources.varints(sizes, prefix, _ATTRIBUTES), sources.varints(deltas), offsets]
    ends = np.cumsum(sizes + varint_sizes(sizes))
    check_column_bytes("the records section", int(ends[-1]) + len(prefix))
    data, _ = sources.gather([*heads, *fields], count, tail=prefix)
    return EncodedRecords(data=data[len(prefix) :], ends=ends)


def _row_fields(
    sources: Sources, columns: RecordColumns, rows: Indices | None = None
) -> tuple[list[Int64Array | int], Int64Array]:
    """The byte strings that say what a row holds, as indices into ``sources``, and their bytes per row.

    They are: key length, key, value length, value, number of headers, and the headers if there is a column of them;
    without a column of keys, the length of null takes the place of the first two. Unambiguous read from the left.
    """
    fields: list[Int64Array | int] = []
    count = columns.num_rows if rows is None else len(rows)
    sizes = np.zeros(count, np.int64)
    if columns.key is None:
        fields.append(sources.constant(NULL_FIELD))
        sizes += len(NULL_FIELD)
    for column in (columns.key, columns.value):
        if column is not None:
            lengths = _picked(byte_lengths(column), rows)
            fields += (sources.varints(lengths), sources.contents(column, lengths, rows))
            sizes += _field_sizes(lengths)
    if columns.headers is None:
        fields.append(sources.constant(NO_HEADERS))
        sizes += len(NO_HEADERS)
    else:
        counts = _picked(_list_lengths(columns.headers), rows)
        encoded = encoded_headers(columns.headers)
        lengths = _picked(byte_lengths(encoded), rows)
        fields += (sources.varints(counts), sources.contents(encoded, lengths, rows))
        sizes += varint_sizes(counts) + lengths
    return fields, sizes


def encoded_headers(headers: pa.Array) -> pa.Array:
    """One binary per row: its headers as they stand in a record, after their number."""
    counts = _list_lengths(headers)
    row_ends = np.concatenate(([0], np.cumsum(counts)))
    entries = headers.flatten()
    if not len(entries):
        offsets, data = np.zeros(1, np.int32), memoryview(b"")
    else:
        sources = Sources()
        fields: list[Int64Array | int] = []
        for column in map(as_binary, entries.flatten()):
            lengths = byte_lengths(column)
            fields += (sources.varints(lengths), sources.contents(column, lengths, None))
        check_column_bytes("the headers", int(_header_sizes(entries).sum()))
        data, offsets = sources.gather(fields, len(entries))
        offsets = offsets[:: len(fields)]
    return pa.Array.from_buffers(
        pa.binary(), len(headers), [None, pa.py_buffer(offsets[row_ends]), pa.py_buffer(data)], null_count=0
    )


def _timestamps(columns: RecordColumns, now_ms: int) -> Int64Array | None:
    """The time of each row in ms, ``now_ms`` where it has none; ``None`` when no row has one."""
    column = columns.timestamp
    if column is None or column.null_count == len(column):
        return None
    filled: Int64Array = column.fill_null(now_ms).to_numpy()
    return filled


def _list_lengths(column: pa.Array) -> Int64Array:
    lengths: Int64Array = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
    return lengths


def _picked(values: Int64Array, rows: Indices | None) -> Int64Array:
    return values if rows is None else values[rows]
