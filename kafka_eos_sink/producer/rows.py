"""Rows on their way to Kafka: topic, partition and the columns of the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kafka_eos_sink.errors import InvalidRowError, peer_text
from kafka_eos_sink.protocol.record_columns import RecordColumns, concat_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows as Spark delivered them, in order.

    ``topic`` is one name for all rows, or an Arrow string array with one name per row. Kafka cannot store a row with a
    null topic. ``partition`` is an int32 array or None. The partitioner chooses for None and for nulls.
    """

    topic: str | pa.Array
    partition: pa.Array | None
    columns: RecordColumns

    @property
    def num_rows(self) -> int:
        return self.columns.num_rows

    def slice(self, offset: int, length: int) -> Self:
        """Return ``length`` rows from ``offset`` on, without a copy."""
        return replace(
            self,
            topic=self.topic if isinstance(self.topic, str) else self.topic.slice(offset, length),
            partition=None if self.partition is None else self.partition.slice(offset, length),
            columns=self.columns.slice(offset, length),
        )

    def take(self, indices: np.ndarray[Any, Any]) -> Self:
        """Return a copy of the rows at ``indices``, in that order."""
        at = pa.array(indices)
        return replace(
            self,
            topic=self.topic if isinstance(self.topic, str) else self.topic.take(at),
            partition=None if self.partition is None else self.partition.take(at),
            columns=self.columns.take(at),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedRows(Rows):
    """Rows with each row's number in the task."""

    row_numbers: npt.NDArray[np.int64]

    def slice(self, offset: int, length: int) -> Self:
        return replace(Rows.slice(self, offset, length), row_numbers=self.row_numbers[offset : offset + length])

    def take(self, indices: np.ndarray[Any, Any]) -> Self:
        return replace(Rows.take(self, indices), row_numbers=self.row_numbers[indices])


@dataclass(frozen=True, slots=True)
class BadRows:
    """Rows that Kafka cannot store, all for the same reason."""

    code: str
    reason: str
    rows: NumberedRows

    @property
    def topic(self) -> str | None:
        return self.rows.topic if isinstance(self.rows.topic, str) else None

    def take(self, indices: np.ndarray[Any, Any]) -> BadRows:
        return BadRows(self.code, self.reason, self.rows.take(indices))

    def error(self) -> InvalidRowError:
        """Build the error for the first row, without the row's content."""
        partition = None if self.rows.partition is None else self.rows.partition[0].as_py()
        where = "no topic" if self.topic is None else f"topic {peer_text(self.topic)}"
        at = "" if partition is None else f", partition {partition}"
        more = self.rows.num_rows - 1
        return InvalidRowError(
            self.code,
            f"row {self.rows.row_numbers[0]} of the task ({where}{at}) {self.reason}"
            f"{f'; {more} more rows have this error' if more else ''}. Correct the rows, or set dead.letter.topic",
        )


def concat_rows(pieces: Sequence[Rows]) -> Rows:
    """Concatenate the rows of at least one piece."""
    if len(pieces) == 1:
        return pieces[0]
    topics = {piece.topic if isinstance(piece.topic, str) else None for piece in pieces}
    topic: str | pa.Array
    if len(topics) == 1 and (name := next(iter(topics))) is not None:
        topic = name
    else:
        topic = pa.concat_arrays([topic_column(piece) for piece in pieces])
    return Rows(
        topic=topic,
        partition=concat_columns([(piece.partition, piece.num_rows) for piece in pieces], pa.int32()),
        columns=RecordColumns.concat([piece.columns for piece in pieces]),
    )


def topic_column(rows: Rows) -> pa.Array:
    """Return each row's topic as an Arrow string array, even for one shared topic."""
    if isinstance(rows.topic, str):
        return pa.repeat(pa.scalar(rows.topic, pa.string()), rows.num_rows)
    topic = rows.topic.combine_chunks() if isinstance(rows.topic, pa.ChunkedArray) else rows.topic
    return pc.cast(topic, pa.string())
