"""What ``security.protocol``, ``ssl.*`` and ``sasl.*`` come to, and all that can be wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from kafka_eos_sink.client import kerberos
from kafka_eos_sink.client.security import (
    ClientCredentials,
    KerberosCredentials,
    PasswordCredentials,
    SaslConfig,
    Secret,
    SecurityConfig,
    TokenCredentials,
    TokenProvider,
    UnsecuredToken,
)
from kafka_eos_sink.settings.kafka_properties import read_kafka_properties

SECRET = "hunter2-hunter2"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"


class Stores:
    """An authority, a client's certificate of it, and its key encrypted with `SECRET`; texts and files."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        leaf = authority.issue_cert("client.example")
        self.authority = authority.cert_pem.bytes().decode()
        self.key = leaf.private_key_pem.bytes().decode()
        self.chain = leaf.cert_chain_pems[0].bytes().decode()
        key = serialization.load_pem_private_key(self.key.encode(), None)
        encryption = serialization.BestAvailableEncryption(SECRET.encode())
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        self.encrypted_key = key.private_bytes(pem, pkcs8, encryption).decode()
        self.other_key = authority.issue_cert("other.example").private_key_pem.bytes().decode()
        self.trust_file = self._file(folder / "trusted.pem", self.authority)
        self.key_file = self._file(folder / "key.pem", self.key + self.chain)

    @staticmethod
    def _file(path: Path, text: str) -> str:
        path.write_text(text)
        return str(path)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


def read(properties: Mapping[str, str]) -> tuple[SecurityConfig | None, list[str], tuple[str, ...]]:
    problems: list[str] = []
    found = read_kafka_properties({"bootstrap.servers": "a:1"} | dict(properties), problems, prefix="kafka.")
    for text in (*problems, *(found.warnings if found else ()), repr(found)):
        assert SECRET not in text
        assert "PRIVATE KEY" not in text
    return (None, problems, ()) if found is None else (found.client.security, problems, found.warnings)


def security(properties: Mapping[str, str]) -> SecurityConfig:
    found, problems, warnings = read(properties)
    assert problems == []
    assert warnings == ()
    assert found is not None
    return found


def problem(properties: Mapping[str, str]) -> str:
    _, problems, _ = read(properties)
    (text,) = problems
    return text


SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
NAMED = {"sasl.username": "alice", "sasl.password": SECRET}


HOST_CHECK = "ssl.endpoint.identification.algorithm"


OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
CLIENT = {ENDPOINT: "https://idp.example/token"}


# TLS


def test_an_encrypted_key_needs_its_password(stores: Stores) -> None:
    base = {
        "security.protocol": "SSL",
        "ssl.keystore.key": stores.encrypted_key,
        "ssl.keystore.certificate.chain": stores.chain,
    }
    assert security(base | {"ssl.key.password": SECRET}).tls.private_key_password == Secret(SECRET)
    assert problem(base) == "kafka.ssl.key.password is required: the private key is encrypted"
    assert "ssl.key.password must be the key's" in problem(base | {"ssl.key.password": "wrong"})


@pytest.mark.parametrize(
    ("properties", "versions", "suites"),
    [
        ({"ssl.enabled.protocols": "TLSv1.3"}, ("TLSv1.3", "TLSv1.3"), ()),
        ({"ssl.enabled.protocols": "TLSv1.2, TLSv1.3"}, ("TLSv1.2", "TLSv1.3"), ()),
        ({"ssl.protocol": "TLSv1.2"}, ("TLSv1.2", "TLSv1.2"), ()),
        ({"ssl.protocol": "TLSv1.3"}, ("TLSv1.2", "TLSv1.3"), ()),
        (
            {"ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS_RSA_WITH_AES_128_GCM_SHA256"},
            ("TLSv1.2", "TLSv1.2"),
            ("ECDHE-RSA-AES256-GCM-SHA384", "AES128-GCM-SHA256"),
        ),
        (
            {"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256"},
            ("TLSv1.2", "TLSv1.2"),
            ("ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-AES128-SHA256"),
        ),
        ({"ssl.cipher.suites": "ECDHE-RSA-AES128-GCM-SHA256"}, ("TLSv1.2", "TLSv1.2"), ("ECDHE-RSA-AES128-GCM-SHA256",)),
    ],
)  # fmt: skip
def test_tls_versions_and_ciphers_satisfy_all_options(
    properties: dict[str, str], versions: tuple[str, str], suites: tuple[str, ...]
) -> None:
    tls = security({"security.protocol": "SSL"} | properties).tls
    assert (tls.minimum_version, tls.maximum_version) == versions
    assert tls.cipher_suites == suites


