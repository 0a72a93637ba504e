"""The batch writer: where Spark's calls meet the commit protocol.

One object lives through three kinds of processes. It is made and pickled in Spark's *planner*, unpickled in every task
(`write`) and in one process on the driver (`commit`, `abort`). What Kafka must know before the tasks start is planned
when the object is pickled, the one moment that exists only in the planner; Spark pickles it twice, and the plan is made
once. Settings are rebuilt from the options in each process, so that a resolved secret never travels.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID, batch_write_id, random_write_id
from kafka_eos_sink.errors import KafkaEosError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.session import Plan, WriteSettings
from kafka_eos_sink.settings.options import SinkOptions, read_options, readable, sink_part
from kafka_eos_sink.spark.columns import ignored_columns_warning
from kafka_eos_sink.spark.spark_boundary import SinkMessage, checked, current_task, planning, unwrapped

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


class KafkaEosBatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame.

    Raises on construction, before anything reaches Kafka:
        ConfigurationError: INVALID_OPTIONS, with all problems of options and columns at once.
        SchemaError: INVALID_COLUMNS, where only columns are wrong.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        found, self._columns = checked(options, schema)
        for warning in (*found.warnings, *ignored_columns_warning(self._columns)):
            warn_once(warning)
        self._options = sink_part(options)
        self._unique: str | None = None
        self._plan: Plan | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({readable(self._options)})"

    def __getstate__(self) -> dict[str, Any]:
        if self._unique is None:
            # Only here may anything be generated or fenced: __init__ runs where no write follows, too.
            unique = str(uuid.uuid4())
            with planning():
                options = self._checked_options()
                if options.delivery_guarantee == "exactly-once":
                    self._plan = session.plan(self._settings(options, unique))
            self._unique = unique
        return self.__dict__.copy()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        """One task attempt: its rows into one transaction, which it leaves prepared."""
        _, task = current_task()
        settings = self._planned_settings()
        rows = self._columns.rows(iterator, settings.commit_log_topic)
        if self._plan is None:
            return SinkMessage(session.write_task_at_least_once(settings, task, rows))
        return SinkMessage(session.write_task(settings, self._plan, task, rows))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Decides the batch and ends its transactions; when this returns, every row is visible."""
        if self._plan is not None:
            session.commit(self._planned_settings(), self._plan, unwrapped(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Ends what the batch left open. Never raises: the user is to see why the batch failed, not this."""
        if self._plan is None:
            return
        try:
            session.abort(self._planned_settings(), self._plan, unwrapped(messages))
        except Exception as error:
            log.warning(
                "kafka-eos: the abort of a failed batch did not finish; what is open ends with the next run or by "
                "its timeout: %s",
                error if isinstance(error, KafkaEosError) else type(error).__name__,
            )

    def _checked_options(self) -> SinkOptions:
        return read_options(self._options)

    def _planned_settings(self) -> WriteSettings:
        if self._unique is None:
            raise KafkaEosError("NOT_PLANNED", "the writer was not pickled by Spark's planner before it was used")
        return self._settings(self._checked_options(), self._unique)

    def _settings(self, options: SinkOptions, unique: str) -> WriteSettings:
        app_id, version = options.txn_app_id, options.txn_version
        prefix = options.transactional_id_prefix
        if app_id is not None:
            write_id = batch_write_id(prefix, app_id, options.topic)
        else:
            write_id = random_write_id(prefix, unique)
        return WriteSettings(
            write_id=write_id,
            query_id=BATCH_QUERY_ID,
            version=version if version is not None else 0,
            random_write_id=app_id is None,
            topic=options.topic,
            schema=self._columns.schema,
            offsets_hash=None,
            on_checkpoint_rollback=options.on_checkpoint_rollback,
            commit_log_topic=options.commit_log_topic,
            client=options.client,
            producer=options.producer,
        )
