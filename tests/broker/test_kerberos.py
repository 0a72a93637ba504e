"""GSSAPI against a real KDC and real brokers; and delegation tokens, with which Spark's executors log in."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from certificates import Authority
from dead_writes import tasks, varied, write_settings
from documents import ROOT, read
from kafka_eos_sink.cli.main import main
from kafka_eos_sink.client.admin import Admin
from kafka_eos_sink.client.connection import Dialogue
from kafka_eos_sink.client.network_client import NetworkClient
from kafka_eos_sink.client.oauth import authentication_for
from kafka_eos_sink.embedded import distribution
from kafka_eos_sink.embedded.java import find_java
from kafka_eos_sink.errors import AuthenticationError, BrokerUnavailableError
from kafka_eos_sink.protocol import messages as m
from kafka_eos_sink.runtime import session
from kafka_testing import PATIENCE_S, assert_nothing_open, create_topic, of_properties, read_committed, wait_until
from kerberos_realm import MODULE, PASSWORD, Kerberized, Realm, started_broker, started_realm, with_keytab

TICKET_S = 4
PATIENCE_MS = int(PATIENCE_S * 1_000)
NEW_TICKET = "Sending unauthenticated request"
"""Of MIT Kerberos's trace: the client asks the KDC for a ticket of its principal."""


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with started_realm(tmp_path_factory.mktemp("realm"), MINIMUM_TICKET_LIFETIME=1) as started:
        yield started


@pytest.fixture(scope="module")
def alice(realm: Realm) -> Path:
    return realm.keytab("alice")


