"""Reads partitions as a read_committed consumer (Java's ``CompletedFetch``).

The broker sends all batches up to the last stable offset, and lists the aborted transactions among them. The reader must skip
the batches of those.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.topics_admin import AbortedTransaction, FetchedPartition, Isolation
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError, ProtocolError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, TopicPartition
from kafka_eos_sink.protocol.record_batch import RecordBatch, read_record_batches
from kafka_eos_sink.protocol.record_reader import Record

_PATIENCE_MS = 60_000
_FETCH_BYTES = 1 << 20
_WAIT_MS = 500


def committed_batches(batches: Iterable[RecordBatch], aborted: Iterable[AbortedTransaction]) -> Iterator[RecordBatch]:
    """Yield the batches of one Fetch response that a consumer sees.

    Args:
        aborted: Every aborted transaction with records in the response, also one that began before it or ends after it.
    """
    begins = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
    aborting: set[int] = set()
    for batch in batches:
        while begins and begins[0].first_offset <= batch.last_offset:
            aborting.add(begins.popleft().producer_id)
        if batch.control:
            # Compaction may remove the marker and leave its empty batch, which is still the end of the transaction.
            aborting.discard(batch.producer_id)
        elif not batch.transactional or batch.producer_id not in aborting:
            yield batch


class _Fetched:
    """The batches of a Fetch response that a consumer sees, and the next offset.

    Args:
        where: The partition as topic-partition, for messages.
        first: The offset of the Fetch.
        producers: As in `read_record_batches`.

    Raises:
        KafkaEosError: TOPIC_NOT_READ if the partition no longer holds the offset.
    """

    def __init__(
        self, where: str, first: int, fetched: FetchedPartition, producers: Container[ProducerIdAndEpoch] | None = None
    ) -> None:
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise KafkaEosError(
                "TOPIC_NOT_READ",
                f"{where} no longer holds offset {first}: records were deleted, by retention or by hand, while they were read; "
                "read the topic again from its start",
            )
        self._where, self._first, self._fetched, self._producers = where, first, fetched, producers
        self.next_offset = first

    def __iter__(self) -> Iterator[RecordBatch]:
        # A read_uncommitted response lists no aborted transactions, so that all records are seen.
        yield from committed_batches(self._passed(), self._fetched.aborted_transactions or ())

    def _passed(self) -> Iterator[RecordBatch]:
        # One batch at a time: small batches in the log can be large in memory.
        last = None
        for batch in read_record_batches(self._fetched.records or b"", producers=self._producers):
            last = batch.last_offset
            yield batch
        if last is not None:
            if last < self._first:
                raise ProtocolError(
                    f"the leader of {self._where} returned offset {last} to a Fetch from offset {self._first}"
                )
            self.next_offset = last + 1


def read_committed(
    admin: Admin, where: TopicPartition, first: int, end: int, producers: Container[ProducerIdAndEpoch] | None = None
) -> Iterator[RecordBatch]:
    """Yield the batches that a consumer sees between two offsets.

    The first and the last batch may hold records outside of these offsets.

    Args:
        end: Exclusive, and at most the last stable offset.
        producers: As in `read_record_batches`.

    Raises:
        KafkaEosError: TOPIC_NOT_READ if records are deleted while they are read.
        BrokerUnavailableError: TOPIC_NOT_READ if no record arrives for a minute.
        AuthorizationError, BrokerRefusedError, ProtocolError.
    """
    name = f"{where[0]}-{where[1]}"
    give_up_at = admin.client.clock() + _PATIENCE_MS
    while first < end:
        response = admin.fetch(where, first, give_up_at, max_bytes=_FETCH_BYTES)
        fetched = _Fetched(name, first, response, producers)
        yield from fetched
        if fetched.next_offset > first:
            first = fetched.next_offset
            give_up_at = admin.client.clock() + _PATIENCE_MS
        elif admin.client.clock() >= give_up_at:
            raise BrokerUnavailableError(
                "TOPIC_NOT_READ",
                f"{name} returned no record from offset {first} for {_PATIENCE_MS // 1_000} s, although records up to offset "
                f"{end - 1} are stable; check its leader",
            )


def follow(
    admin: Admin,
    offsets: Mapping[TopicPartition, int],
    isolation: Isolation = "read_committed",
    ends: Mapping[TopicPartition, int] | None = None,
) -> Iterator[tuple[TopicPartition, Record]]:
    """Yield the records of partitions, as consumers come to see them.

    Args:
        offsets: Partition to the first offset to read.
        ends: Partition to the offset at which to stop, at most the last stable one; None to read without end.

    Raises:
        KafkaEosError: TOPIC_NOT_READ if records are deleted before they are read.
        AuthorizationError, BrokerRefusedError, BrokerUnavailableError, ProtocolError.
    """
    positions = {each: first for each, first in offsets.items() if ends is None or first < ends[each]}
    while positions:
        found = admin.fetch_each(
            positions,
            admin.client.clock() + _PATIENCE_MS,
            isolation=isolation,
            max_wait_ms=_WAIT_MS,
            max_bytes=_FETCH_BYTES,
        )
        for where, (_, response) in found.items():
            first, end = positions[where], math.inf if ends is None else ends[where]
            fetched = _Fetched(f"{where[0]}-{where[1]}", first, response)
            for batch in fetched:
                # The first batch may begin before the offset, and the last one end after it.
                yield from ((where, record) for record in batch.records if first <= record.offset < end)
            if fetched.next_offset >= end:
                del positions[where]
            elif fetched.next_offset > first:
                # To the end: a response may hold records of the first partitions only (KIP-74).
                del positions[where]
                positions[where] = fetched.next_offset
