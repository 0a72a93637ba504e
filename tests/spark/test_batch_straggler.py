"""A batch whose oldest transaction cannot outlive it fails as soon as that is certain."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from kafka_eos_sink.cli.embedded_kafka import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed

TIMEOUT_MS = 5_000
LAST_ROW_AFTER_S = 120


def slow_partition(first_row_after_s: float):  # type: ignore[no-untyped-def]
    """Partition 0 delivers at once; partition 1 waits first, then makes a row every fifth of a second for two minutes.

    Spark collects them into one Arrow batch meanwhile: the sink's task is blocked in a read all the time.
    """

    def deliver(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1:
            time.sleep(first_row_after_s)
            for number in range(LAST_ROW_AFTER_S * 5):
                yield pa.RecordBatch.from_pydict({"value": [f"late {number}"]})
                time.sleep(0.2)

    return deliver


@pytest.mark.parametrize("first_row_after_s", [0.0, 8.0], ids=["its own transaction", "a sibling's transaction"])
def test_a_straggler_fails_the_batch_long_before_its_last_row(
    spark: SparkSession, kafka: EmbeddedKafka, first_row_after_s: float
) -> None:
    topic = create_topic(kafka.bootstrap_servers)
    frame = spark.range(0, 10, 1, 2).where("id < 5").selectExpr("cast(id as string) value")
    frame = frame.mapInArrow(slow_partition(first_row_after_s), "value string")
    started = time.monotonic()
    with pytest.raises(Exception, match=r"KAFKA_EOS\.TRANSACTION_TOO_OLD") as raised:
        (
            frame.write.format("kafka-eos")
            .mode("append")
            .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
            .option("topic", topic)
            .option("kafka.transaction.timeout.ms", str(TIMEOUT_MS))
            .save()
        )
    # Four tries of the task and an abort that waits for quiet: far less than the straggler would take for one try.
    assert time.monotonic() - started < LAST_ROW_AFTER_S
    said = str(raised.value)
    for needed in ("s have passed", "transactions end at 5.0 s", "kafka.transaction.timeout.ms", "smaller batches"):
        assert needed in said
    assert read_committed(kafka.bootstrap_servers, topic) == []
    assert_nothing_open(kafka.bootstrap_servers)
