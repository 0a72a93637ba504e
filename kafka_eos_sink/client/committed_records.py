"""What a read_committed consumer is shown of a partition (Java's ``CompletedFetch``).

The broker sends batches up to the last stable offset, those of aborted transactions among them, and names the
transactions to be left out; leaving them out is the reader's part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from kafka_eos_sink.client.admin import AbortedTransaction, Admin
from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.record_batch import RecordBatch, read_record_batches

_PATIENCE_MS = 60_000
_FETCH_BYTES = 1 << 20
_MAX_DECOMPRESSED_BYTES = 1 << 30


def committed_batches(batches: Iterable[RecordBatch], aborted: Iterable[AbortedTransaction]) -> Iterator[RecordBatch]:
    """Of the batches of one answer those to be shown.

    `aborted` names every aborted transaction that reaches into the answer, also those that began before it or end after.
    """
    begins = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
    aborting: set[int] = set()
    for batch in batches:
        while begins and begins[0].first_offset <= batch.last_offset:
            aborting.add(begins.popleft().producer_id)
        if batch.control:
            # The marker ends the transaction, also where compaction has left nothing but the batch around it.
            aborting.discard(batch.producer_id)
        elif not batch.transactional or batch.producer_id not in aborting:
            yield batch


def read_committed(admin: Admin, topic: str, partition: int, first: int, end: int) -> Iterator[RecordBatch]:
    """The batches that a read_committed consumer is shown of the offsets `first` to `end` (exclusive).

    The first and the last batch may hold records outside of these. `end` is at most the last stable offset.

    Raises:
        KafkaEosError: TOPIC_NOT_READ, where records are deleted while they are read.
        BrokerUnavailableError: TOPIC_NOT_READ, where nothing comes for a minute.
        AuthorizationError, BrokerRefusedError, ProtocolError.
    """
    where = f"{topic}-{partition}"
    give_up_at = admin.client.clock() + _PATIENCE_MS
    while first < end:
        answer = admin.fetch(topic, partition, first, max_bytes=_FETCH_BYTES, deadline_ms=give_up_at)
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise KafkaEosError(
                "TOPIC_NOT_READ",
                f"{where} has no offset {first} any more: records were deleted, by retention or by hand, while they were read",
            )
        batches = read_record_batches(answer.records, max_decompressed_bytes=_MAX_DECOMPRESSED_BYTES)
        yield from committed_batches(batches, answer.aborted_transactions)
        if batches:
            first = batches[-1].last_offset + 1
            give_up_at = admin.client.clock() + _PATIENCE_MS
        elif admin.client.clock() >= give_up_at:
            raise BrokerUnavailableError(
                "TOPIC_NOT_READ",
                f"{where} gave nothing from offset {first} on for {_PATIENCE_MS // 1_000} s, though {end - 1} is its last stable one",
            )
