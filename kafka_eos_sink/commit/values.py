"""The picklable values that planner, tasks, driver and commit log exchange.

A task leaves its transaction open and returns its exact identity in a message, like the committable of Flink's KafkaSink.
The driver writes the identities that it commits into a decision.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import Enum
from itertools import chain
from typing import Any, Literal
from uuid import UUID

from kafka_eos_sink.commit import transactional_id as names
from kafka_eos_sink.commit.versions import Versions
from kafka_eos_sink.pickling import PickledByName
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition
from kafka_eos_sink.protocol.murmur2 import murmur2_bytes
from kafka_eos_sink.protocol.wire_types import ZERO_UUID

DEFAULT_TOPIC = "__kafka_eos_commits"
"""The commit log without the option ``commit.log.topic``."""
LOG_PARTITIONS = 16
PROOFS_WITHIN_MS = 120_000
"""Limit of the wait for proofs, unless the write sets another one (delivery.timeout.ms)."""


def iso_utc(ms: int, timespec: str = "milliseconds") -> str:
    """Return ms since 1970 as ISO 8601, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec=timespec)


def log_partition_of(write_id: str) -> int:
    """Return the partition of the commit log that holds all records of a write id."""
    return (murmur2_bytes(write_id.encode()) & 0x7FFFFFFF) % LOG_PARTITIONS


@dataclass(frozen=True, slots=True)
class Write(PickledByName):
    """One logical writer: a write id and the topic of its commit log.

    ``connection`` holds the options, without secrets, by which ``kafka-eos`` reaches the cluster, for the commands in messages.
    """

    id: str
    log_topic: str
    connection: str = ""

    @property
    def commit_log(self) -> TopicPartition:
        """The partition that holds all records of the write."""
        return self.log_topic, log_partition_of(self.id)

    @property
    def is_random(self) -> bool:
        return names.is_random_write_id(self.id)

    @property
    def driver_id(self) -> str:
        return names.driver_transactional_id(self.id)

    def task_id(self, partition: int, slot: int) -> str:
        return names.task_transactional_id(self.id, partition, slot)

    def task_ids(self, partitions: Iterable[int]) -> tuple[str, ...]:
        """Return the transactional ids of all slots of these Spark partitions."""
        return tuple(self.task_id(partition, slot) for partition in partitions for slot in range(names.SLOTS))

    def parse(self, transactional_id: str) -> names.PartitionAndSlot | None:
        """Parse a task's transactional id of this write; None for any other id."""
        return names.parse(transactional_id, self.id)

    def command(self, name: str, options: str = "") -> str:
        """Return an operator's command on this write, ready to paste.

        It contains the commit log: on another one it would find no decision.
        """
        return " ".join(filter(None, ("kafka-eos", name, *self._where, "--write-id", shlex.quote(self.id), options)))

    def offsets_command(self, group_id: str) -> str:
        """Return the command that shows the offsets of a consumer group."""
        return " ".join(filter(None, ("kafka-eos", "offsets", self.connection, "--group", shlex.quote(group_id))))

    def history_command(self, name: str) -> str:
        """Return a command on its history, which belongs to no commit log: ``history`` or ``audit``."""
        return f"kafka-eos {name} --write-id {shlex.quote(self.id)} {self.connection}".rstrip()

    @property
    def status_of_all(self) -> str:
        """The command that lists all writes in this one's commit log."""
        return " ".join(filter(None, ("kafka-eos", "status", *self._where)))

    @property
    def _where(self) -> tuple[str, ...]:
        topic = "" if self.log_topic == DEFAULT_TOPIC else f"--commit-log-topic {shlex.quote(self.log_topic)}"
        return self.connection, topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A driver or an operator's command at work on a write.

    nonce                   fresh for every run; marks its barriers
    within_ms               limit of the wait for proofs
    transaction_timeout_ms  of the transactions of tasks, and of those into which recovery copies lost rows
    transaction_version     of the cluster
    """

    write: Write
    nonce: str
    transaction_timeout_ms: int
    transaction_version: int
    within_ms: int = PROOFS_WITHIN_MS


Resolution = Literal["committed", "rewrite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveRequest:
    """The operator's resolution of one version.

    query_id          None: the only one that the write id has
    allow_duplicates  rewrite even if rows are visible
    """

    run: Run
    query_id: str | None
    version: int
    resolution: Resolution
    allow_duplicates: bool = False

    def command(self, query_id: str, version: int) -> str:
        """Return this command for another query id or version, ready to paste."""
        more = " --allow-duplicates" * self.allow_duplicates
        named = f"--query-id {shlex.quote(query_id)} --version {version} --as {self.resolution}{more}"
        return self.run.write.command("resolve", named)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange(PickledByName):
    """The offsets of a task's records in one topic-partition, both inclusive.

    ``rows`` is the number of records; None if an earlier version of the sink wrote the record.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    rows: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.first_offset}..{self.last_offset}]"