@pytest.fixture(autouse=True)
def krb5_config(realm: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CONFIG", str(realm.config()))
    monkeypatch.setenv("KRB5CCNAME", "FILE:/nowhere")


@pytest.fixture(scope="module")
def brokers(realm: Realm, authority: Authority) -> Iterator[dict[str, Kerberized]]:
    """By security protocol. Sessions of GSSAPI are short on both."""
    with started_broker(realm) as clear, started_broker(realm, authority) as encrypted:
        yield {"SASL_PLAINTEXT": clear, "SASL_SSL": encrypted}


@pytest.fixture
def broker(brokers: dict[str, Kerberized]) -> Kerberized:
    return brokers["SASL_PLAINTEXT"]


@pytest.fixture
def new_tickets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The library's trace of the test."""
    path = tmp_path / "trace"
    monkeypatch.setenv("KRB5_TRACE", str(path))
    return path


def reached(properties: Mapping[str, str]) -> int:
    """The transaction version that the cluster says."""
    with NetworkClient(of_properties(properties)) as client:
        return Admin(client).transaction_version(client.clock() + PATIENCE_MS)


def refused(properties: Mapping[str, str]) -> AuthenticationError:
    """The error of the first attempt; there is no second one, however much patience there is."""
    with NetworkClient(of_properties(properties)) as client:
        began = client.clock()
        with pytest.raises(AuthenticationError) as error:
            client.any_node(began + PATIENCE_MS)
        assert client.clock() - began < PATIENCE_MS / 2
    return error.value


def assert_written(broker: Kerberized, properties: Mapping[str, str]) -> None:
    """A transactional write of three tasks has its rows, each once."""
    topic = create_topic(broker.kafka.plaintext_servers)
    settings = varied(write_settings(broker.kafka, topic), client=of_properties(properties))
    plan = session.plan(settings)
    session.commit(settings, plan, tasks(settings, plan, 3))
    found = read_committed(broker.kafka.plaintext_servers, topic)
    assert sorted(int(record.value or b"") for record in found) == list(range(30))
    assert_nothing_open(broker.kafka.plaintext_servers)


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_transactional_write_succeeds_with_keytab(brokers: dict[str, Kerberized], alice: Path, protocol: str) -> None:
    broker = brokers[protocol]
    assert_written(broker, broker.properties(with_keytab(alice)))


def ticket_cache(keytab: Path, path: Path) -> str:
    """A ticket cache, as kinit writes it."""
    import gssapi

    name = gssapi.Name("alice@EXAMPLE.COM", gssapi.NameType.kerberos_principal)
    gssapi.Credentials(name=name, usage="initiate", store={"client_keytab": str(keytab), "ccache": f"FILE:{path}"})
    return f"FILE:{path}"


def await_expiry(cache: str) -> None:
    import gssapi

    def has_expired() -> bool:
        try:
            return gssapi.Credentials(usage="initiate", store={"ccache": cache}).lifetime == 0
        except gssapi.exceptions.ExpiredCredentialsError:
            return True

    wait_until(has_expired, f"the end of the ticket in {cache}")


def test_ticket_cache_authenticates(
    broker: Kerberized, alice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ticket_cache(alice, tmp_path / "cache")
    assert reached(broker.properties(f'useTicketCache=true ticketCache="{cache}"')) == 2
    monkeypatch.setenv("KRB5CCNAME", cache)
    assert reached(broker.properties('useTicketCache=true principal="alice@EXAMPLE.COM"')) == 2
    without_module = broker.properties("")
    del without_module["sasl.jaas.config"]
    assert reached(without_module) == 2


def test_connection_outlives_session_and_ticket(
    broker: Kerberized, realm: Realm, alice: Path, new_tickets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-368 and the keytab. Mutation: a ticket from the keytab only if no ticket is there; the third re-authentication fails."""
    monkeypatch.setenv("KRB5_CONFIG", str(realm.config(ticket_lifetime=f"{TICKET_S}s")))
    properties = broker.properties(with_keytab(alice, "alice"))
    with NetworkClient(of_properties(properties)) as client:
        until = client.clock() + PATIENCE_MS
        assert client.wait_for_metadata(until)
        node_id = client.any_node(until)
        connection = client._nodes[node_id].connection
        ends = time.monotonic() + 3 * TICKET_S

        def request() -> None:
            assert Admin(client).topic("absent", client.clock() + PATIENCE_MS) is None

        wait_until(lambda: time.monotonic() >= ends, "three lifetimes", meanwhile=request, pause_s=0.2)
        assert client._nodes[node_id].connection is connection
    assert new_tickets.read_text().count(NEW_TICKET) >= 3


def test_connections_of_a_process_share_a_ticket(broker: Kerberized, realm: Realm, new_tickets: Path) -> None:
    shared = broker.properties(with_keytab(realm.keytab("carol"), "carol@EXAMPLE.COM"))
    for _ in range(3):
        reached(shared)
    assert new_tickets.read_text().count(NEW_TICKET) == 1


def test_rejected_ticket_is_not_used_again(broker: Kerberized, realm: Realm, alice: Path, new_tickets: Path) -> None:
    """As after a change of the broker's key: the KDC has another key of its principal than the broker's keytab."""
    realm.keytab("other/127.0.0.1")
    module = with_keytab(realm.keytab("dave"), "dave@EXAMPLE.COM")
    other = broker.properties(module, **{"sasl.kerberos.service.name": "other"})
    for tickets in (1, 2):
        error = refused(other)
        assert error.code == "SASL_AUTHENTICATION_FAILED"
        assert "GSSAPI" in error.message
        assert new_tickets.read_text().count(NEW_TICKET) == tickets


# errors


def test_expired_ticket_cache_is_reported(
    broker: Kerberized, realm: Realm, alice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5_CONFIG", str(realm.config(ticket_lifetime="1s")))
    cache = ticket_cache(alice, tmp_path / "cache")
    await_expiry(cache)
    error = refused(broker.properties(f'useTicketCache=true ticketCache="{cache}"'))
    assert error.code == "KERBEROS_TICKET_UNAVAILABLE"
    for part in (cache, "kafka@127.0.0.1", "Ticket expired", "kinit"):
        assert part in error.message


@pytest.mark.parametrize(
    ("module", "service", "parts"),
    [
        (with_keytab(Path("{alice}"), "bob@EXAMPLE.COM"), "kafka", ["bob@EXAMPLE.COM", "klist -k {alice}"]),
        (with_keytab(Path("/dev/null")), "kafka", ["klist -k /dev/null"]),
        (with_keytab(Path("{elsewhere}"), "alice@SKEWED.COM"), "kafka", ["SKEWED.COM", "Cannot find KDC", "krb5.conf"]),
        (with_keytab(Path("{elsewhere}"), "alice@EXAMPLE.COM"), "kafka", ["klist -k {elsewhere}"]),
        (with_keytab(Path("{alice}")), "kafk", ["kafk/127.0.0.1@EXAMPLE.COM not found", "sasl.kerberos.service.name"]),
        ('useTicketCache=true ticketCache="/nowhere"', "kafka", ["/nowhere", "run kinit"]),
        ("useTicketCache=true", "kafka", ["KRB5CCNAME", "run kinit"]),
        ('useTicketCache=true principal="bob" ticketCache="{cache}"', "kafka", ["bob", "{cache}", "does not match"]),
    ],
)
def test_login_without_ticket_reports_what_and_where(
    broker: Kerberized,
    alice: Path,
    skewed: tuple[Realm, Path],
    tmp_path: Path,
    module: str,
    service: str,
    parts: list[str],
) -> None:
    places = {"alice": alice, "elsewhere": skewed[1], "cache": ticket_cache(alice, tmp_path / "cache")}
    error = refused(broker.properties(module.format(**places), **{"sasl.kerberos.service.name": service}))
    assert error.code == "KERBEROS_TICKET_UNAVAILABLE"
    for part in (f"{service}@127.0.0.1", broker.kafka.bootstrap_servers, *parts):
        assert part.format(**places) in error.message


def test_page_shows_the_error_of_a_keytab_without_the_principal(broker: Kerberized, alice: Path) -> None:
    error = refused(broker.properties(with_keytab(alice, "orders@EXAMPLE.COM")))
    (shown,) = (
        block.text
        for block in read(ROOT / "docs" / "secure.md").blocks
        if block.section == "kerberos" and "KERBEROS_TICKET_UNAVAILABLE" in block.text
    )
    page = " ".join(shown.split()).replace("/etc/kafka/orders.keytab", str(alice))
    server, host = broker.kafka.bootstrap_servers, "broker1.example.com"
    assert page.replace(f"{host}:9093", server).replace("10.0.0.11:9093", server).replace(host, "127.0.0.1") == str(
        error
    )


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Realm, Path]]:
    """A KDC that accepts no difference of clocks, and a keytab of it."""
    with started_realm(tmp_path_factory.mktemp("skewed"), "SKEWED.COM", ALLOWABLE_CLOCKSKEW=-1) as started:
        started.keytab("kafka/127.0.0.1")
        yield started, started.keytab("alice")


def test_clock_skew_is_reported(
    broker: Kerberized, skewed: tuple[Realm, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, keytab = skewed
    monkeypatch.setenv("KRB5_CONFIG", str(other.config()))
    error = refused(broker.properties(with_keytab(keytab, "alice@SKEWED.COM")))
    assert error.code == "KERBEROS_TICKET_UNAVAILABLE"
    assert "synchronise" in error.message


@pytest.mark.parametrize("had_ticket", [False, True])
def test_kdc_that_is_down_is_tried_until_the_deadline(
    broker: Kerberized, realm: Realm, alice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, had_ticket: bool
) -> None:
    down = tmp_path / "krb5.conf"
    down.write_text(re.sub(r"127.0.0.1:\d+", "127.0.0.1:1", realm.config().read_text()))
    monkeypatch.setenv("KRB5_CONFIG", str(down))
    user = f"erin-{had_ticket}"  # without the tickets of the other case
    properties = broker.properties(with_keytab(realm.keytab(user), f"{user}@EXAMPLE.COM"))
    if had_ticket:
        monkeypatch.setenv("KRB5_CONFIG", str(realm.config(ticket_lifetime="1s")))
        reached(properties)
        # The library still uses a ticket in the second in which it ends. This one ends in a later second.
        monkeypatch.setenv("KRB5_CONFIG", str(realm.config(ticket_lifetime="2s")))
        await_expiry(ticket_cache(alice, tmp_path / "longer"))
        monkeypatch.setenv("KRB5_CONFIG", str(down))
    with NetworkClient(of_properties(properties)) as client:
        with pytest.raises(BrokerUnavailableError, match="Cannot contact any KDC") as error:
            client.any_node(client.clock() + 3_000)
        assert error.value.code == "BROKER_UNREACHABLE"
        monkeypatch.setenv("KRB5_CONFIG", str(realm.config()))
        client.any_node(client.clock() + PATIENCE_MS)


def login(realm: Realm, keytab: Path) -> Dialogue:
    """A dialogue whose handshake has succeeded."""
    properties = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": f"{MODULE} {with_keytab(keytab)};",
    }
    begin = authentication_for(of_properties(properties).security)
    assert begin is not None
    realm.keytab("kafka/127.0.0.1")
    return begin("127.0.0.1")


def answered(token: bytes) -> m.SaslAuthenticateResponse:
    return m.SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=token)


@pytest.mark.parametrize("token", [b"", b"garbage", b"\x60\x06\x06\x04garb"])
def test_broker_without_the_key_of_the_ticket_is_refused(realm: Realm, alice: Path, token: bytes) -> None:
    """A broker that takes any ticket and proves nothing."""
    dialogue = login(realm, alice)
    next(dialogue)
    dialogue.send(m.SaslHandshakeResponse(error_code=0, mechanisms=("GSSAPI",)))
    with pytest.raises(AuthenticationError) as error:
        dialogue.send(answered(token))
    assert error.value.code == "SASL_SERVER_UNTRUSTED"


@pytest.mark.parametrize(("offer", "accepted"), [(b"\x07\x01\x00\x00", True), (b"\x06\x01\x00\x00", False)])
def test_client_chooses_no_security_layer(realm: Realm, alice: Path, offer: bytes, accepted: bool) -> None:
    """RFC 4752, 3.1 and 3.3, with the library as the server."""
    import gssapi

    dialogue = login(realm, alice)
    next(dialogue)
    request: m.SaslAuthenticateRequest = dialogue.send(m.SaslHandshakeResponse(error_code=0, mechanisms=("GSSAPI",)))  # type: ignore[assignment]
    keytab = {"keytab": str(realm.keytab("kafka/127.0.0.1"))}
    server = gssapi.SecurityContext(creds=gssapi.Credentials(usage="accept", store=keytab), usage="accept")
    request = dialogue.send(answered(server.step(bytes(request.auth_bytes))))  # type: ignore[assignment]
    assert bytes(request.auth_bytes) == b""
    response = answered(server.wrap(offer, False).message)
    if not accepted:
        with pytest.raises(AuthenticationError) as error:
            dialogue.send(response)
        assert error.value.code == "SASL_SERVER_UNTRUSTED"
        return
    request = dialogue.send(response)  # type: ignore[assignment]
    assert server.unwrap(bytes(request.auth_bytes)).message == b"\x01\x00\x00\x00"
    with pytest.raises(StopIteration):
        dialogue.send(answered(b""))


# commands


def test_command_takes_kerberos_from_properties_file(
    brokers: dict[str, Kerberized], alice: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = brokers["SASL_SSL"]
    file = tmp_path / "client.properties"
    given = broker.properties(with_keytab(alice))
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    topic = create_topic(broker.kafka.plaintext_servers)
    assert main(["check", "--properties", str(file), "--topic", topic]) == 0, capsys.readouterr()
    file.write_text(file.read_text().replace(str(alice), str(tmp_path / "absent.keytab")))
    assert main(["check", "--properties", str(file), "--topic", topic]) != 0
    assert f"{tmp_path}/absent.keytab" in capsys.readouterr().err


# delegation tokens


def delegation_token(properties: Mapping[str, str], folder: Path) -> tuple[str, str]:
    """Id and HMAC of a token that Kafka's own tool fetches."""
    (tools,) = distribution.resolve_coordinates([f"org.apache.kafka:kafka-tools:{distribution.DEFAULT_KAFKA_VERSION}"])
    file = folder / "tool.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    command = find_java().command(
        f"{tools}:{distribution.resolve()}/*",  # type: ignore[arg-type]
        "org.apache.kafka.tools.DelegationTokenCommand",
        *("--bootstrap-server", properties["bootstrap.servers"], "--command-config", str(file)),
        *("--create", "--max-life-time-period", "-1"),
        options=["-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"],
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    found = re.search(r"^(\S{22})\s+(\S{88})\s+User:alice", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return found[1], found[2]


def test_delegation_token_authenticates_over_scram(broker: Kerberized, tmp_path: Path) -> None:
    """Mutation: without the extension, the broker looks for a user of the token's name."""

    def given(options: str) -> dict[str, str]:
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        return {**broker.scram, "sasl.jaas.config": f"{module} {options};"}

    token, hmac = delegation_token(given(f'username="alice" password="{PASSWORD}"'), tmp_path)
    assert_written(broker, given(f'username="{token}" password="{hmac}" tokenauth=true'))
    assert refused(given(f'username="{token}" password="{hmac}"')).code == "SASL_AUTHENTICATION_FAILED"
