"""``security.protocol``, ``ssl.*`` and ``sasl.*``, read into one ``SecurityConfig``.

The reader opens files and stores on the machine that uses them. Their problems are reported with all others, before
anything connects. No message contains a password, a key or a token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args
from urllib.parse import urlsplit

from kafka_eos_sink.client import key_stores
from kafka_eos_sink.client.security import (
    SASL_PROTOCOLS,
    TLS_PROTOCOLS,
    ClientCredentials,
    PasswordCredentials,
    SaslConfig,
    Secret,
    SecurityConfig,
    TlsConfig,
    TlsVersion,
    TokenCredentials,
    TokenProvider,
    TokenSource,
    UnsecuredToken,
)
from kafka_eos_sink.client.tls import tls_context
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.plugins import load_object
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
_VERSIONS = get_args(TlsVersion)


def read_security(
    values: Mapping[str, Any], broken: frozenset[str], prefix: str, problems: list[str], warnings: list[str]
) -> SecurityConfig | None:
    """Combine the checked values into one configuration.

    Args:
        values: Parsed values by name, of the names in ``SECURITY``.
        broken: Names whose values could not be parsed. Their problems are reported already.
        prefix: Precedes each name in messages.
        problems: Receives one sentence per problem.
        warnings: Receives one sentence per option that the protocol does not use, and about weak combinations.

    Returns:
        None if there was a problem.
    """
    return _SecurityReader(values, broken, prefix, problems, warnings).read()


class _SecurityReader:
    def __init__(
        self,
        values: Mapping[str, Any],
        broken: frozenset[str],
        prefix: str,
        problems: list[str],
        warnings: list[str],
    ) -> None:
        self._values = values
        self._broken = broken
        self._prefix = prefix
        self._problems = problems
        self._warnings = warnings
        self._protocol = values.get("security.protocol", SECURITY["security.protocol"].default_value)
        self._mechanism = values.get("sasl.mechanism")
        self._with_tls = self._protocol in TLS_PROTOCOLS
        self._with_sasl = self._protocol in SASL_PROTOCOLS
        self._jaas: dict[str, str] = {}

    def read(self) -> SecurityConfig | None:
        before = len(self._problems)
        uses_endpoint = self._with_sasl and _ENDPOINT in self._values
        self._warn_of_names_without_effect(uses_endpoint)
        # The https connection to the token endpoint trusts the same certificates as the connections to brokers.
        tls = self._tls() if self._with_tls or uses_endpoint else TlsConfig()
        sasl = self._sasl() if self._with_sasl else None
        if self._broken or len(self._problems) > before:
            return None
        if self._protocol == "SASL_PLAINTEXT" and self._mechanism == "PLAIN":
            self._warnings.append(
                f"{self._prefix}sasl.mechanism=PLAIN sends the password over an unencrypted connection; "
                f"{self._prefix}security.protocol=SASL_SSL encrypts it"
            )
        return SecurityConfig(protocol=self._protocol, tls=tls, sasl=sasl)

    def _problem(self, name: str, text: str) -> None:
        if name not in self._broken:
            self._problems.append(f"{self._prefix}{name} {text}")

    def _warn_of_names_without_effect(self, uses_endpoint: bool) -> None:
        """Warn once about all options that the protocol does not use.

        As in Java they are not errors: one properties file may serve listeners of several kinds.
        """
        idle = [
            f"{self._prefix}{name}"
            for name in sorted(self._values)
            if (name.startswith("ssl.") and not self._with_tls and not uses_endpoint)
            or (name.startswith("sasl.") and not self._with_sasl)
        ]
        if idle:
            self._warnings.append(
                f"{', '.join(idle)}: no effect while {self._prefix}security.protocol is {self._protocol}"
            )

    def _tls(self) -> TlsConfig:
        before = len(self._problems)
        keys = self._key_material()
        versions, suites = self._versions_and_suites()
        password = self._secret("ssl.key.password")
        if keys is not None and keys.encrypted and password is None:
            self._problem("ssl.key.password", "is required: the private key is encrypted")
        config = TlsConfig(
            trusted_certificates=self._trusted_certificates(),
            certificate_chain=None if keys is None else keys.certificate_chain,
            private_key=None if keys is None else keys.private_key,
            private_key_password=password,
            verify_host_name=self._values.get("ssl.endpoint.identification.algorithm", "https") == "https",
            minimum_version=min(versions, default="TLSv1.2"),  # type: ignore[arg-type]
            maximum_version=max(versions, default="TLSv1.3"),  # type: ignore[arg-type]
            cipher_suites=suites,
        )
        if len(self._problems) == before:
            try:
                tls_context(config)
            except ConfigurationError as error:
                self._problem("security.protocol", f"{self._protocol}: {error.message}")
        return config

    def _trusted_certificates(self) -> str | None:
        source = self._one_of("ssl.truststore.location", "ssl.truststore.certificates", "ssl.ca.location")
        password = self._secret("ssl.truststore.password")
        if source is None:
            if password is not None and "ssl.truststore.location" not in self._broken:
                self._problem("ssl.truststore.password", "is given without ssl.truststore.location")
            return None
        value = self._values[source]
        if source == "ssl.ca.location":
            return self._from_store(source, lambda: key_stores.certificates_at(value))
        if source == "ssl.truststore.certificates":
            if not (found := key_stores.pem_certificates(value)):
                self._problem(source, "must be certificates in PEM")
            return found
        return self._from_store(
            source,
            lambda: key_stores.trusted_certificates(key_stores.read_store(value), password, "ssl.truststore"),
        )

    def _key_material(self) -> key_stores.KeyMaterial | None:
        inline = ("ssl.keystore.key", "ssl.keystore.certificate.chain")
        source = self._one_of("ssl.keystore.location", inline[0]) or self._one_of(inline[1])
        password = self._secret("ssl.keystore.password")
        if source is None:
            if password is not None and "ssl.keystore.location" not in self._broken:
                self._problem("ssl.keystore.password", "is given without ssl.keystore.location")
            return None
        value = self._values[source]
        if source == "ssl.keystore.location":
            return self._from_store(
                source, lambda: key_stores.key_material(key_stores.read_store(value), password, "ssl.keystore")
            )
        missing = [name for name in inline if name not in self._values]
        if missing:
            self._problem(missing[0], f"is required with {source}")
            return None
        key, chain = (self._values[name] for name in inline)
        return self._from_store(source, lambda: key_stores.pem_key_material(key, chain))

    def _from_store(self, name: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except key_stores.StoreProblem as problem:
            self._problems.append(f"{self._prefix}{name}: {problem}")
            return None

    def _versions_and_suites(self) -> tuple[set[str], tuple[str, ...]]:
        """Return the TLS versions that all three options allow, and the TLS 1.2 suites by OpenSSL's names."""
        versions = set(self._values.get("ssl.enabled.protocols", _VERSIONS))
        if self._values.get("ssl.protocol") == "TLSv1.2":
            versions.discard("TLSv1.3")
        suites: tuple[str, ...] = ()
        if "ssl.cipher.suites" in self._values:
            named = [each.strip() for each in self._values["ssl.cipher.suites"].split(",") if each.strip()]
            suites = tuple(_openssl_name(name) for name in named if _TLS_1_3_SUITE.fullmatch(name) is None)
            # A list without a suite of one TLS version switches that version off, as in Java.
            if not suites:
                versions.discard("TLSv1.2")
            if len(suites) == len(named):
                versions.discard("TLSv1.3")
            elif "TLSv1.3" in versions:
                self._warnings.append(
                    f"{self._prefix}ssl.cipher.suites: OpenSSL chooses the suite of TLS 1.3; all of them are strong"
                )
        if not versions:
            self._problem(
                "ssl.enabled.protocols", "leaves no TLS version together with ssl.protocol and ssl.cipher.suites"
            )
        return versions, suites

    def _sasl(self) -> SaslConfig | None:
        if self._mechanism is None:
            self._problem(
                "sasl.mechanism",
                f"is required with security.protocol={self._protocol}: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or "
                "OAUTHBEARER (Java's default, Kerberos, is not possible)",
            )
            return None
        if not self._read_jaas():
            return None
        if self._mechanism == "OAUTHBEARER":
            for name in ("sasl.username", "sasl.password"):
                if name in self._values:
                    self._problem(name, "is for PLAIN and SCRAM; OAUTHBEARER takes a token; remove it")
            tokens = self._token_credentials()
            return None if tokens is None else SaslConfig(mechanism="OAUTHBEARER", credentials=tokens)
        passwords = self._password_credentials()
        return None if passwords is None else SaslConfig(mechanism=self._mechanism, credentials=passwords)

    def _read_jaas(self) -> bool:
        """Store the options of the login module. Return False if the text cannot be used."""
        text = self._values.get("sasl.jaas.config")
        if text is None:
            return True
        try:
            module = parse_jaas(text)
        except ValueError as error:
            self._problems.append(f"{self._prefix}sasl.jaas.config: {error}")
            return False
        if self._mechanism not in _LOGIN_MODULES.get(module.name, ()):
            fitting = next(name for name, mechanisms in _LOGIN_MODULES.items() if self._mechanism in mechanisms)
            self._problem("sasl.jaas.config", f"must be of {fitting}, as sasl.mechanism is {self._mechanism}")
            return False
        known = _TOKEN_OPTIONS if module.name == "OAuthBearerLoginModule" else ("username", "password")
        for name in module.options:
            if name not in known and not (known is _TOKEN_OPTIONS and name.startswith("extension_")):
                self._problem("sasl.jaas.config", f"has the option {name}; only {', '.join(known)} are supported")
        self._jaas = module.options
        return True

    def _password_credentials(self) -> PasswordCredentials | None:
        found: list[str] = []
        for name, option in (("sasl.username", "username"), ("sasl.password", "password")):
            value = self._one_value((name,), option)
            if not value:
                self._problem(
                    name, f'is required with sasl.mechanism={self._mechanism} (or {option}="..." in sasl.jaas.config)'
                )
            elif "\0" in value:
                self._problem(name, "holds a character 0, which SASL does not allow")
            else:
                found.append(value)
        return PasswordCredentials(username=found[0], password=Secret(found[1])) if len(found) == 2 else None

    def _token_credentials(self) -> TokenCredentials | None:
        extensions = {
            name.removeprefix("extension_"): value
            for name, value in self._jaas.items()
            if name.startswith("extension_")
        }
        for name, value in extensions.items():
            if _EXTENSION.fullmatch(name) is None or name == "auth" or _EXTENSION_VALUE.fullmatch(value) is None:
                self._problem("sasl.jaas.config", f"has an extension_{name} that OAUTHBEARER does not allow")
        source = self._token_source()
        if source is None:
            return None
        return TokenCredentials(source=source, extensions=tuple(sorted(extensions.items())))

    def _token_source(self) -> TokenSource | None:
        principal = self._jaas.get("unsecuredLoginStringClaim_sub")
        sources = [name for name in (_ENDPOINT, _PROVIDER) if name in self._values]
        if self._broken.intersection((_ENDPOINT, _PROVIDER)):
            return None
        if len(sources) + (principal is not None) != 1:
            self._problem(
                _ENDPOINT,
                f"or {self._prefix}{_PROVIDER} is required with OAUTHBEARER, and only one of them (a broker for tests "
                "may also take unsecuredLoginStringClaim_sub in sasl.jaas.config)",
            )
            return None
        if principal is not None:
            return UnsecuredToken(principal=principal)
        return self._client_credentials() if sources == [_ENDPOINT] else self._token_provider()

    def _client_credentials(self) -> ClientCredentials | None:
        url = self._values[_ENDPOINT]
        try:
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
        return ClientCredentials(
            token_endpoint_url=url,
            client_id=client_id,
            client_secret=Secret(client_secret),
            scope=self._one_value(("sasl.oauthbearer.scope",), "scope"),
            **{
                row.lands_in: self._values[name]
                for name, row in SECURITY.items()
                if row.target is ClientCredentials and name in self._values
            },
        )

    def _token_provider(self) -> TokenProvider | None:
        name = self._values[_PROVIDER]
        try:
            provide = load_object(name, _PROVIDER)
        except ConfigurationError as error:
            self._problems.append(f"{self._prefix}{error.message}")
            return None
        except Exception as error:
            # Importing runs the user's module. Its message may contain the secret that it fetches tokens with.
            self._problems.append(f"{self._prefix}{_PROVIDER}: importing {name!r} raised {type(error).__name__}")
            return None
        if not callable(provide):
            self._problem(_PROVIDER, f"{name!r} is not callable")
            return None
        return TokenProvider(name=name, provide=provide)

    def _secret(self, name: str) -> Secret | None:
        return Secret(self._values[name]) if self._values.get(name) else None

    def _one_of(self, *names: str) -> str | None:
        """Return the name that was given; report a problem if several were."""
        given = [name for name in names if name in self._values]
        if len(given) > 1:
            self._problem(given[1], f"is given together with {given[0]}; remove one of them")
        return given[0] if given else None

    def _one_value(self, names: tuple[str, ...], jaas_option: str) -> str | None:
        """Return the value of the login module's option or of one of `names`, and None if none was given."""
        if jaas_option in self._jaas:
            for name in names:
                if name in self._values:
                    self._problem(name, f"is given together with {jaas_option} in sasl.jaas.config")
            return self._jaas[jaas_option]
        given = self._one_of(*names)
        return None if given is None else str(self._values[given])


def _openssl_name(suite: str) -> str:
    """Translate Java's name of a TLS 1.2 suite to OpenSSL's; another name stays as it is.

    ``TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`` becomes ``ECDHE-RSA-AES256-GCM-SHA384``.
    """
    found = re.fullmatch(r"(?:TLS|SSL)_(.+)_WITH_(.+)", suite)
    if found is None:
        return suite
    exchange, cipher = found[1], re.sub(r"AES_(\d+)_", r"AES\1_", found[2]).replace("_CBC_", "_")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")
