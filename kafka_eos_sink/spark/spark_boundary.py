"""What both writers share where Spark's calls meet the commit protocol: messages, errors on their way to the user, task identity."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from kafka_eos_sink.errors import ConfigurationError, KafkaEosError, SchemaError
from kafka_eos_sink.runtime.session import RowsWritten, TaskIdentity, TaskMessage
from kafka_eos_sink.settings.options import SinkOptions, read_options
from kafka_eos_sink.spark.columns import WrittenColumns, written_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PlanningError(pickle.PickleError):
    """A planning failure on its way to the user, with the text of the error it stands for.

    Spark's serializer puts words of its own in front of every exception that is not a PickleError, and the stable code
    would not come first any more.
    """


@contextmanager
def planning() -> Iterator[None]:
    """Where Spark pickles the writer: what fails in here reaches the user in its own words."""
    try:
        yield
    except KafkaEosError as error:
        raise PlanningError(str(error)).with_traceback(error.__traceback__) from None


@dataclass(slots=True)
class SinkMessage(WriterCommitMessage):
    """What a task tells the commit, in the wrapping that Spark asks for."""

    message: TaskMessage | RowsWritten


def current_task() -> tuple[TaskContext, TaskIdentity]:
    """The Spark task that runs in this process."""
    context = TaskContext.get()
    if context is None:
        raise KafkaEosError("NOT_IN_A_TASK", "write() runs in a Spark task only")
    return context, TaskIdentity(
        partition=context.partitionId(),
        attempt_number=context.attemptNumber(),
        task_attempt_id=context.taskAttemptId(),
    )


def checked(
    options: Mapping[str, str], schema: StructType, *, streaming: bool = False
) -> tuple[SinkOptions, WrittenColumns]:
    """Options and columns, or everything that is wrong with either."""
    try:
        found = read_options(options, check_imports=True, streaming=streaming)
    except ConfigurationError as error:
        topic = next((value for name, value in options.items() if name.lower() == "topic"), None)
        try:
            written_columns(schema, topic)
        except SchemaError as also:
            raise ConfigurationError(error.code, f"{error.message}; {also.message}") from None
        raise
    return found, written_columns(schema, found.topic)


def unwrapped(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage | None]:
    """The tasks' messages; None for a task that left none, which is for the protocol to judge."""
    return [
        message.message if isinstance(message, SinkMessage) and isinstance(message.message, TaskMessage) else None
        for message in messages
    ]
