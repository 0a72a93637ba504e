"""The error codes of a decoded response, in short, for the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from kafka_eos_sink.protocol.error_codes import ErrorCode

_NAMES_AT_MOST = 5


def describe_errors(response: Any) -> str:
    """Return ``no error``, or the names of the error codes with their counts: ``NOT_COORDINATOR x 3``.

    Nothing else of the response is in the text, so it can be logged.
    """
    counts = Counter(code for code in _error_codes(response) if code)
    if not counts:
        return "no error"
    names = [
        ErrorCode.of(code).name + (f" x {count}" if count > 1 else "")
        for code, count in counts.most_common(_NAMES_AT_MOST)
    ]
    return ", ".join(names) + (", ..." if len(counts) > _NAMES_AT_MOST else "")


def _error_codes(value: Any) -> Iterator[int]:
    """Walk a struct and the structs and arrays in it; every field named ``*error_code`` is an error code."""
    if isinstance(value, tuple):
        for element in value:
            # An array of numbers or strings holds no codes: its first element shows that.
            if not is_dataclass(element):
                return
            yield from _error_codes(element)
    elif is_dataclass(value):
        for field in fields(value):
            found = getattr(value, field.name)
            if field.name.endswith("error_code"):
                yield found
            else:
                yield from _error_codes(found)
