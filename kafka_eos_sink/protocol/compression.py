"""The five codecs of record batches, as Kafka's Java client writes and reads them.

What is written can be read by the Java, librdkafka and kafka-python consumers:

- gzip: one gzip member.
- snappy: xerial framing (the stream format of snappy-java), blocks of 64 KiB.
- lz4: the LZ4 frame format with independent blocks; Java's reader refuses linked ones
  (``org.apache.kafka.common.compress.Lz4BlockInputStream``).
- zstd: one frame.

What is read may be any of the forms that these clients write, also snappy without framing and frames that follow one
another. Decompression never yields more than the caller's limit, so a crafted batch cannot exhaust memory.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import lz4.frame
import pyarrow as pa

from kafka_eos_sink.errors import ConfigurationError, ProtocolError

Buffer = bytes | bytearray | memoryview

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 64 * 1024

_READ_CHUNK_BYTES = 1 << 20


class Codec(IntEnum):
    """Compression of a record batch: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of(cls, name: str) -> Codec:
        """The codec called ``name`` (``none``, ``gzip``, ``snappy``, ``lz4``, ``zstd``) as in ``compression.type``."""
        try:
            return cls[name.upper()]
        except KeyError:
            known = ", ".join(codec.name.lower() for codec in cls)
            raise ConfigurationError(
                "COMPRESSION_TYPE", f"compression.type {name!r} is unknown; use one of {known}"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRange:
    """The levels that ``compression.<codec>.level`` takes: ``minimum`` to ``maximum``, and ``default``."""

    minimum: int
    maximum: int
    default: int

    def __contains__(self, level: int) -> bool:
        return level == self.default or self.minimum <= level <= self.maximum


LEVELS: dict[Codec, LevelRange] = {
    Codec.GZIP: LevelRange(minimum=1, maximum=9, default=-1),
    Codec.LZ4: LevelRange(minimum=1, maximum=17, default=9),
    Codec.ZSTD: LevelRange(minimum=-131072, maximum=22, default=3),
}
"""Ranges and defaults of the Java client (KIP-390). none and snappy have no levels."""

_LZ4_HIGHEST_LEVEL = 12
_LZ4_LOWEST_HIGH_COMPRESSION_LEVEL = 3


def check_level(codec: Codec, level: int | None) -> None:
    """Raise ``ConfigurationError`` (``COMPRESSION_LEVEL``) when ``codec`` has no such level; ``None`` is a default."""
    if level is None:
        return
    name = codec.name.lower()
    levels = LEVELS.get(codec)
    if levels is None:
        raise ConfigurationError("COMPRESSION_LEVEL", f"{name} has no compression levels; remove level {level}")
    if level not in levels:
        raise ConfigurationError(
            "COMPRESSION_LEVEL",
            f"compression.{name}.level {level} is outside {levels.minimum} to {levels.maximum} "
            f"(default {levels.default})",
        )


def compress(codec: Codec, level: int | None, data: Buffer) -> bytes | memoryview:
    """``data`` compressed with ``codec`` at ``level`` (``None``: the default of the Java client).

    For lz4 the default, 9, means the fast compressor, exactly as in Java; every other level 1 to 17 means the slower
    high compression. Raises ``ConfigurationError`` for a level that the codec does not have.
    """
    check_level(codec, level)
    return _COMPRESSORS[codec](level, data)


def _keep(level: int | None, data: Buffer) -> bytes | memoryview:
    return memoryview(data)


def _compress_gzip(level: int | None, data: Buffer) -> bytes:
    return zlib.compress(data, LEVELS[Codec.GZIP].default if level is None else level, wbits=31)


def _compress_snappy(level: int | None, data: Buffer) -> bytes:
    codec, view = _arrow_codec("snappy", None), memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = codec.compress(view[start : start + XERIAL_BLOCK_BYTES], asbytes=True)
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _compress_lz4(level: int | None, data: Buffer) -> bytes:
    if level is None or level == LEVELS[Codec.LZ4].default:
        frame_level = 0
    else:
        # lz4's frame library takes levels below 3 for the fast compressor and stops at 12; Java's go from 1 to 17.
        frame_level = min(max(level, _LZ4_LOWEST_HIGH_COMPRESSION_LEVEL), _LZ4_HIGHEST_LEVEL)
    frame: bytes = lz4.frame.compress(
        data,
        compression_level=frame_level,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        store_size=False,
    )
    return frame


def _compress_zstd(level: int | None, data: Buffer) -> bytes:
    codec = _arrow_codec("zstd", LEVELS[Codec.ZSTD].default if level is None else level)
    compressed: bytes = codec.compress(data, asbytes=True)
    return compressed


@lru_cache(maxsize=16)
def _arrow_codec(name: str, level: int | None) -> Any:
    return pa.Codec(name) if level is None else pa.Codec(name, compression_level=level)


def decompress(codec: Codec, data: Buffer, limit: int) -> Buffer:
    """``data`` decompressed; ``ProtocolError`` when it is damaged, cut off or would exceed ``limit`` bytes."""
    try:
        return _DECOMPRESSORS[codec](data, limit)
    except ProtocolError:
        raise
    except (OSError, RuntimeError, EOFError, ValueError, zlib.error) as error:
        # OSError and ValueError cover pyarrow's ArrowIOError and ArrowInvalid, RuntimeError is lz4's.
        raise ProtocolError(f"the {codec.name.lower()} data of a record batch is damaged: {error}") from error


def _too_large(limit: int) -> ProtocolError:
    return ProtocolError(f"a record batch decompresses to more than the limit of {limit} bytes")


def _cut_off(codec: Codec) -> ProtocolError:
    return ProtocolError(f"the {codec.name.lower()} data of a record batch ends early")


def _check_kept(data: Buffer, limit: int) -> Buffer:
    if len(data) > limit:
        raise _too_large(limit)
    return data


def _decompress_frames(codec: Codec, new_decompressor: Callable[[], Any], data: Buffer, limit: int) -> bytes:
    """Frames that follow one another, each by a decompressor with the interface of ``bz2.BZ2Decompressor``."""
    out = bytearray()
    rest: Buffer = data
    while len(rest):
        frame = new_decompressor()
        out += frame.decompress(rest, limit - len(out) + 1)
        if len(out) > limit:
            raise _too_large(limit)
        if not frame.eof:
            raise _cut_off(codec)
        rest = frame.unused_data or b""
    return bytes(out)


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    return _decompress_frames(Codec.GZIP, lambda: zlib.decompressobj(wbits=31), data, limit)


def _decompress_lz4(data: Buffer, limit: int) -> bytes:
    return _decompress_frames(Codec.LZ4, lz4.frame.LZ4FrameDecompressor, data, limit)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _decompress_raw_snappy(view, limit, limit)
    out = bytearray()
    at = len(XERIAL_HEADER)
    if len(view) < at:
        raise _cut_off(Codec.SNAPPY)
    while at < len(view):
        if len(view) - at < 4:
            raise _cut_off(Codec.SNAPPY)
        (size,) = struct.unpack_from(">i", view, at)
        at += 4
        if not 0 <= size <= len(view) - at:
            raise _cut_off(Codec.SNAPPY)
        out += _decompress_raw_snappy(view[at : at + size], limit - len(out), limit)
        at += size
    return bytes(out)


def _decompress_raw_snappy(view: memoryview, room: int, limit: int) -> bytes:
    """One snappy block into the ``room`` that is left of ``limit``."""
    size = shift = 0
    for byte in view[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise _cut_off(Codec.SNAPPY)
    if size > room:
        raise _too_large(limit)
    if size > _SNAPPY_MAX_RATIO * len(view):
        # The length is only a claim; memory is not set aside for one that the compressed bytes cannot hold.
        raise _cut_off(Codec.SNAPPY)
    out: bytes = _arrow_codec("snappy", None).decompress(view, decompressed_size=size, asbytes=True)
    return out


_SNAPPY_MAX_RATIO = 64
"""A snappy element makes at most 64 bytes out of at least two."""


def _decompress_zstd(data: Buffer, limit: int) -> bytes:
    out = bytearray()
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        while chunk := stream.read(min(_READ_CHUNK_BYTES, limit - len(out) + 1)):
            out += chunk
            if len(out) > limit:
                raise _too_large(limit)
    return bytes(out)


_COMPRESSORS: dict[Codec, Callable[[int | None, Buffer], bytes | memoryview]] = {
    Codec.NONE: _keep,
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: _compress_zstd,
}

_DECOMPRESSORS: dict[Codec, Callable[[Buffer, int], Buffer]] = {
    Codec.NONE: _check_kept,
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
