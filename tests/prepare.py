"""Fetches and makes, before the first test, what tests would wait for: other Kafkas, Spark's Kafka source, archives of classes.

    PYTHONPATH=.:tests python tests/prepare.py

Nothing depends on it: whoever finds something missing makes it by itself.
"""

from __future__ import annotations

from kafka_eos_sink.embedded.distribution import resolve, resolve_coordinates
from kafka_eos_sink.jobs.spark_kafka_source import KAFKA_SOURCE_JARS
from tests.broker.test_kafka_versions import RELEASES
from tests.spark.conftest import AVRO_JAR
from tests.spark.quick_start import short_lived_jvm

if __name__ == "__main__":
    resolve()
    for release in RELEASES:
        resolve(release.version)
    resolve_coordinates(KAFKA_SOURCE_JARS)
    resolve_coordinates([AVRO_JAR])
    short_lived_jvm()
