"""CPU time per record of encoding, compressing and partitioning.

    python -m benchmarks.bench_encoder

Values have 100 bytes and keys 16. The CPU time is the best of several rounds. It excludes other processes, but they
share the caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from kafka_eos_sink.protocol.compression import Compression, compress
from kafka_eos_sink.protocol.murmur2 import murmur2
from kafka_eos_sink.protocol.record_columns import (
    HEADERS_TYPE,
    RecordColumns,
    encode_records,
    record_sizes,
)

ROWS = 10_000
ROUNDS = 60
NOW = 1_700_000_000_000


def binary_column(lengths: np.ndarray, random: np.random.Generator) -> pa.Array:
    """Make values of digits and letters as in JSON, so that compression is realistic."""
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    data = random.choice(np.frombuffer(b'0123456789abcdef{":,}', np.uint8), int(offsets[-1]))
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def seconds(run: Callable[[], object]) -> float:
    """Return the shortest CPU time of a run."""
    times = []
    run()  # imports, caches and the allocator warm up
    for _ in range(ROUNDS):
        started = time.thread_time_ns()
        run()
        times.append(time.thread_time_ns() - started)
    return min(times) / 1e9


def report(what: str, run: Callable[[], object], rows: int = ROWS) -> None:
    each = seconds(run) / rows
    print(f"{what:58} {each * 1e9:9.1f} ns/record {1 / each / 1e6:8.2f} million records/s")


def main() -> None:
    random = np.random.default_rng(42)
    same_value, same_key = (binary_column(np.full(ROWS, size), random) for size in (100, 16))
    value, key = (binary_column(random.integers(size // 2, size * 3 // 2 + 1, ROWS), random) for size in (100, 16))
    times = pa.array(NOW + random.integers(0, 86_400_000, ROWS))
    headers = pa.array([[{"key": "trace", "value": b"0123456789abcdef"}]] * ROWS, HEADERS_TYPE)
    tables = {
        "100 byte values": RecordColumns(value=same_value),
        "100 byte values, 16 byte keys": RecordColumns(value=same_value, key=same_key),
        "50-150 byte values, 8-24 byte keys": RecordColumns(value=value, key=key),
        "the same with timestamps": RecordColumns(value=value, key=key, timestamp=times),
        "the same with timestamps and a header": RecordColumns(value=value, key=key, timestamp=times, headers=headers),
    }
    for name, columns in tables.items():
        report(f"records section: {name}", partial(encode_records, columns, NOW))
    columns = tables["50-150 byte values, 8-24 byte keys"]
    report("record_sizes", lambda: record_sizes(columns))
    # The fixed cost of a call, which counts if many partitions get few records each.
    few = columns.slice(0, 10)
    report("records section of 10 records", lambda: encode_records(few, NOW), 10)
    print()
    _, offsets, data = key.buffers()
    murmur_offsets, murmur_data = np.frombuffer(offsets, np.int32), np.frombuffer(data, np.uint8)
    report("murmur2 of keys", lambda: murmur2(murmur_offsets, murmur_data))
    section = bytes(encode_records(tables["100 byte values, 16 byte keys"], NOW)[0])
    report("crc32c", lambda: crc32c(section))
    for codec in Compression:
        if codec is not Compression.NONE:
            size = len(compress(codec, None, section)) / len(section)
            report(f"{codec.name.lower()} (to {size:.0%})", partial(compress, codec, None, section))


if __name__ == "__main__":
    main()
