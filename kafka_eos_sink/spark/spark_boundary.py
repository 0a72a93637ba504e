"""Plans, messages and warnings of both writers, between Spark and the protocol."""

from __future__ import annotations

import dataclasses
import gc
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from kafka_eos_sink.commit.values import BatchIdentity, Plan, TaskIdentity, TaskMessage, Write
from kafka_eos_sink.errors import ConfigurationError, Job, KafkaEosError, SchemaError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.pickling import PickledByName
from kafka_eos_sink.runtime import at_least_once, session
from kafka_eos_sink.runtime.at_least_once import RowsWritten
from kafka_eos_sink.runtime.write_settings import WriteSettings
from kafka_eos_sink.settings.options import read_options, readable, resolve_own_options
from kafka_eos_sink.settings.table import PREFIX, SinkOptions
from kafka_eos_sink.spark.columns import WrittenColumns, ignored_columns_warning, written_columns
from kafka_eos_sink.spark.quick_acks import acknowledge_at_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


_Result = TypeVar("_Result")
_WITHOUT_OPTIONS = (
    "In SQL, Spark passes the OPTIONS of a table to no writer, also of CREATE TABLE ... AS SELECT. Create the table first, and give the "
    "options to each INSERT INTO t WITH ('kafka.bootstrap.servers' = '...', 'topic' = '...') SELECT ..., or insert into a temporary view, "
    "whose OPTIONS count"
)

NEW_WORKER_S = 1.0
"""About what a new worker takes to start; reading rows for longer, only to keep a worker, would not pay."""


class PlanningError(pickle.PickleError):
    """A failure of the plan, with the text of the original error.

    Spark's serializer prepends text to every exception that is not a ``PickleError``; the stable code would no longer come first.
    """


@contextmanager
def on_behalf_of(job: Job, *, has_plan: bool) -> Iterator[None]:
    """State in every error that leaves the block what it means for the job's rows."""
    try:
        yield
    except KafkaEosError as error:
        error.concern(job, has_plan=has_plan)
        raise


def states_safety(method: Callable[..., _Result]) -> Callable[..., _Result]:
    """Let a writer's method state in its errors what they mean for the job's rows."""

    @wraps(method)
    def stating(self: SinkWriter, *arguments: Any, **named: Any) -> _Result:
        with on_behalf_of(self._job, has_plan=True):
            return method(self, *arguments, **named)

    return stating


@contextmanager
def planning(job: Job) -> Iterator[None]:
    """Raise a plan's errors as ``PlanningError``: their text reaches users unchanged."""
    try:
        # A plan sends no row, whatever the guarantee.
        with on_behalf_of(Job.BATCH if job is Job.AT_LEAST_ONCE else job, has_plan=False):
            yield
    except KafkaEosError as error:
        # "from None": Spark shows the chain of causes and would print the same sentence twice.
        raise PlanningError(str(error)).with_traceback(error.__traceback__) from None


@dataclass(slots=True)
class SinkMessage(PickledByName, WriterCommitMessage):
    """The message of a task to the commit, in the class that Spark requires.

    ``kafka_offsets`` are (topic, partition, next offset) of the sources at the batch's end, in one message of a batch with
    ``source.offsets.group``.
    """

    message: TaskMessage | RowsWritten
    kafka_offsets: tuple[tuple[str, int, int], ...] | None = None


def checked(
    options: Mapping[str, str], schema: StructType, *, streaming: bool = False
) -> tuple[SinkOptions, WrittenColumns]:
    """Check options and columns; an error lists the problems of both."""
    in_sql = "" if any(name.lower().startswith(PREFIX) for name in options) else _WITHOUT_OPTIONS
    try:
        found = read_options(options, check_imports=True, streaming=streaming)
    except ConfigurationError as error:
        # Spark shows one error per run, so this error names wrong options and wrong columns together.
        topic = next((value for name, value in options.items() if name.lower() == "topic"), None)
        problems = error.problems
        try:
            written_columns(schema, topic)
        except SchemaError as also:
            problems += also.problems
        raise ConfigurationError(error.code, problems, in_sql) from None
    return found, written_columns(schema, found.topic)


