"""The security of connections, as ``settings/security_properties.py`` reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from kafka_eos_sink.errors import ConfigurationError

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
TlsVersion = Literal["TLSv1.2", "TLSv1.3"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]

TLS_PROTOCOLS = ("SSL", "SASL_SSL")
SASL_PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")


class Secret:
    """Text that no repr shows and no pickle contains."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text; call only at its use, so that no copy reaches a log or error."""
        return self._text

    def __repr__(self) -> str:
        return "[hidden]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> NoReturn:
        # Spark pickles what it sends to workers, and may write the pickle to disk.
        raise TypeError("a secret cannot be pickled; each process resolves its own from the options")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Certificates and private key, as PEM text and not as paths, and versions of TLS."""

    trusted_certificates: str | None = field(default=None, repr=False)
    """The authorities that must have signed a broker's certificate. None: the operating system's."""
    certificate_chain: str | None = field(default=None, repr=False)
    """This client's certificate first, then its issuers. Set together with ``private_key`` or not at all."""
    private_key: Secret | None = None
    private_key_password: Secret | None = None
    verify_host_name: bool = True
    minimum_version: TlsVersion = "TLSv1.2"
    maximum_version: TlsVersion = "TLSv1.3"
    cipher_suites: tuple[str, ...] = ()
    """TLS 1.2 cipher suites by OpenSSL's names. Empty: OpenSSL chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordCredentials:
    """User name and password of PLAIN and SCRAM.

    If ``is_delegation_token`` (Java's ``tokenauth``), they are a delegation token's id and HMAC (KIP-48).
    """

    username: str = field(repr=False)
    password: Secret
    is_delegation_token: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """A token endpoint (https) and the client's credentials there (RFC 6749, 4.4).

    ``url_encoded`` is Java's ``sasl.oauthbearer.header.urlencode``: the header carries id and secret form-encoded.
    """

    token_endpoint_url: str = field(repr=False)
    client_id: str = field(repr=False)
    client_secret: Secret
    scope: str | None = field(default=None, repr=False)
    url_encoded: bool = False
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenProvider:
    """A user's ``package.module:callable``: returns (token, expiry in s since 1970)."""

    name: str
    provide: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsecuredToken:
    """A token without a signature. Only test brokers accept such tokens."""

    principal: str = field(repr=False)


TokenSource = ClientCredentials | TokenProvider | UnsecuredToken


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCredentials:
    """OAUTHBEARER's token source, and the extensions sent with each token (KIP-342)."""

    source: TokenSource
    extensions: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KerberosCredentials:
    """The source of a Kerberos ticket: a keytab with a principal, or a ticket cache.

    ``service_name`` is the first part of the brokers' principals. A None ``ticket_cache`` is that of the environment (KRB5CCNAME).
    """

    service_name: str
    principal: str | None = None
    keytab: str | None = None
    ticket_cache: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    """A mechanism and its credentials: a token, a ticket, or a password."""

    mechanism: SaslMechanism
    credentials: PasswordCredentials | TokenCredentials | KerberosCredentials


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """How every connection to the cluster is secured.

    Raises:
        ConfigurationError: SECURITY_PROTOCOL, if the protocol uses SASL and ``sasl`` is None.
    """

    protocol: SecurityProtocol = "PLAINTEXT"
    tls: TlsConfig = TlsConfig()
    sasl: SaslConfig | None = None

    def __post_init__(self) -> None:
        if self.uses_sasl and self.sasl is None:
            raise ConfigurationError(
                "SECURITY_PROTOCOL",
                f"security.protocol={self.protocol} needs sasl.mechanism and credentials; set both, or a protocol without SASL",
            )

    @property
    def uses_tls(self) -> bool:
        return self.protocol in TLS_PROTOCOLS

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in SASL_PROTOCOLS


PLAINTEXT = SecurityConfig()
"""No encryption and no authentication."""
