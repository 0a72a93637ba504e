"""TLS and SASL of an embedded Kafka: what its nodes are told, and what a client needs to get in.

Clients have a listener of their own. The nodes speak to one another, and to whoever asks whether they are ready, over a
plaintext one on the loopback interface, so that any certificate and any user can be tried on the clients'.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kafka_eos_sink.client.security import Secret
from kafka_eos_sink.errors import KafkaEosError

__all__ = [
    "DEFAULT_USER",
    "MECHANISMS",
    "BrokerSecurity",
    "client_properties",
    "listener_properties",
    "make_certificate",
    "new_password",
    "scram_arguments",
]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
DEFAULT_USER = "kafka-eos"

_USER = re.compile(r"[A-Za-z0-9._~-]{1,128}")
_ITERATIONS = 4_096
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_CERTIFICATE_DAYS = 365
_KEYSTORE_PASSWORD = "KAFKA_EOS_KEYSTORE_PASSWORD"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_OAUTHBEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
_VALIDATOR = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
_PREFIX = "listener.name.client."


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity:
    """How clients reach an embedded Kafka.

    certificate          PEM file with the nodes' private key (PKCS#8, not encrypted) and certificate chain; None makes a
                         self-signed one for localhost
    client_authorities   PEM file: clients must show a certificate that one of these has signed
    users                name -> password, of PLAIN and SCRAM; none makes one user with a random password
    mechanisms           the SASL mechanisms of the listener. OAUTHBEARER takes tokens that nobody has signed

    Raises ValueError for what makes no listener, a user whose name or password holds other characters than letters,
    digits and ``. _ ~ -`` among it.
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
                raise ValueError(f"user {name!r}: name and password are letters, digits and . _ ~ - here")

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")


def new_password() -> Secret:
    return Secret(secrets.token_urlsafe(18))


def listener_properties(
    security: BrokerSecurity, users: Mapping[str, Secret], certificate: Mapping[str, str]
) -> dict[str, str]:
    """The server properties of the clients' listener; `certificate` are those of the key store."""
    properties: dict[str, str] = {}
    if security.uses_tls:
        properties |= {f"{_PREFIX}ssl.keystore.{name}": value for name, value in certificate.items()}
        if security.client_authorities is not None:
            properties |= {
                f"{_PREFIX}ssl.client.auth": "required",
                f"{_PREFIX}ssl.truststore.type": "PEM",
                f"{_PREFIX}ssl.truststore.location": str(security.client_authorities.absolute()),
            }
    if security.uses_sasl:
        plain_users = "".join(f' user_{name}="{password.reveal()}"' for name, password in users.items())
        modules = {
            "PLAIN": f"{_PLAIN}{plain_users};",
            "SCRAM-SHA-256": f"{_SCRAM};",
            "SCRAM-SHA-512": f"{_SCRAM};",
            "OAUTHBEARER": f'{_OAUTHBEARER} unsecuredLoginStringClaim_sub="broker";',
        }
        properties[f"{_PREFIX}sasl.enabled.mechanisms"] = ",".join(security.mechanisms)
        for mechanism in security.mechanisms:
            properties[f"{_PREFIX}{mechanism.lower()}.sasl.jaas.config"] = modules[mechanism]
        if "OAUTHBEARER" in security.mechanisms:
            properties[f"{_PREFIX}oauthbearer.sasl.server.callback.handler.class"] = _VALIDATOR
    return properties


def scram_arguments(users: Mapping[str, Secret]) -> list[str]:
    """What StorageTool is told of the users (KIP-900): salted, as anyone can read a command line."""
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


def make_certificate(java: Path, folder: Path, password: Secret) -> dict[str, str]:
    """Makes a self-signed certificate for localhost with Java's keytool; the key store, and its properties.

    What clients are to trust is written beside it, in PEM.
    """
    store = folder / "server.p12"
    if not store.exists():
        _keytool(
            java, password,
            "-genkeypair", "-alias", "kafka", "-keyalg", "EC", "-groupname", "secp256r1",
            "-dname", "CN=localhost", "-ext", "SAN=DNS:localhost,IP:127.0.0.1", "-validity", str(_CERTIFICATE_DAYS),
            "-storetype", "PKCS12", "-keystore", str(store),
        )  # fmt: skip
        trusted = str(folder / "client-truststore.pem")
        _keytool(java, password, "-exportcert", "-rfc", "-alias", "kafka", "-keystore", str(store), "-file", trusted)
    return {"type": "PKCS12", "location": str(store), "password": password.reveal()}


def _keytool(java: Path, password: Secret, *arguments: str) -> None:
    command = [str(java.with_name("keytool")), *arguments, "-storepass:env", _KEYSTORE_PASSWORD]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {_KEYSTORE_PASSWORD: password.reveal()},
        )
    except OSError as failure:
        raise KafkaEosError(
            "EMBEDDED_KAFKA_FAILED",
            f"{command[0]} does not run ({failure.strerror}), and without it a certificate must be given.",
        ) from None
    if answer.returncode != 0:
        raise KafkaEosError("EMBEDDED_KAFKA_FAILED", f"keytool could not make a certificate; it said: {answer.stdout}")


def client_properties(
    security: BrokerSecurity, users: Mapping[str, Secret], bootstrap_servers: str, trusted: Path
) -> dict[str, str]:
    """What a client, Java's or ours, is to be told; `trusted` is the PEM file of what it is to trust."""
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
