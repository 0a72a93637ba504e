"""A Spark data source that discards rows in Arrow batches: what Spark alone costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["DISCARD_FORMAT", "DiscardDataSource"]

DISCARD_FORMAT = "kafka-eos-bench-discard"


@dataclass(slots=True)
class _Count(WriterCommitMessage):
    rows: int


class _DiscardWriter(DataSourceArrowWriter):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Count:
        return _Count(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        # A task that Spark lost would make the comparison too fast.
        rows = sum(message.rows for message in messages if isinstance(message, _Count))
        if rows != self._rows:
            raise RuntimeError(f"Spark delivered {rows} rows instead of {self._rows}")


class _DiscardStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Count:
        return _Count(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass


class DiscardDataSource(DataSource):
    """Discards all rows; a batch fails unless their number is the option ``rows``."""

    @classmethod
    def name(cls) -> str:
        return DISCARD_FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _DiscardWriter(int(self.options["rows"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return _DiscardStreamWriter()