def unwrapped(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage | None]:
    """Return the tasks' messages; None if one is missing: the protocol rejects it."""
    return [
        message.message if isinstance(message, SinkMessage) and isinstance(message.message, TaskMessage) else None
        for message in messages
    ]


def rows_written(messages: Sequence[WriterCommitMessage | None]) -> list[RowsWritten]:
    """Return the results of the at-least-once tasks."""
    found = [message.message for message in messages if isinstance(message, SinkMessage)]
    return [each for each in found if isinstance(each, RowsWritten)]


def run_task(
    context: TaskContext,
    settings: WriteSettings,
    plan: Plan | None,
    columns: WrittenColumns,
    batches: Iterator[pa.RecordBatch],
) -> SinkMessage:
    """Write the rows of one task attempt; at-least-once has no plan."""
    acknowledge_at_once()
    rows = columns.to_rows(batches)
    if plan is None:
        return SinkMessage(at_least_once.write_rows(settings, rows))
    task = TaskIdentity(
        partition=context.partitionId(),
        attempt_number=context.attemptNumber(),
        task_attempt_id=context.taskAttemptId(),
    )
    message = session.write_task(settings, plan, task, rows)
    _read_rest(batches)
    # Only tasks know the application's id.
    return SinkMessage(dataclasses.replace(message, application_id=context.getLocalProperty("spark.app.id")))


def _read_rest(batches: Iterator[pa.RecordBatch]) -> None:
    """Read what a skipped or overtaken attempt left: Spark ends a worker that has not read all, and its next task waits for a new one."""
    until = time.monotonic() + NEW_WORKER_S
    for _ in batches:
        if time.monotonic() > until:
            return


@cache
def freeze_modules() -> None:
    """Exclude all present objects from garbage collection, once per process."""
    # PySpark's daemon collects garbage before each task. It would visit every object of pyspark, pyarrow and this package.
    # Nearly all of them belong to modules, which stay.
    gc.freeze()


class SinkWriter:
    """The options and columns of both writers, in every process.

    The object carries the options as the user wrote them. Each process reads them again, so that a resolved secret never travels.

    Raises on construction, before anything reaches Kafka:
        ConfigurationError: INVALID_OPTIONS, with all problems of options and columns.
        SchemaError: INVALID_COLUMNS, if only columns are wrong.
    """

    _streaming: ClassVar[bool]
    _job: Job
    _plan: Plan | None = None
    """The planner sets it for exactly-once only."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        with on_behalf_of(Job.STREAM if self._streaming else Job.BATCH, has_plan=False):
            found, self._columns = checked(options, schema, streaming=self._streaming)
        self._job = self._job_of(found)
        # Spark constructs a writer in several processes and for each micro-batch.
        for warning in (*found.warnings, *ignored_columns_warning(self._columns)):
            warn_once(warning)
        self._options = resolve_own_options(options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({readable(self._options)})"

    def _checked_options(self) -> SinkOptions:
        freeze_modules()
        # Not kept on self: pickled options would carry resolved secrets into the plan.
        return read_options(self._options, streaming=self._streaming, resolved=True)

    def _job_of(self, options: SinkOptions) -> Job:
        if options.delivery_guarantee != "exactly-once":
            return Job.AT_LEAST_ONCE
        if self._streaming:
            return Job.STREAM
        return Job.RANDOM if options.txn_app_id is None else Job.BATCH

    def _write_settings(
        self, options: SinkOptions, write_id: str, query_id: str, version: int, offsets_hash: str | None
    ) -> WriteSettings:
        return WriteSettings(
            batch=BatchIdentity(
                query_id=query_id,
                version=version,
                topic=options.topic,
                schema=self._columns.schema,
                offsets_hash=offsets_hash,
                on_checkpoint_rollback=options.on_checkpoint_rollback,
                streaming=self._streaming,
            ),
            write=Write(write_id, options.commit_log_topic, options.client.command_options),
            history_topic=options.history_topic,
            user_metadata=options.user_metadata,
            client=options.client,
            producer=options.producer,
        )
