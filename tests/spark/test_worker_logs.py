"""The sink's log lines in Spark's table of what Python workers log."""

from __future__ import annotations

import uuid

from pyspark.sql import SparkSession

from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import create_topic


def test_warning_of_a_worker_stands_in_sparks_table(spark: SparkSession, kafka: EmbeddedKafka) -> None:
    column = f"c{uuid.uuid4().hex}"  # a process logs a warning once
    topic = create_topic(kafka.bootstrap_servers, partitions=1)
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        rows = spark.range(10).selectExpr("CAST(id AS STRING) AS value", f"id AS {column}")
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}
        rows.write.format("kafka-eos").options(**options).mode("append").save()
        logged = [(row.level, row.logger) for row in spark.tvf.python_worker_logs().collect() if column in row.msg]
        assert logged == [("WARNING", "kafka_eos_sink")]
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
