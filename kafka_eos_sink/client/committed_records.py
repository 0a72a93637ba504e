"""Reads a partition as a read_committed consumer (Java's ``CompletedFetch``).

The broker sends all batches up to the last stable offset, and names the aborted transactions among them. The reader must skip
the batches of those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.topics_admin import AbortedTransaction
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError, ProtocolError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.record_batch import RecordBatch, read_record_batches

_PATIENCE_MS = 60_000
_FETCH_BYTES = 1 << 20


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
            # Compaction may remove the marker and leave its empty batch, which still ends the transaction.
            aborting.discard(batch.producer_id)
        elif not batch.transactional or batch.producer_id not in aborting:
            yield batch


class _Passed:
    """Batches, and the last offset of those that were taken."""

    def __init__(self, batches: Iterable[RecordBatch]) -> None:
        self._batches = batches
        self.last_offset: int | None = None

    def __iter__(self) -> Iterator[RecordBatch]:
        for batch in self._batches:
            self.last_offset = batch.last_offset
            yield batch


def read_committed(admin: Admin, topic: str, partition: int, first: int, end: int) -> Iterator[RecordBatch]:
    """Yield the batches that a consumer sees between two offsets.

    The first and the last batch may hold records outside of these offsets.

    Args:
        end: Exclusive, and at most the last stable offset.

    Raises:
        KafkaEosError: TOPIC_NOT_READ if records are deleted while they are read.
        BrokerUnavailableError: TOPIC_NOT_READ if no record arrives for a minute.
        AuthorizationError, BrokerRefusedError, ProtocolError.
    """
    where = f"{topic}-{partition}"
    give_up_at = admin.client.clock() + _PATIENCE_MS
    while first < end:
        fetched = admin.fetch((topic, partition), first, give_up_at, max_bytes=_FETCH_BYTES)
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise KafkaEosError(
                "TOPIC_NOT_READ",
                f"{where} no longer holds offset {first}: records were deleted, by retention or by hand, while they were read; "
                "read the topic again from its start",
            )
        # One batch at a time: small batches in the log can be large in memory.
        batches = _Passed(read_record_batches(fetched.records or b""))
        yield from committed_batches(batches, fetched.aborted_transactions or ())
        if batches.last_offset is not None:
            if batches.last_offset < first:
                raise ProtocolError(
                    f"the leader of {where} returned offset {batches.last_offset} to a Fetch from offset {first}"
                )
            first = batches.last_offset + 1
            give_up_at = admin.client.clock() + _PATIENCE_MS
        elif admin.client.clock() >= give_up_at:
            raise BrokerUnavailableError(
                "TOPIC_NOT_READ",
                f"{where} returned no record from offset {first} for {_PATIENCE_MS // 1_000} s, although records up to offset "
                f"{end - 1} are stable; check its leader",
            )
