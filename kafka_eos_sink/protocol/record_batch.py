"""Seal record batches of version 2, and read batches and control records.

The layout is as in ``org.apache.kafka.common.record.DefaultRecordBatch`` (KIP-98): a header of 61 bytes, then the
records, compressed as a whole. The reader rejects batches of magic 0 and 1 (before Kafka 0.11).
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol.compression import Buffer, Compression, compress_pieces, decompress
from kafka_eos_sink.protocol.crc import crc32c
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch
from kafka_eos_sink.protocol.record_reader import TRANSACTIONAL, BatchHeader, Header, Record, RecordReader
from kafka_eos_sink.protocol.varints import encode_varint

BATCH_OVERHEAD = 61  # bytes of the header
MAX_MARKER_BYTES = 1 << 10
MAX_DECOMPRESSED_BYTES = (
    32 * 1024 * 1024
)  # limit of ``read_record_batches`` for each batch; a growing buffer may need it twice

CONTROL_ABORT = 0
CONTROL_COMMIT = 1

_MAGIC = 2
_HEADER = struct.Struct(">qiibIhiqqqhii")
# The CRC covers only the bytes after it, so the leader can set base offset and leader epoch without a new CRC.
_BEFORE_CRC = struct.Struct(">qiibI")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_LOG_OVERHEAD = 12  # base offset and length, which the length does not count
_MAGIC_AT = 16
_ATTRIBUTES_AT = 21
_MAX_BATCH_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsBlock:
    """The encoded records of one batch, without producer id, epoch and sequence.

    ``pieces`` are the records in order, in the codec ``compression``. Timestamps are in ms.
    """

    pieces: Sequence[Buffer]
    record_count: int
    compression: Compression
    base_timestamp: int
    max_timestamp: int
    uncompressed_bytes: int

    @property
    def records(self) -> Buffer:
        """All pieces in one buffer."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)

    @property
    def records_bytes(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the sealed batch."""
        return BATCH_OVERHEAD + self.records_bytes


def seal(
    block: RecordsBlock, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
) -> list[Buffer]:
    """Return the header with its CRC-32C, and the records' pieces without a copy.

    Producer id, epoch and sequence are -1 without idempotence.

    Raises:
        ValueError: The batch is empty or larger than 2 GiB.
    """
    if block.record_count < 1:
        raise ValueError("a batch needs at least one record")
    if block.size_in_bytes - _LOG_OVERHEAD > _MAX_BATCH_BYTES:
        raise ValueError(f"a record batch of {block.size_in_bytes} bytes is larger than 2 GiB; split it")
    after_crc = _AFTER_CRC.pack(
        block.compression | (TRANSACTIONAL if transactional else 0),
        block.record_count - 1,
        block.base_timestamp,
        block.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        block.record_count,
    )
    checksum = crc32c(after_crc)
    for piece in block.pieces:
        checksum = crc32c(piece, checksum)
    # The leader replaces base offset 0 and leader epoch -1.
    before_crc = _BEFORE_CRC.pack(0, block.size_in_bytes - _LOG_OVERHEAD, -1, _MAGIC, checksum)
    return [before_crc + after_crc, *block.pieces]


def encode_rows(
    rows: Iterable[tuple[bytes | None, bytes | None, Sequence[Header]]],
    timestamp_ms: int,
    *,
    codec: Compression = Compression.NONE,
) -> RecordsBlock:
    """Encode a few rows ``(key, value, headers)`` as one block with one timestamp.

    The records of the commit log use this function. ``record_columns`` encodes columns.
    """
    records = bytearray()
    count = 0
    for count, (key, value, headers) in enumerate(rows, start=1):
        body = bytearray(b"\x00\x00")  # attributes and timestamp delta
        body += encode_varint(count - 1)
        _append_bytes(body, key)
        _append_bytes(body, value)
        body += encode_varint(len(headers))
        for name, content in headers:
            _append_bytes(body, name.encode())
            _append_bytes(body, content)
        records += encode_varint(len(body))
        records += body
    return RecordsBlock(
        pieces=compress_pieces(codec, None, [bytes(records)]),
        record_count=count,
        compression=codec,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        uncompressed_bytes=len(records),
    )


def read_own_block(block: RecordsBlock) -> tuple[Record, ...]:
    """Read the records of a block that this process encoded, with offsets from 0.

    Header keys that are not UTF-8 are decoded with Python's ``surrogateescape``.
    """
    data = decompress(block.compression, block.records, block.uncompressed_bytes)
    last, count = block.record_count - 1, block.record_count
    header = BatchHeader(0, 0, -1, _MAGIC, 0, 0, last, block.base_timestamp, block.max_timestamp, -1, -1, -1, count)
    return RecordReader(data, "a batch of this producer", is_own=True).read(header, with_headers=True)


def _append_bytes(out: bytearray, content: bytes | None) -> None:
    if content is None:
        out += encode_varint(-1)
    else:
        out += encode_varint(len(content))
        out += content


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRecord:
    """A control record; ``type`` 0 is an ABORT marker, 1 a COMMIT marker.

    Other types do not concern transactions.
    """

    offset: int
    type: int


@dataclass(slots=True, kw_only=True)
class RecordBatch(BatchHeader):
    """One batch of a log; compaction removes records, but keeps offsets and producer.

    A batch has ``records`` or, if ``control`` is true, ``control_records``.
    """

    size_in_bytes: int
    records: tuple[Record, ...] = ()
    control_records: tuple[ControlRecord, ...] = ()


def read_record_batches(
    data: Buffer,
    *,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    producers: Container[ProducerIdAndEpoch] | None = None,
) -> Iterator[RecordBatch]:
    """Read the batches of a Fetch response or of a log segment, one at a time.

    Args:
        producers: Read only these producers' records, because others may be large or unreadable. None reads all.

    Raises:
        ProtocolError: A wrong CRC, a magic other than 2, an unknown codec, contradictory lengths, or a batch with more than
            ``max_decompressed_bytes`` of records.
    """
    for view, header in _batches(data):
        is_read = producers is None or (header.producer_id, header.producer_epoch) in producers
        yield _read_batch(view, header, max_decompressed_bytes, with_records=is_read)


def read_blocks(data: Buffer) -> Iterator[tuple[BatchHeader, RecordsBlock]]:
    """Read batches without reading their records, to append them elsewhere.

    Yields:
        The header, and a view of the records as in the log, still compressed.

    Raises:
        ProtocolError: A wrong CRC, a magic other than 2, an unknown codec, or a wrong length.
    """
    for view, header in _batches(data):
        records = view[BATCH_OVERHEAD:]
        block = RecordsBlock(
            pieces=[records],
            record_count=header.record_count,
            compression=header.compression,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
            uncompressed_bytes=len(records),
        )
        yield header, block


def is_commit_marker(header: BatchHeader, block: RecordsBlock) -> bool:
    """Whether a control batch holds a COMMIT marker. Raises as `read_record_batches`."""
    section = decompress(block.compression, block.records, MAX_MARKER_BYTES)
    records = RecordReader(section, str(header)).read(header, with_headers=False)
    return any(_control_record(record, header).type == CONTROL_COMMIT for record in records)


def read_each_batch(
    data: Buffer, *, max_bytes: int, max_records: int
) -> Iterator[tuple[BatchHeader, RecordBatch | ProtocolError]]:
    """Read the batches of an untrusted log one by one, without the records' headers.

    Yields:
        The header, and the batch, or the error if its CRC is right but its records cannot be read.

    Raises:
        ProtocolError: As `read_record_batches`. A control batch always raises, because only brokers write one.
    """
    for view, header in _batches(data):
        found: RecordBatch | ProtocolError
        try:
            if len(view) - BATCH_OVERHEAD > max_bytes or header.record_count > max_records:
                raise ProtocolError(f"{len(view)} bytes with {header.record_count} records are more than the limit")
            found = _read_batch(view, header, max_bytes, with_headers=False)
        except ProtocolError as unreadable:
            if header.control:
                raise
            found = unreadable
        yield header, found


def _batches(data: Buffer) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Yield each complete batch with its header, checked by its CRC."""
    view = memoryview(data).cast("B")
    at = 0
    while len(view) - at > _MAGIC_AT:
        magic = view[at + _MAGIC_AT]
        if magic != _MAGIC:
            raise ProtocolError(
                f"the batch at byte {at} has magic {magic}; only magic 2 (Kafka 0.11 and later) is supported"
            )
        base_offset, length = struct.unpack_from(">qi", view, at)
        if length < BATCH_OVERHEAD - _LOG_OVERHEAD:
            raise ProtocolError(f"the batch at byte {at} (offset {base_offset}) has the invalid length {length}")
        if length > len(view) - at - _LOG_OVERHEAD:
            # Brokers cut a Fetch response at its size limit, so the last batch may be incomplete.
            break
        batch = view[at : at + _LOG_OVERHEAD + length]
        yield batch, _read_header(batch)
        at += len(batch)


def headers_of(data: Buffer) -> Iterator[BatchHeader]:
    """Yield batch headers, CRC unchecked; the last batch's records may be incomplete."""
    view = memoryview(data).cast("B")
    at = 0
    while len(view) - at > _MAGIC_AT:
        base_offset, length = struct.unpack_from(">qi", view, at)
        if length <= 0:
            raise ProtocolError(f"the batch at byte {at} (offset {base_offset}) has the invalid length {length}")
        if view[at + _MAGIC_AT] != _MAGIC:
            # A batch before magic 2 has no producer, so only its base offset matters.
            yield BatchHeader(base_offset, 0, -1, view[at + _MAGIC_AT], 0, 0, 0, -1, -1, -1, -1, -1, 0)
        elif len(view) - at < BATCH_OVERHEAD:
            return
        else:
            yield BatchHeader(*_HEADER.unpack_from(view, at))
        at += _LOG_OVERHEAD + length


def _read_header(view: memoryview) -> BatchHeader:
    """Check one batch by its CRC, and read its header."""
    header = BatchHeader(*_HEADER.unpack_from(view))
    actual = crc32c(view[_ATTRIBUTES_AT:])
    if header.checksum != actual:
        raise ProtocolError(
            f"{header} is damaged: its CRC-32C is {header.checksum:#010x}, but its bytes have {actual:#010x}"
        )
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.record_count < 0:
        raise ProtocolError(
            f"{header} has last offset delta {header.last_offset_delta} and {header.record_count} records; "
            "neither can be negative"
        )
    return header


def _read_batch(
    view: memoryview, header: BatchHeader, max_bytes: int, *, with_headers: bool = True, with_records: bool = True
) -> RecordBatch:
    """Read the records of a batch, at most ``max_bytes`` of them."""
    codec = header.compression
    records: tuple[Record, ...] = ()
    # Compaction may leave a bare header, whose empty section is not valid compressed data.
    if with_records and (header.record_count or len(view) > BATCH_OVERHEAD):
        section = decompress(codec, view[BATCH_OVERHEAD:], max_bytes)
        where = str(header)  # formatted before memory can run out
        try:
            records = RecordReader(section, where).read(header, with_headers=with_headers)
        except MemoryError:
            raise ProtocolError(f"{where} needs more memory than is free") from None
    return RecordBatch(
        *_HEADER.unpack_from(view),
        size_in_bytes=len(view),
        records=() if header.control else records,
        control_records=tuple(_control_record(record, header) for record in records) if header.control else (),
    )


def _control_record(record: Record, batch: BatchHeader) -> ControlRecord:
    """Read a control record (KIP-98)."""
    # The key is (version, type), and the value of a marker is (version, coordinator epoch). Later versions only append
    # fields (Kafka's ``EndTransactionMarker`` relies on this too).
    if record.key is None or len(record.key) < 4:
        raise ProtocolError(f"{batch} has a control record at offset {record.offset} without a type")
    version, kind = struct.unpack_from(">hh", record.key)
    if version < 0:
        raise ProtocolError(f"{batch} has a control record of version {version}")
    if kind in (CONTROL_ABORT, CONTROL_COMMIT) and len(record.value or b"") < 6:
        raise ProtocolError(f"{batch} has a marker at offset {record.offset} without a coordinator epoch")
    return ControlRecord(offset=record.offset, type=kind)
