"""What a user may bring along, as modules that Spark's Python workers import: a partitioner, and an interceptor before it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa


def by_key(batch: pa.RecordBatch, topic: str, partitions: int) -> pa.Int32Array:
    """The key is a number: that partition, counted from the last one."""
    return pa.array([partitions - 1 - int(key) % partitions for key in batch.column("key").to_pylist()], pa.int32())


class Diary:
    """Makes each value its row's key too, and writes down what it is told, a file each, in the folder ``txnAppId``.

    That is the one option that takes any text.
    """

    def configure(self, options: dict[str, str]) -> None:
        self._file = Path(options["txnAppId"]) / uuid.uuid4().hex

    def on_send(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._write("sent", batch.num_rows)
        return batch.append_column("key", batch.column("value"))

    def on_acknowledgement(
        self, topic: str, partition: int, base_offset: int, record_count: int, error: Exception | None
    ) -> None:
        self._write("acknowledged", topic, partition, base_offset, record_count, error and str(error))

    def close(self) -> None:
        self._write("closed")

    def _write(self, *event: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(event) + "\n")
