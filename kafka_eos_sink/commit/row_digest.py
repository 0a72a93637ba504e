"""The digest of a set of rows: one 128-bit hash per row, summed mod 2^128.

When a part of a decided batch is lost, Spark computes the partition again; equal digests and row counts show that the
same rows came out. It is a sum because a shuffle may bring them in another order; and not an exclusive or, in which
a row that comes twice would vanish. It finds accidents, not forgeries: whoever can choose rows to collide can write
to the topic anyway.

The contents of a row, key, value and headers end to end, are filled with zeros to blocks of 16 bytes. Sixteen blocks at
a time go through two 64-bit lanes that multiply, shift and add into each other, every step of it a bijection; the
results of a longer row are hashed again the same way until one is left. So numpy never loops more than sixteen times,
however long the longest row is. Two further blocks hold what the contents do not tell: the three lengths, so that no
two rows look alike, the given timestamp and partition, and the topic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_eos_sink.protocol.binary_columns import Sources, byte_lengths
from kafka_eos_sink.protocol.record_columns import RecordColumns, encoded_headers

UInt64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

DIGEST_BITS = 128

_MODULUS = 1 << DIGEST_BITS
_BLOCK_BYTES = 16
_BLOCK_SHIFT = 4
_SEGMENT_BLOCKS = 16
_SEGMENT_SHIFT = 4

# Rows hashed at once: enough to make the calls into numpy cheap, few enough for the processor's cache.
_CHUNK_ROWS = 16384
_CHUNK_BYTES = 1 << 22

# The lanes start from digits of pi; the multipliers are those of murmur3's and splitmix64's finalisers.
_START_A, _START_B = np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344)
_STEP_A, _STEP_B = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_FINAL_A, _FINAL_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S29, _S31, _S32 = np.uint64(29), np.uint64(31), np.uint64(32)
_LOW_HALF = 0xFFFFFFFF

# No time in milliseconds and no partition is so far below zero.
_NO_TIMESTAMP = -(2**63)
_NO_PARTITION = -(2**31)


@cache
def _zeros() -> pa.Array:
    """So many zero bytes at each index. Made when needed: Arrow imports pandas for it, which planner and commit do without."""
    return pa.array([bytes(count) for count in range(_BLOCK_BYTES)], pa.binary())


def add_digests(left: int, right: int) -> int:
    """The digest of the rows of both."""
    return (left + right) % _MODULUS


def row_digest(topic: str | pa.Array, partition: pa.Array | None, columns: RecordColumns) -> int:
    """The digest of rows: a number below 2^128, 0 for no rows.

    ``topic`` is one for all rows or a string column (plain, large, view or dictionary); ``partition`` an
    int32 column, null where the partitioner decides. Equal rows give equal digests however they are typed, cut into
    batches or ordered: ``add_digests`` over pieces is the digest of the whole. Null differs from empty, except for a
    list of headers, where they are the same record. Raises ``ValueError`` for columns of unequal length.
    """
    count = columns.num_rows
    for name, column in (("topic", topic), ("partition", partition)):
        if column is not None and not isinstance(column, str) and len(column) != count:
            raise ValueError(f"{name} has {len(column)} rows, the records have {count}")
    chunk_rows = min(max(count * _CHUNK_BYTES // max(columns.nbytes, 1), 1), _CHUNK_ROWS)
    total = 0
    for start in range(0, count, chunk_rows):
        total += _digest_of_chunk(
            topic if isinstance(topic, str) else topic.slice(start, chunk_rows),
            None if partition is None else partition.slice(start, chunk_rows),
            columns.slice(start, chunk_rows),
        )
    return total % _MODULUS


def _digest_of_chunk(topic: str | pa.Array, partition: pa.Array | None, columns: RecordColumns) -> int:
    null, empty = np.full(1, -1), np.zeros(1, np.int64)
    headers = None if columns.headers is None else encoded_headers(columns.headers)
    key_lengths = null if columns.key is None else byte_lengths(columns.key)
    value_lengths = byte_lengths(columns.value)
    header_lengths = empty if headers is None else byte_lengths(headers)
    sources = Sources()
    fields = [
        sources.contents(column, lengths)
        for column, lengths in (
            (columns.key, key_lengths),
            (columns.value, value_lengths),
            (headers, header_lengths),
        )
        if column is not None
    ]
    sizes = np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0) + header_lengths
    fields.append((-sizes & _BLOCK_BYTES - 1) + sources.add(_zeros()))
    data, _ = sources.gather(fields, columns.num_rows)
    a, b = _hash_blocks(np.frombuffer(data, np.dtype("<u8")), sizes + _BLOCK_BYTES - 1 >> _BLOCK_SHIFT)

    timestamps = _filled(columns.timestamp, _NO_TIMESTAMP)
    partitions = _filled(partition, _NO_PARTITION)
    spare = np.empty_like(a)
    _step(a, b, _spread(_pair(key_lengths, value_lengths)), _spread(timestamps.view(np.uint64)), spare)
    _step(a, b, _spread(_pair(partitions, header_lengths)), _topic_words(topic), spare)
    return _sum_of_finals(a, b)


def _pair(low: Int64Array, high: Int64Array) -> UInt64Array:
    """Two numbers of 32 bits in one word."""
    return ((high << 32) | (low & _LOW_HALF)).view(np.uint64)


def _filled(column: pa.Array | None, null: int) -> Int64Array:
    if column is None:
        return np.full(1, null)
    filled: Int64Array = column.cast(pa.int64()).fill_null(null).to_numpy()
    return filled


def _topic_words(topic: str | pa.Array) -> UInt64Array:
    """A word per row, or one for all rows; few topics come again and again, so each is hashed once."""
    if isinstance(topic, str):
        return _topic_hashes([topic])
    plain = topic.cast(topic.type.value_type) if pa.types.is_dictionary(topic.type) else topic
    encoded = plain.cast(pa.string()).dictionary_encode(null_encoding="encode")
    codes: npt.NDArray[np.int32] = encoded.indices.to_numpy()
    return _topic_hashes(encoded.dictionary.to_pylist())[codes]


def _topic_hashes(topics: Sequence[str | None]) -> UInt64Array:
    # A null topic (its row goes to the dead letter topic) is told from any name by a byte that no UTF-8 holds.
    names = (b"\xff" if topic is None else topic.encode() for topic in topics)
    hashes = b"".join(hashlib.blake2b(name, digest_size=8).digest() for name in names)
    return np.frombuffer(hashes, np.dtype("<u8"))


def _hash_blocks(words: UInt64Array, blocks: Int64Array) -> tuple[UInt64Array, UInt64Array]:
    """The two lanes of each row; ``words`` holds the rows' blocks, two words each, and ``blocks`` their numbers."""
    segments = np.maximum(blocks + _SEGMENT_BLOCKS - 1 >> _SEGMENT_SHIFT, 1)
    total = int(segments.sum())
    if total == len(blocks):
        return _hash_segments(words, blocks)
    ends = np.cumsum(segments)
    counts = np.full(total, _SEGMENT_BLOCKS)
    counts[ends - 1] = blocks - (segments - 1) * _SEGMENT_BLOCKS
    segment_a, segment_b = _hash_segments(words, counts)
    a, b = segment_a[ends - segments], segment_b[ends - segments]
    # A row's hash must not depend on its neighbours: only rows of several segments go on.
    longer = segments > 1
    theirs = np.repeat(longer, segments)
    joined = np.stack((segment_a[theirs], segment_b[theirs]), axis=1).ravel()
    a[longer], b[longer] = _hash_blocks(joined, segments[longer])
    return a, b


