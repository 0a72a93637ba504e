"""Begin the producer of one transaction, and prove what it has written."""

from __future__ import annotations

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.refusals import refused
from kafka_eos_sink.commit.values import DeadLetters, OffsetRange, summed
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.producer.producer import Producer
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition


def begin(admin: Admin, config: ProducerConfig, identity: ProducerIdentity) -> Producer:
    """Begin a transaction under an identity from InitProducerId, without a request."""
    producer = Producer(
        admin,
        config,
        transactional_id=identity.transactional_id,
        transaction_version=identity.transaction_version,
    )
    producer.init(identity.producer_id, identity.producer_epoch)
    producer.begin()
    return producer


def flush_and_prove(producer: Producer) -> steps.WrittenRows:
    """Flush, and return a transaction's rows and ranges in the data partitions.

    Raises:
        TransactionAbortedError: REQUEST_ABANDONED or OFFSET_UNKNOWN if the responses do not prove them.
        KafkaEosError: The producer failed.
    """
    producer.flush()
    _require_untainted(producer)
    acknowledged = sorted(producer.acknowledged.items())
    for (topic, partition), (first, last, _) in acknowledged:
        if min(first, last) < 0:
            raise refused("OFFSET_UNKNOWN", where=f"{topic}-{partition}")
    return steps.WrittenRows(
        rows=sum(count for _, (_, _, count) in acknowledged),
        offsets=tuple(
            OffsetRange(topic=topic, partition=partition, first_offset=first, last_offset=last, rows=rows)
            for (topic, partition), (first, last, rows) in acknowledged
        ),
        written_bytes=producer.acknowledged_bytes,
        dead_letters=dead_letters_of(producer),
    )


def dead_letters_of(producer: Producer) -> tuple[DeadLetters, ...]:
    """Return the rows that became dead letters, by reason."""
    counts = producer.dead_letters.items()
    return summed(DeadLetters(topic=topic, code=code, rows=rows) for (topic, code), rows in counts)


def part_offset(producer: Producer, where: TopicPartition) -> int:
    """Return the offset of a producer's last part record. Raises as `flush_and_prove`."""
    _require_untainted(producer)
    first, _, _ = producer.acknowledged[where]
    if first < 0:
        raise refused("OFFSET_UNKNOWN.part")
    return first


def _require_untainted(producer: Producer) -> None:
    if producer.tainted:
        raise refused("REQUEST_ABANDONED")
