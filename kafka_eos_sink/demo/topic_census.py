"""Counts what a topic holds, record by record, with a client that is not ours (confluent-kafka).

A record is identified by the bytes of its key and its value together; no count of ours or of Spark's is trusted.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kafka_eos_sink.errors import BrokerUnavailableError, KafkaEosError

__all__ = ["Census", "compare", "count_records", "fingerprint", "read_topic"]

_PATIENCE_S = 60.0
_MESSAGES_PER_CALL = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Records of a topic against the records that were meant to be there, as multisets.

    duplicates  records beyond the number that was sent of them
    missing     records that were sent and are not there
    unknown     records that nobody sent
    """

    sent: int
    visible: int
    duplicates: int
    missing: int
    unknown: int

    @property
    def exactly_once(self) -> bool:
        return self.visible == self.sent and not (self.duplicates or self.missing or self.unknown)


def fingerprint(key: bytes | None, value: bytes | None) -> bytes:
    """128 bits that stand for a record's key and value; None differs from empty."""
    head = -1 if key is None else len(key)
    tail = b"\0" if value is None else b"\1" + value
    return hashlib.blake2b(head.to_bytes(5, "big", signed=True) + (key or b"") + tail, digest_size=16).digest()


def count_records(records: Iterable[tuple[bytes | None, bytes | None]]) -> Counter[bytes]:
    """How often each (key, value) occurs, by fingerprint."""
    return Counter(fingerprint(key, value) for key, value in records)


def compare(sent: Mapping[bytes, int], seen: Mapping[bytes, int]) -> Census:
    """Both map fingerprints to the number of their records."""
    return Census(
        sent=sum(sent.values()),
        visible=sum(seen.values()),
        duplicates=sum(max(0, count - sent[record]) for record, count in seen.items() if record in sent),
        missing=sum(max(0, count - seen.get(record, 0)) for record, count in sent.items()),
        unknown=sum(count for record, count in seen.items() if record not in sent),
    )


def read_topic(
    bootstrap_servers: str,
    topic: str,
    isolation: Literal["read_committed", "read_uncommitted"],
    progress: Callable[[int], None] = lambda _: None,
) -> Counter[bytes]:
    """All records that a consumer of this isolation level is shown, from the beginning to the end of every partition.

    The end of a partition is where the broker lets such a consumer read, under read_committed the last stable offset.
    `progress` gets the number of records so far. Raises BrokerUnavailableError (TOPIC_NOT_READ) when no partition gets
    any further for a minute.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"kafka-eos-census-{time.time_ns()}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    seen: Counter[bytes] = Counter()
    records = 0
    try:
        described = consumer.list_topics(topic, timeout=_PATIENCE_S).topics[topic]
        if described.error is not None:
            raise KafkaEosError("TOPIC_NOT_READ", f"the topic {topic!r} cannot be read: {described.error.str()}")
        unread = set(described.partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unread])
        patience_ends = time.monotonic() + _PATIENCE_S
        while unread:
            messages = consumer.consume(_MESSAGES_PER_CALL, timeout=0.2)
            if not messages:
                if time.monotonic() > patience_ends:
                    raise BrokerUnavailableError(
                        "TOPIC_NOT_READ",
                        f"partitions {sorted(unread)} of {topic!r} gave nothing for {_PATIENCE_S:g} s; is the broker "
                        f"at {bootstrap_servers} running?",
                    )
                continue
            for message in messages:
                error = message.error()
                if error is None:
                    seen[fingerprint(message.key(), message.value())] += 1
                    records += 1
                    patience_ends = time.monotonic() + _PATIENCE_S
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                elif error.fatal():
                    raise KafkaEosError("TOPIC_NOT_READ", f"reading {topic!r} failed: {error.str()}")
            progress(records)
    finally:
        consumer.close()
    return seen
