"""The batch writer: where Spark's calls meet the commit protocol.

Spark creates and pickles one object in its *planner* process. It unpickles the object in every task (``write``) and in one process on the
driver (``commit``, ``abort``). Only the planner pickles, so the first of its two calls of ``__getstate__`` makes the plan.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, batch_write_id, random_write_id
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.runtime import at_least_once, session
from kafka_eos_sink.runtime.write_settings import WriteSettings
from kafka_eos_sink.settings.table import SinkOptions
from kafka_eos_sink.spark.late_sweep import log_failed_abort, sweep_later
from kafka_eos_sink.spark.quick_acks import log_hand_over
from kafka_eos_sink.spark.spark_boundary import (
    SinkMessage,
    SinkWriter,
    planning,
    rows_written,
    run_task,
    states_safety,
    unwrapped,
)

if TYPE_CHECKING:
    import pyarrow as pa

FOREACH_CALL = ("spark.app.id", "spark.app.startTime", "spark.sql.execution.root.id", "streaming.sql.batchId")
"""Local properties of tasks that together identify one call of a `foreachBatch` function."""

FOREACH_WITHOUT_ID = (
    "a write in a foreachBatch function has no txnAppId. Spark runs a batch again after a failure or a restart, and this write then writes "
    'its rows a second time. Write them once with .option("txnAppId", "a name for this write").option("txnVersion", batch_id)'
)


class KafkaEosBatchWriter(SinkWriter, DataSourceArrowWriter):
    """Write one DataFrame; see ``SinkWriter`` for the errors of the constructor."""

    _streaming = False
    _run_id: str | None = None  # random; set once the plan is made

    def __getstate__(self) -> dict[str, Any]:
        if self._run_id is None:
            # Generate ids and fence only here: Spark also calls __init__ when no write follows.
            # Without txnAppId each run gets a random id, so the sink treats two runs as two writes.
            run_id = str(uuid.uuid4())
            with planning(self._job):
                options = self._checked_options()
                settings = self._settings(options, run_id)
                log_hand_over(settings.write.id)
                if options.delivery_guarantee == "exactly-once":
                    self._plan = session.plan(settings)
            # Spark pickles the writer twice. A second plan would fence the first, whose epochs the tasks may already use.
            self._run_id = run_id
        return self.__dict__.copy()

    @states_safety
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        """Write the rows of one task attempt into one transaction and leave it prepared.

        An attempt without rows opens no transaction, and at-least-once opens none at all.
        """
        # Each attempt of a task writes, also a speculative one: the driver chooses one message per partition.
        context = TaskContext.get()
        assert context is not None
        settings = self._planned_settings()
        if settings.batch.foreach_call is None:
            settings = _in_call(settings, _foreach_query(context), _foreach_call(context))
        return run_task(context, settings, self._plan, self._columns, iterator)

    @states_safety
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Decide the batch and commit its transactions.

        When it returns, every row is committed. A ``read_committed`` consumer sees it unless another producer's open transaction blocks the
        partition; a warning then names that producer.
        """
        if self._plan is not None:
            settings, complete = self._planned_settings(), unwrapped(messages)
            if settings.write.is_random and any(
                each is not None and each.batch.foreach_call is not None for each in complete
            ):
                # Only tasks see that they run in foreachBatch, and only this process logs where users read: in the driver's log.
                warn_once(FOREACH_WITHOUT_ID)
            decision = session.commit(settings, self._plan, complete)
            # Losing speculative attempts may still run: Spark kills them without waiting for their end.
            sweep_later(settings, self._plan, decision, at_once=True)
        else:
            at_least_once.report(self._planned_settings(), rows_written(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the failed batch, or finish it if it was decided.

        The method never raises, so that Spark shows the first error.
        """
        if self._plan is None:
            return
        try:
            settings = self._planned_settings()
            found = session.abort(settings, self._plan, unwrapped(messages))
            if found is not None:
                sweep_later(settings, found, None, at_once=True)
        except Exception as error:
            log_failed_abort("the failed batch", error, self._plan.write)

    def _planned_settings(self) -> WriteSettings:
        assert self._run_id is not None
        return self._settings(self._checked_options(), self._run_id)

    def _settings(self, options: SinkOptions, run_id: str) -> WriteSettings:
        app_id, prefix = options.txn_app_id, options.transactional_id_prefix
        if app_id is not None:
            write_id = batch_write_id(prefix, app_id, options.topic)
        else:
            write_id = random_write_id(prefix, run_id)
        settings = self._write_settings(options, write_id, BATCH_QUERY_ID, options.txn_version or 0, None)
        return settings if options.foreach_batch_call is None else _in_call(settings, *options.foreach_batch_call)


def _in_call(settings: WriteSettings, query: str, call: str | None) -> WriteSettings:
    batch = dataclasses.replace(settings.batch, foreach_query=query, foreach_call=call)
    return dataclasses.replace(settings, batch=batch)


def _foreach_query(context: TaskContext) -> str:
    # A batch write outside of a streaming query has no such property.
    return context.getLocalProperty("sql.streaming.queryId") or ""


def _foreach_call(context: TaskContext) -> str | None:
    found = [context.getLocalProperty(name) for name in FOREACH_CALL]
    return None if None in found else "/".join(map(str, found))
