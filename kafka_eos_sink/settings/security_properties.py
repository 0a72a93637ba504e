"""``security.protocol``, ``ssl.*`` and ``sasl.*``, read into one ``SecurityConfig``.

The reader opens files and stores on the machine that uses them. Their problems are reported with all others, before
anything connects. No message contains a password, a key or a token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args
from urllib.parse import urlsplit

from kafka_eos_sink.client import key_stores, security
from kafka_eos_sink.client.tls import tls_context
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.plugins import load_callable
from kafka_eos_sink.settings.jaas import parse_jaas
from kafka_eos_sink.settings.table import SECURITY

T = TypeVar("T")

_LOGIN_MODULES = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}
_TOKEN_OPTIONS = ("clientId", "clientSecret", "scope", "unsecuredLoginStringClaim_sub")
_CLIENT_ID = ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id")
_CLIENT_SECRET = ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret")
_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_PROVIDER = "sasl.oauthbearer.token.provider"
_EXTENSION = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_TLS_1_3_SUITE = re.compile(r"TLS_(?!.*_WITH_)[A-Z0-9_]+")


@dataclass(slots=True)
class SecurityReader:
    """Combine checked values into one ``SecurityConfig``.

    Args:
        values: Parsed values by name, of the names in ``SECURITY``.
        broken: Names whose values could not be parsed. Their problems are reported already.
        prefix: Precedes each name in messages.
        problems: Receives one sentence per problem.
        warnings: Receives one sentence about all options that the protocol does not use, and one per weak combination.
    """

    values: Mapping[str, Any]
    broken: frozenset[str]
    prefix: str
    problems: list[str]
    warnings: list[str]
    protocol: security.SecurityProtocol = field(init=False)
    mechanism: security.SaslMechanism | None = field(init=False)
    jaas: dict[str, str] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.protocol = self.values.get("security.protocol", SECURITY["security.protocol"].default_value)
        self.mechanism = self.values.get("sasl.mechanism")

    def read(self) -> security.SecurityConfig | None:
        """Return the configuration, or None if there was a problem."""
        before = len(self.problems)
        with_sasl = self.protocol in security.SASL_PROTOCOLS
        # The https connection to the token endpoint trusts the same certificates as the connections to brokers.
        with_tls = self.protocol in security.TLS_PROTOCOLS or (with_sasl and _ENDPOINT in self.values)
        unused = [
            f"{self.prefix}{name}"
            for name in sorted(self.values)
            if (name.startswith("ssl.") and not with_tls) or (name.startswith("sasl.") and not with_sasl)
        ]
        # A warning as in Java, not an error: one properties file may serve listeners of several kinds.
        if unused:
            self.warnings.append(
                f"{', '.join(unused)}: no effect while {self.prefix}security.protocol is {self.protocol}"
            )
        tls = self._tls() if with_tls else security.TlsConfig()
        sasl = self._sasl() if with_sasl else None
        if self.broken or len(self.problems) > before:
            return None
        if self.protocol == "SASL_PLAINTEXT" and self.mechanism == "PLAIN":
            self.warnings.append(
                f"{self.prefix}sasl.mechanism=PLAIN sends the password over an unencrypted connection; "
                f"{self.prefix}security.protocol=SASL_SSL encrypts it"
            )
        return security.SecurityConfig(protocol=self.protocol, tls=tls, sasl=sasl)

    def _problem(self, name: str, text: str) -> None:
        # One cause, one sentence: the value of a broken name has its own.
        if name not in self.broken:
            self.problems.append(f"{self.prefix}{name} {text}")

    def _tls(self) -> security.TlsConfig:
        before = len(self.problems)
        keys = self._key_material()
        versions, suites = self._versions_and_suites()
        password = self._secret("ssl.key.password")
        if keys is not None and keys.encrypted and password is None:
            self._problem("ssl.key.password", "is required: the private key is encrypted")
        config = security.TlsConfig(
            trusted_certificates=self._trusted_certificates(),
            certificate_chain=None if keys is None else keys.certificate_chain,
            private_key=None if keys is None else keys.private_key,
            private_key_password=password,
            verify_host_name=self.values.get("ssl.endpoint.identification.algorithm", "https") == "https",
            minimum_version=min(versions, default="TLSv1.2"),
            maximum_version=max(versions, default="TLSv1.3"),
            cipher_suites=suites,
        )
        if len(self.problems) == before:
            # Only OpenSSL knows whether key, certificates and suites fit together, so build the context once before connecting.
            try:
                tls_context(config)
            except ConfigurationError as error:
                self._problem("security.protocol", f"{self.protocol}: {error.message}")
        return config

    def _trusted_certificates(self) -> str | None:
        inline, folder = "ssl.truststore.certificates", "ssl.ca.location"
        source = self._one_of("ssl.truststore.location", inline, folder)
        if source is None:
            self._refuse_password_without("ssl.truststore.location", "ssl.truststore.password")
            return None
        value, password = self.values[source], self._secret("ssl.truststore.password")
        if source == inline:
            if not (found := key_stores.pem_certificates(value)):
                self._problem(source, "must be certificates in PEM")
            return found
        if source == folder:
            return self._from_store(source, lambda: key_stores.certificates_at(value))
        return self._from_store(
            source, lambda: key_stores.trusted_certificates(key_stores.read_store(value), password, "ssl.truststore")
        )

    def _key_material(self) -> key_stores.KeyMaterial | None:
        key, chain = "ssl.keystore.key", "ssl.keystore.certificate.chain"
        source = self._one_of("ssl.keystore.location", key) or self._one_of(chain)
        if source is None:
            self._refuse_password_without("ssl.keystore.location", "ssl.keystore.password")
            return None
        value, password = self.values[source], self._secret("ssl.keystore.password")
        if source == "ssl.keystore.location":
            return self._from_store(
                source, lambda: key_stores.key_material(key_stores.read_store(value), password, "ssl.keystore")
            )
        for name in (key, chain):
            if name not in self.values:
                self._problem(name, f"is required with {source}")
                return None
        return self._from_store(source, lambda: key_stores.pem_key_material(self.values[key], self.values[chain]))

    def _from_store(self, name: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except key_stores.StoreProblem as problem:
            self.problems.append(f"{self.prefix}{name}: {problem}")
            return None

    def _versions_and_suites(self) -> tuple[set[security.TlsVersion], tuple[str, ...]]:
        """Return the TLS versions that all three options allow, and the TLS 1.2 suites by OpenSSL's names."""
        versions: set[security.TlsVersion] = set(
            self.values.get("ssl.enabled.protocols", get_args(security.TlsVersion))
        )
        # In Java ssl.protocol names the newest version that the context can negotiate.
        if self.values.get("ssl.protocol") == "TLSv1.2":
            versions.discard("TLSv1.3")
        suites: tuple[str, ...] = ()
        if "ssl.cipher.suites" in self.values:
            named = [each.strip() for each in self.values["ssl.cipher.suites"].split(",") if each.strip()]
            suites = tuple(_openssl_name(name) for name in named if _TLS_1_3_SUITE.fullmatch(name) is None)
            # A list without a suite of one TLS version switches that version off, as in Java.
            if not suites:
                versions.discard("TLSv1.2")
            if len(suites) == len(named):
                versions.discard("TLSv1.3")
            elif "TLSv1.3" in versions:
                self.warnings.append(
                    f"{self.prefix}ssl.cipher.suites: OpenSSL chooses the suite of TLS 1.3; all of them are strong"
                )
        if not versions:
            self._problem(
                "ssl.enabled.protocols", "leaves no TLS version together with ssl.protocol and ssl.cipher.suites"
            )
        return versions, suites

    def _sasl(self) -> security.SaslConfig | None:
        if self.mechanism is None:
            self._problem(
                "sasl.mechanism",
                f"is required with security.protocol={self.protocol}: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or "
                "OAUTHBEARER (Java's default, Kerberos, is not possible)",
            )
            return None
        if not self._read_jaas():
            return None
        if self.mechanism == "OAUTHBEARER":
            for name in ("sasl.username", "sasl.password"):
                if name in self.values:
                    self._problem(name, "is for PLAIN and SCRAM; OAUTHBEARER takes a token; remove it")
            tokens = self._token_credentials()
            return None if tokens is None else security.SaslConfig(mechanism="OAUTHBEARER", credentials=tokens)
        passwords = self._password_credentials()
        return None if passwords is None else security.SaslConfig(mechanism=self.mechanism, credentials=passwords)

    def _read_jaas(self) -> bool:
        """Store the options of the login module. Return False if the text cannot be used."""
        text = self.values.get("sasl.jaas.config")
        if text is None:
            return True
        try:
            module = parse_jaas(text)
        except ValueError as error:
            self.problems.append(f"{self.prefix}sasl.jaas.config: {error}")
            return False
        # Java fails at the first login with such a module. Here the error comes before anything connects.
        if self.mechanism not in _LOGIN_MODULES.get(module.name, ()):
            fitting = next(name for name, mechanisms in _LOGIN_MODULES.items() if self.mechanism in mechanisms)
            self._problem("sasl.jaas.config", f"must be of {fitting}, as sasl.mechanism is {self.mechanism}")
            return False
        known = _TOKEN_OPTIONS if module.name == "OAuthBearerLoginModule" else ("username", "password")
        # A misspelt option must not fall back to a default: no name outside the list is accepted.
        for name in module.options:
            if name not in known and not (known is _TOKEN_OPTIONS and name.startswith("extension_")):
                self._problem("sasl.jaas.config", f"has the option {name}; only {', '.join(known)} are supported")
        self.jaas = module.options
        return True

    def _password_credentials(self) -> security.PasswordCredentials | None:
        found: list[str] = []
        for name, option in (("sasl.username", "username"), ("sasl.password", "password")):
            value = self._one_value((name,), option)
            if not value:
                self._problem(
                    name, f'is required with sasl.mechanism={self.mechanism} (or {option}="..." in sasl.jaas.config)'
                )
            elif "\0" in value:
                self._problem(name, "holds a character 0, which SASL does not allow")
            else:
                found.append(value)
        return (
            security.PasswordCredentials(username=found[0], password=security.Secret(found[1]))
            if len(found) == 2
            else None
        )

    def _token_credentials(self) -> security.TokenCredentials | None:
        extensions = {
            name.removeprefix("extension_"): value for name, value in self.jaas.items() if name.startswith("extension_")
        }
        # RFC 7628, 3.1: keys are letters, "auth" belongs to the token itself.
        for name, value in extensions.items():
            if _EXTENSION.fullmatch(name) is None or name == "auth" or _EXTENSION_VALUE.fullmatch(value) is None:
                self._problem("sasl.jaas.config", f"has an extension_{name} that OAUTHBEARER does not allow")
        source = self._token_source()
        if source is None:
            return None
        return security.TokenCredentials(source=source, extensions=tuple(sorted(extensions.items())))

    def _token_source(self) -> security.TokenSource | None:
        principal = self.jaas.get("unsecuredLoginStringClaim_sub")
        sources = [name for name in (_ENDPOINT, _PROVIDER) if name in self.values]
        # A source that could not be read was given: "is required" would be wrong.
        if self.broken.intersection((_ENDPOINT, _PROVIDER)):
            return None
        if len(sources) + (principal is not None) != 1:
            self._problem(
                _ENDPOINT,
                f"or {self.prefix}{_PROVIDER} is required with OAUTHBEARER, and only one of them (a broker for tests "
                "may also take unsecuredLoginStringClaim_sub in sasl.jaas.config)",
            )
            return None
        if principal is not None:
            return security.UnsecuredToken(principal=principal)
        return self._client_credentials() if sources == [_ENDPOINT] else self._token_provider()

    def _client_credentials(self) -> security.ClientCredentials | None:
        url = self.values[_ENDPOINT]
        try:
            # Reading parts.port raises ValueError if it is not a number. A password in the address would reach logs.
            parts = urlsplit(url)
            fine = parts.scheme == "https" and bool(parts.hostname) and parts.username is None and parts.port != 0
        except ValueError:
            fine = False
        if not fine or not url.isascii() or not url.isprintable() or " " in url:
            self._problem(_ENDPOINT, "must be an address that begins with https:// and holds no password")
        client_id = self._one_value(_CLIENT_ID, "clientId")
        client_secret = self._one_value(_CLIENT_SECRET, "clientSecret")
        for names, value in ((_CLIENT_ID, client_id), (_CLIENT_SECRET, client_secret)):
            if not value:
                self._problem(names[1], f"is required with {_ENDPOINT}")
        if not fine or not client_id or not client_secret:
            return None
        return security.ClientCredentials(
            token_endpoint_url=url,
            client_id=client_id,
            client_secret=security.Secret(client_secret),
            scope=self._one_value(("sasl.oauthbearer.scope",), "scope"),
            **{
                row.lands_in: self.values[name]
                for name, row in SECURITY.items()
                if row.target is security.ClientCredentials and name in self.values
            },
        )

    def _token_provider(self) -> security.TokenProvider | None:
        name = self.values[_PROVIDER]
        try:
            # Importing runs the user's module. Its message may contain the secret that it fetches tokens with.
            return security.TokenProvider(
                name=name, provide=load_callable(name, f"{self.prefix}{_PROVIDER}", show_cause=False)
            )
        except ConfigurationError as error:
            self.problems.append(error.message)
            return None

    def _refuse_password_without(self, location: str, password: str) -> None:
        if self.values.get(password) and location not in self.broken:
            self._problem(password, f"is given without {location}")

    def _secret(self, name: str) -> security.Secret | None:
        return security.Secret(self.values[name]) if self.values.get(name) else None

    def _one_of(self, *names: str) -> str | None:
        """Return the name that was given; report a problem if several were."""
        given = [name for name in names if name in self.values]
        if len(given) > 1:
            self._problem(given[1], f"is given together with {given[0]}; remove one of them")
        return given[0] if given else None

    def _one_value(self, names: tuple[str, ...], jaas_option: str) -> str | None:
        """Return the value of the login module's option or of one of `names`, and None if none was given."""
        # Neither place wins over the other, so that no stale value is used unnoticed.
        if jaas_option in self.jaas:
            for name in names:
                if name in self.values:
                    self._problem(name, f"is given together with {jaas_option} in sasl.jaas.config")
            return self.jaas[jaas_option]
        given = self._one_of(*names)
        return None if given is None else str(self.values[given])


def _openssl_name(suite: str) -> str:
    """Translate Java's name of a TLS 1.2 suite to OpenSSL's; another name stays as it is.

    ``TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`` becomes ``ECDHE-RSA-AES256-GCM-SHA384``.
    """
    found = re.fullmatch(r"(?:TLS|SSL)_(.+)_WITH_(.+)", suite)
    if found is None:
        return suite
    exchange, cipher = found[1], re.sub(r"AES_(\d+)_", r"AES\1_", found[2]).replace("_CBC_", "_")
    # OpenSSL leaves the hash out of this suite's name.
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")
