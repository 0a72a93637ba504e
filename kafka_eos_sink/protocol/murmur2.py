"""murmur2, Kafka's hash of keys, for one value and for a column."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_WORD_M: Final = np.uint32(_M)
_FEW_ROWS: Final = 8  # below it, a numpy pass costs more than plain Python


def murmur2(offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Hash each value of a binary column as Kafka's ``Utils.murmur2`` does.

    Value i is ``data[offsets[i]:offsets[i + 1]]``. This hash is unsigned, Java's is a signed int.
    """
    length = np.diff(offsets).astype(np.uint32)
    first, last = int(offsets[0]), int(offsets[-1])
    start = offsets[:-1].astype(np.int64) - first
    hashes = np.uint32(_SEED) ^ length
    if not len(length):
        return hashes
    # A view with one word per address makes numpy gather words instead of four single bytes.
    padded = np.concatenate([data[first:last], np.zeros(4, np.uint8)])
    words: npt.NDArray[np.uint32] = np.ndarray((len(padded) - 3,), "<u4", padded.data, strides=(1,))
    shortest, longest = int(length.min()), int(length.max())
    for word in range(shortest // 4):
        # Keys of one length have a constant stride, so numpy reads words three times as fast as by index.
        at = slice(4 * word, 4 * word + len(length) * longest, longest) if shortest == longest else start + 4 * word
        hashes *= _WORD_M
        hashes ^= _mixed(words[at])
    for word in range(shortest // 4, longest // 4):
        rows = np.flatnonzero(length >= 4 * (word + 1))
        if len(rows) < _FEW_ROWS:
            for row in rows.tolist():
                hashes[row] = _resumed(int(hashes[row]), data[offsets[row] : offsets[row + 1]].tobytes(), word)
            break
        hashes[rows] = (hashes[rows] * _WORD_M) ^ _mixed(words[start[rows] + 4 * word])
    rest = length & np.uint32(3)
    rows = np.flatnonzero(rest)
    if len(rows):
        mask = (np.uint32(1) << (rest[rows] * np.uint32(8))) - np.uint32(1)
        tail = words[start[rows] + (length[rows] & ~np.uint32(3))] & mask
        hashes[rows] = (hashes[rows] ^ tail) * _WORD_M
    hashes = (hashes ^ (hashes >> np.uint32(13))) * _WORD_M
    return hashes ^ (hashes >> np.uint32(15))


def _mixed(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    k = words * _WORD_M
    k ^= k >> np.uint32(24)
    k *= _WORD_M
    return k


def _resumed(hashed: int, value: bytes, word: int) -> int:
    """Continue a hash from ``word`` of ``value`` to its last complete word."""
    for at in range(4 * word, len(value) - 3, 4):
        k = int.from_bytes(value[at : at + 4], "little") * _M & 0xFFFFFFFF
        k = (k ^ (k >> 24)) * _M & 0xFFFFFFFF
        hashed = (hashed * _M & 0xFFFFFFFF) ^ k
    return hashed


def murmur2_bytes(value: bytes) -> int:
    """Hash one value as Kafka's ``Utils.murmur2`` does, unsigned."""
    hashed = _resumed(_SEED ^ len(value), value, 0)
    if rest := len(value) & 3:
        hashed = (hashed ^ int.from_bytes(value[-rest:], "little")) * _M & 0xFFFFFFFF
    hashed = (hashed ^ (hashed >> 13)) * _M & 0xFFFFFFFF
    return hashed ^ (hashed >> 15)
