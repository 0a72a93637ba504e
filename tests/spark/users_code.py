"""What a user may bring along, as modules that Spark's Python workers import: partitioners, and an interceptor before one."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_eos_sink.spark.quick_acks import acknowledge_at_once


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


def on_the_acknowledged_connection(batch: pa.RecordBatch, topic: str, partitions: int) -> pa.Int32Array:
    """Write to the first partition if exactly one socket of this worker acknowledges at once, the accepted one of Spark's daemon."""
    acknowledged: set[int] = set()

    def record(self: socket.socket, *option: Any) -> None:
        acknowledged.add(os.fstat(self.fileno()).st_ino)
        super(socket.socket, self).setsockopt(*option)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "setsockopt", record)
        acknowledge_at_once()
    connections = {os.fstat(int(each)).st_ino for each in _open_sockets()}
    assert len(acknowledged) == 1 < len(connections), (acknowledged, connections)  # the others are the client's
    return pa.array([0] * batch.num_rows, pa.int32())


def _open_sockets() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                yield name
