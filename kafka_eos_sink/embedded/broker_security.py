"""TLS and SASL of an embedded Kafka, for its listener and for its clients.

Clients have their own listener. The nodes and the readiness check use a plaintext listener on the loopback
interface, so tests can give the clients' listener any certificate and any user.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kafka_eos_sink.client.key_stores import pem_certificates
from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.embedded.java import run_to_end
from kafka_eos_sink.embedded.node import failed, write_properties
from kafka_eos_sink.settings.java_properties import read_properties

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
DEFAULT_USER = "kafka-eos"

_USER = re.compile(r"[A-Za-z0-9._~-]{1,128}")
_ITERATIONS = 4_096
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_CERTIFICATE_DAYS = 365
_KEYSTORE_PASSWORD = "KAFKA_EOS_KEYSTORE_PASSWORD"
_PREFIX = "listener.name.client."
_PACKAGE = "org.apache.kafka.common.security"
_PLAIN = f"{_PACKAGE}.plain.PlainLoginModule required"
_SCRAM = f"{_PACKAGE}.scram.ScramLoginModule required"
_OAUTHBEARER = f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule required"
_UNSIGNED_TOKENS = f"{_PACKAGE}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity:
    """How clients connect to an embedded Kafka.

    Attributes:
        certificate: PEM file with the nodes' private key (PKCS#8, not encrypted) and certificate chain. None makes a
            self-signed one for localhost.
        client_authorities: PEM file. Clients must present a certificate that one of these authorities has signed.
        users: Names and passwords for PLAIN and SCRAM: letters, digits and ``. _ ~ -``. Empty makes one user with a
            random password.
        mechanisms: SASL mechanisms of the listener. OAUTHBEARER accepts unsigned tokens.

    Raises:
        ValueError: The values make no listener.
    """

    protocol: Literal["SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    certificate: Path | None = None
    client_authorities: Path | None = None
    users: tuple[tuple[str, Secret], ...] = ()
    mechanisms: tuple[str, ...] = MECHANISMS

    def __post_init__(self) -> None:
        if not self.uses_tls and (self.certificate or self.client_authorities):
            raise ValueError(f"{self.protocol} takes no certificates")
        if not self.uses_sasl and self.users:
            raise ValueError(f"{self.protocol} takes no users")
        for name, password in self.users:
            if not _USER.fullmatch(name) or not _USER.fullmatch(password.reveal()):
                raise ValueError(f"user {name!r}: use only letters, digits and . _ ~ - in names and passwords")

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")


def new_password() -> Secret:
    return Secret(secrets.token_urlsafe(18))


def listener_properties(
    security: BrokerSecurity, users: Mapping[str, Secret], key_store: Mapping[str, str]
) -> dict[str, str]:
    """Return the server properties of the clients' listener."""
    properties: dict[str, str] = {}
    if security.uses_tls:
        properties |= {f"ssl.keystore.{name}": value for name, value in key_store.items()}
    if security.client_authorities is not None:
        properties |= {"ssl.client.auth": "required", "ssl.truststore.type": "PEM"}
        properties["ssl.truststore.location"] = str(security.client_authorities.absolute())
    if security.uses_sasl:
        plain_users = "".join(f' user_{name}="{password.reveal()}"' for name, password in users.items())
        modules = {
            "PLAIN": f"{_PLAIN}{plain_users};",
            "SCRAM-SHA-256": f"{_SCRAM};",
            "SCRAM-SHA-512": f"{_SCRAM};",
            "OAUTHBEARER": f'{_OAUTHBEARER} unsecuredLoginStringClaim_sub="broker";',
        }
        properties["sasl.enabled.mechanisms"] = ",".join(security.mechanisms)
        for mechanism in security.mechanisms:
            properties[f"{mechanism.lower()}.sasl.jaas.config"] = modules[mechanism]
        if "OAUTHBEARER" in security.mechanisms:
            properties["oauthbearer.sasl.server.callback.handler.class"] = _UNSIGNED_TOKENS
    return {f"{_PREFIX}{name}": value for name, value in properties.items()}


