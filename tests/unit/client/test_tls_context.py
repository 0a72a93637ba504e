"""The context of TLS connections: keys reach OpenSSL and leave no file, and errors name unusable ones."""

from __future__ import annotations

import os
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from certificates import Authority
from kafka_eos_sink.client.security import Secret, TlsConfig
from kafka_eos_sink.client.tls import tls_context
from kafka_eos_sink.client.transport import resolve_host
from kafka_eos_sink.errors import ConfigurationError

PASSWORD = "hunter2"


@pytest.fixture
def config(tmp_path: Path) -> TlsConfig:
    (tmp_path / "certificates").mkdir()
    authority = Authority(tmp_path / "certificates")
    certificate = authority.issue("client")
    return TlsConfig(
        trusted_certificates=authority.pem,
        certificate_chain=certificate.chain,
        private_key=Secret(certificate.key(PASSWORD)),
        private_key_password=Secret(PASSWORD),
    )


@pytest.mark.parametrize("in_memory", [True, False])
def test_private_key_is_loaded_and_leaves_no_file(
    config: TlsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    before = set(os.listdir("/dev/fd"))
    tls_context(config)
    assert list(folder.iterdir()) == []
    assert set(os.listdir("/dev/fd")) <= before


@pytest.mark.parametrize("password", [None, Secret(""), Secret("wrong")])
def test_wrong_key_password_fails_without_prompt(config: TlsConfig, password: Secret | None) -> None:
    with pytest.raises(ConfigurationError, match=r"ssl\.key\.password must be the key's") as refused:
        tls_context(replace(config, private_key_password=password))
    assert refused.value.code == "TLS_SETTINGS"
    assert "wrong" not in str(refused.value)


@pytest.mark.parametrize("suites", ["ALL:@SECLEVEL=0", "HIGH:@SECLEVEL=0", "kRSA:aNULL:@SECLEVEL=0"])
def test_listener_without_certificate_is_rejected(config: TlsConfig, suites: str) -> None:
    """With an anonymous suite OpenSSL verifies nothing, and everybody on the way could read the password."""
    listener = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listener.maximum_version = ssl.TLSVersion.TLSv1_2
    listener.set_ciphers("aNULL:@SECLEVEL=0")
    context = tls_context(replace(config, maximum_version="TLSv1.2", cipher_suites=(suites,)))
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor() as thread, ours, theirs:
        accepted = thread.submit(listener.wrap_socket, theirs, server_side=True)
        with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
            context.wrap_socket(ours, server_hostname="broker.example").close()
        assert accepted.exception() is not None


@pytest.mark.parametrize("suites", ["aNULL:@SECLEVEL=0", "eNULL:@SECLEVEL=0"])
def test_suite_without_authentication_or_encryption_fails(config: TlsConfig, suites: str) -> None:
    with pytest.raises(ConfigurationError, match=r"OpenSSL has no .NULL"):
        tls_context(replace(config, cipher_suites=(suites,)))


@pytest.mark.parametrize("name", ["a" * 300, "x..y", "\ud800.example", "nul\0.example"])
def test_malformed_host_name_is_os_error(name: str) -> None:
    """Brokers advertise the host names of others. A malformed one must not break more than connections to it."""
    with pytest.raises(OSError, match=r"is no host name|not known|No address|Name|name"):
        resolve_host(name, 9092)


@pytest.mark.parametrize("port", [-1, 0, 65_536, 2**31 - 1])
def test_malformed_port_is_os_error(port: int) -> None:
    with pytest.raises(OSError, match=f"{port} is no port"):
        resolve_host("localhost", port)