@pytest.mark.parametrize(("value", "verified"), [("https", True), ("HTTPS", True), ("", False), (" ", False)])
def test_host_name_is_verified_unless_disabled(value: str, verified: bool) -> None:
    given = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": value}
    found, problems, warnings = read(given)
    assert problems == []
    assert found is not None
    assert found.tls.verify_host_name is verified
    assert [warning.split()[0] for warning in warnings] == ([] if verified else [f"kafka.{HOST_CHECK}"])


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"ssl.endpoint.identification.algorithm": "none"}, "must be https, or empty"),
        ({"ssl.protocol": "TLSv1.2", "ssl.enabled.protocols": "TLSv1.3"}, "leaves no TLS version"),
        ({"ssl.cipher.suites": "TLS_FOO_WITH_BAR"}, "OpenSSL has no FOO-BAR"),
        ({"ssl.truststore.type": "JKS"}, "ssl.truststore.type=PEM"),
        ({"ssl.truststore.password": SECRET}, "given without kafka.ssl.truststore.location"),
        ({"ssl.truststore.certificates": SECRET}, "must be certificates in PEM"),
        ({"ssl.truststore.location": "/nowhere/x.pem"}, "/nowhere/x.pem cannot be read on this machine"),
        ({"ssl.truststore.location": "CA", "ssl.ca.location": "CA"}, "together with kafka.ssl.truststore.location"),
        ({"ssl.truststore.location": "KEY", "ssl.truststore.certificates": "x"}, "is given together with"),
        ({"ssl.keystore.key": SECRET}, "ssl.keystore.certificate.chain is required with kafka.ssl.keystore.key"),
        (
            {"ssl.keystore.certificate.chain": "x"},
            "ssl.keystore.key is required with kafka.ssl.keystore.certificate.chain",
        ),
        ({"ssl.keystore.location": "CA"}, "one private key in PEM"),
        ({"ssl.keystore.key": SECRET, "ssl.keystore.certificate.chain": "x"}, "one private key in PEM"),
        ({"ssl.keystore.key": "OTHER KEY", "ssl.keystore.certificate.chain": "CHAIN"}, "not the one of the first"),
        ({"ssl.truststore.certificates": "BROKEN"}, "trusted certificates cannot be read"),
    ],
)
def test_invalid_tls_properties_are_reported(stores: Stores, properties: dict[str, str], reason: str) -> None:
    broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
    named = {
        "CA": stores.trust_file,
        "KEY": stores.key_file,
        "OTHER KEY": stores.other_key,
        "CHAIN": stores.chain,
        "BROKEN": broken,
    }
    given = {name: named.get(value, value) for name, value in properties.items()}
    assert reason in problem({"security.protocol": "SSL"} | given)


# SASL


@pytest.mark.parametrize(
    "credentials",
    [
        NAMED,
        {"sasl.jaas.config": f'{SCRAM_MODULE} username="alice" password="{SECRET}";'},
        {"sasl.jaas.config": f"shaded.{SCRAM_MODULE} username='alice' password='{SECRET}';"},
    ],
)
def test_credentials_are_read_from_options_or_login_module(credentials: dict[str, str]) -> None:
    expected = PasswordCredentials(username="alice", password=Secret(SECRET))
    assert security(SCRAM | credentials).sasl == SaslConfig(mechanism="SCRAM-SHA-512", credentials=expected)


@pytest.mark.parametrize(
    "credentials",
    [
        {
            "sasl.oauthbearer.client.id": "id",
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.scope": "a b",
        },
        {
            "sasl.oauthbearer.client.credentials.client.id": "id",
            "sasl.oauthbearer.client.credentials.client.secret": SECRET,
            "sasl.oauthbearer.scope": "a b",
        },
        {"sasl.jaas.config": f'{OAUTH_MODULE} clientId="id" clientSecret="{SECRET}" scope="a b";'},
    ],
)
def test_client_credentials_are_read_from_every_valid_place(credentials: dict[str, str]) -> None:
    expected = ClientCredentials(
        token_endpoint_url="https://idp.example/token", client_id="id", client_secret=Secret(SECRET), scope="a b"
    )
    found = security(OAUTH | CLIENT | credentials).sasl
    assert found == SaslConfig(mechanism="OAUTHBEARER", credentials=TokenCredentials(source=expected))


