"""The streaming sink with a clock around plan and commit.

Spark's Python processes import this module before they can call the writer, so that it imports nothing but the sink.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka_eos_sink import KafkaEosDataSource
from kafka_eos_sink.spark.stream_writer import KafkaEosStreamWriter

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

__all__ = ["TIMED_FORMAT", "TimedDataSource", "driver_ms"]

TIMED_FORMAT = "kafka-eos-timed"


class TimedWriter(KafkaEosStreamWriter):
    """Appends the milliseconds of its plans and commits to a file, one per line."""

    def __init__(self, options: Mapping[str, str], schema: StructType, notes: str) -> None:
        super().__init__(options, schema)
        self._notes = notes

    def __getstate__(self) -> dict[str, Any]:
        planned = self._planned
        began = time.perf_counter()
        state = super().__getstate__()
        if not planned:  # Spark pickles the writer twice, and the first pickle plans
            self._note("plan", began)
        return state

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        began = time.perf_counter()
        super().commit(messages, batchId)
        self._note("commit", began)

    def _note(self, what: str, began: float) -> None:
        # A file, because Spark copies the writer and calls the copies.
        with open(self._notes, "a") as notes:
            notes.write(f"{what} {(time.perf_counter() - began) * 1_000}\n")


class TimedDataSource(KafkaEosDataSource):
    @classmethod
    def name(cls) -> str:
        return TIMED_FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> TimedWriter:  # noqa: N802
        options = dict(self.options)
        return TimedWriter(options, schema, options.pop("notes"))


def driver_ms(notes: str) -> list[float]:
    """Return the milliseconds of plan and commit of each micro-batch."""
    lines = [line.split() for line in notes.splitlines()]
    plans, commits = ([float(ms) for what, ms in lines if what == wanted] for wanted in ("plan", "commit"))
    return [plan + commit for plan, commit in zip(plans, commits, strict=False)]
