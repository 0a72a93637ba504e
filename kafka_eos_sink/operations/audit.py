"""Compare a batch in the history with the rows that read_committed consumers see.

The history holds the rows of the whole batch and the offsets of each partition. So rows are compared per batch, and found per partition.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.committed_records import read_committed
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.commit.values import OffsetRange, merged
from kafka_eos_sink.runtime.batch_record import BatchRecord
from kafka_eos_sink.runtime.topics import cleanup_policy

AuditResult = Literal["complete", "not readable", "missing", "too many"]
"""complete      as many rows as decided
not readable  fewer, and the unreadable offsets explain the difference
missing       fewer than that
too many      more rows than decided"""

REMOVED = "removed by retention or DeleteRecords"
BLOCKED = "blocked by an open transaction; kafka-eos status shows it"
NO_PARTITION = "the topic or the partition does not exist, or Describe is missing"
COMPACTED = "the topic is compacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCount(OffsetRange):
    """The rows of a batch in one topic-partition.

    hidden  offsets of the range that a consumer cannot read; ``reason`` names why. Each may have held a row of the batch.
    """

    found: int = 0
    hidden: int = 0
    reason: str | None = None

    @property
    def offsets(self) -> int:
        return max(0, self.last_offset + 1 - self.first_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAudit:
    """A batch of the history, and the rows found of it."""

    record: BatchRecord
    partitions: tuple[PartitionCount, ...]

    @property
    def found(self) -> int:
        return sum(part.found for part in self.partitions)

    @property
    def missing(self) -> int:
        """Rows that are missing even if each hidden offset held one."""
        return max(0, self.record.rows - self.found - sum(part.hidden for part in self.partitions))

    @property
    def not_readable(self) -> int:
        """Rows that hidden offsets held."""
        return max(0, self.record.rows - self.found - self.missing)

    @property
    def result(self) -> AuditResult:
        if self.missing:
            return "missing"
        if self.found > self.record.rows:
            return "too many"
        return "not readable" if self.not_readable else "complete"

    @property
    def is_as_decided(self) -> bool:
        """Whether no row is missing or duplicated in the readable offsets."""
        return self.result in ("complete", "not readable")

    def as_json(self) -> dict[str, Any]:
        of_record = ("write_id", "query_id", "version", "finished_at", "application_id")
        return {
            **{name: getattr(self.record, name) for name in of_record},
            "expected": self.record.rows,
            "dead_letters": self.record.dead_letters,
            **{name: getattr(self, name) for name in ("found", "missing", "not_readable", "result")},
            "partitions": [asdict(part) for part in self.partitions],
        }


def audit_batch(admin: Admin, record: BatchRecord, *, timeout_ms: int) -> BatchAudit:
    """Count the rows of a batch, one Fetch response in memory at a time.

    Args:
        timeout_ms: Bounds the look-up of the offsets. Reading fails after a minute without a record.

    Raises:
        KafkaEosError: TOPIC_NOT_READ if records are deleted while they are read, or none arrives.
        AuthorizationError, BrokerRefusedError, BrokerUnavailableError, ProtocolError.
    """
    deadline = admin.client.clock() + timeout_ms
    topics = {name: admin.topic(name, deadline) for name in {part.topic for part in record.offsets}}
    present = {
        (name, part.partition_index) for name, topic in topics.items() if topic is not None for part in topic.partitions
    }
    where = present & {(part.topic, part.partition) for part in record.offsets}
    producers = frozenset(record.producers)
    starts = admin.list_offsets(where, deadline, timestamp=EARLIEST)
    stable = admin.list_offsets(where, deadline)
    ends = admin.list_offsets(where, deadline, isolation="read_uncommitted")
    counts = []
    # Merged, because a record of another program could name one range a thousand times.
    for each in merged(record.offsets):
        part, place = PartitionCount(**asdict(each)), (each.topic, each.partition)
        if place in starts:
            found = _rows(admin, part, producers, starts[place], stable[place])
            counts.append(replace(_visible(part, starts[place], stable[place], ends[place]), found=found))
        else:
            counts.append(replace(part, hidden=part.offsets, reason=NO_PARTITION))
    audit = BatchAudit(record=record, partitions=tuple(counts))
    return _without_compacted(admin, audit, deadline) if audit.missing else audit


def _visible(part: PartitionCount, start: int, stable: int, end: int) -> PartitionCount:
    """Count hidden offsets: before the log start, and after the last stable offset."""
    past = part.last_offset + 1
    removed = max(0, min(past, start) - part.first_offset)
    # No offset after the end of the log is hidden: those records were lost.
    blocked = max(0, min(past, end) - max(part.first_offset, stable))
    reasons = [reason for count, reason in ((removed, REMOVED), (blocked, BLOCKED)) if count]
    return replace(part, hidden=removed + blocked, reason="; ".join(reasons) or None)


def _rows(admin: Admin, part: OffsetRange, producers: Collection[tuple[int, int]], start: int, stable: int) -> int:
    """Count the rows of these producers; other transactions may have rows in between."""
    first, end = max(part.first_offset, start), min(part.last_offset + 1, stable)
    return sum(
        # DeleteRecords can end within a batch, which the broker then returns whole.
        sum(first <= record.offset < end for record in batch.records)
        for batch in read_committed(admin, (part.topic, part.partition), first, end, producers)
        # Outside a transaction, every program may use the ids of these producers.
        if batch.transactional
    )


def _without_compacted(admin: Admin, found: BatchAudit, deadline: int) -> BatchAudit:
    """Count a compacted topic's other offsets as hidden: they may have held rows."""
    topics = {part.topic for part in found.partitions}
    compacted = {topic for topic in topics if "compact" in (cleanup_policy(admin, topic, deadline) or "")}
    return replace(
        found,
        partitions=tuple(
            replace(part, hidden=part.offsets - part.found, reason="; ".join(filter(None, (part.reason, COMPACTED))))
            if part.topic in compacted and part.reason != NO_PARTITION
            else part
            for part in found.partitions
        ),
    )
