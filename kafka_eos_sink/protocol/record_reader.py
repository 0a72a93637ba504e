"""Read the records section of an untrusted batch."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos_sink.errors import ProtocolError
from kafka_eos_sink.protocol.compression import Buffer, Compression

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
_CONTROL = 0x20
_MIN_RECORD_BYTES = 7
MAX_OBJECTS = 4_000_000
"""Limit on records plus headers per batch. A header of two bytes on the wire takes 60 bytes of memory."""

Header = tuple[str, bytes | None]


# Not frozen: a frozen dataclass takes five times as long to make, and a log may hold a batch for each record.
@dataclass(slots=True)
class BatchHeader:
    """A header in wire order, times in ms; id, epoch, sequence: -1 if not idempotent."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record before compaction."""
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> Compression:
        """The codec of the records; raises ProtocolError if it is unknown."""
        try:
            return Compression(self.attributes & _CODEC_MASK)
        except ValueError:
            raise ProtocolError(f"{self} has the unknown compression codec {self.attributes & _CODEC_MASK}") from None

    @property
    def log_append_time(self) -> bool:
        """Whether every record has the broker's timestamp, ``max_timestamp``."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    def __str__(self) -> str:
        return f"the batch at offset {self.base_offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as a consumer receives it; ``timestamp`` in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class RecordReader:
    """A cursor over one records section that never reads beyond it."""

    __slots__ = ("_at", "_data", "_decode_errors", "_room", "_where")

    def __init__(self, data: Buffer, where: str, *, is_own: bool = False) -> None:
        """Begin at the first record.

        ``is_own``: this client encoded the batch, so read any number of records and header keys that are not UTF-8.
        """
        self._data = bytes(data)
        self._at = 0
        self._room = len(data) if is_own else MAX_OBJECTS
        # Brokers store any bytes. Java's ``RecordHeader`` also replaces bytes that are not UTF-8.
        self._decode_errors = "surrogateescape" if is_own else "replace"
        self._where = where

    def read(self, header: BatchHeader, *, with_headers: bool) -> tuple[Record, ...]:
        # The count is untrusted: compare it with the number of bytes before the loop.
        if header.record_count * _MIN_RECORD_BYTES > len(self._data):
            raise self._error(f"has {header.record_count} records in only {len(self._data)} bytes")
        self._reserve(header.record_count)
        base_offset, base_timestamp, last_delta = header.base_offset, header.base_timestamp, header.last_offset_delta
        fixed_timestamp = header.max_timestamp if header.log_append_time else None
        records = []
        previous_delta = -1
        for _ in range(header.record_count):
            length = self._varint()
            end = self._at + length
            if length < 0 or end > len(self._data):
                raise self._error(f"has a record of length {length}")
            self._at += 1  # attributes, which Kafka does not use
            timestamp_delta = self._varint()
            offset_delta = self._varint()
            # Compaction leaves gaps between the deltas, but keeps their order.
            if not previous_delta < offset_delta <= last_delta:
                raise self._error(f"has offset delta {offset_delta} after {previous_delta}")
            key = self._bytes()
            value = self._bytes()
            headers = self._headers() if with_headers else ()
            if self._at > end or (with_headers and self._at < end):
                raise self._error("has a record whose length contradicts its content")
            records.append(
                Record(
                    offset=base_offset + offset_delta,
                    timestamp=base_timestamp + timestamp_delta if fixed_timestamp is None else fixed_timestamp,
                    key=key,
                    value=value,
                    headers=headers,
                )
            )
            self._at, previous_delta = end, offset_delta
        if self._at != len(self._data):
            raise self._error(f"has {len(self._data) - self._at} bytes after its last record")
        return tuple(records)

    def _headers(self) -> tuple[Header, ...]:
        count = self._varint()
        if count < 0 or 2 * count > len(self._data) - self._at:
            raise self._error(f"has a record with {count} headers")
        self._reserve(count)
        headers = []
        for _ in range(count):
            key = self._bytes()
            if key is None:
                raise self._error("has a header without a key")
            headers.append((key.decode(errors=self._decode_errors), self._bytes()))
        return tuple(headers)

    def _reserve(self, objects: int) -> None:
        self._room -= objects
        if self._room < 0:
            raise self._error(f"has more than {MAX_OBJECTS:,} records and headers")

    def _bytes(self) -> bytes | None:
        length = self._varint()
        if length < 0:
            return None  # as in Java's ``DefaultRecord``; brokers store any negative length
        start = self._at
        if length > len(self._data) - start:
            raise self._error(f"has a field of {length} bytes")
        self._at = start + length
        return self._data[start : self._at]

    def _varint(self) -> int:
        data, at = self._data, self._at
        result = shift = 0
        try:
            byte = data[at]
            if byte < 0x80:  # nearly always
                self._at = at + 1
                return byte >> 1 ^ -(byte & 1)
            while True:
                byte = data[at]
                at += 1
                result |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift > 63:
                    raise self._error("has a varint longer than ten bytes")
        except IndexError:
            raise self._error("ends within a record") from None
        self._at = at
        result &= 0xFFFFFFFFFFFFFFFF
        return result >> 1 ^ -(result & 1)

    def _error(self, what: str) -> ProtocolError:
        return ProtocolError(f"{self._where} {what}")
