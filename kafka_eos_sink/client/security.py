"""How connections are secured: values only. What they come from is read in ``settings/security_properties.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from kafka_eos_sink.errors import ConfigurationError

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
TlsVersion = Literal["TLSv1.2", "TLSv1.3"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


class Secret:
    """A text that is shown nowhere: no repr holds it and no pickle takes it along."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text, for the one place that uses it."""
        return self._text

    def __repr__(self) -> str:
        return "[hidden]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled: each process resolves its own")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Whom TLS connections trust and who they say they are; everything that was in files is text in PEM here.

    trusted_certificates   the certificates that brokers must be signed by; None trusts those of the system
    certificate_chain      this client's own certificate first, then its issuers; with `private_key`, or neither
    cipher_suites          of TLS 1.2, by OpenSSL's names; none leaves the choice to OpenSSL
    """

    trusted_certificates: str | None = field(default=None, repr=False)
    certificate_chain: str | None = field(default=None, repr=False)
    private_key: Secret | None = None
    private_key_password: Secret | None = None
    verify_host_name: bool = True
    minimum_version: TlsVersion = "TLSv1.2"
    maximum_version: TlsVersion = "TLSv1.3"
    cipher_suites: tuple[str, ...] = ()


SYSTEM_TRUST = TlsConfig()
"""Trusts what the system trusts, and shows no certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordCredentials:
    """Of PLAIN and SCRAM."""

    username: str
    password: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """Tokens are fetched from an https endpoint by the OAuth 2 client credentials grant (RFC 6749, 4.4).

    `url_encoded` is Java's ``sasl.oauthbearer.header.urlencode``: id and secret are form-encoded in the header.
    """

    token_endpoint_url: str
    client_id: str
    client_secret: Secret
    scope: str | None = None
    url_encoded: bool = False
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenProvider:
    """Tokens come from the user's own function, which takes nothing and returns (token, seconds since 1970 when it
    expires). `name` is what the option says, ``package.module:callable``."""

    name: str
    provide: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsecuredToken:
    """A token that nobody signed, for brokers that are set up to believe any: a broker for trying things out."""

    principal: str


TokenSource = ClientCredentials | TokenProvider | UnsecuredToken


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCredentials:
    """Of OAUTHBEARER; `extensions` are sent along with the token (KIP-342)."""

    source: TokenSource
    extensions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    """The mechanism and what it proves the principal with: a password, or a token for OAUTHBEARER."""

    mechanism: SaslMechanism
    credentials: PasswordCredentials | TokenCredentials

    def __post_init__(self) -> None:
        if (self.mechanism == "OAUTHBEARER") != isinstance(self.credentials, TokenCredentials):
            raise ConfigurationError(
                "SECURITY_PROTOCOL", f"sasl.mechanism={self.mechanism} takes another kind of credentials"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """How every connection to the cluster is secured, whatever broker it goes to.

    Raises ConfigurationError SECURITY_PROTOCOL where the protocol asks for SASL and `sasl` is missing.
    """

    protocol: SecurityProtocol = "PLAINTEXT"
    tls: TlsConfig = SYSTEM_TRUST
    sasl: SaslConfig | None = None

    def __post_init__(self) -> None:
        if self.uses_sasl and self.sasl is None:
            raise ConfigurationError(
                "SECURITY_PROTOCOL", f"security.protocol={self.protocol} needs sasl.mechanism and credentials"
            )

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")


PLAINTEXT = SecurityConfig()
"""Neither encrypted nor authenticated."""
