"""The streaming writer: each micro-batch of a query, exactly once.

Spark makes one anew before every micro-batch, in its *planner*, and pickles it to the tasks (`write`); `commit` and `abort` run on
yet another one, made in a *commit process* that never met the planner's. So the plan is made when the object is pickled, and reaches
the commit in the messages of the tasks. What a batch is called (query id, batch id) only the tasks and the commit are told; the
source offsets that it stands for are read from the checkpoint.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from kafka_eos_sink.commit.transactional_id import streaming_write_id
from kafka_eos_sink.errors import ConfigurationError, KafkaEosError, WriteRefusedError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.runtime import session
from kafka_eos_sink.runtime.session import GroupOffsets, Plan, TaskMessage, WriteSettings
from kafka_eos_sink.settings.options import SinkOptions, read_options, readable, sink_part
from kafka_eos_sink.spark.checkpoint import BatchOffsets, Checkpoint
from kafka_eos_sink.spark.columns import ignored_columns_warning
from kafka_eos_sink.spark.late_sweep import sweep_later
from kafka_eos_sink.spark.spark_boundary import SinkMessage, checked, current_task, planning, unwrapped

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_Found = TypeVar("_Found")

log = logging.getLogger(__name__)

NOT_READABLE = (OSError, ValueError, KeyError, TypeError, NotImplementedError, ImportError)
"""What `pyarrow.fs` and a file that is not Spark's raise."""
TRY_AGAIN_AFTER_S = 600.0
"""A store that this process cannot log in to may take many seconds to say so, with every batch."""
_try_again_at: dict[str, float] = {}

CONTINUOUS = "the continuous trigger delivers no rows to Python sinks; use a micro-batch trigger: processingTime, availableNow or once"


class KafkaEosStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of one streaming query.

    Raises on construction, before anything reaches Kafka:
        ConfigurationError: INVALID_OPTIONS, with all problems of options and columns at once.
        SchemaError: INVALID_COLUMNS, where only columns are wrong.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        found, self._columns = checked(options, schema, streaming=True)
        for warning in (*found.warnings, *ignored_columns_warning(self._columns)):
            warn_once(warning)
        self._options = sink_part(options)
        self._planned = False
        self._plan: Plan | None = None
        self._offsets: tuple[int, str] | None = None
        """Batch id and SHA-256 of the source offsets that the plan was made for; None where they cannot be read."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({readable(self._options)})"

    def __getstate__(self) -> dict[str, Any]:
        if not self._planned:
            # Only here may anything be fenced: __init__ runs in the commit process, too.
            with planning():
                options = self._checked_options()
                if options.delivery_guarantee == "exactly-once":
                    write_id = _write_id(options)
                    self._offsets = _newest_offsets(options)
                    # Which query and batch this is the planner is not told; nothing of a plan depends on it.
                    self._plan = session.plan(self._settings(options, write_id, "", 0, None))
            self._planned = True
        return self.__dict__.copy()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        """One task attempt: its rows into one transaction, which it leaves prepared."""
        context, task = current_task()
        if context.getLocalProperty("__is_continuous_processing") == "true":
            raise ConfigurationError("CONTINUOUS_TRIGGER", CONTINUOUS)
        options = self._checked_options()
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query_id is None or batch is None:
            raise KafkaEosError("NOT_IN_A_TASK", "this task belongs to no micro-batch of a streaming query")
        version = int(batch)
        rows = self._columns.rows(iterator, options.commit_log_topic)
        offsets_hash = self._offsets[1] if self._offsets is not None and self._offsets[0] == version else None
        settings = self._settings(
            options, "" if self._plan is None else self._plan.write_id, query_id, version, offsets_hash
        )
        if self._plan is None:
            return SinkMessage(session.write_task_at_least_once(settings, task, rows))
        return SinkMessage(session.write_task(settings, self._plan, task, rows))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Decides the micro-batch and ends its transactions; when this returns, every row is visible."""
        if not messages or any(message is None for message in messages):
            raise WriteRefusedError("MISSING_MESSAGE", f"batch {batchId} has tasks without a message: {CONTINUOUS}")
        options = self._checked_options()
        if options.delivery_guarantee != "exactly-once":
            return
        complete = unwrapped(messages)
        first = next(message for message in complete if message is not None)
        offsets = _offsets_of(options, batchId)
        settings = self._settings(
            options, first.plan.write_id, first.query_id, batchId, None if offsets is None else offsets.sha256
        )
        group = options.source_offsets_group
        if group is not None and offsets is not None and (of_kafka := offsets.of_kafka()):
            settings = dataclasses.replace(settings, group_offsets=GroupOffsets(group_id=group, offsets=of_kafka))
        decision = session.commit(settings, first.plan, complete)
        sweep_later(settings, first.plan, decision)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Ends what the micro-batch left open. Never raises: the user is to see why it failed, not this."""
        try:
            options = self._checked_options()
            if options.delivery_guarantee != "exactly-once":
                return
            complete = unwrapped(messages)
            first: TaskMessage | None = next((message for message in complete if message is not None), None)
            write_id = _write_id(options) if first is None else first.plan.write_id
            settings = self._settings(options, write_id, "" if first is None else first.query_id, batchId, None)
            session.abort(settings, None if first is None else first.plan, complete)
        except Exception as error:
            log.warning(
                "kafka-eos: the abort of batch %d did not finish; what is open ends with the next run or by its timeout: %s",
                batchId,
                error if isinstance(error, KafkaEosError) else type(error).__name__,
            )

    def _checked_options(self) -> SinkOptions:
        return read_options(self._options, streaming=True)

    def _settings(
        self, options: SinkOptions, write_id: str, query_id: str, version: int, offsets_hash: str | None
    ) -> WriteSettings:
        return WriteSettings(
            write_id=write_id,
            query_id=query_id,
            version=version,
            random_write_id=False,
            streaming=True,
            topic=options.topic,
            schema=self._columns.schema,
            offsets_hash=offsets_hash,
            on_checkpoint_rollback=options.on_checkpoint_rollback,
            commit_log_topic=options.commit_log_topic,
            client=options.client,
            producer=options.producer,
        )


def _write_id(options: SinkOptions) -> str:
    prefix, location = options.transactional_id_prefix, options.checkpoint_location
    if prefix is not None:
        return streaming_write_id(prefix, "")
    if location is None:
        raise ConfigurationError(
            "CHECKPOINT_NOT_READABLE",
            "the sink is not told where the checkpoint is (spark.sql.streaming.checkpointLocation of the session does not reach it): give "
            "the option checkpointLocation, or transactional.id.prefix with a name that no other query uses",
        )
    try:
        return streaming_write_id(None, Checkpoint(location).query_id())
    except NOT_READABLE as error:
        raise ConfigurationError(
            "CHECKPOINT_NOT_READABLE",
            f"the query's id cannot be read from {location}/metadata ({error}): give the option transactional.id.prefix with a name that "
            "no other query uses; it stands for the query across restarts",
        ) from None


def _newest_offsets(options: SinkOptions) -> tuple[int, str] | None:
    """Batch id and hash of the batch that is about to run."""

    def look(checkpoint: Checkpoint) -> BatchOffsets:
        version = checkpoint.newest_batch()
        # A micro-batch is planned between its two entries. Spark only logs what a continuous query's commit raises, so it is found here.
        if version is None or checkpoint.is_committed(version):
            raise ConfigurationError("CONTINUOUS_TRIGGER", f"no micro-batch is being planned: {CONTINUOUS}")
        return checkpoint.offsets(version)

    found = _in_checkpoint(options, look)
    if found is None:
        return None
    if options.source_offsets_group is not None:
        found.of_kafka()  # what cannot be committed is said before the first task runs
    return found.version, found.sha256


def _offsets_of(options: SinkOptions, version: int) -> BatchOffsets | None:
    return _in_checkpoint(options, lambda checkpoint: checkpoint.offsets(version))


def _in_checkpoint(options: SinkOptions, look: Callable[[Checkpoint], _Found]) -> _Found | None:
    """What is found there; None where it cannot be read, which is an error only for who needs the source's offsets."""
    location, needed = options.checkpoint_location, options.source_offsets_group is not None
    if location is None:
        why = "the option checkpointLocation is not given"
    elif not needed and time.monotonic() < _try_again_at.get(location, 0):
        return None
    else:
        try:
            return look(Checkpoint(location))
        except NOT_READABLE as error:
            why = str(error)
            _try_again_at[location] = time.monotonic() + TRY_AGAIN_AFTER_S
    if needed:
        raise ConfigurationError(
            "CHECKPOINT_NOT_READABLE",
            f"source.offsets.group needs the source offsets in the checkpoint, and they cannot be read: {why}",
        )
    if location is not None:
        warn_once(
            f"the source offsets in the checkpoint {location} cannot be read ({why}): that a batch is planned again with other offsets, "
            "as after a roll-back of the checkpoint, is seen by its number alone"
        )
    return None
