"""Tokens for Amazon MSK, signed by AWS's own package with made-up credentials: signing needs no network."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from kafka_eos_sink.client.msk_iam import MskIamTokens
from kafka_eos_sink.client.oauth import Tokens
from kafka_eos_sink.client.security import TlsConfig, TokenProvider
from kafka_eos_sink.errors import AuthenticationError

KEY, SECRET, SESSION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "a session token"
LIFETIME_S = 900


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No token of another test, no credentials of this machine, and no look-up over the network."""
    monkeypatch.setattr("kafka_eos_sink.client.oauth._tokens", {})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


def tokens(region: str) -> Tokens:
    return Tokens(TokenProvider(name=f"msk-iam:{region}", provide=MskIamTokens(region)), TlsConfig())


def test_token_is_an_address_signed_for_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)
    token = tokens("eu-west-1").current().reveal()
    address = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    fields = {name: value for name, (value,) in parse_qs(urlsplit(address).query).items()}
    assert address.startswith("https://kafka.eu-west-1.amazonaws.com/?")
    assert fields["Action"] == "kafka-cluster:Connect"
    assert fields["X-Amz-Credential"].startswith(f"{KEY}/")
    assert fields["X-Amz-Credential"].endswith("/eu-west-1/kafka-cluster/aws4_request")
    assert fields["X-Amz-Expires"] == str(LIFETIME_S)
    assert fields["X-Amz-Security-Token"] == SESSION
    assert len(fields["X-Amz-Signature"]) == 64
    assert SECRET not in address


def test_expiry_is_in_seconds_and_the_token_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    _, expiry = MskIamTokens("eu-west-1")()
    assert LIFETIME_S - 60 < expiry - time.time() <= LIFETIME_S
    kept = tokens("eu-west-1").current()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    assert tokens("eu-west-1").current() == kept
    assert tokens("eu-north-1").current() != kept


def test_process_without_credentials_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        AuthenticationError, match="msk-iam:eu-west-1 finds no AWS credentials in this process"
    ) as error:
        tokens("eu-west-1").current()
    assert error.value.code == "TOKEN_UNAVAILABLE"
