"""The settings of one write, as planner, tasks and driver each build them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.commit.values import BatchIdentity, Run, Write
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.runtime.source_offsets import FirstBatch

DEFAULT_TRANSACTION_TIMEOUT_MS = 900_000
"""Largest default timeout: enough for a driver restart, and brokers rarely allow more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """The settings of one write: batch, write id, cluster.

    Never pickled, because it can hold resolved secrets.
    ``history_topic`` is empty for none. ``first_batch`` is set in the plan of a checkpoint's first batch, with a group.
    """

    batch: BatchIdentity
    write: Write
    client: ClientConfig
    producer: ProducerConfig
    group_offsets: GroupOffsets | None = None
    first_batch: FirstBatch | None = None
    history_topic: str = ""
    user_metadata: str | None = None


def new_run(
    write: Write,
    within_ms: int,
    transaction_version: int,
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
) -> Run:
    return Run(
        write=write,
        nonce=uuid.uuid4().hex,
        within_ms=within_ms,
        transaction_timeout_ms=transaction_timeout_ms,
        transaction_version=transaction_version,
    )