def scram_arguments(users: Mapping[str, Secret]) -> list[str]:
    """Return StorageTool's arguments for the users (KIP-900).

    They are secret: a salted password is enough to log in with SCRAM (RFC 5802, section 9).
    """
    arguments = []
    for name, password in users.items():
        for mechanism, hash_name in _HASHES.items():
            salt = secrets.token_bytes(16)
            salted = hashlib.pbkdf2_hmac(hash_name, password.reveal().encode(), salt, _ITERATIONS)
            arguments += [
                "--add-scram",
                f'{mechanism}=[name={name},iterations={_ITERATIONS},salt="{base64.b64encode(salt).decode()}",'
                f'saltedpassword="{base64.b64encode(salted).decode()}"]',
            ]
    return arguments


def make_key_store(security: BrokerSecurity, java: Path, trusted: Path) -> dict[str, str]:
    """Make the brokers' key store, and the PEM file ``trusted`` for clients.

    Without a given certificate, Java's keytool makes a self-signed one in the folder of ``trusted``, once.

    Returns:
        The properties of the key store; empty without TLS.
    """
    if not security.uses_tls:
        return {}
    if security.certificate is not None:
        trusted.write_text(_root_certificate(security.certificate), encoding="ascii")
        return {"type": "PEM", "location": str(security.certificate.absolute())}
    store, password_file = trusted.with_name("server.p12"), trusted.with_name("keystore-password")
    if not password_file.is_file():
        write_properties(password_file, {"password": new_password().reveal()})
    password = Secret(read_properties(password_file)["password"])
    if not store.exists():
        _keytool(
            java, password, "-genkeypair", "-alias", "kafka", "-keyalg", "EC", "-groupname", "secp256r1",
            "-dname", "CN=localhost", "-ext", "SAN=DNS:localhost,IP:127.0.0.1", "-validity", str(_CERTIFICATE_DAYS),
            "-storetype", "PKCS12", "-keystore", str(store),
        )  # fmt: skip
        export = ("-exportcert", "-rfc", "-alias", "kafka", "-keystore", str(store), "-file", str(trusted))
        _keytool(java, password, *export)
    return {"type": "PKCS12", "location": str(store), "password": password.reveal()}


def _keytool(java: Path, password: Secret, *arguments: str) -> None:
    keytool = str(java.with_name("keytool"))
    # In the environment, because any user can read a command line.
    secret = {_KEYSTORE_PASSWORD: password.reveal()}
    try:
        status, output = run_to_end([keytool, *arguments, "-storepass:env", _KEYSTORE_PASSWORD], environment=secret)
    except OSError as failure:
        reason = f"{keytool} does not run ({failure.strerror})"
        raise failed(f"{reason}; install a Java with keytool, or give a certificate.") from None
    if status != 0:
        raise failed(f"keytool could not make a certificate. Its output: {output}")


def _root_certificate(file: Path) -> str:
    """Return the last certificate of a chain, which has signed the others."""
    try:
        certificates = pem_certificates(file.read_text(encoding="utf-8", errors="replace"))
    except OSError as failure:
        raise failed(f"{file} cannot be read ({failure.strerror}).") from None
    if not certificates:
        raise failed(f"{file} holds no PEM certificate; give a PEM certificate chain.")
    _, begin, last = certificates.rpartition("-----BEGIN ")
    return f"{begin}{last}\n"


def client_properties(
    security: BrokerSecurity, users: Mapping[str, Secret], bootstrap_servers: str, trusted: Path
) -> dict[str, str]:
    """Return client properties with the first user and the strongest mechanism."""
    properties = {"bootstrap.servers": bootstrap_servers, "security.protocol": security.protocol}
    if security.uses_tls:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(trusted)}
    if security.uses_sasl:
        name, password = next(iter(users.items()))
        mechanism = next((each for each in reversed(security.mechanisms) if each in _HASHES), security.mechanisms[0])
        if mechanism == "OAUTHBEARER":
            module = f'{_OAUTHBEARER} unsecuredLoginStringClaim_sub="{name}";'
        else:
            module = f'{_PLAIN if mechanism == "PLAIN" else _SCRAM} username="{name}" password="{password.reveal()}";'
        properties |= {"sasl.mechanism": mechanism, "sasl.jaas.config": module}
    return properties
