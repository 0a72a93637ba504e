"""A Spark data source that takes rows in Arrow batches and throws them away: what Spark alone costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["DISCARD_FORMAT", "DiscardDataSource"]

DISCARD_FORMAT = "kafka-eos-bench-discard"


@dataclass(slots=True)
class _Counted(WriterCommitMessage):
    rows: int


class _DiscardWriter(DataSourceArrowWriter):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Counted:
        return _Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        got = sum(message.rows for message in messages if isinstance(message, _Counted))
        if got != self._rows:
            raise RuntimeError(f"{got} rows came to be thrown away, not {self._rows}")


class DiscardDataSource(DataSource):
    """``df.write.format("kafka-eos-bench-discard").option("rows", <how many there must be>)``."""

    @classmethod
    def name(cls) -> str:
        return DISCARD_FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _DiscardWriter(int(self.options["rows"]))
