"""Record batch v2: header, attributes, CRC and control records; sealing what is to be written, reading what was.

The layout is that of ``org.apache.kafka.common.record.DefaultRecordBatch`` (KIP-98): a header of 61 bytes, then the
records, compressed as one piece. Batches of magic 0 and 1 (before Kafka 0.11) are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol.compression import Buffer, Codec, compress, decompress
from kafka_eos_sink.protocol.varints import encode_varint

BATCH_OVERHEAD = 61
"""Bytes of the header of a record batch."""

MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
"""How much ``read_record_batches`` decompresses in all, unless it is told otherwise."""

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_COORDINATOR_EPOCH = -1

CONTROL_ABORT = 0
CONTROL_COMMIT = 1

_MAGIC = 2
_HEADER = struct.Struct(">qiibIhiqqqhii")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_BEFORE_CRC = struct.Struct(">qiibI")
_LOG_OVERHEAD = 12
_MAGIC_AT = 16
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_MAX_BATCH_BYTES = 2**31 - 1
_MIN_RECORD_BYTES = 7

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsBlock:
    """The records of one batch before it has a producer, epoch and sequence: what a retry keeps.

    ``records`` are compressed with ``compression`` already. Timestamps are in ms; ``uncompressed_bytes`` is the size of
    the records section before compression.
    """

    records: Buffer
    record_count: int
    compression: Codec
    base_timestamp: int
    max_timestamp: int
    uncompressed_bytes: int

    @property
    def size_in_bytes(self) -> int:
        """The size of the sealed batch."""
        return BATCH_OVERHEAD + len(self.records)


def seal(
    block: RecordsBlock, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
) -> list[Buffer]:
    """The batch as it goes on the wire: the header with its CRC-32C, and the records, which are not copied.

    A batch without idempotence has -1 for all three numbers. Raises ``ValueError`` when the batch is empty or does
    not fit the 2 GiB that its length field can say.
    """
    if block.record_count < 1:
        raise ValueError("a batch to be written needs at least one record")
    if block.size_in_bytes - _LOG_OVERHEAD > _MAX_BATCH_BYTES:
        raise ValueError(f"a record batch of {block.size_in_bytes} bytes is larger than 2 GiB; split it")
    after_crc = _AFTER_CRC.pack(
        block.compression | (_TRANSACTIONAL if transactional else 0),
        block.record_count - 1,
        block.base_timestamp,
        block.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        block.record_count,
    )
    checksum = crc32c(block.records, crc32c(after_crc))
    # The broker assigns the base offset; the leader epoch (-1) is outside the CRC because the leader writes it.
    before_crc = _BEFORE_CRC.pack(0, block.size_in_bytes - _LOG_OVERHEAD, -1, _MAGIC, checksum)
    return [before_crc + after_crc, block.records]


def encode_rows(
    rows: Iterable[tuple[bytes | None, bytes | None, Sequence[Header]]],
    timestamp_ms: int,
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
) -> RecordsBlock:
    """A few rows ``(key, value, headers)`` as one block, all with the timestamp ``timestamp_ms``.

    For the commit log's own records; columns of rows go through ``record_columns``.
    """
    records = bytearray()
    count = 0
    for count, (key, value, headers) in enumerate(rows, start=1):
        body = bytearray(b"\x00\x00")
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
        records=compress(codec, level, bytes(records)),
        record_count=count,
        compression=codec,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        uncompressed_bytes=len(records),
    )


def _append_bytes(out: bytearray, content: bytes | None) -> None:
    if content is None:
        out += encode_varint(-1)
    else:
        out += encode_varint(len(content))
        out += content


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as a consumer sees it; ``timestamp`` in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRecord:
    """A marker that a coordinator wrote: ``type`` 0 is ABORT, 1 is COMMIT, others are not about transactions.

    ``coordinator_epoch`` is -1 where ``type`` is neither of the two.
    """

    offset: int
    type: int
    coordinator_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatch:
    """One batch of a log. Compaction may have taken some or all of its records; its offsets and producer stay.

    A batch has ``records`` or, when ``control`` is true, ``control_records``. ``base_sequence``, ``producer_id`` and
    ``producer_epoch`` are -1 for a producer without idempotence. Timestamps are in ms; with ``log_append_time`` every
    record has the one of the broker, ``max_timestamp``.
    """

    base_offset: int
    last_offset: int
    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    compression: Codec
    log_append_time: bool
    base_timestamp: int
    max_timestamp: int
    size_in_bytes: int
    records: tuple[Record, ...] = ()
    control_records: tuple[ControlRecord, ...] = ()


def read_record_batches(
    data: Buffer, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> tuple[RecordBatch, ...]:
    """The batches in ``data``, as a Fetch answer or a log segment holds them.

    A batch that is cut off at the end is dropped: brokers cut answers at their size limit. Raises ``ProtocolError`` for
    a wrong CRC, a magic other than 2, a codec that does not exist, lengths that contradict each other, or when all
    batches together hold more than ``max_decompressed_bytes`` of records.
    """
    view = memoryview(data).cast("B")
    batches: list[RecordBatch] = []
    budget = max_decompressed_bytes
    at = 0
    while len(view) - at > _MAGIC_AT:
        magic = view[at + _MAGIC_AT]
        if magic != _MAGIC:
            raise ProtocolError(
                f"the batch at byte {at} has magic {magic}; only magic 2, which Kafka writes since 0.11, can be read"
            )
        base_offset, length = struct.unpack_from(">qi", view, at)
        if length < BATCH_OVERHEAD - _LOG_OVERHEAD:
            raise ProtocolError(f"the batch at byte {at} (offset {base_offset}) says a length of {length}")
        if length > len(view) - at - _LOG_OVERHEAD:
            break
        batch, used = _read_batch(view[at : at + _LOG_OVERHEAD + length], budget)
        budget -= used
        batches.append(batch)
        at += _LOG_OVERHEAD + length
    return tuple(batches)


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """Whose a batch is; producer id and epoch are -1 without idempotence, and in a batch from before magic 2."""

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int


def first_batch_of(data: Buffer) -> BatchHeader | None:
    """The header of the first batch in ``data``, whose records are not looked at; None where there is no whole header."""
    view = memoryview(data).cast("B")
    if len(view) <= _MAGIC_AT:
        return None
    if view[_MAGIC_AT] != _MAGIC:
        (offset,) = struct.unpack_from(">q", view)
        return BatchHeader(offset, offset, -1, -1)
    if len(view) < BATCH_OVERHEAD:
        return None
    base_offset, _, _, _, _, _, last_offset_delta, _, _, producer_id, producer_epoch, _, _ = _HEADER.unpack_from(view)
    return BatchHeader(base_offset, base_offset + last_offset_delta, producer_id, producer_epoch)


def _read_batch(view: memoryview, budget: int) -> tuple[RecordBatch, int]:
    """One whole batch, and how many bytes of records it took from the budget."""
    (
        base_offset,
        _,
        leader_epoch,
        _,
        checksum,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = _HEADER.unpack_from(view)
    where = f"the batch at offset {base_offset}"
    actual = crc32c(view[_ATTRIBUTES_AT:])
    if checksum != actual:
        raise ProtocolError(f"{where} is damaged: its CRC-32C is {checksum:#010x}, its bytes give {actual:#010x}")
    if base_offset < 0 or last_offset_delta < 0 or record_count < 0:
        raise ProtocolError(
            f"{where} has last offset delta {last_offset_delta} and {record_count} records; none can be negative"
        )
    try:
        codec = Codec(attributes & _CODEC_MASK)
    except ValueError:
        raise ProtocolError(f"{where} is compressed with codec {attributes & _CODEC_MASK}, which is unknown") from None
    control = bool(attributes & _CONTROL)
    log_append_time = bool(attributes & _LOG_APPEND_TIME)
    records: tuple[Record, ...] = ()
    section: Buffer = b""
    if record_count or len(view) > BATCH_OVERHEAD:
        section = decompress(codec, view[BATCH_OVERHEAD:], budget)
        records = _RecordReader(section, where).read(
            record_count,
            base_offset,
            last_offset_delta,
            base_timestamp,
            fixed_timestamp=max_timestamp if log_append_time else None,
        )
    batch = RecordBatch(
        base_offset=base_offset,
        last_offset=base_offset + last_offset_delta,
        partition_leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=bool(attributes & _TRANSACTIONAL),
        control=control,
        compression=codec,
        log_append_time=log_append_time,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        size_in_bytes=len(view),
        records=() if control else records,
        control_records=tuple(_control_record(record, where) for record in records) if control else (),
    )
    return batch, len(section)


def _control_record(record: Record, where: str) -> ControlRecord:
    """KIP-98's key ``(version, type)`` and, for end markers, value ``(version, coordinator epoch)``.

    Later versions only append fields, as ``EndTransactionMarker`` assumes too.
    """
    if record.key is None or len(record.key) < 4:
        raise ProtocolError(f"{where} holds a control record at offset {record.offset} without a type")
    version, kind = struct.unpack_from(">hh", record.key)
    if version < 0:
        raise ProtocolError(f"{where} holds a control record of version {version}")
    if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
        return ControlRecord(offset=record.offset, type=kind, coordinator_epoch=NO_COORDINATOR_EPOCH)
    if record.value is None or len(record.value) < 6:
        raise ProtocolError(f"{where} holds an end marker at offset {record.offset} without a coordinator epoch")
    _, coordinator_epoch = struct.unpack_from(">hi", record.value)
    return ControlRecord(offset=record.offset, type=kind, coordinator_epoch=coordinator_epoch)


class _RecordReader:
    """A cursor over one records section; every read is bounded by it."""

    __slots__ = ("_at", "_data", "_where")

    def __init__(self, data: Buffer, where: str) -> None:
        self._data = bytes(data)
        self._at = 0
        self._where = where

    def read(
        self,
        count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        *,
        fixed_timestamp: int | None,
    ) -> tuple[Record, ...]:
        if count * _MIN_RECORD_BYTES > len(self._data):
            raise self._error(f"says {count} records but has only {len(self._data)} bytes of them")
        records = []
        previous_delta = -1
        for _ in range(count):
            length = self._varint()
            end = self._at + length
            if length < 0 or end > len(self._data):
                raise self._error(f"holds a record with length {length}")
            self._at += 1  # attributes, unused
            timestamp_delta = self._varint()
            offset_delta = self._varint()
            if not previous_delta < offset_delta <= last_offset_delta:
                raise self._error(f"holds offset delta {offset_delta} after {previous_delta}")
            key = self._bytes()
            value = self._bytes()
            headers = self._headers()
            if self._at != end:
                raise self._error("holds a record whose length contradicts its content")
            records.append(
                Record(
                    offset=base_offset + offset_delta,
                    timestamp=base_timestamp + timestamp_delta if fixed_timestamp is None else fixed_timestamp,
                    key=key,
                    value=value,
                    headers=headers,
                )
            )
            previous_delta = offset_delta
        if self._at != len(self._data):
            raise self._error(f"has {len(self._data) - self._at} bytes after its last record")
        return tuple(records)

    def _headers(self) -> tuple[Header, ...]:
        count = self._varint()
        if count < 0 or 2 * count > len(self._data) - self._at:
            raise self._error(f"holds a record with {count} headers")
        headers = []
        for _ in range(count):
            key = self._bytes()
            if key is None:
                raise self._error("holds a header without a key")
            try:
                name = key.decode()
            except UnicodeDecodeError:
                raise self._error("holds a header key that is not UTF-8") from None
            headers.append((name, self._bytes()))
        return tuple(headers)

    def _bytes(self) -> bytes | None:
        length = self._varint()
        if length == -1:
            return None
        start = self._at
        if not 0 <= length <= len(self._data) - start:
            raise self._error(f"holds a field of {length} bytes")
        self._at = start + length
        return self._data[start : self._at]

    def _varint(self) -> int:
        data, at = self._data, self._at
        result = shift = 0
        try:
            while True:
                byte = data[at]
                at += 1
                result |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 63:
                    raise self._error("holds a varint longer than ten bytes")
        except IndexError:
            raise self._error("ends within a record") from None
        self._at = at
        result &= 0xFFFFFFFFFFFFFFFF
        return result >> 1 ^ -(result & 1)

    def _error(self, what: str) -> ProtocolError:
        return ProtocolError(f"{self._where} {what}")
