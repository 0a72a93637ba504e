"""The data source ``kafka-eos`` as Spark sees it.

Spark imports this module to look up data sources, and one failing import breaks the look-up of every source. The module
therefore imports only pyspark, and loads the rest when a write begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from kafka_eos_sink.errors import ConfigurationError, Job

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kafka_eos_sink.spark.stream_writer import KafkaEosStreamWriter
    from kafka_eos_sink.spark.writer import KafkaEosBatchWriter


class KafkaEosDataSource(DataSource):
    """Write DataFrames to Apache Kafka exactly once.

    Spark finds the installed package without registration. If the package comes with ``--py-files``, call
    ``spark.dataSource.register(KafkaEosDataSource)``.

    Batch (Spark 4.0 or newer). With ``txnAppId`` and ``txnVersion``, running the job again writes nothing twice::

        (df.selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value")
            .write.format("kafka-eos")
            .option("kafka.bootstrap.servers", "localhost:9092")
            .option("topic", "orders")
            .option("txnAppId", "nightly-orders")
            .option("txnVersion", 17)
            .mode("append")
            .save())

    Stream (Spark 4.1 or newer), with any micro-batch trigger::

        query = (df.writeStream.format("kafka-eos")
            .option("kafka.bootstrap.servers", "localhost:9092")
            .option("topic", "orders")
            .option("checkpointLocation", "/data/checkpoints/orders")
            .start())

    Modes: ``mode("append")`` for a batch; output modes append and complete for a stream. ``mode("overwrite")`` and
    reading are rejected. To read, use ``spark.read.format("kafka")`` with ``kafka.isolation.level=read_committed``.

    Columns: ``value`` (required), ``key``, ``topic``, ``partition``, ``headers``, ``timestamp``.

    Most used options:
        kafka.bootstrap.servers: Brokers as host:port, comma-separated (required).
        topic: The topic of all rows; without it, the column ``topic``.
        txnAppId, txnVersion: Batch only. The sink writes each pair once.
        transactional.id.prefix: Prefix of the transactional ids.
        delivery.guarantee: ``exactly-once`` (default) or ``at-least-once``.
        commit.log.topic: The topic of the commit log, default ``__kafka_eos_commits``.
        source.offsets.group: Stream only. Commits the offsets of the Kafka source to this consumer group.
        kafka.*: Options of Java's producer, for example ``kafka.compression.type`` or ``kafka.security.protocol``.

    The documentation lists all options, and ``kafka-eos explain`` the error codes.
    """

    @classmethod
    def name(cls) -> str:
        return "kafka-eos"

    def writer(self, schema: StructType, overwrite: bool) -> KafkaEosBatchWriter:
        """Return the writer of one batch; raises if a column or an option is not valid."""
        # Spark passes mode("overwrite") on and leaves the rejection to the source.
        if overwrite:
            raise _rejected(
                Job.BATCH,
                "OVERWRITE_NOT_SUPPORTED",
                'mode("overwrite") is not possible, because records in Kafka cannot be overwritten',
                'Use mode("append"), or INSERT INTO in SQL',
            )
        from kafka_eos_sink.spark.writer import KafkaEosBatchWriter

        return KafkaEosBatchWriter(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaEosStreamWriter:  # noqa: N802
        """Return the writer of one micro-batch.

        Args:
            overwrite: True in output mode complete. The sink still appends each batch, like Spark's Kafka sink.
        """
        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise _rejected(
                Job.STREAM,
                "STREAMING_NOT_SUPPORTED",
                "streaming needs Spark 4.1 or newer",
                "On Spark 4.0, write each batch in foreachBatch, with a txnAppId of the query and the batch's id as txnVersion",
            )
        from kafka_eos_sink.spark.stream_writer import KafkaEosStreamWriter

        return KafkaEosStreamWriter(self.options, schema)

    def schema(self) -> NoReturn:
        # Spark calls schema() first if a user reads, so the error must come from here.
        raise _only_writes()

    def reader(self, schema: StructType) -> DataSourceReader:
        raise _only_writes()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        raise _only_writes()


def _rejected(job: Job, code: str, message: str, way_out: str) -> ConfigurationError:
    """Return the error of a write that has no writer yet."""
    error = ConfigurationError(code, message, way_out)
    error.concern(job, has_plan=False)
    return error


def _only_writes() -> ConfigurationError:
    return ConfigurationError(
        "READ_NOT_SUPPORTED",
        'kafka-eos only writes. Read with Spark\'s own source: spark.read.format("kafka") with the option '
        "kafka.isolation.level=read_committed",
    )
