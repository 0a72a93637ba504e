"""TLS and SASL against real brokers: which clients authenticate, which do not, and with which error.

Tests create and check topics through the brokers' plaintext listener; clients under test use the secured one.
"""

from __future__ import annotations

import base64
import logging
import re
import socket
import ssl as ssl_module
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from certificates import Authority, Certificate
from dead_writes import rows_of, tasks, varied, write_settings
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.connection import ANY_VERSION, Connection
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.broker_security import BrokerSecurity
from kafka_eos_sink.embedded.cluster import EmbeddedKafka
from kafka_eos_sink.errors import AuthenticationError
from kafka_eos_sink.producer.rows import Rows
from kafka_eos_sink.protocol.messages import DescribeTransactionsRequest
from kafka_eos_sink.runtime import session
from kafka_testing import assert_nothing_open, create_topic, of_properties, read_committed

PASSWORD = "correct-horse"
WRONG = "battery-staple"
SESSION_MS = 3_000
PATIENCE_MS = 60_000
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


@pytest.fixture(scope="module")
def sasl_ssl(authority: Authority) -> Iterator[EmbeddedKafka]:
    """All mechanisms but PLAIN; sessions of SCRAM-SHA-256 are short. The certificate holds 127.0.0.1 and no name."""
    security = BrokerSecurity(
        protocol="SASL_SSL",
        certificate=authority.issue("127.0.0.1").file,
        users=(("alice", Secret(PASSWORD)),),
        mechanisms=("SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
    )
    short = {"listener.name.client.scram-sha-256.connections.max.reauth.ms": str(SESSION_MS)}
    with EmbeddedKafka(security=security, properties=short, transaction_version=2) as started:
        yield started


@pytest.fixture(scope="module")
def mutual_tls(authority: Authority) -> Iterator[EmbeddedKafka]:
    security = BrokerSecurity(
        protocol="SSL",
        certificate=authority.issue("127.0.0.1", "localhost").file,
        client_authorities=authority.file,
    )
    with EmbeddedKafka(security=security) as started:
        yield started


def scram(kafka: EmbeddedKafka, authority: Authority, **others: str) -> dict[str, str]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.file),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
        **{name.replace("__", "."): value for name, value in others.items()},
    }


def ssl(kafka: EmbeddedKafka, authority: Authority, **others: str) -> dict[str, str]:
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.file),
        **{name.replace("__", "."): value for name, value in others.items()},
    }


def reached(properties: Mapping[str, str]) -> int:
    """The transaction version that the cluster says, once a broker that metadata named has been asked."""
    with NetworkClient(of_properties(properties)) as client:
        connected_broker(client)
        return Admin(client).transaction_version(client.clock() + PATIENCE_MS)


def connected_broker(client: NetworkClient) -> int:
    """A broker that metadata has named, not a bootstrap server, and that is ready."""
    until = client.clock() + PATIENCE_MS
    assert client.wait_for_metadata(until)
    assert min(client.metadata.brokers) >= 0
    return client.any_node(until)


def refused(properties: Mapping[str, str]) -> AuthenticationError:
    """The error of the first attempt; there is no second one, however much patience there is."""
    with NetworkClient(of_properties(properties)) as client:
        began = client.clock()
        with pytest.raises(AuthenticationError) as error:
            client.any_node(began + PATIENCE_MS)
        assert client.clock() - began < PATIENCE_MS / 2
    for text in (str(error.value), repr(error.value)):
        assert PASSWORD not in text
        assert WRONG not in text
        assert "PRIVATE KEY" not in text
    return error.value


def unsecured_token(principal: str) -> dict[str, str]:
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{OAUTH} unsecuredLoginStringClaim_sub="{principal}";',
    }


def oauth(kafka: EmbeddedKafka, authority: Authority, **others: str) -> dict[str, str]:
    properties = scram(kafka, authority, **others)
    return {name: properties[name] for name in properties if name not in ("sasl.username", "sasl.password")}


# SASL


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("wrong", [{"sasl.password": WRONG}, {"sasl.username": "mallory"}])
def test_wrong_password_shows_message_of_broker(
    sasl_ssl: EmbeddedKafka, authority: Authority, mechanism: str, wrong: dict[str, str]
) -> None:
    error = refused({**scram(sasl_ssl, authority, sasl__mechanism=mechanism), **wrong})
    assert error.code == "SASL_AUTHENTICATION_FAILED"
    assert f"invalid credentials with SASL mechanism {mechanism}" in str(error)


