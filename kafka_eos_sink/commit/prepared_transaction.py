"""What travels between planner, tasks, driver and commit log: plain values, picklable, without I/O.

A task leaves its transaction open and hands its exact identity to the driver (the committable of Flink's KafkaSink);
the driver writes the identities that it commits into a decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal
from uuid import UUID

from kafka_eos_sink.protocol.identity import ProducerIdentity
from kafka_eos_sink.protocol.wire_types import ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Where a task's records lie in one topic-partition; both offsets inclusive."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    """A task attempt's flushed, still open transaction: all that is needed to commit it, and to find out later what became of it.

    ``partition`` is Spark's. ``part_offset`` is the offset of its part record in the commit log. ``offsets`` and ``rows`` say where its
    records lie and how many there are, from which they can be copied. ``proven`` marks an entry that a decision repeats from an earlier
    one because its commit was proven: it is kept in the record and never ended again.
    """

    partition: int
    identity: ProducerIdentity
    part_offset: int
    rows: int
    offsets: tuple[OffsetRange, ...]
    proven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The record that makes a batch committed: exactly these transactions, and no others.

    ``driver`` is the identity whose transaction carries the record: its marker's epoch tells whether it counts.
    ``nonce`` is that of the batch's plan, followed by ``~1`` in the decision that replaces this one's lost transactions by copies.
    ``resolution`` is set where an operator decided (``kafka-eos resolve``) and names no transaction. ``foreach_call`` is the last
    `foreachBatch` call that wrote or skipped the version; None if there was none, or an earlier version of the sink wrote the record.
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
    """The nonce of the plan whose batch a decision commits, itself or by copies."""
    return nonce.partition("~")[0]


class DecisionStatus(Enum):
    """What is proven of a decision's transactions."""

    FINISHED = "finished"
    """Every named transaction is committed and visible."""
    VOID = "void"
    """Every named transaction is proven aborted, and its records could not be copied: the batch runs anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledDecision:
    """The newest decision of a query id after recovery, with which the tasks of the next batch compare theirs.

    ``resolution`` and ``foreach_call`` are those of the decision. ``proven`` is False where the right to Read the data topics is missing
    and readers were held up.
    """

    query_id: str
    version: int
    nonce: str
    status: DecisionStatus
    topic: str | None
    schema: str
    offsets_hash: str | None
    resolution: str | None = None
    proven: bool = True
    foreach_call: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What ``take_over`` found, pickled into the writer: the driver's identity, a fresh nonce, the settled decisions.

    ``started_ms`` is the driver's wall clock at the start of the plan: no transaction of its tasks can be older.
    ``log_offset`` is an offset of the commit log below which nothing of this batch lies (0 where the plan did not read it), ``log_id``
    the topic id of the log that the plan has read (zero where it read none).
    ``left_open``: open before the fence and left alone, since a decision names their ids of which it is not proven that readers see it.
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
    left_open: tuple[ProducerIdentity, ...] = ()
    plan_ms: int | None = None
    attempts_ended: int = 0

    def newest_decision(self, query_id: str) -> SettledDecision | None:
        return next((found for found in self.decisions if found.query_id == query_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIdentity:
    """What identifies a write: two writes with the same values are the same one (I15).

    ``streaming``: versions count from 0 without a gap, because Spark hands every batch to its sink, empty ones too.
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
    """A Spark task attempt: its partition, its number within the task, its id within the application."""

    partition: int
    attempt_number: int
    task_attempt_id: int


class TaskOutcome(Enum):
    PREPARED = "prepared"
    EMPTY = "empty"
    ALREADY_COMMITTED = "already committed"
    OVERTAKEN = "overtaken"
    """Nothing of it will be named: the batch is decided without this attempt, or a newer driver has taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessage:
    """What a task hands to the driver; the last three fields are figures for people."""

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
