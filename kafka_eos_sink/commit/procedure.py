"""A procedure is a generator over steps; a step has a result of a known type.

A procedure performs a step with ``described = yield from DescribeTransactions(ids)`` and another procedure in the same way, so mypy
knows both results. Procedures hold no socket and no clock, so the same code runs on a cluster (``runtime/executor.py``,
``task_executor.py``) and on a simulated one (``tests/model``). The executor may raise a `KafkaEosError` into the procedure. It resends
retriable requests with identical bytes, so a procedure never sees those errors. A lost response is a value: ``EndResult.error is None``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity

R = TypeVar("R")
T = TypeVar("T")

MOST = 4
"""Most names on a line of the DEBUG log: a batch can have thousands of transactions."""


class Step(Generic[R]):
    """A request of a procedure, with a result of type ``R``."""

    __slots__ = ()

    def __iter__(self) -> Generator[Step[Any], Any, R]:
        result: R = yield self
        return result

    def subject(self) -> str:
        """Return the ids, partitions and offsets for the DEBUG log, never contents."""
        return ""


Procedure = Generator[Step[Any], Any, T]
"""A generator that yields steps to its executor, and returns a ``T``."""


def listed(values: Iterable[object]) -> str:
    """List the first values on a line of the DEBUG log, and how many more there are."""
    texts = list(map(text, values))
    return ", ".join(texts[:MOST]) + (f" and {len(texts) - MOST} more" if len(texts) > MOST else "") or "none"


def text(value: object) -> str:
    match value:
        case (str(topic), int(partition)):
            return f"{topic}-{partition}"
        case ProducerIdentity():
            return f"{value.transactional_id} (producer id {value.producer_id}, epoch {value.producer_epoch})"
        case _:
            return str(value)


def code_name(error: int | None) -> str:
    """Name the result of a request; None stands for a lost response."""
    return "no response" if error is None else ErrorCode.of(error).name


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The result of a request in the driver's transaction.

    ``error`` is 0 for success, None for a lost response. ``earlier_error`` is the code before a lost response, for error messages only.
    """

    error: int | None
    earlier_error: int | None = None

    @property
    def code(self) -> str:
        """The result in words, with the code of an earlier try."""
        # A deadline often cuts the last try short. The code before it describes the cluster better.
        before = "" if self.earlier_error is None else f", and before that {ErrorCode.of(self.earlier_error).name}"
        return code_name(self.error) + before
