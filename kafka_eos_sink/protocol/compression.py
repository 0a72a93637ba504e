"""The five codecs of record batches, compatible with Kafka's Java client.

Consumers of Java, librdkafka and kafka-python can read these formats:

- gzip: one gzip member.
- snappy: xerial framing (the stream format of snappy-java), blocks of 64 KiB.
- lz4: the LZ4 frame format with independent blocks.
- zstd: one frame.

The readers accept every format of these clients, including snappy without framing and consecutive frames.
The caller limits the decompressed bytes, so a crafted batch cannot exhaust memory.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import lz4.frame
import pyarrow as pa

from kafka_eos_sink.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 64 * 1024

_LZ4_FRAME: Final = {
    "block_size": lz4.frame.BLOCKSIZE_MAX64KB,
    "block_linked": False,  # Java's ``Lz4BlockInputStream`` rejects linked blocks
    "content_checksum": False,
}
_READ_CHUNK_BYTES = 1 << 18
_MAX_XERIAL_BLOCK_BYTES = 1 << 24  # writers use blocks of 32 KiB
_SNAPPY_MAX_RATIO = 64  # a snappy element of at least two bytes yields at most 64 bytes


class Compression(IntEnum):
    """Compression of a record batch: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of(cls, name: str) -> Compression:
        """Return the codec of a ``compression.type``, which the reader of the options has checked."""
        return cls[name.upper()]


class LevelRange(NamedTuple):
    """The range of ``compression.<codec>.level``; ``default`` may be outside of it."""

    minimum: int
    maximum: int
    default: int


# Ranges and defaults of the Java client (KIP-390). The codecs none and snappy have no levels.
LEVELS = {
    Compression.GZIP: LevelRange(minimum=1, maximum=9, default=-1),
    Compression.LZ4: LevelRange(minimum=1, maximum=17, default=9),
    Compression.ZSTD: LevelRange(minimum=-131072, maximum=22, default=3),
}


def compress(codec: Compression, level: int | None, data: Buffer) -> bytes | memoryview:
    """Compress ``data``; ``level`` None selects the Java client's default."""
    match codec:
        case Compression.NONE:
            return memoryview(data)
        case Compression.GZIP:
            # 31: the gzip container (16) with the largest window (15).
            return zlib.compress(data, LEVELS[codec].default if level is None else level, wbits=31)
        case Compression.SNAPPY:
            return _compress_snappy(data)
        case Compression.LZ4:
            settings = {"compression_level": _lz4_level(level), **_LZ4_FRAME}
            return lz4.frame.compress(data, **settings, store_size=False)  # type: ignore[no-any-return]
        case Compression.ZSTD:
            compressor = _arrow_codec("zstd", LEVELS[codec].default if level is None else level)
            return compressor.compress(data, asbytes=True)  # type: ignore[no-any-return]


def compress_pieces(codec: Compression, level: int | None, pieces: Sequence[Buffer]) -> Sequence[Buffer]:
    """Compress the pieces like the whole. The codecs none and lz4 do not join them."""
    if codec is Compression.NONE:
        return pieces
    if len(pieces) == 1 or codec is not Compression.LZ4:
        return [compress(codec, level, pieces[0] if len(pieces) == 1 else b"".join(pieces))]
    frame = lz4.frame.LZ4FrameCompressor(compression_level=_lz4_level(level), **_LZ4_FRAME)
    return [frame.begin(), *map(frame.compress, pieces), frame.flush()]


def _compress_snappy(data: Buffer) -> bytes:
    codec, view = _arrow_codec("snappy", None), memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = codec.compress(view[start : start + XERIAL_BLOCK_BYTES], asbytes=True)
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _lz4_level(level: int | None) -> int:
    # Java uses its fast compressor at the default level 9, and high compression at any other level from 1 to 17. The
    # frame library uses its fast compressor below level 3. Its highest level is 12.
    return 0 if level in (None, LEVELS[Compression.LZ4].default) else min(max(level, 3), 12)


@lru_cache(maxsize=16)
def _arrow_codec(name: str, level: int | None) -> Any:
    return pa.Codec(name) if level is None else pa.Codec(name, compression_level=level)


def decompress(codec: Compression, data: Buffer, limit: int) -> Buffer:
    """Decompress; raise ``ProtocolError`` if damaged or above ``limit`` bytes."""
    try:
        match codec:
            case Compression.NONE:
                if len(data) > limit:
                    raise _too_large(limit)
                return data
            case Compression.SNAPPY:
                return _decompress_snappy(data, limit)
            case _:
                return _decompress_frames(codec, data, limit)
    except ProtocolError:
        raise
    except (OSError, ValueError) as error:
        # ArrowIOError is an OSError and ArrowInvalid a ValueError.
        raise ProtocolError(f"the {codec.name.lower()} data of a record batch is damaged: {error}") from error
    except MemoryError:
        raise ProtocolError(f"the {codec.name.lower()} data of a record batch needs more memory than is free") from None


def _too_large(limit: int) -> ProtocolError:
    return ProtocolError(f"a record batch decompresses to more than the limit of {limit} bytes")


def _cut_off(codec: Compression) -> ProtocolError:
    return ProtocolError(f"the {codec.name.lower()} data of a record batch ends early")


def _decompress_snappy(data: Buffer, limit: int) -> Buffer:
    view = memoryview(data)
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _decompress_raw_snappy(view, limit, limit)
    out = bytearray()
    at = len(XERIAL_HEADER)
    if len(view) < at:
        raise _cut_off(Compression.SNAPPY)
    while at < len(view):
        if len(view) - at < 4:
            raise _cut_off(Compression.SNAPPY)
        (size,) = struct.unpack_from(">i", view, at)
        at += 4
        if not 0 <= size <= len(view) - at:
            raise _cut_off(Compression.SNAPPY)
        out += _decompress_raw_snappy(view[at : at + size], min(limit - len(out), _MAX_XERIAL_BLOCK_BYTES), limit)
        at += size
    return out


def _decompress_raw_snappy(view: memoryview, room: int, limit: int) -> bytes:
    """Decompress one snappy block into the remaining ``room`` of ``limit``."""
    size = shift = 0
    for byte in view[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise _cut_off(Compression.SNAPPY)
    if size > room:
        raise _too_large(limit)
    if size > _SNAPPY_MAX_RATIO * len(view):
        # The peer chose this size. Reject a size that the compressed bytes cannot yield, before allocating memory.
        raise _cut_off(Compression.SNAPPY)
    out: bytes = _arrow_codec("snappy", None).decompress(view, decompressed_size=size, asbytes=True)
    return out


def _decompress_frames(codec: Compression, data: Buffer, limit: int) -> bytearray:
    """Decompress consecutive frames of gzip, lz4 or zstd."""
    out = bytearray()
    # Pass a buffer: pyarrow never frees its own buffer if the data is damaged.
    piece = memoryview(bytearray(min(_READ_CHUNK_BYTES, limit + 1)))
    with pa.CompressedInputStream(pa.BufferReader(data), codec.name.lower()) as stream:
        while size := stream.readinto(piece[: limit - len(out) + 1]):
            out += piece[:size]
            if len(out) > limit:
                raise _too_large(limit)
    return out
