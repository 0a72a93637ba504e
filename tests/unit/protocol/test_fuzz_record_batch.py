"""Whatever bytes a batch is made of, reading it gives batches or a ProtocolError, and nothing else."""

from __future__ import annotations

import struct

from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol.compression import Compression, compress
from kafka_eos_sink.protocol.record_batch import RecordBatch, encode_rows, read_blocks, read_record_batches, seal

LIMIT = 50_000

rows = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=30),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=8,
)
edits = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=6)


def read(data: bytes) -> tuple[RecordBatch, ...]:
    try:
        for header, block in read_blocks(data):
            assert header.base_offset <= header.last_offset
            assert block.size_in_bytes <= len(data)
        batches = tuple(read_record_batches(data, max_decompressed_bytes=LIMIT))
    except ProtocolError:
        return ()
    for batch in batches:
        assert sum(len(one.value or b"") + len(one.key or b"") for one in batch.records) <= LIMIT
    return batches


def with_right_checksum(data: bytearray) -> bytes:
    """The length and CRC made to fit, so that the reader gets to what lies behind them."""
    if len(data) > 21:
        struct.pack_into(">i", data, 8, len(data) - 12)
        data[16] = 2
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
@example(bytes(17))
@example(bytes(16) + b"\x02" + bytes(100))
def test_random_bytes(data: bytes) -> None:
    read(data)


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=40, max_size=300))
def test_random_header_and_records_with_a_right_checksum(rest: bytes) -> None:
    read(with_right_checksum(bytearray(21) + rest))


@settings(max_examples=500, deadline=None)
@given(rows, st.sampled_from(Compression), edits, st.integers(0, 20), st.booleans())
def test_changed_bytes_with_a_right_checksum(
    rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: Compression,
    edits: list[tuple[int, int]],
    cut: int,
    control: bool,
) -> None:
    block = encode_rows(rows, 1, codec=codec)
    data = bytearray(b"".join(seal(block, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)))
    if control:
        data[22] |= 0x20
    for place, byte in edits:
        data[21 + place % (len(data) - 21)] = byte
    read(with_right_checksum(data[: max(len(data) - cut, 61)]))


@settings(max_examples=500, deadline=None)
@given(rows, st.sampled_from(Compression), edits, st.integers(0, 10), st.integers(-2, 12))
def test_changed_records_compressed_well(
    rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: Compression,
    edits: list[tuple[int, int]],
    cut: int,
    count: int,
) -> None:
    records = bytearray(encode_rows(rows, 1).records)
    for place, byte in edits:
        records[place % len(records)] = byte
    body = bytes(compress(codec, None, bytes(records[: len(records) - cut])))
    header = bytearray(61)
    struct.pack_into(">hiqqqhii", header, 21, codec, max(count, 0), 0, 0, 1, 0, 0, count)
    read(with_right_checksum(header + body))
