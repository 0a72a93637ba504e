"""The streaming writer: each micro-batch of a query, exactly once.

Spark creates an object before every micro-batch in its *planner* process and pickles it to the tasks (``write``). ``commit`` and
``abort`` run on another object in a *commit process*. So pickling makes the plan, and the messages of the tasks carry it to the commit.
Spark passes query id and batch id only to the tasks and the commit. The source offsets come from the checkpoint.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from kafka_eos_sink.commit.decide import GroupOffsets
from kafka_eos_sink.commit.transactional_id import streaming_write_id
from kafka_eos_sink.commit.values import TaskMessage
from kafka_eos_sink.errors import ConfigurationError, WriteRefusedError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.runtime import at_least_once, session
from kafka_eos_sink.runtime.source_offsets import FirstBatch
from kafka_eos_sink.settings.table import SinkOptions
from kafka_eos_sink.spark.checkpoint import BatchOffsets, Checkpoint
from kafka_eos_sink.spark.checkpoint_filesystem import NOT_READABLE
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

_Found = TypeVar("_Found")

TRY_AGAIN_AFTER_S = 600.0
"""A failed login to a store may take many seconds; do not repeat it with every batch."""
_try_again_at: dict[str, float] = {}

CONTINUOUS = "the continuous trigger delivers no rows to Python sinks; use a micro-batch trigger: processingTime, availableNow or once"


KEEP_FOLDER = (
    "Keep the folder: from another one, the query starts over. Correct its scheme, or put the settings of its file system into "
    "spark-submit --conf, spark-defaults.conf or core-site.xml: the sink does not see what the program itself sets"
)


class KafkaEosStreamWriter(SinkWriter, DataSourceStreamArrowWriter):
    """Writer of a query's micro-batches; its constructor raises as ``SinkWriter``."""

    _streaming = True
    _planned = False
    _offsets: tuple[int, str] | None = None
    """Batch id and SHA-256 of the source offsets at planning; None if they cannot be read."""
    _kafka_offsets: tuple[tuple[str, int, int], ...] | None = None
    """The offsets of that batch for ``source.offsets.group``."""

    def __getstate__(self) -> dict[str, Any]:
        if not self._planned:
            # Fence only here: __init__ also runs in the commit process.
            with planning(self._job):
                options = self._checked_options()
                if options.delivery_guarantee == "exactly-once":
                    write_id = _write_id(options)
                    log_hand_over(write_id)
                    found = _newest_offsets(options)
                    self._offsets = None if found is None else (found.version, found.sha256)
                    if found is not None and options.source_offsets_group is not None:
                        self._kafka_offsets = found.of_kafka()  # Raises before the first task runs.
                    # Only the tasks know for certain which batch runs. The plan shows it in errors.
                    query_id, version = ("", 0) if found is None else (_query_id(options), found.version)
                    settings = self._write_settings(options, write_id, query_id, version, None)
                    self._plan = session.plan(dataclasses.replace(settings, first_batch=_first_batch(options, found)))
            self._planned = True
        return self.__dict__.copy()

    @states_safety
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        """Write the rows of one task attempt into one transaction and leave it prepared."""
        context = TaskContext.get()
        assert context is not None
        if context.getLocalProperty("__is_continuous_processing") == "true":
            raise ConfigurationError("CONTINUOUS_TRIGGER", CONTINUOUS)
        options = self._checked_options()
        # Local properties of Spark's MicroBatchExecution, the only place where a task sees the query and the batch.
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert query_id is not None
        assert batch is not None
        version = int(batch)
        # The planner read the offsets of the checkpoint's newest batch. Only the task knows whether that batch runs.
        offsets_hash = self._offsets[1] if self._offsets is not None and self._offsets[0] == version else None
        settings = self._write_settings(
            options, "" if self._plan is None else self._plan.write.id, query_id, version, offsets_hash
        )
        message = run_task(context, settings, self._plan, self._columns, iterator)
        if offsets_hash is not None and context.partitionId() == 0:
            # One of the messages is enough. The commit process would have to read the checkpoint again.
            message = dataclasses.replace(message, kafka_offsets=self._kafka_offsets)
        return message

    @states_safety
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Decide and commit the micro-batch; see ``KafkaEosBatchWriter.commit``."""
        if not messages or any(message is None for message in messages):
            raise WriteRefusedError("MISSING_MESSAGE", f"batch {batchId} has tasks without a message: {CONTINUOUS}")
        options = self._checked_options()
        if options.delivery_guarantee != "exactly-once":
            at_least_once.report(self._write_settings(options, "", "", batchId, None), rows_written(messages))
            return
        complete = unwrapped(messages)
        # This process shares no state with the planner and the tasks: the plan arrives in the messages.
        first = next(message for message in complete if message is not None)
        settings = self._write_settings(
            options, first.plan.write.id, first.batch.query_id, batchId, first.batch.offsets_hash
        )
        group = options.source_offsets_group
        if group is not None and (offsets := _kafka_offsets(options, batchId, messages)):
            settings = dataclasses.replace(settings, group_offsets=GroupOffsets(group_id=group, offsets=offsets))
        decision = session.commit(settings, first.plan, complete)
        # Spark calls commit while speculative attempts may still run; one of them can begin a transaction after it.
        sweep_later(settings, first.plan, decision)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort the micro-batch's open transactions; never raise over the first error."""
        try:
            options = self._checked_options()
            if options.delivery_guarantee != "exactly-once":
                return
            complete = unwrapped(messages)
            first: TaskMessage | None = next((message for message in complete if message is not None), None)
            # Without any message there is no plan: the write id alone finds the transactions that this batch left open.
            write_id = _write_id(options) if first is None else first.plan.write.id
            settings = self._write_settings(
                options, write_id, "" if first is None else first.batch.query_id, batchId, None
            )
            found = session.abort(settings, None if first is None else first.plan, complete)
            if found is not None:
                sweep_later(settings, found, None, at_once=True)
        except Exception as error:
            log_failed_abort(f"batch {batchId}", error)


