"""Steps in the DEBUG log: names, numbers, error codes; never contents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.steps import Answered, Step, code_name
from kafka_eos_sink.commit.values import OffsetRange
from kafka_eos_sink.protocol.identity import ProducerIdentity

MOST = 4
"""Most names on a line of the DEBUG log: a batch can have thousands of transactions."""


def subject(step: Step[Any]) -> str:
    """Return the ids, partitions and offsets that a step concerns."""
    match step:
        case steps.Append(records=records):
            return f"{len(records)} records"
        case steps.CommitGroupOffsets():
            return f"group {step.group_id}, {_name(step.identity)}"
        case steps.EndTransactions(ends=ends):
            return _listed(f"{'commit' if end.commit else 'abort'} {_name(end.identity)}" for end in ends)
        case steps.ReadLog(offset=offset):
            return f"from offset {offset}"
        case steps.AreCommitted(written=written):
            return _listed(part for _, part in written)
        case steps.Wait(ms=ms):
            return f"{ms} ms"
        case steps.Warn():
            return ""
        case steps.CopyRecords(copies=copies):
            return _listed(
                f"{_listed(each.ranges)} of {_name(each.source)} to {_name(each.identity)}" for each in copies
            )
    # The first field of every other step is what it concerns. `Now` has none.
    about = getattr(step, next(iter(step.__slots__), ""), "")
    return _listed(about) if isinstance(about, tuple) else _name(about)


def outcome(result: Any) -> str:
    """Return what a step returned."""
    match result:
        case None:
            return "no result"
        case Mapping():
            return _listed(f"{_text(key)}: {_text(found)}" for key, found in result.items())
        case tuple():
            return _listed(map(_text, result))
        case _:
            return _text(result)


def _text(value: Any) -> str:
    """Describe a value; of a type that is not named here, only the type."""
    match value:
        case None | bool() | int() | str() | OffsetRange() | ProducerIdentity() | (str(), int()):
            return _name(value)
        case steps.TransactionDescription():
            return f"{value.state} (producer id {value.producer_id}, epoch {value.producer_epoch})"
        case steps.LogChunk():
            return f"{len(value.entries)} entries, next offset {value.next_offset}"
        case Answered():
            return code_name(value.error)
        case steps.Copied(written=written) | (steps.WrittenRows() as written):
            return f"{written.rows} rows"
        case steps.Gone():
            return value.why
        case steps.Unseen():
            return value.value
        case Mapping() | tuple():
            return f"{len(value)} producers"
        case _:
            return type(value).__name__


def _listed(values: Iterable[object]) -> str:
    """List the first values on a line, and how many more there are."""
    names = list(map(_name, values))
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "") or "none"


def _name(value: object) -> str:
    match value:
        case (str(topic), int(partition)):
            return f"{topic}-{partition}"
        case ProducerIdentity():
            return f"{value.transactional_id} (producer id {value.producer_id}, epoch {value.producer_epoch})"
        case _:
            return str(value)
