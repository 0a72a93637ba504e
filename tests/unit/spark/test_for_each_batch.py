"""`for_each_batch` gives each write of a call the options by which the sink recognises query and call."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from kafka_eos_sink import for_each_batch
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.spark.data_source import KafkaEosDataSource

OPTIONS = {"kafka.bootstrap.servers": "localhost:1", "topic": "t"}
SCHEMA = StructType().add("value", "string")


class StreamWriter:
    """As a DataStreamWriter of Spark."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.function: Any = None

    def option(self, name: str, value: str) -> StreamWriter:
        self.options[name] = value
        return self

    def foreachBatch(self, function: Any) -> StreamWriter:  # noqa: N802
        self.function = function
        return self


def keep(batch: Any, batch_id: int, txn: Any) -> None:
    batch.append((batch_id, txn("counts"), txn("totals")))


def checkpoint(folder: Path, query_id: str) -> str:
    (folder / "metadata").write_text(json.dumps({"id": query_id}))
    return str(folder)


def test_writes_of_a_call_share_its_id_and_have_their_own_names(tmp_path: Path) -> None:
    written: Any = []
    spark: Any = StreamWriter()
    found: Any = for_each_batch(spark, keep, checkpoint(tmp_path, "q"))
    assert found.options == {"checkpointLocation": str(tmp_path)}
    pickle.loads(pickle.dumps(found.function))  # Spark Connect sends it to the server
    for batch_id in (7, 7):
        found.function(written, batch_id)
    (number, counts, totals), (_, again, _) = written
    assert (number, counts["txnAppId"], counts["txnVersion"]) == (7, "counts", "7")
    assert totals == counts | {"txnAppId": "totals"}
    assert counts["foreachBatchCall"].startswith("q/")
    assert counts["foreachBatchCall"] != again["foreachBatchCall"], "a second run of the batch is another call"


def test_query_id_is_read_for_each_batch(tmp_path: Path) -> None:
    """Kills a cache of the id: the batches of a new checkpoint would be skipped as those of the old one."""
    written: Any = []
    spark: Any = StreamWriter()
    found: Any = for_each_batch(spark, keep, checkpoint(tmp_path, "old"))
    found.function(written, 0)
    checkpoint(tmp_path, "new")
    found.function(written, 0)
    assert [each["foreachBatchCall"].split("/")[0] for _, each, _ in written] == ["old", "new"]


def test_batch_of_writer_holds_query_and_call() -> None:
    given = OPTIONS | {"txnAppId": "a", "txnVersion": "1", "foreachBatchCall": "q/c/d"}
    writer = KafkaEosDataSource(given).writer(SCHEMA, overwrite=False)
    batch = writer._settings(writer._checked_options(), "run").batch
    assert (batch.foreach_query, batch.foreach_call) == ("q", "c/d")


def test_task_keeps_query_and_call_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark shows a task none of them over Connect, or only the query in a thread."""
    seen: Any = []
    given = OPTIONS | {"txnAppId": "a", "txnVersion": "1", "foreachBatchCall": "q/c"}
    writer = KafkaEosDataSource(given).writer(SCHEMA, overwrite=False)
    writer._run_id = "run"

    class Context:
        def getLocalProperty(self, name: str) -> None:  # noqa: N802
            return None

    module = "kafka_eos_sink.spark.writer"
    monkeypatch.setattr(f"{module}.TaskContext.get", Context)
    monkeypatch.setattr(f"{module}.run_task", lambda _, settings, *__: seen.append(settings.batch))
    writer.write(iter(()))
    assert (seen[0].foreach_query, seen[0].foreach_call) == ("q", "c")


@pytest.mark.parametrize(
    "changes",
    [
        {"foreachBatchCall": "q/c"},
        {"txnAppId": "a", "txnVersion": "1", "foreachBatchCall": "q"},
        {"txnAppId": "a", "txnVersion": "1", "foreachBatchCall": "/c"},
    ],
    ids=["without an id", "without a call", "without a query"],
)
def test_incomplete_call_is_rejected(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="foreachBatchCall"):
        KafkaEosDataSource(OPTIONS | changes).writer(SCHEMA, overwrite=False)
