"""A DataFrame through SASL and TLS: secrets are resolved in every process, and a refusal reaches the caller without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from certificates import Authority
from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_testing import assert_nothing_open, create_topic, read_committed

PASSWORD = "correct-horse"
WRONG = "battery-staple"


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[EmbeddedKafka]:
    security = BrokerSecurity(
        protocol="SASL_SSL",
        certificate=authority.issue("127.0.0.1").file,
        users=(("alice", Secret(PASSWORD)),),
    )
    with EmbeddedKafka(security=security) as started:
        yield started


def options(kafka: EmbeddedKafka, authority: Authority, topic: str, password: str) -> dict[str, str]:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(authority.file),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{module} username="alice" password="{password}";',
        "topic": topic,
    }


def test_a_frame_is_written_with_a_password_from_a_file(
    spark: SparkSession, secured: EmbeddedKafka, authority: Authority, tmp_path: Path
) -> None:
    topic = create_topic(secured.plaintext_servers)
    secrets = tmp_path / "secrets.properties"
    secrets.write_text(f"password={PASSWORD}\n", "utf-8")
    frame = spark.range(0, 1_000, 1, 4).selectExpr("CAST(id AS STRING) AS value")
    given = options(secured, authority, topic, f"${{file:{secrets}:password}}")
    frame.write.format("kafka-eos").options(**given).mode("append").save()
    trusted = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.file), "sasl.mechanism": "PLAIN"}
    credentials = {"sasl.username": "alice", "sasl.password": PASSWORD}
    found = read_committed(secured.bootstrap_servers, topic, security=trusted | credentials)
    assert sorted(int(record.value or b"") for record in found) == list(range(1_000))
    assert_nothing_open(secured.plaintext_servers)


def test_rejected_login_reaches_caller_with_code_and_no_secret(
    spark: SparkSession, secured: EmbeddedKafka, authority: Authority, code_of: Callable[[str], str]
) -> None:
    given = options(secured, authority, "never-written", WRONG)
    with pytest.raises(Exception) as raised:
        spark.sql("SELECT 'a' AS value").write.format("kafka-eos").options(**given).mode("append").save()
    text = str(raised.value)
    assert code_of(text) == "SASL_AUTHENTICATION_FAILED"
    assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in text
    assert WRONG not in text
