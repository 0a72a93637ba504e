"""Record batches: what is sealed can be read, and what cannot be right is refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c

from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol.compression import Compression, compress
from kafka_eos_sink.protocol.record_batch import (
    BATCH_OVERHEAD,
    ControlRecord,
    RecordBatch,
    RecordsBlock,
    encode_rows,
    headers_of,
    read_blocks,
    read_each_batch,
    read_record_batches,
    seal,
)
from kafka_eos_sink.protocol.varints import encode_varint

ROWS = [
    (b"key", b"value", [("trace", b"1"), ("empty", b""), ("null", None)]),
    (None, b"", []),
    (b"", None, []),
    (b"k" * 70, b"v" * 9000, [("ä", "ö".encode())]),
]
TIME = 1_700_000_000_123


def read_all(data: bytes, **limit: int) -> tuple[RecordBatch, ...]:
    return tuple(read_record_batches(data, **limit))


def sealed(block: RecordsBlock, **identity: Any) -> bytes:
    given = {"producer_id": 4711, "producer_epoch": 5, "base_sequence": 6, "transactional": True} | identity
    return b"".join(seal(block, **given))


def batch(
    records: bytes,
    count: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = 3,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = TIME,
    max_timestamp: int = TIME,
    length: int | None = None,
    checksum: int | None = None,
    magic: int = 2,
) -> bytes:
    """A batch as a broker could hold it, right or wrong, written without the code under test."""
    last = count - 1 if last_offset_delta is None else last_offset_delta
    rest = struct.pack(">hiqqqhii", attributes, last, base_timestamp, max_timestamp, 9, 1, 0, count) + records
    size = 9 + len(rest) if length is None else length
    crc = crc32c(rest) if checksum is None else checksum
    return struct.pack(">qiibI", base_offset, size, leader_epoch, magic, crc) + rest


def record(offset_delta: int = 0, *, key: bytes | None = None, value: bytes | None = None, time: int = 0) -> bytes:
    body = b"\0" + encode_varint(time) + encode_varint(offset_delta)
    for content in (key, value):
        body += encode_varint(-1) if content is None else encode_varint(len(content)) + content
    body += b"\0"
    return encode_varint(len(body)) + body


def test_the_sealed_header_has_every_field_at_its_place() -> None:
    block = encode_rows(ROWS, TIME)
    header, body = seal(block, producer_id=4711, producer_epoch=5, base_sequence=6, transactional=True)
    assert body is block.records
    assert len(header) == BATCH_OVERHEAD
    assert block.size_in_bytes == len(header) + len(body)
    checksum = crc32c(bytes(header[21:]) + bytes(body))
    assert struct.unpack(">qiibIhiqqqhii", header) == (
        *(0, block.size_in_bytes - 12, -1, 2, checksum),
        *(0x10, len(ROWS) - 1, TIME, TIME, 4711, 5, 6, len(ROWS)),
    )


def test_a_batch_that_is_cut_off_at_the_end_is_dropped() -> None:
    whole, cut = sealed(encode_rows(ROWS, TIME)), sealed(encode_rows(ROWS[:1], TIME))
    for length in range(len(cut)):
        assert len(read_all(whole + cut[:length])) == 1
        assert read_all(cut[:length]) == ()


def test_any_changed_byte_behind_the_checksum_is_noticed() -> None:
    data = sealed(encode_rows(ROWS[:2], TIME))
    for place in range(17, len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x40
        with pytest.raises(ProtocolError, match="offset 0 is damaged: its CRC-32C"):
            read_all(damaged)


def test_compaction_leaves_gaps_and_empty_batches() -> None:
    gaps = batch(record(2, value=b"a") + record(7, value=b"b"), 2, base_offset=10, last_offset_delta=9)
    emptied = batch(b"", 0, base_offset=20, attributes=0x10 | Compression.LZ4, last_offset_delta=4)
    first, second = read_all(gaps + emptied)
    assert [one.offset for one in first.records] == [12, 17]
    assert (first.base_offset, first.last_offset) == (10, 19)
    assert (second.base_offset, second.last_offset, second.records) == (20, 24, ())
    assert (second.transactional, second.control, second.producer_id) == (True, False, 9)


def test_broker_time_replaces_the_records_own() -> None:
    (read,) = read_all(batch(record(0, time=5), 1, attributes=0x08, max_timestamp=TIME + 99))
    assert (read.log_append_time, read.records[0].timestamp) == (True, TIME + 99)
    (read,) = read_all(batch(record(0, time=-5), 1))
    assert (read.log_append_time, read.records[0].timestamp) == (False, TIME - 5)


def control(kind: int, value: bytes | None, *, version: int = 0) -> bytes:
    return batch(record(key=struct.pack(">hh", version, kind), value=value), 1, base_offset=55, attributes=0x30)


def test_control_records_are_read() -> None:
    for kind in (0, 1):
        (read,) = read_all(control(kind, struct.pack(">hi", 0, 17)))
        assert (read.control, read.transactional, read.records) == (True, True, ())
        assert read.control_records == (ControlRecord(offset=55, type=kind),)


@pytest.mark.parametrize(
    "wrong",
    [
        batch(record(value=None), 1, attributes=0x30),
        batch(record(key=b"\0\0\0"), 1, attributes=0x30),
        control(1, None),
        control(0, b"\0\0\0\0\0"),
        control(1, struct.pack(">hi", 0, 1), version=-1),
    ],
    ids=["no key", "short key", "no value", "short value", "negative version"],
)
def test_broken_control_records_are_refused(wrong: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_all(wrong)


ONE = record(value=b"abc")

WRONG = {
    "length below the header": batch(ONE, 1, length=48),
    "negative length": batch(ONE, 1, length=-1),
    "more records than said": batch(ONE + record(1), 1),
    "fewer records than said": batch(ONE, 2),
    "a million records said": batch(ONE, 1_000_000),
    "negative count": batch(ONE, -1),
    "records where none are said": batch(ONE, 0, last_offset_delta=0),
    "negative last offset": batch(ONE, 1, last_offset_delta=-1),
    "negative base offset": batch(ONE, 1, base_offset=-1),
    "offset beyond the last": batch(record(1), 1),
    "offsets not rising": batch(record(1) + record(1), 2),
    "negative offset delta": batch(record(-1), 1),
    "unknown codec": batch(ONE, 1, attributes=5),
    "not compressed as said": batch(ONE, 1, attributes=Compression.ZSTD),
    "record longer than the batch": batch(encode_varint(100) + ONE[1:], 1),
    "record shorter than its content": batch(encode_varint(len(ONE) - 3) + ONE[1:], 1),
    "negative record length": batch(encode_varint(-5) + ONE[1:], 1),
    "field longer than the batch": batch(b"\x10\0\0\0\x01\x7e" + b"a" * 3, 1),
    "negative number of headers": batch(b"\x0c\0\0\0\x01\x01\x01", 1),
    "more headers than bytes": batch(b"\x0c\0\0\0\x01\x01\x7e", 1),
    "header without key": batch(b"\x10\0\0\0\x01\x01\x02\x01\x01", 1),
    "endless varint": batch(b"\x20\0" + b"\xff" * 15, 1),
    "varint at the end of the headers": batch(b"\x0e\0\0\0\x01\x01\x80\x80", 1),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_contradictions_are_refused(wrong: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"KAFKA_EOS\.PROTOCOL"):
        read_all(wrong)


def test_any_negative_length_is_null() -> None:
    """As in Java's DefaultRecord; brokers store it."""
    (read,) = read_all(batch(b"\x0c\0\0\0\x09\x03\0", 1))
    assert (read.records[0].key, read.records[0].value) == (None, None)


