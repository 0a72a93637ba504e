"""Steps and their results in the DEBUG log: names, numbers, error codes; no bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import islice

from kafka_eos_sink.commit.steps import Answered, Warn
from kafka_eos_sink.commit.values import OffsetRange
from kafka_eos_sink.protocol.identity import ProducerIdentity

MOST = 4
"""Most values of a list: a batch can have thousands of transactions."""


def shown(value: object) -> str:
    """Describe a step, or what it returned. Keys, values and messages may quote a row."""
    match value:
        case bytes():
            return f"{len(value)} bytes"
        case (str(topic), int(partition)):
            return f"{topic}-{partition}"
        case ProducerIdentity():
            return f"{value.transactional_id} (producer id {value.producer_id}, epoch {value.producer_epoch})"
        case Answered():
            return value.code
        case Warn():
            return ""
        case Enum():
            return str(value.value)
        case Mapping():
            return _listed([f"{shown(key)}: {shown(found)}" for key, found in islice(value.items(), MOST)], len(value))
        case tuple() | AbstractSet():
            return _listed([shown(each) for each in islice(value, MOST)], len(value))
        case _ if is_dataclass(value) and not isinstance(value, OffsetRange):
            known = ((each.name, getattr(value, each.name)) for each in fields(value))
            return ", ".join(f"{name}={shown(found)}" for name, found in known if found is not None)
        case _:
            return str(value)


def _listed(first: Sequence[str], count: int) -> str:
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return f"[{', '.join(first)}{more}]"
