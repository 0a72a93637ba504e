"""The user's interceptors, which change rows and receive the results.

The producer logs an exception of an interceptor and continues, like Java's with ``ProducerInterceptor``. If creating or
configuring an interceptor fails, the write fails before it starts. All methods are optional:

    configure(options)
    on_send(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch
    on_acknowledgement(topic, partition, base_offset, record_count, error)
    close()

The producer calls ``on_acknowledgement`` once per acknowledged batch. After a failure the producer calls it once per
partition, with base offset -1, the number of unacknowledged records and the error. It does not report rows that have no
partition yet. It also reports records that ``on_send`` never receives: dead letters, and one commit log record per task.

An ``on_acknowledgement`` with a parameter ``log_append_time_ms`` also receives the broker's append time in ms since the
epoch. The time is -1 unless the topic has ``message.timestamp.type=LogAppendTime``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.plugins import load_callable
from kafka_eos_sink.producer.rows import Rows, topic_column
from kafka_eos_sink.protocol.record_columns import RecordColumns

log = logging.getLogger(__name__)

_LOG_APPEND_TIME: Final = "log_append_time_ms"


class Interceptors:
    """The chain of configured interceptors, in order."""

    def __init__(self, specs: Sequence[str], options: Mapping[str, str]) -> None:
        self._chain = [(spec, _create(spec, options)) for spec in specs]
        self._with_append_time = {spec for spec, interceptor in self._chain if _accepts_append_time(interceptor)}

    def __bool__(self) -> bool:
        return bool(self._chain)

    def on_send(self, rows: Rows) -> Rows:
        """Pass rows through the chain; log and skip an interceptor that fails."""
        for spec, interceptor in self._chain:
            if not hasattr(interceptor, "on_send"):
                continue
            try:
                changed = from_record_batch(interceptor.on_send(to_record_batch(rows)), rows.topic)
                if changed.num_rows != rows.num_rows:
                    # Exactly once covers each row that Spark delivered, so no interceptor may add or drop a row.
                    raise ValueError(f"on_send received {rows.num_rows} rows and returned {changed.num_rows}")
                rows = changed
            except Exception:
                log.warning("interceptor %s failed in on_send; the rows keep their content", spec, exc_info=True)
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
        """Report acknowledged or failed records; unknown offsets and times are -1."""
        for spec, interceptor in self._chain:
            time = {_LOG_APPEND_TIME: log_append_time_ms} if spec in self._with_append_time else {}
            _notify(spec, interceptor, "on_acknowledgement", topic, partition, base_offset, record_count, error, **time)

    def close(self) -> None:
        for spec, interceptor in self._chain:
            _notify(spec, interceptor, "close")


def _notify(spec: str, interceptor: Any, method: str, *arguments: Any, **named: Any) -> None:
    if hasattr(interceptor, method):
        try:
            getattr(interceptor, method)(*arguments, **named)
        except Exception:
            log.warning("interceptor %s failed in %s", spec, method, exc_info=True)


def _create(spec: str, options: Mapping[str, str]) -> Any:
    try:
        interceptor = load_callable(spec, "interceptors")()
        if hasattr(interceptor, "configure"):
            interceptor.configure(dict(options))
    except ConfigurationError:
        raise
    except Exception as error:  # the user's code
        raise ConfigurationError(
            "NOT_LOADABLE", f"interceptors: creating or configuring {spec!r} failed ({type(error).__name__}: {error})"
        ) from error
    return interceptor


def _accepts_append_time(interceptor: Any) -> bool:
    try:
        return _LOG_APPEND_TIME in inspect.signature(interceptor.on_acknowledgement).parameters
    except (AttributeError, TypeError, ValueError):  # no such method, or a method that is not written in Python
        return False


def to_record_batch(rows: Rows) -> pa.RecordBatch:
    """Convert rows for user code; the timestamps are int64 ms since the epoch."""
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
    """Convert back to rows; ``topic`` stays one name if all rows still have it."""

    def column(name: str) -> pa.Array | None:
        return batch.column(name) if name in batch.schema.names else None

    topics, partition = column("topic"), column("partition")
    if topics is not None and not (isinstance(topic, str) and set(topics.unique().to_pylist()) <= {topic}):
        topic = topics
    elif topics is None and not isinstance(topic, str):
        raise ValueError("on_send returned no topic column")
    return Rows(
        topic=topic,
        partition=None if partition is None else partition.cast(pa.int32()),
        columns=RecordColumns(
            value=batch.column("value"),
            key=column("key"),
            headers=column("headers"),
            timestamp=column("timestamp"),
        ),
    )
