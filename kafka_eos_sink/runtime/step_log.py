"""Steps in the DEBUG log: names, numbers, error codes; never record contents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.prepared_transaction import OffsetRange
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity

MOST = 4
"""Most names on a line: a batch can have thousands of transactions."""


def subject(step: steps.Step) -> str:
    """Return the ids, partitions and offsets that a step concerns."""
    match step:
        case steps.DescribeTransactions(transactional_ids=named) | steps.AbortedTransactions(ranges=named):
            return _some(named)
        case steps.LastStableOffsets(partitions=named) | steps.DescribeProducers(partitions=named):
            return _some(named)
        case steps.AreCommitted(written=written):
            return _some(part for _, part in written)
        case steps.EndTransactions(ends=ends):
            return _some(f"{'commit' if end.commit else 'abort'} {_text(end.identity)}" for end in ends)
        case steps.InitProducerId(transactional_id=name) | steps.ListOpenTransactions(write_id=name):
            return name
        case steps.ReadLog(offset=offset):
            return f"from offset {offset}"
        case steps.CommitGroupOffsets(identity=identity, group_id=group):
            return f"group {group}, {_text(identity)}"
        case steps.CopyRecords(copies=copies):
            return _some(f"{_some(each.ranges)} of {_text(each.source)} to {_text(each.identity)}" for each in copies)
        case steps.AddPartition() | steps.AppendInTransaction() | steps.WriteRows() | steps.AppendPart():
            return _text(step.identity)
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
        case Mapping():
            return _some(f"{_text(key)}: {_text(found)}" for key, found in result.items())
        case tuple():
            return _some(result)
        case _:
            return _text(result)


def _some(named: Iterable[Any]) -> str:
    listed = list(map(_text, named))
    return ", ".join(listed[:MOST]) + (f" and {len(listed) - MOST} more" if len(listed) > MOST else "") or "none"


def _text(value: Any) -> str:
    """Describe a value; of a type that is not named here, only the type."""
    match value:
        case None | bool() | int() | str() | OffsetRange():
            return str(value)
        case (str(topic), int(partition)):
            return f"{topic}-{partition}"
        case ProducerIdentity():
            return f"{value.transactional_id} (producer id {value.producer_id}, epoch {value.producer_epoch})"
        case steps.TransactionDescription():
            return f"{value.state} (producer id {value.producer_id}, epoch {value.producer_epoch})"
        case steps.LogChunk():
            return f"{len(value.entries)} entries, next offset {value.next_offset}"
        case steps.Appended() | steps.EndResult():
            return code_name(value.error)
        case steps.Copied(written=written) | (steps.Written() as written):
            return f"{written.rows} rows"
        case steps.Gone():
            return value.why
        case steps.Unseen():
            return value.value
        case Mapping() | tuple():
            return f"{len(value)} producers"
        case _:
            return type(value).__name__


def code_name(error: int | None) -> str:
    """Name the result of a request; None stands for a lost response."""
    return "no response" if error is None else ErrorCode.of(error).name
