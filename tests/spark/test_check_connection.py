"""How often check_connection.py tries again; tests/spark/test_standalone.py runs it on a cluster."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from spark_jobs import check_connection


def rounds(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def test_failed_login_is_tried_once(spark: SparkSession) -> None:
    """Failed logins can lock the account."""
    alice = BrokerSecurity(protocol="SASL_PLAINTEXT", users=(("alice", Secret("correct-horse")),))
    with EmbeddedKafka(security=alice) as kafka:
        options = {f"kafka.{name}": value for name, value in kafka.client_properties.items()}
        options["kafka.sasl.jaas.config"] = options["kafka.sasl.jaas.config"].replace("correct-horse", "wrong")
        before = rounds(spark)
        found = check_connection.check_executors(spark, {**options, "topic": "t"}, 2)
    assert rounds(spark) == before + 1
    ((works, text),) = found.values()
    assert not works
    assert "SASL_AUTHENTICATION_FAILED" in text


def test_rounds_are_a_second_apart(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_connection, "EXECUTORS_TIMEOUT_S", 3.0)
    before = rounds(spark)
    wrong = {"kafka.bootstrap.servers": "a:1", "topic": "t", "unknown": "1"}  # fails at once
    assert len(check_connection.check_executors(spark, wrong, 2)) == 1
    assert 1 <= rounds(spark) - before <= 3
