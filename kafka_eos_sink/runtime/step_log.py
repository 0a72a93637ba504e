"""Steps in the DEBUG log: names, numbers and error codes, never contents of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.prepared_transaction import OffsetRange
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity, TopicPartition

MOST = 4
"""Most names on a line: a batch can have thousands of transactions."""


def subject(step: steps.Step) -> str:
    """Return the ids, partitions and offsets that a step concerns."""
    match step:
        case steps.DescribeTransactions(transactional_ids=ids):
            return _some(ids)
        case steps.EndTransactions(ends=ends):
            return _some(f"{'commit' if end.commit else 'abort'} {_producer(end.identity)}" for end in ends)
        case steps.InitProducerId(transactional_id=name) | steps.ListOpenTransactions(write_id=name):
            return name
        case steps.ReadLog(offset=offset):
            return f"from offset {offset}"
        case steps.LastStableOffsets(partitions=partitions) | steps.DescribeProducers(partitions=partitions):
            return _some(map(_partition, partitions))
        case steps.AbortedTransactions(ranges=ranges):
            return _ranges(ranges)
        case steps.AreCommitted(written=written):
            return _ranges([part for _, part in written])
        case steps.CommitGroupOffsets(identity=identity, group_id=group):
            return f"group {group}, {_producer(identity)}"
        case steps.CopyRecords(copies=copies):
            return _some(
                f"{_ranges(each.ranges)} of {_producer(each.source)} to {_producer(each.identity)}" for each in copies
            )
        case steps.AddPartition() | steps.AppendInTransaction() | steps.WriteRows() | steps.AppendPart():
            return _producer(step.identity)
        case steps.Append(records=records):
            return f"{len(records)} records"
        case steps.Wait(ms=ms):
            return f"{ms} ms"
        case steps.Reached(point=point):
            return point
        case _:
            return ""


def outcome(result: Any) -> str:
    """Return what a step returned."""
    match result:
        case None:
            return "no result"
        case ProducerIdentity():
            return _producer(result)
        case steps.LogChunk():
            return f"{len(result.entries)} entries, next offset {result.next_offset}"
        case steps.Appended() | steps.EndResult():
            return code_name(result.error)
        case steps.Written():
            return f"{result.rows} rows"
        case (steps.Copied() | steps.Gone(), *_):
            return _some(each.why if isinstance(each, steps.Gone) else outcome(each.written) for each in result)
        case (steps.EndResult(), *_):
            return _some(code_name(each.error) for each in result)
        case Mapping():
            return _some(f"{_partition(key)}: {_state(found)}" for key, found in result.items())
        case bool() | int() | str():
            return str(result)
        case tuple():
            return _some(map(str, result))
        case _:
            return type(result).__name__


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:MOST]) + (f" and {len(listed) - MOST} more" if len(listed) > MOST else "") or "none"


def _ranges(ranges: Iterable[OffsetRange]) -> str:
    return _some(f"{each.topic}-{each.partition} [{each.first_offset}..{each.last_offset}]" for each in ranges)


def _producer(identity: ProducerIdentity) -> str:
    return f"{identity.transactional_id} (producer id {identity.producer_id}, epoch {identity.producer_epoch})"


def _partition(key: str | TopicPartition | Any) -> str:
    match key:
        case (str(topic), int(partition)):
            return f"{topic}-{partition}"
        case str():
            return key
        case _:
            return f"{key.topic}-{key.partition}"


def _state(found: Any) -> str:
    match found:
        case steps.TransactionDescription():
            return f"{found.state} (producer id {found.producer_id}, epoch {found.producer_epoch})"
        case steps.Unseen():
            return found.value
        case None | int():
            return str(found)
        case _:
            return f"{len(found)} producers"


def code_name(error: int | None) -> str:
    """Name the result of a request; None stands for a lost response."""
    return "no response" if error is None else ErrorCode.of(error).name
