"""Secrets stay where they are used: no repr, message or pickle holds one."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.security import (
    ClientCredentials,
    PasswordCredentials,
    SaslConfig,
    Secret,
    SecurityConfig,
    TlsConfig,
    TokenCredentials,
    UnsecuredToken,
)
from kafka_eos_sink.errors import ConfigurationError

SECRET = "hunter2"
PASSWORD = PasswordCredentials(username="alice", password=Secret(SECRET))
CLIENT = ClientCredentials(token_endpoint_url="https://idp.example/token", client_id="id", client_secret=Secret(SECRET))
TLS = TlsConfig(
    trusted_certificates="PEM", certificate_chain="PEM", private_key=Secret(SECRET), private_key_password=Secret(SECRET)
)


def configs() -> list[ClientConfig]:
    scram = SaslConfig(mechanism="SCRAM-SHA-256", credentials=PASSWORD)
    oauth = SaslConfig(mechanism="OAUTHBEARER", credentials=TokenCredentials(source=CLIENT))
    securities = (
        SecurityConfig(protocol="SASL_SSL", tls=TLS, sasl=scram),
        SecurityConfig(protocol="SASL_PLAINTEXT", sasl=oauth),
        SecurityConfig(protocol="SSL", tls=TLS),
    )
    return [ClientConfig(bootstrap_servers=(("a", 1),), security=security) for security in securities]


@pytest.mark.parametrize("config", configs(), ids=lambda config: config.security.protocol)
def test_a_configuration_shows_and_pickles_no_secret(config: ClientConfig) -> None:
    for text in (repr(config), str(config), f"{config}", repr(config.security), repr(vars_of(config.security))):
        assert SECRET not in text
    assert "[hidden]" in repr(config)
    with pytest.raises(TypeError, match="secret cannot be pickled"):
        pickle.dumps(config)
    with pytest.raises(TypeError, match="secret cannot be pickled"):
        copy.deepcopy(config)


def test_reprs_show_no_value_that_may_be_secret() -> None:
    source = ClientCredentials(
        token_endpoint_url=f"https://idp.example/{SECRET}", client_id=SECRET, client_secret=Secret(SECRET), scope=SECRET
    )
    for value in (
        PasswordCredentials(username=SECRET, password=Secret(SECRET)),
        TokenCredentials(source=source, extensions=(("key", SECRET),)),
        TokenCredentials(source=UnsecuredToken(principal=SECRET)),
    ):
        assert SECRET not in repr(value)


def vars_of(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def test_configurations_with_the_same_secret_are_the_same() -> None:
    one, other = configs(), configs()
    assert one == other
    assert len({*one, *other}) == 3
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert Secret("a").reveal() == "a"


def test_sasl_without_credentials_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"SASL_SSL needs sasl\.mechanism") as refused:
        SecurityConfig(protocol="SASL_SSL")
    assert refused.value.code == "SECURITY_PROTOCOL"