# TLS


def test_certificate_of_another_host_is_rejected_unless_disabled(sasl_ssl: EmbeddedKafka, authority: Authority) -> None:
    port = sasl_ssl.bootstrap_servers.rpartition(":")[2]
    other_name = scram(sasl_ssl, authority, bootstrap__servers=f"localhost:{port}")
    error = refused(other_name)
    assert error.code == "TLS_FAILED"
    assert "certificate is not valid for 'localhost'" in str(error)
    assert reached({**other_name, "ssl.endpoint.identification.algorithm": ""}) == 2


# names that end with a dot, as Kubernetes and DNS zones write them


@pytest.fixture(scope="module")
def resolver() -> Iterator[None]:
    """A DNS that knows `*.svc.test`, absolute or not; this machine's knows no name with a final dot."""
    look_up = socket.getaddrinfo

    def found(host: Any, *args: Any, **options: Any) -> Any:
        known = isinstance(host, str) and host.removesuffix(".").endswith(".svc.test")
        return look_up("127.0.0.1" if known else host, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", found)
        yield


def test_final_dot_is_not_part_of_the_server_name_indication(authority: Authority, resolver: None) -> None:
    asked: list[str | None] = []
    server = ssl_module.SSLContext(ssl_module.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.issue("*.svc.test").file)
    server.sni_callback = lambda _socket, name, _context: asked.append(name)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        servers = f"b1.svc.test.:{listener.getsockname()[1]}"
        with NetworkClient(of_properties(ssl(Servers(servers), authority))) as client:
            assert client.ready(-1) is False
            peer, _ = listener.accept()
            greeting = threading.Thread(target=lambda: server.wrap_socket(peer, server_side=True).close())
            greeting.start()
            until = client.clock() + PATIENCE_MS
            while not asked and client.clock() < until:
                client.pump(20)
            while greeting.is_alive() and client.clock() < until:
                client.pump(20)
            greeting.join()
    assert asked == ["b1.svc.test"]


def key_stores(certificate: Certificate) -> dict[str, dict[str, str]]:
    return {
        "PEM file": {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificate.file)},
        "PEM in the options": {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": certificate.key(PASSWORD),
            "ssl.keystore.certificate.chain": certificate.chain,
            "ssl.key.password": PASSWORD,
        },
        "PKCS12": {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(certificate.pkcs12(PASSWORD)),
            "ssl.keystore.password": PASSWORD,
        },
    }


@pytest.mark.parametrize("store", ["PEM file", "PEM in the options", "PKCS12"])
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_client_certificate_authenticates(
    mutual_tls: EmbeddedKafka, authority: Authority, store: str, version: str
) -> None:
    shown = key_stores(authority.issue("client"))[store]
    assert reached({**ssl(mutual_tls, authority), **shown, "ssl.enabled.protocols": version}) == 2


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_missing_or_untrusted_client_certificate_is_rejected(
    mutual_tls: EmbeddedKafka, authority: Authority, tmp_path: Path, version: str
) -> None:
    """In TLS 1.3 the client is done before the broker has looked at its certificate: the refusal comes later."""
    base = ssl(mutual_tls, authority, ssl__enabled__protocols=version)
    for shown in ({}, key_stores(Authority(tmp_path).issue("client"))["PEM file"]):
        error = refused({**base, **shown})
        assert error.code == "TLS_FAILED"
        assert "it rejected TLS" in str(error)


class Servers:
    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers


# bytes


def test_messages_larger_than_buffers_pass_through_tls(sasl_ssl: EmbeddedKafka, authority: Authority) -> None:
    ids = [f"{number:08}".ljust(100, "x") for number in range(60_000)]
    with NetworkClient(of_properties(scram(sasl_ssl, authority))) as client:
        node_id = connected_broker(client)
        until = client.clock() + PATIENCE_MS
        response = client.call(node_id, DescribeTransactionsRequest(transactional_ids=tuple(ids)), deadline_ms=until)
        small = [(node_id, DescribeTransactionsRequest(transactional_ids=(f"{n}",)), ANY_VERSION) for n in range(200)]
        answers = client.call_all(small, until)
    assert sorted(state.transactional_id for state in response.transaction_states) == ids
    assert [answer.transaction_states[0].transactional_id for answer in answers] == [f"{n}" for n in range(200)]


# sessions that end