def test_extensions_are_read_from_their_option() -> None:
    given = {"sasl.oauthbearer.extensions": "logicalCluster=lkc-1, identityPoolId=pool=a"}
    provider = {"sasl.oauthbearer.token.provider": "msk-iam:eu-west-1"}
    found = security(OAUTH | provider | given).sasl
    assert found is not None
    assert isinstance(found.credentials, TokenCredentials)
    assert found.credentials.extensions == (("identityPoolId", "pool=a"), ("logicalCluster", "lkc-1"))


def test_token_source_is_a_function_or_unsecured() -> None:
    found = security(OAUTH | {"sasl.oauthbearer.token.provider": "string:capwords"}).sasl
    assert found is not None
    assert isinstance(found.credentials, TokenCredentials)
    assert isinstance(found.credentials.source, TokenProvider)
    unsigned = OAUTH | {"sasl.jaas.config": f'{OAUTH_MODULE} unsecuredLoginStringClaim_sub="alice";'}
    unsecured, problems, (warning,) = read(unsigned)
    assert problems == []
    assert "a token without a signature" in warning
    assert unsecured is not None
    assert unsecured.sasl is not None
    assert unsecured.sasl.credentials == TokenCredentials(source=UnsecuredToken(principal="alice"))


# White space

SPACED = f"  {SECRET} with \t"


def credentials_of(properties: Mapping[str, str]) -> tuple[object, tuple[str, ...]]:
    found, problems, warnings = read(properties)
    assert problems == []
    assert found is not None
    assert found.sasl is not None
    credentials = found.sasl.credentials
    return (credentials.source if isinstance(credentials, TokenCredentials) else credentials), warnings


