"""The data source ``kafka-eos`` as Spark sees it.

This module is imported by Spark's look-up of data sources, which one failing import breaks for every source: it
imports pyspark and nothing else, the rest when a write begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from kafka_eos_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kafka_eos_sink.spark.stream_writer import KafkaEosStreamWriter
    from kafka_eos_sink.spark.writer import KafkaEosBatchWriter


class KafkaEosDataSource(DataSource):
    """Writes DataFrames to Apache Kafka exactly once: ``df.write.format("kafka-eos")``.

    The options are listed in docs/configuration.md. Found by Spark without registration once the package is installed, else
    ``spark.dataSource.register(KafkaEosDataSource)``.
    """

    @classmethod
    def name(cls) -> str:
        return "kafka-eos"

    def writer(self, schema: StructType, overwrite: bool) -> KafkaEosBatchWriter:
        """The writer of one batch; raises what can be known about columns and options before anything is written."""
        # Spark hands `overwrite` over for mode("overwrite") and leaves the refusal to the source.
        if overwrite:
            raise ConfigurationError(
                "OVERWRITE_NOT_SUPPORTED",
                'mode("overwrite") is not possible: records in Kafka cannot be overwritten; use mode("append")',
            )
        from kafka_eos_sink.spark.writer import KafkaEosBatchWriter

        return KafkaEosBatchWriter(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaEosStreamWriter:  # noqa: N802
        """The writer of one micro-batch. `overwrite` is output mode complete, which writes every batch as Spark's Kafka sink does."""
        from kafka_eos_sink.spark.stream_writer import KafkaEosStreamWriter

        return KafkaEosStreamWriter(self.options, schema)

    def schema(self) -> NoReturn:
        # Spark asks for it before it reads.
        raise _only_writes()

    def reader(self, schema: StructType) -> DataSourceReader:
        raise _only_writes()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        raise _only_writes()


def _only_writes() -> ConfigurationError:
    return ConfigurationError(
        "READ_NOT_SUPPORTED",
        'kafka-eos only writes; read with Spark\'s own source: spark.read.format("kafka") with the option '
        "kafka.isolation.level=read_committed",
    )
