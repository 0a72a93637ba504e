"""Zigzag varints of the record format, for one value and for columns."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64Array = npt.NDArray[np.int64]

TABLE_VALUES = 1 << 16  # ``varint_table`` has the values from -1 to TABLE_VALUES - 1


def encode_varint(value: int) -> bytes:
    """Encode one signed 64-bit integer as a zigzag varint of 1 to 10 bytes."""
    rest = (value << 1 ^ value >> 63) & 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def varint_sizes(values: npt.NDArray[np.signedinteger[Any]]) -> Int64Array:
    """Return the bytes of each integer's zigzag varint."""
    sizes = np.ones(len(values), np.int64)
    if len(values):
        lowest, highest = int(values.min()), int(values.max())
        for bits in range(6, 63, 7):
            bound = 1 << bits
            if highest < bound and lowest >= -bound:
                break
            sizes += values >= bound
            if lowest < -bound:
                sizes += values < -bound
    return sizes


def encode_varints(values: Int64Array, prefix: bytes = b"", suffix: bytes = b"") -> pa.Array:
    """Encode each value as ``prefix`` + zigzag varint + ``suffix`` in a binary array."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    sizes = varint_sizes(values)
    width = int(sizes.max(initial=1))
    cells = np.empty((len(values), len(prefix) + width + len(suffix)), np.uint8)
    used = np.ones(cells.shape, np.bool_)
    cells[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    cells[:, len(prefix) + width :] = np.frombuffer(suffix, np.uint8)
    for place in range(width):
        seven_bits = (zigzag >> np.uint64(7 * place)).astype(np.uint8) & np.uint8(0x7F)
        cells[:, len(prefix) + place] = seven_bits | (sizes > place + 1).astype(np.uint8) << np.uint8(7)
        used[:, len(prefix) + place] = sizes > place
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes + (len(prefix) + len(suffix)), out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(cells[used])], null_count=0
    )


@lru_cache(maxsize=16)
def varint_table(prefix: bytes = b"", suffix: bytes = b"") -> pa.Array:
    """Return the varints of -1 to ``TABLE_VALUES`` - 1; entry ``i`` encodes ``i - 1``."""
    return encode_varints(np.arange(-1, TABLE_VALUES, dtype=np.int64), prefix, suffix)
