"""User code around the producer: it sees Arrow batches before partitioning, and what became of them after.

Like Java's ``ProducerInterceptor``: one that raises is logged and passed over, the write goes on; only where it cannot be
made or configured there is no write at all. Its methods, each of which it may leave out:

    configure(options)
    on_send(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch
    on_acknowledgement(topic, partition, base_offset, record_count, error)
    close()

``on_acknowledgement`` hears of each batch once: where it lies, or, with a base offset of -1 and for all records of a partition
together, the error for which the attempt gave them up before they were acknowledged; of rows that had no partition yet it does
not hear. That includes records of the sink's own that ``on_send`` has not seen: dead letters, and one of each task in the commit log.

An ``on_acknowledgement`` with a parameter ``log_append_time_ms`` is told the broker's time of appending by that name: ms
since 1970 for a topic with ``message.timestamp.type=LogAppendTime``, whose records all have it instead of their own, else -1.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.plugins import load_object
from kafka_eos_sink.producer.rows import Rows, topic_column
from kafka_eos_sink.protocol.record_columns import RecordColumns

log = logging.getLogger(__name__)

_LOG_APPEND_TIME: Final = "log_append_time_ms"


class Interceptors:
    """The chain of configured interceptors, in order."""

    def __init__(self, specs: Sequence[str], options: Mapping[str, str]) -> None:
        self._chain: list[tuple[str, Any]] = []
        for spec in specs:
            self._chain.append((spec, _made(spec, options)))
        self._told_the_time = {spec for spec, interceptor in self._chain if _asks_for_the_time(interceptor)}

    def __bool__(self) -> bool:
        return bool(self._chain)

    def on_send(self, rows: Rows) -> Rows:
        """Rows as the chain leaves them. What one of them raises or returns in a wrong shape is logged and skipped."""
        for spec, interceptor in self._chain:
            if not hasattr(interceptor, "on_send"):
                continue
            try:
                changed = from_record_batch(interceptor.on_send(to_record_batch(rows)), rows.topic)
                if changed.num_rows != rows.num_rows:
                    # Every row is written exactly once; adding or dropping rows is a query's work, not this one's.
                    raise ValueError(f"on_send returned {changed.num_rows} rows for {rows.num_rows}")
                rows = changed
            except Exception:
                log.warning("interceptor %s failed in on_send; its change is left out", spec, exc_info=True)
        return rows

    def on_acknowledgement(
        self,
        topic: str,
        partition: int,
        base_offset: int,
        record_count: int,
        error: Exception | None,
        *,
        log_append_time_ms: int = -1,
    ) -> None:
        """Tells the chain what became of these records; offset and time are -1 where the broker did not say."""
        for spec, interceptor in self._chain:
            if hasattr(interceptor, "on_acknowledgement"):
                time = {_LOG_APPEND_TIME: log_append_time_ms} if spec in self._told_the_time else {}
                try:
                    interceptor.on_acknowledgement(topic, partition, base_offset, record_count, error, **time)
                except Exception:
                    log.warning("interceptor %s failed in on_acknowledgement", spec, exc_info=True)

    def close(self) -> None:
        for spec, interceptor in self._chain:
            if hasattr(interceptor, "close"):
                try:
                    interceptor.close()
                except Exception:
                    log.warning("interceptor %s failed in close", spec, exc_info=True)


def _made(spec: str, options: Mapping[str, str]) -> Any:
    try:
        interceptor = load_object(spec, "interceptors")()
        if hasattr(interceptor, "configure"):
            interceptor.configure(dict(options))
    except ConfigurationError:
        raise
    except Exception as error:  # the user's code
        raise ConfigurationError(
            "NOT_LOADABLE", f"interceptors: {spec!r} cannot be made and configured ({type(error).__name__}: {error})"
        ) from error
    return interceptor


def _asks_for_the_time(interceptor: Any) -> bool:
    try:
        return _LOG_APPEND_TIME in inspect.signature(interceptor.on_acknowledgement).parameters
    except (AttributeError, TypeError, ValueError):  # it has none, or one that is not written in Python
        return False


def to_record_batch(rows: Rows) -> pa.RecordBatch:
    """Columns topic, partition, key, value, headers and timestamp (int64 ms since the epoch), as far as there are."""
    columns = {
        "topic": topic_column(rows),
        "partition": rows.partition,
        "key": rows.columns.key,
        "value": rows.columns.value,
        "headers": rows.columns.headers,
        "timestamp": rows.columns.timestamp,
    }
    return pa.RecordBatch.from_pydict({name: column for name, column in columns.items() if column is not None})


def from_record_batch(batch: pa.RecordBatch, topic: str | pa.Array) -> Rows:
    """The reverse; ``topic`` is what the rows had, kept as one name where no row was sent elsewhere."""

    def column(name: str) -> pa.Array | None:
        return batch.column(name) if name in batch.schema.names else None

    key, headers, timestamp, partition = (
        column("key"),
        column("headers"),
        column("timestamp"),
        column("partition"),
    )
    topics = column("topic")
    if topics is not None and not (isinstance(topic, str) and set(topics.unique().to_pylist()) <= {topic}):
        topic = topics
    elif topics is None and not isinstance(topic, str):
        raise ValueError("on_send returned no topic column")
    return Rows(
        topic=topic,
        partition=None if partition is None else partition.cast(pa.int32()),
        columns=RecordColumns(value=batch.column("value"), key=key, headers=headers, timestamp=timestamp),
    )