def _write_id(options: SinkOptions) -> str:
    # The checkpoint's id survives restarts; the run id of Spark changes with each start, and a name may be missing.
    prefix, location = options.transactional_id_prefix, options.checkpoint_location
    if prefix is not None:
        return streaming_write_id(prefix, "")
    if location is None:
        raise ConfigurationError(
            "CHECKPOINT_NOT_READABLE",
            "the sink does not know the query's checkpoint, which identifies the query after a restart. "
            "spark.sql.streaming.checkpointLocation of the session does not reach it",
            "Set the option checkpointLocation to the query's checkpoint. For a query that has never run, you can set "
            "transactional.id.prefix instead, to a name that no other query uses",
        )
    try:
        return streaming_write_id(None, Checkpoint(location).query_id())
    except NOT_READABLE as error:
        raise ConfigurationError(
            "CHECKPOINT_NOT_READABLE",
            f"{location}/metadata, which identifies the query after a restart, cannot be read ({error})",
            f"{KEEP_FOLDER}. Without a scheme it is a path of fs.defaultFS, or local if the sink does not see that setting: then write "
            "the scheme into checkpointLocation. If the file cannot be made readable, set "
            "transactional.id.prefix: for a query that has run before, to its kafka-eos-<query id> that kafka-eos status lists, because "
            "under another name its last batch can be written twice; for a new query, to any name that no other query uses",
        ) from None


def _query_id(options: SinkOptions) -> str:
    return _in_checkpoint(options, Checkpoint.query_id) or ""


def _newest_offsets(options: SinkOptions) -> BatchOffsets | None:
    """Return the source offsets of the batch that is about to run."""

    def look(checkpoint: Checkpoint) -> BatchOffsets:
        version = checkpoint.newest_batch()
        # Spark plans a micro-batch after it writes the batch's offsets and before it writes the batch's commit. Otherwise the query is
        # continuous. It must fail in the plan, because Spark only logs an error of a continuous query's commit.
        if version is None:
            checkpoint.query_id()  # Raises if this folder is not the checkpoint that Spark writes.
        if version is None or checkpoint.is_committed(version):
            raise ConfigurationError("CONTINUOUS_TRIGGER", f"no micro-batch is being planned: {CONTINUOUS}")
        return checkpoint.offsets(version)

    return _in_checkpoint(options, look)


def _first_batch(options: SinkOptions, newest: BatchOffsets | None) -> FirstBatch | None:
    """Return the first batch of a new checkpoint, whose offsets the group may know."""
    group = options.source_offsets_group
    if group is None or newest is None or newest.version > 0:
        return None

    def look(checkpoint: Checkpoint) -> FirstBatch:
        sources = checkpoint.first_offsets(newest)
        return FirstBatch(
            query_id=checkpoint.query_id(), checkpoint=checkpoint.location, group_id=group, sources=sources
        )

    return _in_checkpoint(options, look)


def _kafka_offsets(
    options: SinkOptions, version: int, messages: Sequence[WriterCommitMessage | None]
) -> tuple[tuple[str, int, int], ...]:
    """Return the offsets of ``source.offsets.group``, which a task brings."""
    for message in messages:
        if isinstance(message, SinkMessage) and message.kafka_offsets is not None:
            return message.kafka_offsets
    # The planner saw another batch, or the executor runs an earlier version of this package.
    found = _in_checkpoint(options, lambda checkpoint: checkpoint.offsets(version))
    return () if found is None else found.of_kafka()


def _in_checkpoint(options: SinkOptions, look: Callable[[Checkpoint], _Found]) -> _Found | None:
    """Read the checkpoint; on failure None, or an error with ``source.offsets.group``."""
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
    where = "" if location is None else f" {location}"
    if needed:
        raise ConfigurationError(
            "CHECKPOINT_NOT_READABLE",
            f"source.offsets.group needs the source offsets in the checkpoint{where}, and they cannot be read: {why}",
            "Set the option checkpointLocation to the query's checkpoint" if location is None else KEEP_FOLDER,
        )
    warn_once(
        f"the source offsets in the checkpoint{where} cannot be read ({why}): the sink recognises a "
        "rolled-back checkpoint by its batch number, but skips a written batch that Spark plans again with other offsets"
    )
    return None
