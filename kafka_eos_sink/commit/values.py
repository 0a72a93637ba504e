"""The picklable values that planner, tasks, driver and commit log exchange.

A task leaves its transaction open and returns its exact identity in a message, like the committable of Flink's KafkaSink.
The driver writes the identities that it commits into a decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal
from uuid import UUID

from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.wire_types import ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The offsets of a task's records in one topic-partition, both inclusive."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.first_offset}..{self.last_offset}]"


def merged(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return one range per topic-partition, sorted."""
    bounds: dict[tuple[str, int], tuple[int, int]] = {}
    for part in ranges:
        first, last = bounds.get((part.topic, part.partition), (part.first_offset, part.last_offset))
        bounds[(part.topic, part.partition)] = min(first, part.first_offset), max(last, part.last_offset)
    return tuple(
        OffsetRange(topic=topic, partition=partition, first_offset=first, last_offset=last)
        for (topic, partition), (first, last) in sorted(bounds.items())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    """A task attempt's flushed, open transaction, as commit and recovery need it.

    ``partition`` is Spark's. ``part_offset`` is the offset of the part record in the commit log. Recovery copies lost records from
    ``offsets``; ``rows`` is their number. ``proven`` is true if an earlier decision named this transaction and its commit is proven. No
    driver ends it again.
    """

    partition: int
    identity: ProducerIdentity
    part_offset: int
    rows: int
    offsets: tuple[OffsetRange, ...]
    proven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The record that makes a batch committed: these transactions, and no others.

    ``driver`` is the identity whose transaction carries the record. The record counts only with a COMMIT marker of that epoch.
    ``nonce`` is that of the plan; a decision that replaces lost transactions by copies appends ``~1``.
    ``resolution`` is set if an operator decided (``kafka-eos resolve``); the decision then names no transaction.
    ``foreach_call`` is the last `foreachBatch` call that wrote or skipped the version; None if there was none, or an earlier version of
    the sink wrote the record.
    """

    write_id: str
    query_id: str
    version: int
    nonce: str
    driver: ProducerIdentity
    topic: str | None
    schema: str
    offsets_hash: str | None
    transactions: tuple[PreparedTransaction, ...]
    resolution: str | None = None
    foreach_call: str | None = None

    @property
    def is_void(self) -> bool:
        """Whether all transactions of the batch were aborted and could not be copied."""
        return bool(self.copies) and not self.transactions

    @property
    def copies(self) -> int:
        """How often lost transactions of the batch were copied."""
        return int(self.nonce.partition("~")[2] or 0)


def plan_nonce(nonce: str) -> str:
    """Return the nonce of the plan: that of the decision without the number of copies."""
    return nonce.partition("~")[0]


class DecisionStatus(Enum):
    """The proven outcome of a decision's transactions."""

    FINISHED = "finished"
    """Every named transaction is committed and visible."""
    VOID = "void"
    """Every named transaction is aborted and could not be copied: the batch runs again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledDecision:
    """A query id's newest decision after recovery; tasks compare their batch with it.

    If ``resolution`` is set, an operator decided and tasks compare only the version. ``foreach_call`` is that of the decision.
    """

    query_id: str
    version: int
    nonce: str
    status: DecisionStatus
    topic: str | None
    schema: str
    offsets_hash: str | None
    resolution: str | None = None
    foreach_call: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The result of ``take_over``, pickled into the writer.

    ``started_ms`` is the driver's wall clock at the start of the plan: no transaction of its tasks can be older.
    The commit log has no record of this batch below ``log_offset`` (0 if the plan did not read the log). ``log_id`` is the topic id of
    the log that the plan has read (zero if it read none).
    ``cluster_id`` is the cluster that was planned on, None if the brokers did not tell; read it by `cluster_of`.
    ``plan_ms`` and ``attempts_ended`` are figures for people: how long the plan took, and the transactions that it aborted.
    """

    write_id: str
    nonce: str
    driver: ProducerIdentity
    started_ms: int
    transaction_timeout_ms: int
    log_offset: int
    decisions: tuple[SettledDecision, ...]
    log_id: UUID = ZERO_UUID
    plan_ms: int | None = None
    attempts_ended: int = 0
    cluster_id: str | None = None

    def newest_decision(self, query_id: str) -> SettledDecision | None:
        return next((found for found in self.decisions if found.query_id == query_id), None)


def cluster_of(plan: Plan | None) -> str | None:
    """Return the cluster of a plan, None if it is not known."""
    # A pickle of an earlier version of the sink has no such field.
    return getattr(plan, "cluster_id", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIdentity:
    """The identity of a batch: batches with equal values are the same batch (I15).

    ``streaming``: versions count from 0 without a gap, because Spark commits every batch, empty ones too.
    ``foreach_call`` names the call of a `foreachBatch` function that a batch write belongs to. Only tasks know it.
    """

    query_id: str
    version: int
    topic: str | None
    schema: str
    offsets_hash: str | None
    on_checkpoint_rollback: Literal["fail", "skip", "rewrite"] = "fail"
    streaming: bool = False
    foreach_call: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity:
    """A Spark task attempt: partition, number in the task, id in the application."""

    partition: int
    attempt_number: int
    task_attempt_id: int


class TaskOutcome(Enum):
    PREPARED = "prepared"
    EMPTY = "empty"
    ALREADY_COMMITTED = "already committed"
    OVERTAKEN = "overtaken"
    """The batch was decided without this attempt, or a newer driver has fenced its driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessage:
    """A task's message to the driver; the last three fields are figures for people."""

    plan: Plan
    query_id: str
    version: int
    task: TaskIdentity
    outcome: TaskOutcome
    prepared: PreparedTransaction | None = None
    foreach_call: str | None = None
    written_bytes: int = 0
    write_ms: int = 0
    application_id: str | None = None
