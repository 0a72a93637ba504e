"""A topic's committed records, with the columns of Spark's Kafka source.

Spark's own source reads if its jars are present and Java's client knows all options: it shares no code with the sink.
Otherwise, the client of this package reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from kafka_eos_sink.client.admin import Admin, connected
from kafka_eos_sink.client.committed_records import read_committed
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.topics_admin import EARLIEST
from kafka_eos_sink.errors import BrokerRefusedError, ConfigurationError
from kafka_eos_sink.jobs import spark_kafka_source as spark_source
from kafka_eos_sink.settings.kafka_properties import read_kafka_properties
from kafka_eos_sink.settings.options import kafka_part
from kafka_eos_sink.settings.table import PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Reader = Literal["auto", "spark", "client"]

SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_ARROW_SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)
_DEADLINE_MS = 60_000
_ROWS_PER_BATCH = 10_000
_BYTES_PER_BATCH = 16 << 20
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets of a partition; last stable and high watermark are exclusive."""

    partition: int
    first: int
    last_stable: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFrame:
    """The records of a topic up to its last stable offsets at the time of creation.

    ``reader`` is the name of the reader. Every evaluation of the frame has the same records unless Kafka deletes them.
    """

    frame: DataFrame
    reader: str
    offsets: tuple[Offsets, ...]


def topic_frame(spark: SparkSession, topic: str, options: Mapping[str, str], reader: Reader = "auto") -> TopicFrame:
    """Read the committed records of ``topic`` with the sink's ``kafka.*`` options.

    Raises:
        ConfigurationError: INVALID_OPTIONS; KAFKA_SOURCE_MISSING if ``reader`` is "spark" and its jars are missing.
        BrokerRefusedError: UNKNOWN_TOPIC. BrokerUnavailableError, AuthorizationError.
    """
    with connected(_client_config(options)) as admin:
        offsets = _offsets(admin, topic)
    if reader == "spark":
        spark_source.require_kafka_source(spark)
    if reader == "auto" and (spark_source.missing_jars(spark) != () or spark_source.unknown_to_java(options)):
        reader = "client"
    if reader == "client":
        frame = _read_with_client(spark, topic, options, offsets)
        return TopicFrame(frame=frame, reader="this package's client", offsets=offsets)
    frame = _read_with_spark(spark, topic, options, offsets)
    return TopicFrame(frame=frame, reader="Spark's Kafka source", offsets=offsets)


def _client_config(options: Mapping[str, str]) -> ClientConfig:
    problems: list[str] = []
    foreign = [name for name in options if not name.startswith(PREFIX)]
    problems += [f"{name} has no effect on a reader, which accepts only {PREFIX}*" for name in foreign]
    kafka, _ = kafka_part(options, problems)
    properties = read_kafka_properties(kafka, problems, prefix=PREFIX)
    if problems or properties is None:
        raise ConfigurationError("INVALID_OPTIONS", problems)
    return properties.client


def _offsets(admin: Admin, topic: str) -> tuple[Offsets, ...]:
    deadline = admin.client.clock() + _DEADLINE_MS
    described = admin.topic(topic, deadline)
    if described is None:
        raise BrokerRefusedError("UNKNOWN_TOPIC", f"there is no topic {topic!r}, or the Describe permission is missing")
    where = [(topic, partition.partition_index) for partition in described.partitions]
    # The end is fixed before Spark plans: the frame then holds the same records however often Spark evaluates it.
    first = admin.list_offsets(where, deadline, isolation="read_uncommitted", timestamp=EARLIEST)
    last_stable = admin.list_offsets(where, deadline, isolation="read_committed")
    high_watermark = admin.list_offsets(where, deadline, isolation="read_uncommitted")
    return tuple(Offsets(each[1], first[each], last_stable[each], high_watermark[each]) for each in sorted(where))


def _read_with_spark(
    spark: SparkSession, topic: str, options: Mapping[str, str], offsets: tuple[Offsets, ...]
) -> DataFrame:
    return (
        spark.read.format("kafka")
        .options(**spark_source.connection_options(options))
        .option("subscribe", topic)
        # Spark's default is read_uncommitted, which delivers the records of aborted transactions too.
        .option("kafka.isolation.level", "read_committed")
        # By default Java's consumer lets a broker create a topic that was deleted in the meantime.
        .option("kafka.allow.auto.create.topics", "false")
        .option("includeHeaders", "true")
        .option("startingOffsets", json.dumps({topic: {str(each.partition): each.first for each in offsets}}))
        .option("endingOffsets", json.dumps({topic: {str(each.partition): each.last_stable for each in offsets}}))
        .load()
    )


def _read_with_client(
    spark: SparkSession, topic: str, options: Mapping[str, str], offsets: tuple[Offsets, ...]
) -> DataFrame:
    # Tasks resolve references such as ${env:NAME} themselves, so that no secret is part of the plan. Spark pickles the
    # closure: it holds plain options, because a client has sockets, and a Secret refuses to be pickled.
    written = dict(options)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with connected(_client_config(written)) as admin:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from _partition_batches(admin, topic, offsets[index])

    return spark.range(0, len(offsets), 1, max(1, len(offsets))).mapInArrow(read, SCHEMA)


def _partition_batches(admin: Admin, topic: str, offsets: Offsets) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, object]] = []
    size = 0
    for batch in read_committed(admin, (topic, offsets.partition), offsets.first, offsets.last_stable):
        for record in batch.records:
            # A broker returns whole batches, so the first and the last one may reach beyond the requested offsets.
            if not offsets.first <= record.offset < offsets.last_stable:
                continue
            rows.append(
                {
                    "key": record.key,
                    "value": record.value,
                    "topic": topic,
                    "partition": offsets.partition,
                    "offset": record.offset,
                    "timestamp": max(-_INT64_MAX, min(record.timestamp * 1_000, _INT64_MAX)),
                    "timestampType": int(batch.log_append_time),
                    "headers": [{"key": name, "value": value} for name, value in record.headers],
                }
            )
            parts = (record.key, record.value, *(part for header in record.headers for part in header))
            size += sum(len(part) for part in parts if part is not None) + 200 * len(record.headers)
            # Other programs choose how large records are: 10,000 rows of a megabyte, or of many empty headers, take too much memory.
            if len(rows) >= _ROWS_PER_BATCH or size >= _BYTES_PER_BATCH:
                yield pa.RecordBatch.from_pylist(rows, _ARROW_SCHEMA)
                rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, _ARROW_SCHEMA)
