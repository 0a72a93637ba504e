"""What the nodes of an embedded Kafka and their clients are told of TLS and SASL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.broker_security import (
    BrokerSecurity,
    client_properties,
    listener_properties,
    new_password,
    scram_arguments,
)

USERS = {"alice": Secret("hunter2"), "bob": Secret("hunter3")}


def test_each_mechanism_of_the_listener_has_its_login_module() -> None:
    security = BrokerSecurity(protocol="SASL_PLAINTEXT", mechanisms=("PLAIN", "SCRAM-SHA-512"))
    properties = listener_properties(security, USERS, {})
    assert properties["listener.name.client.sasl.enabled.mechanisms"] == "PLAIN,SCRAM-SHA-512"
    assert 'user_bob="hunter3"' in properties["listener.name.client.plain.sasl.jaas.config"]
    assert "ScramLoginModule required;" in properties["listener.name.client.scram-sha-512.sasl.jaas.config"]
    assert not any("oauthbearer" in name for name in properties)


def test_only_with_authorities_for_them_clients_must_show_certificates() -> None:
    store = {"type": "PEM", "location": "/server.pem"}
    alone = listener_properties(BrokerSecurity(protocol="SSL"), {}, store)
    assert alone == {f"listener.name.client.ssl.keystore.{name}": value for name, value in store.items()}
    mutual = listener_properties(BrokerSecurity(protocol="SSL", client_authorities=Path("/ca.pem")), {}, store)
    assert mutual["listener.name.client.ssl.client.auth"] == "required"
    assert mutual["listener.name.client.ssl.truststore.location"] == "/ca.pem"


def test_no_password_stands_on_a_command_line() -> None:
    arguments = scram_arguments(USERS)
    assert arguments.count("--add-scram") == 4
    assert "hunter" not in " ".join(arguments)
    assert arguments != scram_arguments(USERS)


@pytest.mark.parametrize(
    ("mechanisms", "told"),
    [
        (("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"), ("SCRAM-SHA-512", 'password="hunter2"')),
        (("PLAIN", "OAUTHBEARER"), ("PLAIN", 'password="hunter2"')),
        (("OAUTHBEARER",), ("OAUTHBEARER", 'unsecuredLoginStringClaim_sub="alice"')),
    ],
)
def test_clients_are_told_the_strongest_mechanism_and_the_first_user(
    mechanisms: tuple[str, ...], told: tuple[str, str]
) -> None:
    security = BrokerSecurity(protocol="SASL_SSL", mechanisms=mechanisms)
    properties = client_properties(security, USERS, "127.0.0.1:1", Path("/trusted.pem"))
    assert properties["sasl.mechanism"] == told[0]
    assert told[1] in properties["sasl.jaas.config"]
    assert properties["ssl.truststore.location"] == "/trusted.pem"


def test_generated_passwords_are_taken_for_users_and_differ() -> None:
    one, other = new_password(), new_password()
    assert one != other
    assert BrokerSecurity(protocol="SASL_SSL", users=(("a", one), ("b", other))).uses_sasl


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
def test_what_makes_no_listener_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as refused:
        BrokerSecurity(**arguments)
    assert "hunter2" not in str(refused.value)