def each(data: bytes, max_bytes: int = 1_000, max_records: int = 10) -> list[str | tuple[bytes | None, ...]]:
    """What `read_each_batch` makes of each batch: the values of its records, or why it cannot be read."""
    found = read_each_batch(data, max_bytes=max_bytes, max_records=max_records)
    return [
        one.message if isinstance(one, ProtocolError) else tuple(record.value for record in one.records)
        for _, one in found
    ]


UNREADABLE = {
    name: wrong
    for name, wrong in WRONG.items()
    if "header" not in name
    and name not in ("negative length", "negative count", "negative last offset", "negative base offset")
}


@pytest.mark.parametrize("wrong", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_batches_beside_an_unreadable_one_are_read(wrong: bytes) -> None:
    before, unreadable, after = each(batch(ONE, 1) + wrong + batch(ONE, 1))
    assert (before, after) == ((b"abc",), (b"abc",))
    assert isinstance(unreadable, str)


@pytest.mark.parametrize(
    "large",
    [
        batch(record(value=bytes(1_000)), 1),
        batch(bytes(compress(Compression.ZSTD, None, record(value=bytes(1_000)))), 1, attributes=Compression.ZSTD),
        batch(b"".join(map(record, range(11))), 11),
        batch(b"", 2**31 - 1, last_offset_delta=0),
    ],
    ids=["bytes", "decompressed bytes", "records", "records said"],
)
def test_batch_above_the_limit_is_not_read(large: bytes) -> None:
    unreadable, after = each(large + batch(ONE, 1))
    assert after == (b"abc",)
    assert isinstance(unreadable, str)
    assert "limit" in unreadable


def test_record_headers_are_skipped_unread() -> None:
    many = b"\0\0\0\x01\x06abc" + encode_varint(100_000) + bytes(7)
    assert each(batch(encode_varint(len(many)) + many, 1)) == [(b"abc",)]


@pytest.mark.parametrize("wrong", [batch(ONE, 1, checksum=1), batch(ONE, 1, magic=1), control(1, None)])
def test_damaged_and_control_batches_always_raise(wrong: bytes) -> None:
    with pytest.raises(ProtocolError):
        each(batch(ONE, 1) + wrong)


def test_decompression_limit_holds_for_each_batch() -> None:
    records = record(value=bytes(100_000))
    small = batch(bytes(compress(Compression.ZSTD, None, records)), 1, attributes=Compression.ZSTD)
    assert len(small) < 200
    assert len(read_all(small * 3, max_decompressed_bytes=len(records))) == 3
    with pytest.raises(ProtocolError, match="more than the limit"):
        read_all(small * 3, max_decompressed_bytes=len(records) - 1)


def test_records_of_other_producers_are_not_read() -> None:
    unreadable = batch(b"\xff" * 9, 1)
    own = sealed(encode_rows([(b"key", None, ())], 1), producer_id=7, producer_epoch=2)
    other, read = read_record_batches(unreadable + own, producers={(7, 2)})
    assert (other.records, [record.key for record in read.records]) == ((), [b"key"])
    with pytest.raises(ProtocolError):
        read_all(unreadable)


def test_records_and_headers_of_a_batch_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_eos_sink.protocol.record_reader.MAX_OBJECTS", 10)
    for rows, fits in (([8], True), ([9], True), ([10], False), ([4, 4], True), ([5, 4], False)):
        block = encode_rows([(None, None, [("h", None)] * count) for count in rows], TIME)
        if fits:
            assert [len(one.headers) for one in read_all(sealed(block))[0].records] == rows
        else:
            with pytest.raises(ProtocolError, match="more than 10 records and headers"):
                read_all(sealed(block))


def test_the_header_of_a_batch_is_read_without_its_records() -> None:
    data = bytearray(sealed(encode_rows(ROWS, timestamp_ms=TIME)))
    struct.pack_into(">q", data, 0, 40)
    data[-1] ^= 0xFF  # records that nobody could read
    for cut in (len(data), BATCH_OVERHEAD):
        (found,) = headers_of(bytes(data[:cut]))
        assert (found.base_offset, found.last_offset) == (40, 40 + len(ROWS) - 1)
        assert (found.producer_id, found.producer_epoch) == (4711, 5)
        two = headers_of(bytes(data + data[:cut]))
        assert [each.base_offset for each in two] == [40, 40]
    assert not list(headers_of(bytes(data[: BATCH_OVERHEAD - 1])))
    assert not list(headers_of(b""))
    data[16] = 1
    (old,) = headers_of(bytes(data))
    assert (old.base_offset, old.producer_id) == (40, -1)
    struct.pack_into(">i", data, 8, -12)
    with pytest.raises(ProtocolError, match="invalid length"):
        list(headers_of(bytes(data)))


@pytest.mark.parametrize("codec", Compression)
def test_a_block_is_sealed_again_without_a_change_to_its_records(codec: Compression) -> None:
    """Under another producer, still compressed: what recovery does with an aborted transaction's records."""
    data = sealed(encode_rows(ROWS, TIME, codec=codec))
    ((header, block),) = read_blocks(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 5, 6)
    assert bytes(block.records) == data[BATCH_OVERHEAD:]
    assert (block.record_count, block.compression, block.size_in_bytes) == (len(ROWS), codec, len(data))
    again = sealed(block, producer_id=4712, producer_epoch=0, base_sequence=40)
    (old,), (new,) = read_all(data), read_all(again)
    assert (new.producer_id, new.producer_epoch, new.base_sequence) == (4712, 0, 40)
    assert (new.records, new.compression) == (old.records, codec)
    assert (new.base_timestamp, new.max_timestamp) == (old.base_timestamp, old.max_timestamp)


def test_blocks_keep_the_times_of_their_records() -> None:
    data = batch(record(0, time=5) + record(1, time=-9), 2, max_timestamp=TIME + 5)
    ((_, block),) = read_blocks(data)
    (read,) = read_all(sealed(block))
    assert [one.timestamp for one in read.records] == [TIME + 5, TIME - 9]
    assert read.max_timestamp == TIME + 5


def test_a_damaged_block_is_refused_and_the_last_may_be_cut() -> None:
    whole = sealed(encode_rows(ROWS[:2], TIME))
    for cut in range(len(whole)):
        assert len(list(read_blocks(whole + whole[:cut]))) == 1
    for place in range(17, len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        with pytest.raises(ProtocolError, match="offset 0 is damaged: its CRC-32C"):
            list(read_blocks(damaged))


@pytest.mark.parametrize(
    "name", ["length below the header", "negative last offset", "negative base offset", "unknown codec"]
)
def test_a_header_that_contradicts_itself_is_no_block(name: str) -> None:
    with pytest.raises(ProtocolError, match=r"KAFKA_EOS\.PROTOCOL"):
        list(read_blocks(WRONG[name]))