def merged(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return one range per topic-partition, sorted."""
    by_partition: dict[tuple[str, int], list[OffsetRange]] = {}
    for part in ranges:
        by_partition.setdefault((part.topic, part.partition), []).append(part)
    return tuple(
        OffsetRange(
            topic=topic,
            partition=partition,
            first_offset=min(part.first_offset for part in parts),
            last_offset=max(part.last_offset for part in parts),
            rows=None if any(part.rows is None for part in parts) else sum(part.rows or 0 for part in parts),
        )
        for (topic, partition), parts in sorted(by_partition.items())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters(PickledByName):
    """How many rows went to a dead letter topic for one reason, a stable code."""

    topic: str
    code: str
    rows: int


def letters_text(found: Iterable[DeadLetters]) -> str:
    """Return the number of rows for each code, the largest first."""
    return ", ".join(f"{each.code} {each.rows:,}" for each in found)


def summed(found: Iterable[DeadLetters]) -> tuple[DeadLetters, ...]:
    """Return one number per topic and code, the largest first."""
    counts: Counter[tuple[str, str]] = Counter()
    for each in found:
        counts[each.topic, each.code] += each.rows
    return tuple(
        DeadLetters(topic=topic, code=code, rows=rows)
        for (topic, code), rows in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction(PickledByName):
    """A task attempt's flushed, open transaction, as commit and recovery need it.

    ``partition`` is Spark's. ``part_offset`` is the offset of the part record in the commit log. Recovery copies lost records from
    ``offsets``; ``rows`` is their number, dead letters included. ``proven`` is true if an earlier decision named this transaction and its
    commit is proven. No driver ends it again. ``ended`` is set before a driver discards what hangs, which erases its coordinator's report:
    no reader saw these ranges ("aborted"), or each did ("committed"). One transaction can have an entry of each kind. ``written_bytes`` is
    the size of its record batches as sent. This and ``dead_letters`` are None if an earlier version of the sink wrote the record.
    """

    partition: int
    identity: ProducerIdentity
    part_offset: int
    rows: int
    offsets: tuple[OffsetRange, ...]
    proven: bool = False
    ended: str | None = None
    written_bytes: int | None = None
    dead_letters: tuple[DeadLetters, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hanging:
    """A transaction of the write, and the partitions that hold it open."""

    transactional_id: str
    producer_id: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchVersion(PickledByName):
    """What a batch and its decision both tell of a version.

    A later run compares it with its own batch (I15).
    ``foreach_call`` is the last call of a `foreachBatch` function that wrote or skipped the version; None if there was none, or an earlier
    version of the sink wrote the record. ``foreach_query`` is the streaming query of that call, "" if a batch job wrote the version.
    """

    query_id: str
    version: int
    topic: str | None
    schema: str
    offsets_hash: str | None
    foreach_call: str | None = None
    foreach_query: str | None = None

    @property
    def told(self) -> dict[str, Any]:
        """These fields by name, for the decision of a batch."""
        return {each.name: getattr(self, each.name) for each in fields(BatchVersion)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(BatchVersion):
    """The record that makes a batch committed: these transactions, and no others.

    ``driver`` is the identity whose transaction carries the record. The record counts only with a COMMIT marker of that epoch.
    ``nonce`` is the plan's; a decision that replaces lost transactions by copies appends ``~1``.
    ``resolution`` is set if an operator decided (``kafka-eos resolve``); the decision then lists no transaction.
    ``versions`` is None for a stream, and if an earlier version of the sink wrote the record.
    ``application_id`` and ``user_metadata`` identify the run that wrote the rows, for the history.
    """

    write_id: str
    nonce: str
    driver: ProducerIdentity
    transactions: tuple[PreparedTransaction, ...]
    resolution: str | None = None
    versions: Versions | None = None
    application_id: str | None = None
    user_metadata: str | None = None

    @property
    def dead_letters(self) -> tuple[DeadLetters, ...] | None:
        """The dead letters of all transactions; None if one of them does not tell."""
        found = [entry.dead_letters for entry in self.transactions]
        return None if None in found else summed(chain.from_iterable(filter(None, found)))

    @property
    def written_versions(self) -> Versions:
        """The versions that count as written up to this decision."""
        if self.versions is not None:
            return self.versions
        return Versions.up_to(self.version - self.is_unwritten)

    @property
    def last_version(self) -> int:
        """The highest version that counts as written, or the decision's own."""
        return max(self.version, self.written_versions.last)

    @property
    def is_void(self) -> bool:
        """Whether all transactions of the batch were aborted and could not be copied."""
        return bool(self.copies) and not self.transactions

    @property
    def is_empty(self) -> bool:
        """Whether a run has decided the version without a row."""
        return not (self.transactions or self.copies or self.resolution)

    @property
    def is_unwritten(self) -> bool:
        """Whether the version is void or resolved as rewrite: its next run writes it."""
        return self.is_void or self.resolution == "rewrite"

    @property
    def copies(self) -> int:
        """How often lost transactions of the batch were copied."""
        return int(self.nonce.partition("~")[2] or 0)


def plan_nonce(nonce: str) -> str:
    """Return the nonce of the plan: the decision's without the number of copies."""
    return nonce.partition("~")[0]


class DecisionStatus(Enum):
    """The proven outcome of a decision's transactions."""

    FINISHED = "finished"
    """Every named transaction is committed and visible."""
    VOID = "void"
    """Every named transaction is aborted and could not be copied: the batch runs again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledDecision(PickledByName):
    """A query id's newest decision after recovery; tasks compare their batch with it.

    ``decision`` is without its transactions, and always has its written versions. Only ``status`` tells whether it is void. If an operator
    decided (``resolution``), tasks compare only the version. The other fields are for messages: the rows of the transactions and their
    topics, dead letters included, and when the version was finished, None if the log does not show it.
    """

    decision: Decision
    status: DecisionStatus
    rows: int = field(default=0, compare=False)
    topics: tuple[str, ...] = field(default=(), compare=False)
    finished_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(PickledByName):
    """The result of ``take_over``, pickled into the writer.

    ``started_ms`` is the driver's wall clock at the start of the plan: no transaction of its tasks can be older.
    The commit log has no record of this batch below ``log_offset`` (0 if the plan did not read the log). ``log_id`` is the topic id of
    the log that the plan has read (zero if it read none).
    ``cluster_id`` is the cluster that was planned on, None if the brokers did not tell.
    ``plan_ms`` and ``attempts_ended`` are figures for people: how long the plan took, and the transactions that it aborted.
    """

    write: Write
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
        return next((found for found in self.decisions if found.decision.query_id == query_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIdentity(BatchVersion):
    """The batch that a run writes.

    Only its tasks know ``foreach_call`` and ``foreach_query``, unless the option ``foreachBatchCall`` holds them.
    ``streaming``: versions count from 0 without a gap, because Spark commits every batch, empty ones too.
    """

    on_checkpoint_rollback: Literal["fail", "skip", "rewrite"] = "fail"
    streaming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity(PickledByName):
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
class TaskMessage(PickledByName):
    """A task's message to the driver; the last two fields are figures for people."""

    plan: Plan
    batch: BatchIdentity
    task: TaskIdentity
    outcome: TaskOutcome
    prepared: PreparedTransaction | None = None
    write_ms: int = 0
    application_id: str | None = None