@pytest.fixture
def prolonged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows whenever a connection authenticates again."""
    times: list[int] = []
    begin = Connection.reauthenticate

    def counted(connection: Connection, now: int) -> None:
        times.append(now)
        begin(connection, now)

    monkeypatch.setattr(Connection, "reauthenticate", counted)
    return times


def describe(client: NetworkClient, node_id: int) -> Any:
    until = client.clock() + PATIENCE_MS
    (answer,) = client.call_all([(node_id, DescribeTransactionsRequest(transactional_ids=("a",)), ANY_VERSION)], until)
    return answer


def test_idle_connection_works_after_its_session_expired(
    sasl_ssl: EmbeddedKafka, authority: Authority, prolonged: list[int]
) -> None:
    with NetworkClient(of_properties(scram(sasl_ssl, authority, sasl__mechanism="SCRAM-SHA-256"))) as client:
        node_id = connected_broker(client)
        prolonged.clear()  # connecting may have taken longer than a session
        ended = client.clock() + 2 * SESSION_MS
        while client.clock() < ended:
            client.pump(ended - client.clock())
        assert prolonged == []
        assert describe(client, node_id).transaction_states
        assert len(prolonged) == 1


# a whole write


def librdkafka(kafka: EmbeddedKafka, authority: Authority) -> dict[str, str]:
    names = ("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password")
    properties = scram(kafka, authority)
    return {"ssl.ca.location": str(authority.file)} | {name: properties[name] for name in names}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_transactional_write_succeeds_through_sasl_and_tls(
    sasl_ssl: EmbeddedKafka, authority: Authority, caplog: pytest.LogCaptureFixture, mechanism: str
) -> None:
    """Also with a log of every request, which holds no secret."""
    caplog.set_level(logging.DEBUG, "kafka_eos_sink")
    topic = create_topic(sasl_ssl.plaintext_servers)
    properties = scram(sasl_ssl, authority)
    if mechanism == "OAUTHBEARER":
        properties = {**oauth(sasl_ssl, authority), **unsecured_token("alice")}
    settings = replace(write_settings(sasl_ssl, topic), client=of_properties(properties))
    plan = session.plan(settings)
    session.commit(settings, plan, tasks(settings, plan, 3))
    assert re.search(r"response: SaslAuthenticate v\d, node -?\d+, correlation id \d+, \d+ ms: no error\n", caplog.text)
    assert PASSWORD not in caplog.text
    assert base64.b64encode(PASSWORD.encode()).decode().rstrip("=") not in caplog.text
    # Every JWT begins with '{"' in base 64; a SCRAM proof follows "p=".
    assert "eyJ" not in caplog.text
    assert "p=" not in caplog.text
    found = read_committed(sasl_ssl.bootstrap_servers, topic, security=librdkafka(sasl_ssl, authority))
    assert sorted(int(record.value or b"") for record in found) == list(range(30))
    assert_nothing_open(sasl_ssl.plaintext_servers)


def test_sessions_are_renewed_while_task_writes(
    sasl_ssl: EmbeddedKafka, authority: Authority, prolonged: list[int]
) -> None:
    topic = create_topic(sasl_ssl.plaintext_servers)
    client = of_properties(scram(sasl_ssl, authority, sasl__mechanism="SCRAM-SHA-256"))
    settings = write_settings(sasl_ssl, topic)
    settings = varied(settings, client=client, producer=replace(settings.producer, linger_ms=0))
    plan = session.plan(settings)
    written: list[int] = []

    def rows() -> Iterator[Rows]:
        give_up_at = time.monotonic() + PATIENCE_MS / 1_000
        prolonged.clear()
        while len(prolonged) < 3:
            assert time.monotonic() < give_up_at
            written.append(len(written))
            yield rows_of(topic, len(written))
            time.sleep(0.01)

    identity = session.TaskIdentity(partition=0, attempt_number=0, task_attempt_id=0)
    message = session.write_task(settings, plan, identity, rows())
    session.commit(settings, plan, [message])
    found = read_committed(sasl_ssl.bootstrap_servers, topic, security=librdkafka(sasl_ssl, authority))
    values = [int(record.value or b"") for record in found]
    assert sorted(values) == list(range(10, 10 * len(written) + 10))
    for partition in range(4):
        in_order = [int(record.value or b"") for record in found if record.partition == partition]
        assert in_order == sorted(in_order)
    assert_nothing_open(sasl_ssl.plaintext_servers)
