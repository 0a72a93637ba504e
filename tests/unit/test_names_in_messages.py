"""Names and pages in messages: a user can type the name, and has the page."""

from __future__ import annotations

import pytest

from kafka_eos_sink.client.config import ClientConfig, with_prefix
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.settings.kafka_properties import read_kafka_properties
from kafka_eos_sink.settings.options import read_options


@pytest.mark.parametrize("prefix", ["", "kafka."])
def test_names_of_a_connection_are_those_of_its_options_or_file(prefix: str) -> None:
    text = "check security.protocol, sasl.mechanism and ssl.truststore.* (or ssl.ca.location). com.ssl.x"
    assert with_prefix(prefix, text) == (
        f"check {prefix}security.protocol, {prefix}sasl.mechanism and {prefix}ssl.truststore.* (or {prefix}ssl.ca.location). com.ssl.x"
    )
    assert with_prefix(prefix, with_prefix(prefix, text)) == with_prefix(prefix, text)


def test_client_of_a_job_has_the_names_of_options() -> None:
    options = read_options({"kafka.bootstrap.servers": "a:1", "topic": "t"})
    assert options.client.prefix == "kafka."
    read = read_kafka_properties({"bootstrap.servers": "a:1"}, [])
    assert read is not None
    assert read.client.prefix == ClientConfig(bootstrap_servers=(("a", 1),)).prefix == ""


def test_two_problems_are_numbered() -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_options({"kafka.bootstrap.servers": "a:1", "topic": "t", "kafka.acks": "1", "kafka.linger.ms": "x"})
    assert raised.value.message.startswith("1. kafka.acks=1 contradicts exactly-once: ")
    assert "; 2. kafka.linger.ms must be an integer" in raised.value.message
    with pytest.raises(ConfigurationError) as raised:
        read_options({"kafka.bootstrap.servers": "a:1", "topic": "t", "kafka.acks": "1"})
    assert raised.value.message.startswith("kafka.acks=1 contradicts exactly-once: ")
