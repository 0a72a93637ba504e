"""The streaming sink with a clock around plan, tasks, commit, and their requests.

Spark's Python processes import this module before they can call the writer, so that it imports nothing but the sink.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_eos_sink import KafkaEosDataSource
from kafka_eos_sink.client import connection
from kafka_eos_sink.spark.stream_writer import KafkaEosStreamWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from kafka_eos_sink.spark.spark_boundary import SinkMessage

__all__ = ["COMMIT", "PLAN", "TASK", "TIMED_FORMAT", "Span", "TimedDataSource", "driver_ms", "spans_of"]

TIMED_FORMAT = "kafka-eos-timed"
PLAN, TASK, COMMIT = "plan", "task", "commit"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a micro-batch, or a request by its API's name.

    The parts are ``PLAN``, ``TASK`` and ``COMMIT``. ``began`` and ``ended`` are seconds of the wall clock, which all processes of
    the machine share.
    """

    what: str
    pid: int
    began: float
    ended: float

    @property
    def ms(self) -> float:
        return (self.ended - self.began) * 1_000

    def line(self) -> str:
        return f"{self.what} {self.pid} {self.began:.6f} {self.ended:.6f}\n"


def spans_of(notes: str) -> list[Span]:
    """Parse the file of the notes; spans are in the order of their ends."""
    lines = [line.split() for line in notes.splitlines()]
    return [Span(what, int(pid), float(began), float(ended)) for what, pid, began, ended in lines]


def driver_ms(spans: Sequence[Span]) -> list[float]:
    """Return the milliseconds of plan and commit of each micro-batch."""
    plans, commits = ([each.ms for each in spans if each.what == wanted] for wanted in (PLAN, COMMIT))
    return [plan + commit for plan, commit in zip(plans, commits, strict=False)]


class _Requests(logging.Handler):
    """Notes each request, from its line in the client's log to its response's."""

    def __init__(self, notes: str) -> None:
        super().__init__()
        self.notes = notes
        self._sent: dict[connection.PendingRequest, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        for pending in (each for each in arguments if isinstance(each, connection.PendingRequest)):
            if (began := self._sent.pop(pending, None)) is None:
                self._sent[pending] = record.created
            else:
                _note(self.notes, Span(connection.api_name(type(pending.request)), os.getpid(), began, record.created))


class TimedWriter(KafkaEosStreamWriter):
    """Appends the spans of its plans and commits to a file, one per line.

    Args:
        requests: Also those of its tasks and requests, which costs a few milliseconds.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, notes: str, requests: bool) -> None:
        super().__init__(options, schema)
        self._notes = notes
        self._requests = requests

    def __getstate__(self) -> dict[str, Any]:
        if self._planned:  # Spark pickles the writer twice, and the first pickle plans
            return super().__getstate__()
        with self._noted(PLAN):
            return super().__getstate__()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        if not self._requests:
            return super().write(iterator)
        with self._noted(TASK):
            return super().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with self._noted(COMMIT):
            super().commit(messages, batchId)

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        handlers = [_Requests(self._notes)] if self._requests else []
        # Spark keeps the processes for later queries, which may not want the notes.
        connection.log.handlers[:] = handlers
        connection.log.setLevel(logging.DEBUG if handlers else logging.NOTSET)
        connection.log.propagate = not handlers
        began = time.time()
        yield
        _note(self._notes, Span(what, os.getpid(), began, time.time()))


def _note(notes: str, span: Span) -> None:
    # A file, because Spark copies the writer and calls the copies.
    with open(notes, "a") as file:
        file.write(span.line())


class TimedDataSource(KafkaEosDataSource):
    """The sink with the options ``notes`` (a file) and ``requests`` (true or false)."""

    @classmethod
    def name(cls) -> str:
        return TIMED_FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> TimedWriter:  # noqa: N802
        options = dict(self.options)
        notes, requests = options.pop("notes"), options.pop("requests")
        return TimedWriter(options, schema, notes, requests == "true")
