"""An interceptor that makes every attempt's bytes different: a random id behind each value."""

from __future__ import annotations

import uuid

import pyarrow as pa


class RandomIds:
    """``value`` becomes ``value:<32 hex digits>``."""

    def on_send(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        at = batch.schema.get_field_index("value")
        values = batch.column(at).cast(pa.string()).to_pylist()
        return batch.set_column(at, "value", pa.array([f"{value}:{uuid.uuid4().hex}" for value in values]))
