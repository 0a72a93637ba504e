"""The codecs of record batches: levels, limits, damaged input and the forms of other clients."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import struct

import lz4.frame
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol.compression import (
    LEVELS,
    XERIAL_HEADER,
    Compression,
    compress,
    compress_pieces,
    decompress,
)
from kafka_eos_sink.protocol.record_batch import MAX_DECOMPRESSED_BYTES
from tests.fuzz.hostile_log import reset_peak, resident

COMPRESSING = [codec for codec in Compression if codec is not Compression.NONE]
LIMIT = 1 << 24
TEXT = b"".join(b"flight %d from EWR to IAH at %d\n" % (number, number * 37 % 2400) for number in range(8000))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(Compression), st.binary(max_size=2000), st.integers(1, 100))
def test_compressed_data_round_trips(codec: Compression, seed: bytes, times: int) -> None:
    data = seed * times
    assert bytes(decompress(codec, compress(codec, None, data), LIMIT)) == data
    assert bytes(decompress(codec, memoryview(compress(codec, None, memoryview(data))), len(data))) == data


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(Compression), st.sampled_from([None, 1, 9]), st.lists(st.integers(0, 70_000), max_size=4))
def test_pieces_compress_to_the_bytes_of_the_whole(codec: Compression, level: int | None, sizes: list[int]) -> None:
    level = level if codec in LEVELS else None
    ends = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    text = TEXT * (1 + ends[-1] // len(TEXT))
    pieces = [text[start:end] for start, end in itertools.pairwise(ends)]
    whole = compress(codec, level, text[: ends[-1]])
    assert b"".join(compress_pieces(codec, level, pieces)) == bytes(whole)


def test_lz4_frames_have_64_kib_blocks_and_no_size_or_checksum() -> None:
    frame = bytes(compress(Compression.LZ4, None, TEXT))
    magic, flags, descriptor = struct.unpack_from("<IBB", frame)
    assert (magic, flags, descriptor) == (0x184D2204, 0b0110_0000, 0x40)


def test_snappy_is_framed_as_snappy_java_does() -> None:
    framed = bytes(compress(Compression.SNAPPY, None, TEXT))
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")


def test_snappy_without_framing_is_read() -> None:
    raw = pa.Codec("snappy").compress(TEXT, asbytes=True)
    assert bytes(decompress(Compression.SNAPPY, raw, LIMIT)) == TEXT


def test_frames_that_follow_one_another_are_read() -> None:
    assert bytes(decompress(Compression.GZIP, gzip.compress(b"one ") + gzip.compress(b"two"), LIMIT)) == b"one two"
    two = lz4.frame.compress(b"one ", block_linked=True) + lz4.frame.compress(b"two", store_size=True)
    assert bytes(decompress(Compression.LZ4, two, LIMIT)) == b"one two"


@pytest.mark.parametrize("codec", Compression)
def test_decompression_stops_at_the_limit(codec: Compression) -> None:
    data = bytes(3_000_000)
    compressed = compress(codec, None, data)
    assert len(decompress(codec, compressed, len(data))) == len(data)
    for limit in (len(data) - 1, 1000, 0):
        with pytest.raises(ProtocolError, match=f"more than the limit of {limit} bytes"):
            decompress(codec, compressed, limit)


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("size", [1 << 18, (1 << 18) - 1, (1 << 18) + 1, 1 << 20, 5 << 18])
def test_data_of_whole_pieces_is_read_to_its_end(codec: Compression, size: int) -> None:
    """Decompressed pieces have 256 KiB; a codec may have read its input before it has given all of them."""
    for data in (bytes(size), os.urandom(size)):
        compressed = bytes(compress(codec, None, data))
        assert bytes(decompress(codec, compressed, size)) == data
        if codec in (Compression.GZIP, Compression.LZ4, Compression.ZSTD):
            assert bytes(decompress(codec, compressed * 3, 3 * size)) == data * 3


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_takes_at_most_64_mib(codec: Compression) -> None:
    bomb = bytes(compress(codec, None, bytes(512 << 20)))
    reset_peak()
    before = resident("VmRSS")
    with pytest.raises(ProtocolError, match="more than the limit"):
        decompress(codec, bomb, MAX_DECOMPRESSED_BYTES)
    assert resident("VmHWM") - before < 64 << 20


def test_block_of_snappy_that_no_writer_makes_is_refused() -> None:
    """It would be in memory twice, by itself and among the others."""
    block = pa.Codec("snappy").compress(bytes((1 << 24) + 1), asbytes=True)
    with pytest.raises(ProtocolError, match="more than the limit"):
        decompress(Compression.SNAPPY, XERIAL_HEADER + struct.pack(">i", len(block)) + block, MAX_DECOMPRESSED_BYTES)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_data_that_is_cut_off_is_refused(codec: Compression) -> None:
    compressed = bytes(compress(codec, None, TEXT[:100_000]))
    for length in (1, 7, len(compressed) // 2, len(compressed) - 1):
        with pytest.raises(ProtocolError, match=f"{codec.name.lower()} data of a record batch"):
            decompress(codec, compressed[:length], LIMIT)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(COMPRESSING), st.binary(max_size=300))
def test_nonsense_is_refused_with_a_protocol_error_only(codec: Compression, nonsense: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert len(decompress(codec, nonsense, 10_000)) <= 10_000


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(COMPRESSING), st.integers(0), st.integers(1, 255))
def test_flipped_byte_is_read_or_raises_only_protocol_error(codec: Compression, place: int, flip: int) -> None:
    damaged = bytearray(compress(codec, None, TEXT[:3000]))
    damaged[place % len(damaged)] ^= flip
    with contextlib.suppress(ProtocolError):
        assert len(decompress(codec, damaged, 10_000)) <= 10_000


def test_a_claim_of_a_huge_size_sets_no_memory_aside() -> None:
    raw = b"\xff\xff\xff\xff\x0f" + os.urandom(20)
    with pytest.raises(ProtocolError, match="ends early"):
        decompress(Compression.SNAPPY, raw, 2**33)