def _hash_segments(words: UInt64Array, counts: Int64Array) -> tuple[UInt64Array, UInt64Array]:
    """The two lanes of each segment; they lie one after the other, of ``counts`` blocks each, at most sixteen."""
    pairs = words.view(np.complex128)  # 16 bytes that numpy takes in one move; never read as a number
    at = np.cumsum(counts) - counts
    most = int(counts.max())
    at_most = np.cumsum(np.bincount(counts))
    order = None
    if int(counts.min()) != most:
        # The longest first: the segments that still have a block are then always the first ones.
        order = np.argsort((most - counts).astype(np.uint8), kind="stable")
        at = at[order]
    a, b = np.full(len(counts), _START_A), np.full(len(counts), _START_B)
    live_a, live_b, live_at = a, b, at
    taken = np.empty(len(counts), np.complex128)
    spare = np.empty(2 * len(counts), np.uint64)
    for block in range(most):
        rows = len(counts) - int(at_most[block])
        if rows != len(live_a):
            live_a, live_b, live_at, taken, spare = a[:rows], b[:rows], at[:rows], taken[:rows], spare[: 2 * rows]
        np.take(pairs, live_at, out=taken, mode="clip")
        live_at += 1
        both = taken.view(np.uint64)
        np.right_shift(both, _S32, out=spare)
        both ^= spare
        _step(live_a, live_b, both[0::2], both[1::2], spare[:rows])
    if order is None:
        return a, b
    in_order_a, in_order_b = np.empty_like(a), np.empty_like(b)
    in_order_a[order] = a
    in_order_b[order] = b
    return in_order_a, in_order_b


def _spread(words: UInt64Array) -> UInt64Array:
    """Words with their high half also in the low one: a product with a difference at the top alone keeps it there."""
    return words ^ words >> _S32


def _step(a: UInt64Array, b: UInt64Array, first: UInt64Array, second: UInt64Array, spare: UInt64Array) -> None:
    """One block, two spread words, into the lanes, in place."""
    a ^= first
    a *= _STEP_A
    b ^= second
    b *= _STEP_B
    np.right_shift(b, _S31, out=spare)
    a ^= spare
    b += a


def _sum_of_finals(a: UInt64Array, b: UInt64Array) -> int:
    """The lanes of each row mixed once more, read as one number of 128 bits, and all summed; spoils the lanes."""
    spare = np.empty_like(a)
    for lane, other, factor in ((a, b, _FINAL_A), (b, a, _FINAL_B), (a, b, _FINAL_B)):
        np.right_shift(lane, _S32, out=spare)
        lane ^= spare
        lane *= factor
        np.right_shift(lane, _S29, out=spare)
        lane ^= spare
        other += lane
    total = 0
    for lane, place in ((a, 64), (b, 0)):
        np.right_shift(lane, _S32, out=spare)
        total += int(spare.sum()) << place + 32
        np.bitwise_and(lane, np.uint64(_LOW_HALF), out=spare)
        total += int(spare.sum()) << place
    return total
