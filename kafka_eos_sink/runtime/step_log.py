"""Outcomes of steps in the DEBUG log: names, numbers, error codes; never contents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.procedure import Answered, code_name, listed, text
from kafka_eos_sink.commit.values import OffsetRange
from kafka_eos_sink.protocol.identity import ProducerIdentity


def outcome(result: Any) -> str:
    """Return what a step returned."""
    match result:
        case None:
            return "no result"
        case Mapping():
            return listed(f"{_text(key)}: {_text(found)}" for key, found in result.items())
        case tuple():
            return listed(map(_text, result))
        case _:
            return _text(result)


def _text(value: Any) -> str:
    """Describe a value; of a type that is not named here, only the type."""
    match value:
        case None | bool() | int() | str() | OffsetRange() | ProducerIdentity() | (str(), int()):
            return text(value)
        case steps.TransactionDescription():
            return f"{value.state} (producer id {value.producer_id}, epoch {value.producer_epoch})"
        case steps.LogChunk():
            return f"{len(value.entries)} entries, next offset {value.next_offset}"
        case Answered() | steps.EndResult():
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
