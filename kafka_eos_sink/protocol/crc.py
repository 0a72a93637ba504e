"""CRC-32C by whichever of two libraries is installed: ``crc32c`` (LGPL), else ``google-crc32c`` (Apache-2.0).

Both use the instructions of the CPU. The first is faster: it takes 40 microseconds for 1 MB, and the other one 100 and a copy.
"""

from __future__ import annotations

from collections.abc import Callable

from kafka_eos_sink.protocol.compression import Buffer

crc32c: Callable[..., int]
"""Return the checksum of a buffer, continued from the checksum of what lies before it."""

try:
    from crc32c import crc32c
except ImportError:
    try:
        import google_crc32c
    except ImportError:
        raise ImportError("no library for CRC-32C is installed; run: pip install crc32c (or google-crc32c)") from None

    def _google_crc32c(data: Buffer, value: int = 0) -> int:
        # It takes nothing but bytes.
        checksum: int = google_crc32c.extend(value, bytes(data))
        return checksum

    crc32c = _google_crc32c
