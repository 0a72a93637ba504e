"""Identify the writes of a `foreachBatch` function where Spark does not."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kafka_eos_sink.errors import ConfigurationError, Job
from kafka_eos_sink.spark.checkpoint import Checkpoint
from kafka_eos_sink.spark.checkpoint_filesystem import NOT_READABLE
from kafka_eos_sink.spark.spark_boundary import on_behalf_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    _Writer = TypeVar("_Writer", bound=DataStreamWriter)

TxnOptions = Callable[[str], dict[str, str]]
"""Options of one write of a call: the argument is its ``txnAppId``."""


def for_each_batch(
    writer: _Writer, function: Callable[[DataFrame, int, TxnOptions], None], checkpoint_location: str
) -> _Writer:
    """Let ``function`` write each micro-batch once, in any thread and over Connect.

    ``function`` gets a third argument, ``txn``. Give each write of a batch ``.options(**txn("a name for this write"))``. Spark shows a
    task its query and its call of the function in some cases only; these options always do. So a second write with the same name and
    topic fails with DIFFERENT_BATCH, and a new checkpoint with DIFFERENT_QUERY, instead of losing rows.

    Args:
        writer: ``df.writeStream``, with its output mode and trigger.
        function: As for `foreachBatch`, with ``txn`` as third argument.
        checkpoint_location: The option ``checkpointLocation``, which this function sets.

    Returns:
        The writer: call ``start()``. The query fails with CHECKPOINT_NOT_READABLE if the function's process cannot read the checkpoint.
    """
    return writer.option("checkpointLocation", checkpoint_location).foreachBatch(
        _Call(function, checkpoint_location)  # type: ignore[return-value]
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """What Spark calls for each batch; Spark Connect pickles it to the server."""

    function: Callable[[DataFrame, int, TxnOptions], None]
    checkpoint_location: str

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        # Read for each batch: a query that starts over with the same object has another id.
        call = f"{self._query_id()}/{uuid.uuid4()}"

        def txn(name: str) -> dict[str, str]:
            return {"txnAppId": name, "txnVersion": str(batch_id), "foreachBatchCall": call}

        self.function(batch, batch_id, txn)

    def _query_id(self) -> str:
        with on_behalf_of(Job.BATCH, has_plan=False):
            try:
                return Checkpoint(self.checkpoint_location).query_id()
            except NOT_READABLE as error:
                raise ConfigurationError(
                    "CHECKPOINT_NOT_READABLE",
                    f"{self.checkpoint_location}/metadata, which identifies the query of this foreachBatch function, cannot be read "
                    f"({error})",
                    "Correct the scheme of the location, or the credentials of the Python process that runs the function",
                ) from None
