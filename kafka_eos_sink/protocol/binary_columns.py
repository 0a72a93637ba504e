"""Convert Arrow columns to binary, measure rows, and gather rows into one buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kafka_eos_sink.protocol.varints import TABLE_VALUES, Int64Array, encode_varint, encode_varints, varint_table

Int32Array = npt.NDArray[np.int32]
Indices = npt.NDArray[np.integer[Any]]

# Arrow's binary columns and Kafka's batches both use signed 32-bit sizes.
MAX_COLUMN_BYTES = 2**31 - 1

_CASTABLE = (pa.types.is_null, pa.types.is_fixed_size_binary, pa.types.is_string_view, pa.types.is_binary_view)


def as_binary(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Convert a column of bytes or text, chunked or not, to one binary array.

    Raises:
        TypeError: The type is neither bytes nor text.
        ValueError: The rows take 2 GiB or more.
    """
    if isinstance(column, pa.ChunkedArray):
        chunks = [as_binary(chunk) for chunk in column.chunks]
        check_column_bytes("the column", sum(map(data_bytes, chunks)))
        return pa.concat_arrays(chunks) if chunks else as_binary(pa.array([], column.type))
    kind = column.type
    if kind == pa.binary():
        return column
    if pa.types.is_string(kind):
        return column.view(pa.binary())
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _narrowed(column)
    if pa.types.is_dictionary(kind):
        values = as_binary(column.dictionary)
        return values.take(column.indices)
    if isinstance(column, pa.ExtensionArray):
        return as_binary(column.storage)
    if any(is_kind(kind) for is_kind in _CASTABLE):
        return column.cast(pa.binary())
    raise TypeError(f"a column of type {kind} cannot be written as bytes; cast it to string or binary")


def _narrowed(column: pa.Array) -> pa.Array:
    """Convert a large_string or large_binary array to 32-bit offsets."""
    if not len(column):
        return pa.array([], pa.binary())
    offsets = _buffer(column, 1, np.int64)[column.offset : column.offset + len(column) + 1]
    first = int(offsets[0])
    check_column_bytes("the column", int(offsets[-1]) - first)
    narrow = pa.py_buffer((offsets - first).astype(np.int32))
    data = column.buffers()[2]
    data = pa.py_buffer(b"") if data is None else data.slice(first)
    validity = None
    if column.null_count:
        # The bitmap of a slice may start within a byte, so numpy packs a new one.
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(column), [validity, narrow, data])


def byte_lengths(column: pa.Array) -> Int64Array:
    """Return the bytes of each row of a binary array; -1 for null."""
    if not len(column):
        return np.zeros(0, np.int64)
    offsets = _buffer(column, 1, np.int32)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(offsets).astype(np.int64)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths


def data_bytes(column: pa.Array) -> int:
    """Return the data bytes of a binary array, including bytes under nulls."""
    if not len(column):
        return 0
    offsets = _buffer(column, 1, np.int32)
    return int(offsets[column.offset + len(column)]) - int(offsets[column.offset])


def _buffer(column: pa.Array, number: int, kind: Any) -> npt.NDArray[Any]:
    return np.frombuffer(column.buffers()[number], kind)


def check_column_bytes(what: str, size: int) -> None:
    if size > MAX_COLUMN_BYTES:
        raise ValueError(f"{what} would take {size} bytes, above the maximum of {MAX_COLUMN_BYTES}; split the rows")


class Sources:
    """Concatenated binary arrays, from which ``gather`` takes byte strings by index."""

    def __init__(self) -> None:
        self._arrays: list[pa.Array] = []
        self._length = 0

    def add(self, array: pa.Array) -> int:
        """Append an array and return its first index; callers never take its nulls."""
        base = self._length
        if array.null_count:
            # Callers never take a null, so ``take`` can skip the check of validity.
            _, offsets, data = array.buffers()
            buffers = [None, offsets, pa.py_buffer(b"") if data is None else data]
            array = pa.Array.from_buffers(pa.binary(), len(array), buffers, null_count=0, offset=array.offset)
        self._arrays.append(array)
        self._length += len(array)
        return base

    def constant(self, content: bytes) -> int:
        """Append ``content`` and return its index."""
        return self.add(_single(content))

    def contents(self, column: pa.Array, lengths: Int64Array) -> Int64Array:
        """Append a column and return its rows' indices; a length below 0 means null."""
        base = self.add(column)
        indices = np.arange(base, base + len(column))
        if column.null_count:
            # Arrow allows bytes under a null, which must not reach a record.
            indices[lengths < 0] = self.constant(b"")
        return indices

    def varints(self, values: Int64Array, prefix: bytes = b"", suffix: bytes = b"") -> Int64Array | int:
        """Return indices of ``prefix`` + varint + ``suffix``; one index for equal values."""
        lowest, highest = int(values.min()), int(values.max())
        if lowest == highest:
            return self.constant(prefix + encode_varint(lowest) + suffix)
        if lowest >= -1 and highest < TABLE_VALUES:
            base = self.add(varint_table(prefix, suffix).slice(lowest + 1, highest - lowest + 1))
            return values + (base - lowest)
        known = (values >= -1) & (values < TABLE_VALUES)
        table_base = self.add(varint_table(prefix, suffix)) + 1
        others = values[~known]
        other_base = self.add(encode_varints(others, prefix, suffix))
        indices = values + table_base
        indices[~known] = np.arange(other_base, other_base + len(others))
        return indices

    def gather(
        self, fields: Sequence[Int64Array | int], counts: Sequence[int], *, tail: bytes = b""
    ) -> Iterator[tuple[memoryview, Int32Array]]:
        """Concatenate the byte strings of all ``fields``, row by row, then ``tail``.

        Args:
            counts: The rows of each section.

        Yields:
            For each section in its own buffer: the bytes, then the first byte string of the next section or ``tail``; and the offset
            of each of the byte strings, and of the one that follows.
        """
        tail_index = self.constant(tail)
        indices = np.empty(sum(counts) * len(fields) + 1, np.int32)
        cells = indices[:-1].reshape(-1, len(fields))
        for place, field in enumerate(fields):
            cells[:, place] = field
        indices[-1] = tail_index
        check_column_bytes("the columns", sum(map(data_bytes, self._arrays)))
        source, start = pa.concat_arrays(self._arrays), 0
        for count in counts:
            end = start + count * len(fields)
            taken = pc.take(source, pa.array(indices[start : end + 1]), boundscheck=False)
            offsets = _buffer(taken, 1, np.int32)
            data = taken.buffers()[2]
            yield memoryview(b"") if data is None else memoryview(data).cast("B"), offsets[: end - start + 1]
            start = end


@lru_cache(maxsize=4096)
def _single(content: bytes) -> pa.Array:
    return pa.array([content], pa.binary())
