"""Copies the records of an aborted transaction from the log into a new transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.prepared_transaction import OffsetRange
from kafka_eos_sink.errors import (
    AuthorizationError,
    KafkaEosError,
    ProtocolError,
    TransactionAbortedError,
)
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.record_batch import BatchHeader, RecordsBlock, read_blocks
from kafka_eos_sink.runtime import failpoints
from kafka_eos_sink.runtime.data_proofs import DataProofs

FETCH_BYTES = 4 << 20
FETCH_WAIT_MS = 500
"""Records in tiered storage (KIP-405) come only to a Fetch that waits."""


class RecordCopier:
    """Performs `CopyRecords`. Holds at most buffer.memory and one Fetch response.

    Args:
        where: The partition of the commit log for the part record.
    """

    def __init__(self, admin: Admin, where: TopicPartition, config: ProducerConfig) -> None:
        self._admin = admin
        self._client = admin.client
        self._where = where
        self._proofs = DataProofs(admin, timeout_ms=config.delivery_timeout_ms, max_block_ms=config.max_block_ms)
        self._gone_topics: dict[str, str] = {}
        """Topic to why nothing of it can be copied. A deleted topic costs max.block.ms once, not once per range."""
        # The rows passed interceptors and the dead letter topic when they were written.
        self._config = replace(config, interceptors=(), dead_letter_topic=None, partitioner="default")

    def copy(self, step: steps.CopyRecords) -> steps.Copied:
        identity = step.identity
        producer = Producer(
            self._client,
            self._config,
            transactional_id=identity.transactional_id,
            transaction_version=identity.transaction_version,
        )
        try:
            producer.init(identity.producer_id, identity.producer_epoch)
            producer.begin()
            return self._copy(producer, step)
        except BaseException:
            # It waits for its requests in flight: one that arrives after the ABORT marker would open a transaction again.
            producer.abort(self._client.clock() + self._client.config.request_timeout_ms)
            raise
        finally:
            producer.close()

    def _copy(self, producer: Producer, step: steps.CopyRecords) -> steps.Copied:
        for part in step.ranges:
            for block in self._blocks(part, step.source):
                producer.append_block(part.topic, part.partition, block)
                failpoints.reached("restore.copying")
        written = written_by(producer)
        producer.append_record(*self._where, step.part.key, step.part.value)
        producer.flush()
        return steps.Copied(written=written, part_offset=part_offset(producer, self._where))

    def _blocks(self, part: OffsetRange, source: ProducerIdentity) -> Iterator[RecordsBlock]:
        """Yield the records in a range that a producer id and epoch wrote."""
        offset = part.first_offset
        waiting_since: int | None = None
        while offset <= part.last_offset:
            # Beside the Fetch the client also sends the producer's batches and takes their acknowledgements.
            records, next_offset = self._fetch(part, offset)
            for header, block in records:
                own = (header.producer_id, header.producer_epoch) == (source.producer_id, source.producer_epoch)
                if own and offset <= header.base_offset and header.last_offset <= part.last_offset:
                    yield block
            now = self._client.clock()
            waiting_since = now if waiting_since is None else waiting_since
            if next_offset > offset:
                offset, waiting_since = next_offset, None
            elif now - waiting_since > self._config.max_block_ms:
                raise _gone(part, f"its leader returns nothing from offset {offset} on")

    def _fetch(self, part: OffsetRange, offset: int) -> tuple[list[tuple[BatchHeader, RecordsBlock]], int]:
        if part.topic in self._gone_topics:
            raise _gone(part, self._gone_topics[part.topic])
        fetch = partial(
            self._admin.fetch,
            (part.topic, part.partition),
            offset,
            isolation="read_uncommitted",
            max_wait_ms=FETCH_WAIT_MS,
            max_bytes=min(FETCH_BYTES, self._config.buffer_memory),
        )
        try:
            fetched = self._proofs.query(fetch)
            if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise _gone(part, "the partition does not hold these offsets any more")
            found = list(read_blocks(fetched.records or b""))
        except (AuthorizationError, ProtocolError) as failure:
            raise _gone(part, failure.message) from failure
        except steps.DataTopicGoneError as gone:
            self._gone_topics[part.topic] = gone.message
            raise _gone(part, gone.message) from gone
        return found, max([offset, *(header.last_offset + 1 for header, _ in found)])


def _gone(part: OffsetRange, why: str) -> steps.RecordsGoneError:
    return steps.RecordsGoneError(
        "LOST_PARTS", f"{part.topic}-{part.partition} [{part.first_offset}..{part.last_offset}]: {why}"
    )


def written_by(producer: Producer) -> steps.Written:
    """Flush, and return what a producer's transaction has in the data partitions.

    Raises:
        TransactionAbortedError: REQUEST_ABANDONED or OFFSET_UNKNOWN if the brokers' answers do not prove it.
        KafkaEosError: The producer failed.
    """
    producer.flush()
    _require_untainted(producer)
    acknowledged = sorted(producer.acknowledged.items())
    for (topic, partition), (first, _, _) in acknowledged:
        if first < 0:
            raise _offset_unknown(f"{topic}-{partition} acknowledged the records as duplicates without their offsets")
    return steps.Written(
        rows=sum(count for _, (_, _, count) in acknowledged),
        offsets=tuple(
            OffsetRange(topic=topic, partition=partition, first_offset=first, last_offset=last)
            for (topic, partition), (first, last, _) in acknowledged
        ),
    )


def part_offset(producer: Producer, where: TopicPartition) -> int:
    """Return the offset of the part record that a producer has appended last. Raises as `written_by`."""
    _require_untainted(producer)
    first, _, _ = producer.acknowledged[where]
    if first < 0:
        raise _offset_unknown("the part record was acknowledged without its offset")
    return first


def _require_untainted(producer: Producer) -> None:
    if producer.tainted:
        raise TransactionAbortedError(
            "REQUEST_ABANDONED",
            "a request of this attempt was abandoned without a response, so its records may or may not be in the log; Spark's "
            "next attempt writes the rows again",
        )


def _offset_unknown(what: str) -> KafkaEosError:
    return TransactionAbortedError(
        "OFFSET_UNKNOWN", f"{what}, so the attempt cannot be proven; Spark's next attempt writes the rows again"
    )
