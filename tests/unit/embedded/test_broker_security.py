"""TLS and SASL properties of an embedded Kafka's nodes and of its clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.broker_security import (
    BrokerSecurity,
    client_properties,
    listener_properties,
    scram_arguments,
)

USERS = {"alice": Secret("hunter2"), "bob": Secret("hunter3")}


def test_listener_has_a_login_module_for_each_mechanism() -> None:
    security = BrokerSecurity(protocol="SASL_PLAINTEXT", mechanisms=("PLAIN", "SCRAM-SHA-512"))
    properties = listener_properties(security, USERS, {})
    assert properties["listener.name.client.sasl.enabled.mechanisms"] == "PLAIN,SCRAM-SHA-512"
    assert 'user_bob="hunter3"' in properties["listener.name.client.plain.sasl.jaas.config"]
    assert "ScramLoginModule required;" in properties["listener.name.client.scram-sha-512.sasl.jaas.config"]
    assert not any("oauthbearer" in name for name in properties)


def test_storage_tool_arguments_hold_no_password() -> None:
    arguments = scram_arguments(USERS)
    assert arguments.count("--add-scram") == 4
    assert "hunter" not in " ".join(arguments)
    assert arguments != scram_arguments(USERS)


@pytest.mark.parametrize(
    ("mechanisms", "expected"),
    [
        (("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"), ("SCRAM-SHA-512", 'password="hunter2"')),
        (("PLAIN", "OAUTHBEARER"), ("PLAIN", 'password="hunter2"')),
        (("OAUTHBEARER",), ("OAUTHBEARER", 'unsecuredLoginStringClaim_sub="alice"')),
    ],
)
def test_client_gets_strongest_mechanism_and_first_user(mechanisms: tuple[str, ...], expected: tuple[str, str]) -> None:
    security = BrokerSecurity(protocol="SASL_SSL", mechanisms=mechanisms)
    properties = client_properties(security, USERS, "127.0.0.1:1", Path("/trusted.pem"))
    assert properties["sasl.mechanism"] == expected[0]
    assert expected[1] in properties["sasl.jaas.config"]
    assert properties["ssl.truststore.location"] == "/trusted.pem"


@pytest.mark.parametrize(
    "arguments",
    [
        {"protocol": "SSL", "users": (("a", Secret("b")),)},
        {"protocol": "SASL_PLAINTEXT", "certificate": Path("/x")},
        {"protocol": "SASL_PLAINTEXT", "client_authorities": Path("/x")},
        {"protocol": "SASL_SSL", "users": (('a"', Secret("b")),)},
        {"protocol": "SASL_SSL", "users": (("a", Secret("hunter2, ")),)},
        {"protocol": "SASL_SSL", "users": (("a", Secret("")),)},
    ],
)
def test_invalid_listener_raises_value_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as refused:
        BrokerSecurity(**arguments)
    assert "hunter2" not in str(refused.value)
