"""The settings of one write, as planner, tasks and driver each build them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, fields

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.commit.log_records import LOG_PARTITIONS
from kafka_eos_sink.commit.take_over import TakeOver
from kafka_eos_sink.commit.values import BatchIdentity
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.protocol.identity import TopicPartition
from kafka_eos_sink.protocol.murmur2 import murmur2_bytes

DEFAULT_TRANSACTION_TIMEOUT_MS = 900_000
"""Largest default timeout: enough for a driver restart, and brokers rarely allow more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings(BatchIdentity):
    """The settings of one write: batch, write id, cluster.

    Never pickled, because it can hold resolved secrets.
    ``random_write_id`` marks a batch job without ``txnAppId``. No later run uses its id again.
    ``history_topic`` is empty for none.
    """

    write_id: str
    random_write_id: bool
    commit_log_topic: str
    client: ClientConfig
    producer: ProducerConfig
    group_offsets: GroupOffsets | None = None
    history_topic: str = ""
    user_metadata: str | None = None

    @property
    def batch(self) -> BatchIdentity:
        """The batch alone, which may travel."""
        return BatchIdentity(**{each.name: getattr(self, each.name) for each in fields(BatchIdentity)})

    @property
    def log_partition(self) -> int:
        return log_partition_of(self.write_id)

    @property
    def commit_log(self) -> TopicPartition:
        return self.commit_log_topic, self.log_partition


def log_partition_of(write_id: str) -> int:
    """Return the partition of the commit log that holds all records of a write id."""
    return (murmur2_bytes(write_id.encode()) & 0x7FFFFFFF) % LOG_PARTITIONS


def take_over_request(
    write_id: str, within_ms: int, transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS
) -> TakeOver:
    return TakeOver(
        write_id=write_id, nonce=uuid.uuid4().hex, transaction_timeout_ms=transaction_timeout_ms, within_ms=within_ms
    )
