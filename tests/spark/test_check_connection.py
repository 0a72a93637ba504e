"""How often check_connection.py tries again; tests/spark/test_standalone.py runs it on a cluster."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import create_topic
from spark_jobs import check_connection


@pytest.fixture
def rounds(spark: SparkSession) -> Iterator[Callable[[], int]]:
    """How many jobs of this test Spark has run; it forgets the oldest of all jobs."""
    group = str(uuid.uuid4())
    spark.sparkContext.setJobGroup(group, "rounds")
    yield lambda: len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))
    spark.sparkContext._jsc.clearJobGroup()


def test_failed_login_is_tried_once(spark: SparkSession, rounds: Callable[[], int]) -> None:
    """Failed logins can lock the account."""
    alice = BrokerSecurity(protocol="SASL_PLAINTEXT", users=(("alice", Secret("correct-horse")),))
    with EmbeddedKafka(security=alice) as kafka:
        options = {f"kafka.{name}": value for name, value in kafka.client_properties.items()}
        options["kafka.sasl.jaas.config"] = options["kafka.sasl.jaas.config"].replace("correct-horse", "wrong")
        found = check_connection.check_executors(spark, {**options, "topic": "t"}, 2)
    assert rounds() == 1
    ((works, text),) = found.values()
    assert not works
    assert "SASL_AUTHENTICATION_FAILED" in text


def test_executor_reports_how_spark_sends_it_rows(spark: SparkSession, kafka: EmbeddedKafka) -> None:
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": create_topic(kafka.bootstrap_servers)}
    ((works, text),) = check_connection.check_executors(spark, options, 1).values()
    assert works, text
    assert text.endswith("; rows over TCP, acknowledged at once")  # the session of the tests has Spark's default
