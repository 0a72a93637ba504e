"""Errors of TLS name the reason and the way out: real handshakes over a pair of sockets."""

from __future__ import annotations

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from certificates import Authority, Certificate
from kafka_eos_sink.client.key_stores import validity
from kafka_eos_sink.client.security import Secret, TlsConfig
from kafka_eos_sink.client.tls import TlsError, tls_context, tls_error

NOW = datetime.now(UTC).replace(microsecond=0)
PAST, YESTERDAY, TOMORROW, FUTURE = (NOW + timedelta(days=days) for days in (-400, -1, 1, 400))
HOST = "broker.example"
BOTH_VERSIONS = pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])


def shows(config: TlsConfig, certificate: Certificate) -> TlsConfig:
    return replace(config, certificate_chain=certificate.chain, private_key=Secret(certificate.key()))


def refused(config: TlsConfig, broker: Certificate, client_authority: Authority | None = None, host: str = HOST) -> str:
    """The text of the error of a handshake, or of the first read after it: TLS 1.3 brings alerts on client certificates there."""
    listener = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listener.load_cert_chain(broker.file)
    if client_authority is not None:
        listener.load_verify_locations(client_authority.file)
        listener.verify_mode = ssl.CERT_REQUIRED
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor() as thread, ours, theirs:
        accepted = thread.submit(listener.wrap_socket, theirs, server_side=True)
        with pytest.raises(ssl.SSLError) as error:
            tls_context(config).wrap_socket(ours, server_hostname=host).recv(1)
        with suppress(OSError):
            accepted.result()
    found = tls_error(error.value, own=config)
    assert isinstance(found, TlsError)
    return str(found)


@pytest.fixture
def config(authority: Authority) -> TlsConfig:
    return TlsConfig(trusted_certificates=authority.pem)


@BOTH_VERSIONS
def test_expired_broker_certificate_is_named_with_the_clock(
    config: TlsConfig, authority: Authority, version: str
) -> None:
    broker = authority.issue(HOST, not_before=PAST, not_after=YESTERDAY)
    text = refused(replace(config, minimum_version=version, maximum_version=version), broker)
    assert "has expired; renew" in text
    assert f"clock, which shows {datetime.now(UTC):%Y-%m-%d}" in text
    assert "add its issuer" not in text


@BOTH_VERSIONS
def test_missing_client_certificate_requires_a_key_store(config: TlsConfig, authority: Authority, version: str) -> None:
    config = replace(config, minimum_version=version, maximum_version=version)
    text = refused(config, authority.issue(HOST), authority)
    assert "it requires a client certificate, and none is configured: set ssl.keystore.*" in text


@BOTH_VERSIONS
@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (PAST, YESTERDAY, f"expired on {YESTERDAY:%Y-%m-%d}: renew it"),
        (TOMORROW, FUTURE, f"is not valid before {TOMORROW:%Y-%m-%d}"),
    ],
    ids=["expired", "not yet valid"],
)
def test_client_certificate_outside_its_dates_is_named(
    config: TlsConfig, authority: Authority, version: str, first: datetime, last: datetime, expected: str
) -> None:
    shown = shows(config, authority.issue("client", not_before=first, not_after=last))
    shown = replace(shown, minimum_version=version, maximum_version=version)
    text = refused(shown, authority.issue(HOST), authority)
    assert f"the client's certificate in ssl.keystore.* {expected}" in text


@pytest.mark.parametrize(
    ("first", "last"),
    [(PAST, YESTERDAY), (datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2051, 2, 3, 4, 5, 6, tzinfo=UTC))],
    ids=["one century", "both formats"],
)
def test_dates_of_a_certificate_are_read(authority: Authority, first: datetime, last: datetime) -> None:
    """From 2050 on, X.509 writes the year with four digits."""
    chain = authority.issue("client", not_before=first, not_after=last).chain
    assert validity(chain + authority.pem) == (first, last)
    found = x509.load_pem_x509_certificate(chain.encode())
    assert validity(chain) == (found.not_valid_before_utc, found.not_valid_after_utc)
