"""The sinks that a benchmark compares.

Each writes the rows of a cell to a topic. The cell sets the codec. Otherwise each sink has its own defaults, but for `EQUAL`: Spark's sink
with the batch size and the linger of kafka-eos. By default, its batches are 60 times smaller, which explains a part of the difference.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.discard import DISCARD_FORMAT
from kafka_eos_sink.producer.config import DEFAULT_BATCH_SIZE, DEFAULT_LINGER_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.cells import Cell

__all__ = [
    "BUILT_IN",
    "CONTENDERS",
    "EQUAL",
    "EQUAL_SETTINGS",
    "FLOOR",
    "KAFKA_EOS",
    "NO_HISTORY",
    "Contender",
    "contenders_of",
]

Write = Callable[["DataFrame", "Cell", str, str], None]
"""Writes rows of a cell to a topic of the brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A sink; ``share`` of the cell's rows is all that a slow one gets.

    Attributes:
        settings: Its producer's settings other than the codec; empty for the sink's own defaults.
    """

    name: str
    guarantee: str
    write: Write
    writes_to_kafka: bool = True
    share: float = 1.0
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)


def _save(name: str, **options: str) -> Write:
    def write(records: DataFrame, cell: Cell, servers: str, topic: str) -> None:
        writer = records.write.format(name).mode("append").options(**options)
        writer = writer.option("kafka.bootstrap.servers", servers).option("kafka.compression.type", cell.codec)
        writer.option("topic", topic).save()

    return write


def _discard(records: DataFrame, cell: Cell, servers: str, topic: str) -> None:
    records.write.format(DISCARD_FORMAT).mode("append").option("rows", str(cell.rows)).save()


def _with_app_id(records: DataFrame, cell: Cell, servers: str, topic: str) -> None:
    # A new id for each write, because a version is written once.
    _save("kafka-eos", txnAppId=f"bench-{uuid.uuid4().hex[:8]}", txnVersion="1")(records, cell, servers, topic)


def _task_id(topic: str) -> str:
    """Return the transactional id that all attempts of this task share.

    A later attempt then fences an earlier one, whose open transaction would block readers until its timeout.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return f"{topic}-{context.partitionId()}"


def _confluent(records: DataFrame, cell: Cell, servers: str, topic: str) -> None:
    codec = cell.codec

    def write(rows: Iterator[Any]) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": servers, "transactional.id": _task_id(topic), "compression.type": codec}
        )
        producer.init_transactions()
        producer.begin_transaction()
        try:
            for row in rows:
                key = bytes(row.key) if "key" in row else None
                while True:
                    try:
                        producer.produce(topic, bytes(row.value), key)
                        break
                    except BufferError:
                        producer.poll(0.1)
        except BaseException:
            producer.abort_transaction()
            raise
        producer.commit_transaction()

    records.foreachPartition(write)


def _kafka_python(records: DataFrame, cell: Cell, servers: str, topic: str) -> None:
    codec = None if cell.codec == "none" else cell.codec

    def write(rows: Iterator[Any]) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=servers, compression_type=codec, transactional_id=_task_id(topic))
        with closing(producer):
            producer.init_transactions()
            producer.begin_transaction()
            try:
                for row in rows:
                    producer.send(topic, bytes(row.value), bytes(row.key) if "key" in row else None)
            except BaseException:
                producer.abort_transaction()
                raise
            producer.commit_transaction()

    records.foreachPartition(write)


FLOOR = Contender(name="rows dropped", guarantee="", write=_discard, writes_to_kafka=False)
KAFKA_EOS = Contender(name="kafka-eos", guarantee="exactly once", write=_save("kafka-eos"))
NO_HISTORY = Contender(
    name="kafka-eos without history", guarantee="exactly once", write=_save("kafka-eos", **{"history.topic": ""})
)
BUILT_IN = Contender(name="Spark's Kafka sink", guarantee="at least once", write=_save("kafka"))
EQUAL_SETTINGS = {"kafka.batch.size": str(DEFAULT_BATCH_SIZE), "kafka.linger.ms": str(DEFAULT_LINGER_MS)}
EQUAL = Contender(
    name="Spark's Kafka sink at equal settings",
    guarantee="at least once",
    write=_save("kafka", **EQUAL_SETTINGS),
    settings=EQUAL_SETTINGS,
)
CONTENDERS = (
    FLOOR,
    KAFKA_EOS,
    BUILT_IN,
    EQUAL,
    Contender(name="kafka-eos with txnAppId", guarantee="exactly once, skips a repeat", write=_with_app_id),
    Contender(
        name="kafka-eos at least once",
        guarantee="at least once",
        write=_save("kafka-eos", **{"delivery.guarantee": "at-least-once"}),
    ),
    # One transaction per task: a job that fails half-way has committed some of its tasks.
    Contender(name="confluent-kafka", guarantee="a transaction per task", write=_confluent),
    Contender(name="kafka-python", guarantee="a transaction per task", write=_kafka_python, share=0.1),
)


def contenders_of(text: str) -> list[Contender]:
    """Return the contenders that ``text`` names.

    Args:
        text: ``usual`` (the first four), ``all``, or their names separated by commas.

    Raises:
        ValueError: A name is not known.
    """
    if text in ("usual", "all"):
        return list(CONTENDERS[: 4 if text == "usual" else None])
    known = {each.name: each for each in CONTENDERS}
    unknown = [name for name in text.split(",") if name not in known]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is unknown; choose usual, all, or from {', '.join(known)}")
    return [known[name] for name in text.split(",")]
