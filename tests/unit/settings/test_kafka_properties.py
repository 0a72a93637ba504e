"""The Java producer's names: each has an answer, and the answers say what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kafka_eos_sink
from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.settings.kafka_properties import (
    KafkaProperties,
    client_part,
    kafka_properties_from_file,
    options_from_file,
    read_kafka_properties,
)
from kafka_eos_sink.settings.table import JAVA

PROPERTIES = {name: row for name, row in JAVA.items() if row.target in (ClientConfig, ProducerConfig)}

# ProducerConfig.configNames() of kafka-clients 4.2.1.
JAVA_NAMES = (Path(__file__).parent / "java_producer_names.txt").read_text("utf-8").split()


def read(**properties: str) -> KafkaProperties:
    problems: list[str] = []
    given = {"bootstrap.servers": "localhost:9092"} | {n.replace("__", "."): v for n, v in properties.items()}
    result = read_kafka_properties(given, problems)
    assert problems == []
    assert result is not None
    return result


def problem(name: str, value: str, **others: str) -> str:
    problems: list[str] = []
    given = {"bootstrap.servers": "localhost:9092", name: value}
    result = read_kafka_properties(
        given | {n.replace("__", "."): v for n, v in others.items()}, problems, prefix="kafka."
    )
    assert result is None
    (text,) = problems
    assert text.startswith(f"kafka.{name}")
    return text


@pytest.mark.parametrize("name", JAVA_NAMES)
def test_every_java_producer_property_is_listed(name: str) -> None:
    assert name in JAVA


VALUES = {
    "bootstrap.servers": ("a:1,[::1]:2", (("a", 1), ("::1", 2))),
    "client.id": ("reports", "reports"),
    "client.dns.lookup": ("resolve_canonical_bootstrap_servers_only", "resolve_canonical_bootstrap_servers_only"),
    "metadata.recovery.strategy": ("NONE", "none"),
    "compression.type": ("zstd", "zstd"),
    "partitioner.ignore.keys": ("TRUE", True),
    "max.in.flight.requests.per.connection": ("3", 3),
    "delivery.timeout.ms": (" 234567 ", 234567),
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_each_property_reaches_its_field(name: str) -> None:
    text, value = VALUES.get(name, ("7531", 7531))
    properties = read(**{name.replace(".", "__"): text})
    entry = PROPERTIES[name]
    landed = properties.client if entry.target is ClientConfig else properties.producer
    assert getattr(landed, entry.field_name) == value


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("batch.size", "-1", "an integer from 0 to 2147483647"),
        ("batch.size", "1_000", "an integer"),
        ("batch.size", "٣", "an integer"),
        ("linger.ms", "", "an integer"),
        ("request.timeout.ms", "2147483648", "an integer from 1 to 2147483647"),
        ("metadata.max.idle.ms", "4999", "an integer from 5000"),
        ("compression.type", "brotli", "one of none, gzip, snappy, lz4, zstd"),
        ("compression.gzip.level", "0", "an integer from 1 to 9, or -1"),
        ("compression.gzip.level", "10", "an integer from 1 to 9, or -1"),
        ("compression.gzip.level", "-2", "an integer from 1 to 9, or -1"),
        ("compression.lz4.level", "0", "an integer from 1 to 17"),
        ("compression.lz4.level", "18", "an integer from 1 to 17"),
        ("compression.zstd.level", "23", "an integer from -131072 to 22"),
        ("compression.zstd.level", "-131073", "an integer from -131072 to 22"),
        ("partitioner.ignore.keys", "yes", "true or false"),
        ("bootstrap.servers", "localhost", "a comma-separated list such as broker1:9092,broker2:9092"),
        ("bootstrap.servers", "localhost:99999", "a comma-separated list"),
        ("security.protocol", "TLS", "one of PLAINTEXT, SSL"),
        ("acks", "2", "one of all, -1, 0, 1"),
    ],
)
def test_wrong_value_is_rejected_with_the_accepted_values(name: str, value: str, expected: str) -> None:
    text = problem(name, value)
    assert f"must be {expected}" in text
    assert repr(value) in text


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("acks", "1", "can be lost after it was acknowledged"),
        ("acks", "0", "can be lost after it was acknowledged"),
        ("enable.idempotence", "false", "writes its records twice"),
        ("max.in.flight.requests.per.connection", "6", "last 5 batches"),
        ("retries", "0", "idempotence needs retries"),
        ("key.serializer", "org.apache.kafka.common.serialization.StringSerializer", "leave Spark as string or binary"),
        ("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer", "remove the option"),
        ("transactional.id", "mine", "transactional.id.prefix"),
    ],
)
def test_property_contradicting_exactly_once_is_rejected(name: str, value: str, reason: str) -> None:
    text = problem(name, value)
    assert "contradicts exactly-once" in text
    assert reason in text


def test_the_level_of_the_chosen_codec_counts_and_no_other() -> None:
    assert {name.split(".")[1] for name in JAVA if name.endswith(".level") and name.startswith("compression")} == {
        "gzip",
        "lz4",
        "zstd",
    }
    properties = read(compression__type="zstd", compression__zstd__level="-5", compression__gzip__level="9")
    assert (properties.producer.compression, properties.producer.compression_level) == ("zstd", -5)
    assert read(compression__type="snappy", compression__gzip__level="9").producer.compression_level is None


def test_the_delivery_timeout_holds_one_wait_and_one_request() -> None:
    text = problem("delivery.timeout.ms", "30099", linger__ms="100", request__timeout__ms="30000")
    assert "must be at least kafka.linger.ms + kafka.request.timeout.ms = 100 + 30000 = 30100" in text
    fitting = read(delivery__timeout__ms="30100", linger__ms="100", request__timeout__ms="30000")
    assert fitting.producer.delivery_timeout_ms == 30_100


@pytest.mark.parametrize("name", ["sasl.pasword", "sasl.password", "ssl.keystore.key", "sasl.jaas.config"])
def test_values_that_may_be_secret_are_in_no_message(name: str) -> None:
    problems: list[str] = []
    read_kafka_properties({name: "hunter2", "acks": "1", "security.protocol": "SSL"}, problems)
    assert problems != []
    assert "hunter2" not in "; ".join(problems)


def test_a_reference_is_resolved_but_shown_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINGER", "hunter2")
    assert problem("linger.ms", "${env:LINGER}").endswith("not '${env:LINGER}'")
    monkeypatch.setenv("LINGER", "17")
    assert read(linger__ms="${env:LINGER}").producer.linger_ms == 17
    monkeypatch.delenv("LINGER")
    assert "environment variable LINGER is not set" in problem("linger.ms", "${env:LINGER}")


@pytest.mark.parametrize("name", ["sasl.password", "ssl.keystore.password", "sasl.jaas.config", "client.id"])
def test_value_that_is_not_utf_8_is_named_and_not_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "LATIN", "gehe\udcefm")  # as Python reads the bytes of Latin-1
    problems: list[str] = []
    given = {"bootstrap.servers": "a:1", name: "${env:LATIN}"}
    assert read_kafka_properties(given, problems, prefix="kafka.") is None
    (problem,) = (each for each in problems if "UTF-8" in each)
    assert problem.startswith(f"kafka.{name} is not text in UTF-8: '${{env:LATIN}}'")
    assert "gehe" not in "".join(problems)


def test_foreign_properties_in_a_client_file_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=a:1\ngroup.id=g\nkey.serializer=X\nlinger.ms=9\n", "utf-8")
    properties = kafka_properties_from_file(path, {"bootstrap.servers": "b:2"})
    assert properties.client.bootstrap_servers == (("b", 2),)
    assert properties.producer.linger_ms == 9
    (warning,) = properties.warnings
    assert "group.id, key.serializer" in warning
    told: list[str] = []
    assert (
        options_from_file(path, told.append)
        == kafka_eos_sink.options_from_file(path)
        == {"kafka.bootstrap.servers": "a:1", "kafka.linger.ms": "9"}
    )
    assert told == [warning]


def test_warning_shows_no_line_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "bootstrap.servers=a:1\ngroup.id=g\nssl.keystore.key=-----BEGIN PRIVATE KEY-----\nMIIhunter2\nhunter3==\n",
        "utf-8",
    )
    (warning,) = client_part(path)[1]
    assert warning == f"{path}: not for this client: group.id, 2 names that are no Kafka client property"
    path.write_text("hunter2\n", "utf-8")
    assert client_part(path)[1] == (f"{path}: not for this client: 1 name that is no Kafka client property",)


def test_a_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    with pytest.raises(
        ConfigurationError, match=r"^\[KAFKA_EOS.INVALID_PROPERTIES\] .*client.properties cannot be read"
    ):
        kafka_properties_from_file(path)
    path.write_text("linger.ms=x\n", "utf-8")
    with pytest.raises(
        ConfigurationError,
        match=r"1\. .*client.properties: linger.ms must be .*; 2\. .*client.properties: bootstrap.servers is required",
    ):
        kafka_properties_from_file(path)
    path.write_bytes(b"a=\xff\xfe\n")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        kafka_properties_from_file(path)


def test_the_example_file_is_valid() -> None:
    path = Path(__file__).parents[3] / "conf" / "client.properties.example"
    properties = kafka_properties_from_file(path)
    assert properties.warnings == ()
    assert properties.producer.compression == "lz4"


def test_default_delivery_timeout_follows_a_long_request_timeout() -> None:
    properties = read(request__timeout__ms="600000", linger__ms="5")
    assert properties.producer.delivery_timeout_ms == 600_005
