"""Count a topic's records one by one with an independent client, confluent-kafka.

The bytes of key and value identify a record. Counts of Spark and of this package are not used.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError

_PATIENCE_S = 60.0
_MESSAGES_PER_CALL = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Records of a topic compared with the records that were sent, as multisets."""

    sent: int
    visible: int
    duplicates: int  # beyond the number that was sent of a record
    missing: int
    unknown: int  # visible, and never sent

    @property
    def exactly_once(self) -> bool:
        return self.visible == self.sent and not (self.duplicates or self.missing or self.unknown)


def fingerprint(key: bytes | None, value: bytes | None) -> bytes:
    """Return 128 bits that identify a record's key and value; null differs from empty."""
    # The key's length comes first, so that no byte can move from the key to the value unnoticed.
    head = -1 if key is None else len(key)
    tail = b"\0" if value is None else b"\1" + value
    return hashlib.blake2b(head.to_bytes(5, "big", signed=True) + (key or b"") + tail, digest_size=16).digest()


def count_records(records: Iterable[tuple[bytes | None, bytes | None]]) -> Counter[bytes]:
    """Count each (key, value) by its fingerprint."""
    return Counter(fingerprint(key, value) for key, value in records)


def compare(sent: Counter[bytes], seen: Counter[bytes]) -> Census:
    """Compare the records that were sent with the records that a consumer sees."""
    # Counters subtract per record and keep only positive counts: a duplicate cannot hide a missing record.
    more = seen - sent
    unknown = sum(count for record, count in more.items() if record not in sent)
    return Census(
        sent=sent.total(),
        visible=seen.total(),
        duplicates=more.total() - unknown,
        missing=(sent - seen).total(),
        unknown=unknown,
    )


def read_topic(
    bootstrap_servers: str,
    topic: str,
    isolation: Literal["read_committed", "read_uncommitted"],
    progress: Callable[[int], None],
) -> Counter[bytes]:
    """Count all records that a consumer of this isolation level sees, by fingerprint.

    The consumer reads each partition to its end, under ``read_committed`` to the last stable offset.

    Args:
        progress: Called with the number of records so far.

    Raises:
        KafkaEosError: ``TOPIC_NOT_READ`` if the topic cannot be read, or no record arrives for a minute.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": f"kafka-eos-census-{time.time_ns()}",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        # Without these events the consumer could not distinguish the end of a partition from a slow broker.
        "enable.partition.eof": True,
        "queued.max.messages.kbytes": 65_536,
    }
    seen: Counter[bytes] = Counter()
    with closing(Consumer(settings)) as consumer:
        described = consumer.list_topics(topic, timeout=_PATIENCE_S).topics[topic]
        if described.error is not None:
            raise KafkaEosError("TOPIC_NOT_READ", f"Topic {topic!r} cannot be read: {described.error.str()}")
        unread = set(described.partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unread])
        patience_ends = time.monotonic() + _PATIENCE_S
        while unread:
            messages = consumer.consume(_MESSAGES_PER_CALL, timeout=0.2)
            if not messages and time.monotonic() > patience_ends:
                raise BrokerUnavailableError(
                    "TOPIC_NOT_READ",
                    f"Partitions {sorted(unread)} of topic {topic!r} returned no record for {_PATIENCE_S:g} s; "
                    f"check that the broker at {bootstrap_servers} is running.",
                )
            for message in messages:
                error = message.error()
                if error is None:
                    seen[fingerprint(message.key(), message.value())] += 1
                    # Each record extends the wait: a slow broker is no error as long as records arrive.
                    patience_ends = time.monotonic() + _PATIENCE_S
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                elif error.fatal():
                    raise KafkaEosError("TOPIC_NOT_READ", f"Reading topic {topic!r} failed: {error.str()}")
            progress(seen.total())
    return seen
