"""Place rows before the write: each Spark task writes to one topic partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as f

from kafka_eos_sink.client.admin import lease_admin
from kafka_eos_sink.errors import ConfigurationError, InvalidRowError
from kafka_eos_sink.producer.partitioner import key_partitions
from kafka_eos_sink.protocol.binary_columns import as_binary
from kafka_eos_sink.settings.options import read_options
from kafka_eos_sink.spark.columns import written_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def partition_for_topic(
    df: DataFrame, topic: str, options: Mapping[str, str] | None = None, *, partitions: int | None = None
) -> DataFrame:
    """Add the column ``partition``; give each topic partition one Spark partition.

    A write of T tasks to P partitions has up to T x P open partitions in its transactions. After this function it has at most P, for the
    price of one shuffle. Java's default partitioner places a row with a key. The hash of its value places a row without a key. A row
    with a partition keeps it.

    Args:
        df: A batch or streaming DataFrame with the columns of the sink.
        topic: The topic of all rows; give the write the same option ``topic``.
        options: The options of the write, to request the number of partitions from Kafka.
        partitions: The number of partitions, if this process cannot reach Kafka.

    Raises:
        ConfigurationError: INVALID_OPTIONS.
        SchemaError: INVALID_COLUMNS; the message lists every missing column and every wrong type.
        InvalidRowError: UNKNOWN_TOPIC.
    """
    written_columns(df.schema, topic)
    count = _partition_count(topic, options, df.isStreaming) if partitions is None else partitions
    if count < 1:
        raise ConfigurationError("INVALID_OPTIONS", f"partitions={count}: a topic has at least one partition")
    # A hash, not Java's random choice: if Spark computes a part of the shuffle again, a random choice would lose or double rows.
    chosen = f.pmod(f.xxhash64("value"), f.lit(count)).cast("int")
    if "key" in df.columns:
        chosen = f.when(f.col("key").isNull(), chosen).otherwise(_hash_of_keys(count)(f.col("key").cast("binary")))
    if "partition" in df.columns:
        chosen = f.coalesce(f.col("partition"), chosen)
    return _by_partition(df.withColumn("partition", chosen), count)


def _partition_count(topic: str, options: Mapping[str, str] | None, streaming: bool) -> int:
    if options is None:
        raise ConfigurationError(
            "INVALID_OPTIONS", "give the options of the write, or the topic's number of partitions as partitions=N"
        )
    found = read_options(options, streaming=streaming)
    with lease_admin(found.client) as admin:
        metadata = admin.topic(topic, admin.client.clock() + found.producer.max_block_ms)
    if metadata is None:
        raise InvalidRowError("UNKNOWN_TOPIC", f"topic {topic!r} does not exist; create it, or grant Describe on it")
    return len(metadata.partitions)


def _hash_of_keys(count: int) -> Any:
    """Return a Spark function from binary key to partition; null counts as empty."""
    if hasattr(f, "arrow_udf"):

        def of_arrow(keys: pa.Array) -> pa.Array:
            return pa.array(key_partitions(as_binary(keys), count))

        return f.arrow_udf(of_arrow, "int")
    # Spark 4.0 has only functions of pandas.
    import pandas as pd
    from pyspark.sql.pandas.functions import pandas_udf

    def of_pandas(keys: pd.Series) -> pd.Series:
        return pd.Series(key_partitions(pa.Array.from_pandas(keys, type=pa.binary()), count))

    # Spark reads the annotations, and the import of annotations made them texts.
    of_pandas.__annotations__ = {"keys": pd.Series, "return": pd.Series}
    function_of: Any = pandas_udf
    return function_of(of_pandas, "int")


def _by_partition(df: DataFrame, count: int) -> DataFrame:
    if hasattr(df, "repartitionById"):
        return df.repartitionById(count, "partition")
    # Spark 4.0 places rows only by a hash. So find for each partition a number whose hash gives that partition.
    numbers = df.sparkSession.range(40 * count)
    hits = numbers.groupBy(f.pmod(f.hash("id"), f.lit(count)).alias("partition")).agg(f.min("id").alias("hit"))
    hit_of = {row["partition"]: row["hit"] for row in hits.collect()}
    table: Column = f.array(*(f.lit(hit_of[partition]).cast("bigint") for partition in range(count)))
    return df.repartition(count, f.element_at(table, f.pmod(f.col("partition"), f.lit(count)) + 1))