@pytest.mark.parametrize("given", ["literally", "${env:SPACED}", "${file:FOLDER/secrets:spaced}"])
def test_white_space_around_credentials_is_kept(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java's clients remove it; a broker that has such a password rejects the shorter one."""
    monkeypatch.setenv("SPACED", SPACED)
    # As in Java's properties: white space in front of a value needs a backslash, behind it none.
    (tmp_path / "secrets").write_text("spaced = \\" + SPACED + "\n", "utf-8")
    value = SPACED if given == "literally" else given.replace("FOLDER", str(tmp_path))
    found, warnings = credentials_of(SCRAM | {"sasl.username": value, "sasl.password": value})
    assert found == PasswordCredentials(username=SPACED, password=Secret(SPACED))
    assert [warning.split()[0] for warning in warnings] == ["kafka.sasl.password", "kafka.sasl.username"]
    assert all("white space" in warning for warning in warnings)
    for prefix in ("sasl.oauthbearer.client.", "sasl.oauthbearer.client.credentials.client."):
        names = {f"{prefix}id": value, f"{prefix}secret": value}
        found, warnings = credentials_of(OAUTH | CLIENT | names)
        assert isinstance(found, ClientCredentials)
        assert (found.client_id, found.client_secret) == (SPACED, Secret(SPACED))
        assert [warning.split()[0] for warning in warnings] == [f"kafka.{name}" for name in sorted(names)]


@pytest.mark.parametrize("quote", ['"', "'"])
def test_white_space_inside_quotes_of_a_login_module_is_kept(quote: str) -> None:
    value = f"{quote}{SPACED}{quote}"
    found, warnings = credentials_of(SCRAM | {"sasl.jaas.config": f"{SCRAM_MODULE} username={value} password={value};"})
    assert (found, warnings) == (PasswordCredentials(username=SPACED, password=Secret(SPACED)), ())
    module = f" {OAUTH_MODULE} clientId={value} clientSecret={value}; "
    source, warnings = credentials_of(OAUTH | CLIENT | {"sasl.jaas.config": module})
    assert isinstance(source, ClientCredentials)
    assert (source.client_id, source.client_secret, warnings) == (SPACED, Secret(SPACED), ())


MODULE = "sasl.jaas.config"
EXTENSIONS = "sasl.oauthbearer.extensions"
PROVIDER = "sasl.oauthbearer.token.provider"
SERVICE = "sasl.kerberos.service.name"
KRB5_MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
FROM_CACHE = 'useTicketCache=true ticketCache="/tmp/a" principal="a@B"'
KERBEROS = {"security.protocol": "SASL_SSL", SERVICE: "kafka"}
UNSECURED = OAUTH | {MODULE: f'{OAUTH_MODULE} unsecuredLoginStringClaim_sub="alice";'}
CREDENTIALS = {"sasl.oauthbearer.client.id": "id", "sasl.oauthbearer.client.secret": SECRET}


@pytest.mark.parametrize(
    ("properties", "name", "reason"),
    [
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism", "is required"),
        ({**SCRAM, "sasl.mechanism": "AWS_MSK_IAM"}, "sasl.mechanism=AWS_MSK_IAM", "provider=msk-iam:<region>"),
        ({**SCRAM, "sasl.username": "alice"}, "sasl.password", "is required"),
        ({**SCRAM, "sasl.password": SECRET}, "sasl.username", "is required"),
        ({**SCRAM, "sasl.username": "a\0b", "sasl.password": SECRET}, "sasl.username", "character 0"),
        ({**SCRAM, MODULE: f'{SCRAM_MODULE} username="alice" password="{SECRET}"'}, MODULE, "semicolon"),
        ({**SCRAM, MODULE: f'{PLAIN_MODULE} username="a" password="b";'}, MODULE, "must be of ScramLoginModule"),
        ({**SCRAM, MODULE: f'{SCRAM_MODULE} username="a" password="b" tokenAuth="{SECRET}";'}, MODULE, "unknown option (number 3); only"),
        ({**SCRAM, MODULE: f'{SCRAM_MODULE} username="a" password="b" tokenauth="{SECRET}";'}, MODULE, "that is not true or false"),
        ({**KERBEROS, "sasl.username": "alice"}, "sasl.username", "GSSAPI takes a ticket"),
        ({**KERBEROS, SERVICE: "kafka/broker1"}, SERVICE, "one name"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, SERVICE, "is required"),
        ({**KERBEROS, MODULE: f"{SCRAM_MODULE};"}, MODULE, "must be of Krb5LoginModule"),
        ({**KERBEROS, MODULE: f"{KRB5_MODULE};"}, MODULE, "must have useKeyTab=true"),
        ({**KERBEROS, MODULE: f'{KRB5_MODULE} useKeyTab=true keyTab="/dev/null";'}, MODULE, "without principal"),
        ({**KERBEROS, MODULE: f'{KRB5_MODULE} useKeyTab=true keyTab="/nowhere" principal="a@B";'}, MODULE, "/nowhere: No such file"),
        ({**KERBEROS, MODULE: f'{KRB5_MODULE} useTicketCache=true keyTab="/dev/null";'}, MODULE, "keyTab without useKeyTab=true"),
        ({**KERBEROS, MODULE: f'{KRB5_MODULE} useTicketCache=true serviceName="kafka";'}, SERVICE, "given together with serviceName"),
        ({**SCRAM, **NAMED, MODULE: f'{SCRAM_MODULE} username="a";'}, "sasl.username", "given together with username"),
        (OAUTH, ENDPOINT, "is required with OAUTHBEARER"),
        ({**OAUTH, **CLIENT, "sasl.oauthbearer.token.provider": "a:b"}, ENDPOINT, "only one of them"),
        ({**OAUTH, **CREDENTIALS, ENDPOINT: f"http://u:{SECRET}@idp.example/"}, ENDPOINT, "begins with https://"),
        ({**OAUTH, **CREDENTIALS, ENDPOINT: f"https://u:{SECRET}@idp.example/"}, ENDPOINT, "holds no password"),
        ({**OAUTH, **CREDENTIALS, ENDPOINT: "https://idp.example:99999/"}, ENDPOINT, "begins with https://"),
        ({**OAUTH, **CLIENT, "sasl.oauthbearer.client.id": "id"}, "sasl.oauthbearer.client.secret", "is required"),
        ({**OAUTH, "sasl.oauthbearer.token.provider": "no.such:thing"}, "sasl.oauthbearer.token.provider", "loaded"),
        ({**OAUTH, "sasl.oauthbearer.token.provider": SECRET}, "sasl.oauthbearer.token.provider", "must be package.module:"),
        ({**OAUTH, "sasl.oauthbearer.token.provider": "string:digits"}, "sasl.oauthbearer.token.provider", "callable"),
        ({**OAUTH, **CLIENT, **CREDENTIALS, "sasl.username": "a"}, "sasl.username", "takes a token"),
        ({**OAUTH, MODULE: f'{OAUTH_MODULE} unsecuredLoginStringClaim_sub="a" extension_auth="x";'}, MODULE, "extension auth"),
        ({**UNSECURED, EXTENSIONS: f"auth={SECRET}"}, EXTENSIONS, "an extension auth"),
        ({**UNSECURED, EXTENSIONS: f"a={SECRET},"}, EXTENSIONS, "an extension that is not letters=value"),
        ({**UNSECURED, EXTENSIONS: f"a={SECRET}\x01b"}, EXTENSIONS, "an extension a that is not letters=value"),
        ({**UNSECURED, EXTENSIONS: "a=1,a=2"}, EXTENSIONS, "two extensions of the same name"),
        ({**UNSECURED, MODULE: f'{UNSECURED[MODULE][:-1]} extension_a="1";', EXTENSIONS: "b=2"}, EXTENSIONS, "extension_... in"),
        ({**OAUTH, PROVIDER: f"msk-iam:{SECRET}"}, PROVIDER, "must name a region"),
        ({**OAUTH, PROVIDER: "msk-iam:eu-west-1.evil.example/"}, PROVIDER, "must name a region"),
        ({**OAUTH, MODULE: f'{OAUTH_MODULE} ssl.truststore.location="/etc/x";'}, MODULE, "unknown option (number 1); only"),
    ],
)  # fmt: skip
def test_invalid_sasl_properties_are_reported(
    properties: dict[str, str], name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kerberos, "missing_library", lambda: None)
    _, problems, _ = read(properties)
    assert problems[0].startswith(f"kafka.{name}")
    assert reason in problems[0]


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (None, {}),
        ("useTicketCache=true", {}),
        (f"{FROM_CACHE} doNotPrompt=true renewTGT=true", {"principal": "a@B", "ticket_cache": "/tmp/a"}),
        ('useKeyTab=true storeKey=true keyTab="/dev/null" principal="a@B"', {"principal": "a@B", "keytab": "/dev/null"}),
        # Mutation: the ticket cache wins, and a stream ends with its ticket.
        (f'{FROM_CACHE} useKeyTab=True keyTab="/dev/null"', {"principal": "a@B", "keytab": "/dev/null"}),
    ],
)  # fmt: skip
def test_kerberos_ticket_comes_from_keytab_or_cache(
    module: str | None, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kerberos, "missing_library", lambda: None)
    given = KERBEROS if module is None else {**KERBEROS, MODULE: f"{KRB5_MODULE} {module};"}
    credentials = KerberosCredentials(service_name="kafka", **expected)
    assert security(given).sasl == SaslConfig(mechanism="GSSAPI", credentials=credentials)
    named = {name: value for name, value in given.items() if name != SERVICE} | {"sasl.mechanism": "gssapi"}
    if module is not None:
        named[MODULE] = named[MODULE].replace(";", ' serviceName="kafka";')
        assert security(named).sasl == SaslConfig(mechanism="GSSAPI", credentials=credentials)


def test_keytab_is_rejected_where_files_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kerberos, "missing_library", lambda: None)
    monkeypatch.setenv("KAFKA_EOS_REFERENCES", "none")
    module = f'{KRB5_MODULE} useKeyTab=true keyTab="/dev/null" principal="a@B";'
    _, problems, _ = read({**KERBEROS, MODULE: module})
    assert len(problems) == 1
    assert "KAFKA_EOS_REFERENCES" in problems[0]


@pytest.mark.parametrize(("value", "is_token"), [("true", True), ("TRUE", True), ("false", False)])
def test_scram_login_takes_a_delegation_token(value: str, is_token: bool) -> None:
    module = f'{SCRAM_MODULE} username="id" password="{SECRET}" tokenauth={value};'
    credentials = PasswordCredentials(username="id", password=Secret(SECRET), is_delegation_token=is_token)
    found = security({**SCRAM, MODULE: module}).sasl
    assert found == SaslConfig(mechanism=SCRAM["sasl.mechanism"], credentials=credentials)  # type: ignore[arg-type]
