"""Read ``security.protocol``, ``ssl.*``, ``sasl.*`` into one ``SecurityConfig``.

The reader opens files and stores on the machine that uses them. Their problems are reported with all others, before
anything connects. No message contains a password, a key or a token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args
from urllib.parse import urlsplit

from kafka_eos_sink.client import key_stores, msk_iam, security
from kafka_eos_sink.client.config import with_prefix
from kafka_eos_sink.client.tls import tls_context
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.extras import install_command
from kafka_eos_sink.plugins import load_callable
from kafka_eos_sink.producer.config import OBJECT_NAME
from kafka_eos_sink.settings.jaas import parse_jaas
from kafka_eos_sink.settings.kinds import AS_GIVEN
from kafka_eos_sink.settings.secrets import VARIABLE, switched_off
from kafka_eos_sink.settings.table import SECURITY, fields_of

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
_EXTENSIONS = "sasl.oauthbearer.extensions"
_EXTENSION_PREFIX = "extension_"
_EXTENSION = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_TLS_1_3_SUITE = re.compile(r"TLS_(?!.*_WITH_)[A-Z0-9_]+")


@dataclass(slots=True, repr=False)
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
    jaas: dict[str, str] = field(init=False, default_factory=dict)

    def read(self) -> security.SecurityConfig | None:
        """Return the configuration, or None if there was a problem."""
        before = len(self.problems)
        protocol: security.SecurityProtocol = self.values.get("security.protocol", security.PLAINTEXT.protocol)
        with_sasl = protocol in security.SASL_PROTOCOLS
        # The https connection to the token endpoint trusts the same certificates as the connections to brokers.
        with_tls = protocol in security.TLS_PROTOCOLS or (with_sasl and _ENDPOINT in self.values)
        unused = [
            f"{self.prefix}{name}"
            for name in sorted(self.values)
            if (name.startswith("ssl.") and not with_tls) or (name.startswith("sasl.") and not with_sasl)
        ]
        # A warning as in Java, not an error: one properties file may serve listeners of several kinds.
        if unused:
            self.warnings.append(f"{', '.join(unused)}: no effect while {self.prefix}security.protocol is {protocol}")
        tls = self._tls(protocol) if with_tls else security.TlsConfig()
        sasl = self._sasl(protocol) if with_sasl else None
        # Often a mistake: the file of a secret ends with a line feed. Java's clients trim these values.
        spaced = [
            f"{self.prefix}{name} begins or ends with white space, and the sink does not trim it"
            for name in sorted(self.values)
            if SECURITY[name].kind is AS_GIVEN and self.values[name] != self.values[name].strip()
        ]
        if self.broken or len(self.problems) > before:
            self.problems += spaced
            return None
        self.warnings += spaced
        found = security.SecurityConfig(protocol=protocol, tls=tls, sasl=sasl)
        self._warn_of_weakness(found)
        return found

    def _warn_of_weakness(self, found: security.SecurityConfig) -> None:
        sent = {"PLAIN": "password", "OAUTHBEARER": "token"}
        credentials = None if found.sasl is None else found.sasl.credentials
        if found.sasl is not None and not found.uses_tls and found.sasl.mechanism in sent:
            self.warnings.append(
                f"{self.prefix}sasl.mechanism={found.sasl.mechanism} sends the {sent[found.sasl.mechanism]} over an unencrypted "
                f"connection, where others can read and use it; {self.prefix}security.protocol=SASL_SSL encrypts it"
            )
        if isinstance(credentials, security.TokenCredentials) and isinstance(
            credentials.source, security.UnsecuredToken
        ):
            self.warnings.append(
                f"{self.prefix}sasl.jaas.config: unsecuredLoginStringClaim_sub makes a token without a signature. A broker that "
                f"accepts it lets every client pose as any user: only for tests; use {self.prefix}{_ENDPOINT} or {self.prefix}{_PROVIDER}"
            )
        if found.uses_tls and not found.tls.verify_host_name:
            self.warnings.append(
                f"{self.prefix}ssl.endpoint.identification.algorithm is empty, so the client accepts a "
                "trusted certificate of any host; set it to https"
            )

    def _require(self, holds: object, name: str, problem: str) -> bool:
        """Return whether the rule holds; report `problem` of the option if it does not."""
        # One sentence per cause: a broken name has its own sentence already.
        if not holds and name not in self.broken:
            self.problems.append(f"{self.prefix}{name} {with_prefix(self.prefix, problem)}")
        return bool(holds)

    def _tls(self, protocol: security.SecurityProtocol) -> security.TlsConfig:
        before = len(self.problems)
        keys = self._key_material()
        versions, suites = self._versions_and_suites()
        password = self._secret("ssl.key.password")
        if keys is not None and keys.encrypted:
            self._require(password, "ssl.key.password", "is required: the private key is encrypted")
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
                self._require(False, "security.protocol", f"{protocol}: {error.message}")
        return config

    def _trusted_certificates(self) -> str | None:
        location, inline, folder = "ssl.truststore.location", "ssl.truststore.certificates", "ssl.ca.location"
        source, password = self._one_of(location, inline, folder), self._secret("ssl.truststore.password")
        if source is None:
            self._require(
                not password or location in self.broken, "ssl.truststore.password", f"is given without {location}"
            )
            return None
        value = self.values[source]
        if source == inline:
            found = key_stores.pem_certificates(value)
            self._require(found, source, "must be certificates in PEM")
            return found
        if source == folder:
            return self._from_store(source, lambda: key_stores.certificates_at(value))
        read = key_stores.trusted_certificates
        return self._from_store(source, lambda: read(key_stores.read_store(value), password, "ssl.truststore"))

    def _key_material(self) -> key_stores.KeyMaterial | None:
        location, key, chain = "ssl.keystore.location", "ssl.keystore.key", "ssl.keystore.certificate.chain"
        source, password = self._one_of(location, key) or self._one_of(chain), self._secret("ssl.keystore.password")
        if source is None:
            self._require(
                not password or location in self.broken, "ssl.keystore.password", f"is given without {location}"
            )
            return None
        value = self.values[source]
        if source == location:
            read = key_stores.key_material
            return self._from_store(source, lambda: read(key_stores.read_store(value), password, "ssl.keystore"))
        if not all(self._require(name in self.values, name, f"is required with {source}") for name in (key, chain)):
            return None
        return self._from_store(source, lambda: key_stores.pem_key_material(self.values[key], self.values[chain]))

    def _from_store(self, name: str, read: Callable[[], T]) -> T | None:
        if name.endswith(".location") and switched_off():
            reason = f"is rejected: {VARIABLE} switches files off in this process; give the certificates and keys inline, as PEM"
            self._require(False, name, reason)
            return None
        try:
            return read()
        except key_stores.StoreProblem as problem:
            self.problems.append(f"{self.prefix}{name}: {problem}")
            return None

    def _versions_and_suites(self) -> tuple[set[security.TlsVersion], tuple[str, ...]]:
        """Return the allowed TLS versions, and the TLS 1.2 suites by OpenSSL's names."""
        versions = set(self.values.get("ssl.enabled.protocols", get_args(security.TlsVersion)))
        # In Java ssl.protocol is the newest version that the context can negotiate.
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
                text = "ssl.cipher.suites: OpenSSL chooses the suite of TLS 1.3; all of them are strong"
                self.warnings.append(f"{self.prefix}{text}")
        together = "leaves no TLS version together with ssl.protocol and ssl.cipher.suites"
        self._require(versions, "ssl.enabled.protocols", together)
        return versions, suites

    def _sasl(self, protocol: security.SecurityProtocol) -> security.SaslConfig | None:
        mechanism: security.SaslMechanism | None = self.values.get("sasl.mechanism")
        required = (
            f"is required with security.protocol={protocol}: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER "
            "(Java's default, Kerberos, is not possible)"
        )
        self._require(mechanism, "sasl.mechanism", required)
        if mechanism is None or not self._read_jaas(mechanism):
            return None
        read = self._token_credentials if mechanism == "OAUTHBEARER" else self._password_credentials
        credentials = read(mechanism)
        return None if credentials is None else security.SaslConfig(mechanism=mechanism, credentials=credentials)

    def _read_jaas(self, mechanism: security.SaslMechanism) -> bool:
        """Store the options of the login module. Return False if the text cannot be used."""
        name = "sasl.jaas.config"
        if name not in self.values:
            return True
        try:
            module = parse_jaas(self.values[name])
        except ValueError as error:
            self.problems.append(f"{self.prefix}{name}: {error}")
            return False
        # Java fails at the first login with such a module. Here the error comes before anything connects.
        fitting = next(each for each, mechanisms in _LOGIN_MODULES.items() if mechanism in mechanisms)
        if not self._require(module.name == fitting, name, f"must be of {fitting}, as sasl.mechanism is {mechanism}"):
            return False
        known = _TOKEN_OPTIONS if mechanism == "OAUTHBEARER" else ("username", "password")
        # A misspelt option must not fall back to a default: no name outside the list is accepted.
        for number, option in enumerate(module.options, 1):
            is_known = option in known or (known is _TOKEN_OPTIONS and option.startswith(_EXTENSION_PREFIX))
            # Do not show the name: after a blank or a quote in a password, it is a part of the password.
            unknown = f"has an unknown option (number {number}); only {', '.join(known)} are supported"
            self._require(is_known, name, unknown)
        self.jaas = module.options
        return True

    def _password_credentials(self, mechanism: security.SaslMechanism) -> security.PasswordCredentials | None:
        found: list[str] = []
        for option in ("username", "password"):
            name = f"sasl.{option}"
            value = self._one_value(option, name)
            required = f'is required with sasl.mechanism={mechanism} (or {option}="..." in sasl.jaas.config)'
            if not self._require(value, name, required) or value is None:
                continue
            if self._require("\0" not in value, name, "holds a character 0, which SASL does not allow"):
                found.append(value)
        if len(found) < 2:
            return None
        return security.PasswordCredentials(username=found[0], password=security.Secret(found[1]))

    def _token_credentials(self, mechanism: security.SaslMechanism) -> security.TokenCredentials | None:
        for name in ("sasl.username", "sasl.password"):
            mixed = f"is for PLAIN and SCRAM; {mechanism} takes a token; remove it"
            self._require(name not in self.values, name, mixed)
        extensions = self._extensions()
        source = self._token_source()
        if source is None:
            return None
        return security.TokenCredentials(source=source, extensions=tuple(extensions))

    def _extensions(self) -> list[tuple[str, str]]:
        """Return each token's SASL extensions (KIP-342), of the option or login module."""
        place, prefix = "sasl.jaas.config", _EXTENSION_PREFIX
        pairs = [(name.removeprefix(prefix), value) for name, value in self.jaas.items() if name.startswith(prefix)]
        if _EXTENSIONS in self.values:
            self._require(
                not pairs, _EXTENSIONS, f"is given together with extension_... in {place}; remove one of them"
            )
            place, parts = _EXTENSIONS, [each.strip().partition("=") for each in self.values[_EXTENSIONS].split(",")]
            pairs = [(name, value) for name, _, value in parts]
        # RFC 7628, 3.1: keys are letters, "auth" belongs to the token itself. Other bytes could end a field of the message.
        for name, value in pairs:
            allowed = _EXTENSION.fullmatch(name) and name != "auth" and _EXTENSION_VALUE.fullmatch(value)
            # An invalid name may be a part of a secret value, so the message does not show it.
            shown = f" {name}" if _EXTENSION.fullmatch(name) else ""
            self._require(allowed, place, f"has an extension{shown} that is not letters=value, or is named auth")
        self._require(len(dict(pairs)) == len(pairs), place, "has two extensions of the same name")
        return sorted(pairs)

    def _token_source(self) -> security.TokenSource | None:
        # The user has given a source whose value is broken, so "is required" would be wrong.
        if self.broken.intersection((_ENDPOINT, _PROVIDER)):
            return None
        principal = self.jaas.get("unsecuredLoginStringClaim_sub")
        sources = [name for name in (_ENDPOINT, _PROVIDER) if name in self.values]
        one = (
            f"or {self.prefix}{_PROVIDER} is required with OAUTHBEARER, and only one of them (a broker for tests "
            "may also take unsecuredLoginStringClaim_sub in sasl.jaas.config)"
        )
        if not self._require(len(sources) + (principal is not None) == 1, _ENDPOINT, one):
            return None
        if principal is not None:
            return security.UnsecuredToken(principal=principal)
        return self._client_credentials() if sources == [_ENDPOINT] else self._token_provider()

    def _client_credentials(self) -> security.ClientCredentials | None:
        url = self.values[_ENDPOINT]
        safe = "must be an address that begins with https:// and holds no password"
        fine = self._require(_is_safe_endpoint(url), _ENDPOINT, safe)
        client_id = self._one_value("clientId", *_CLIENT_ID)
        client_secret = self._one_value("clientSecret", *_CLIENT_SECRET)
        self._require(client_id, _CLIENT_ID[1], f"is required with {_ENDPOINT}")
        self._require(client_secret, _CLIENT_SECRET[1], f"is required with {_ENDPOINT}")
        if not fine or not client_id or not client_secret:
            return None
        return security.ClientCredentials(
            token_endpoint_url=url,
            client_id=client_id,
            client_secret=security.Secret(client_secret),
            scope=self._one_value("scope", "sasl.oauthbearer.scope"),
            **fields_of(self.values, security.ClientCredentials),
        )

    def _token_provider(self) -> security.TokenProvider | None:
        name = self.values[_PROVIDER]
        if name.startswith(msk_iam.PREFIX):
            return self._msk_iam(name)
        # Do not show the value: it may be a password under the wrong name.
        form = "must be package.module:callable or msk-iam:<region>"
        if not self._require(OBJECT_NAME.fullmatch(name), _PROVIDER, form):
            return None
        try:
            # Importing runs the user's module. Its error text may contain the secret with which it fetches tokens.
            provide = load_callable(name, f"{self.prefix}{_PROVIDER}", show_cause=False)
        except ConfigurationError as error:
            self.problems.append(error.message)
            return None
        return security.TokenProvider(name=name, provide=provide)

    def _msk_iam(self, name: str) -> security.TokenProvider | None:
        region = name.removeprefix(msk_iam.PREFIX)
        example = "must name a region, such as msk-iam:eu-west-1"
        if not self._require(msk_iam.REGION.fullmatch(region), _PROVIDER, example):
            return None
        if not msk_iam.is_installed():
            self.problems.append(
                f"{self.prefix}{_PROVIDER}={name} needs the package {msk_iam.PACKAGE}. Run this on the driver and on every executor: "
                f"`{install_command('msk-iam')}`"
            )
            return None
        return security.TokenProvider(name=name, provide=msk_iam.MskIamTokens(region))

    def _secret(self, name: str) -> security.Secret | None:
        return security.Secret(self.values[name]) if self.values.get(name) else None

    def _one_of(self, *names: str) -> str | None:
        """Return the name that was given; report a problem if several were."""
        given = [name for name in names if name in self.values]
        if len(given) > 1:
            self._require(False, given[1], f"is given together with {given[0]}; remove one of them")
        return given[0] if given else None

    def _one_value(self, jaas_option: str, *names: str) -> str | None:
        """Return the value of `jaas_option` or of one of `names`; None if none is given."""
        if jaas_option not in self.jaas:
            given = self._one_of(*names)
            return None if given is None else str(self.values[given])
        # Neither place wins over the other, so that no stale value is used unnoticed.
        for name in names:
            self._require(name not in self.values, name, f"is given together with {jaas_option} in sasl.jaas.config")
        return self.jaas[jaas_option]


def _is_safe_endpoint(url: str) -> bool:
    try:
        # Reading parts.port raises ValueError if the port is not a number. A password in the address would reach logs.
        parts = urlsplit(url)
        fine = parts.scheme == "https" and bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        return False
    return fine and url.isascii() and url.isprintable() and " " not in url


def _openssl_name(suite: str) -> str:
    """Translate Java's name of a TLS 1.2 suite to OpenSSL's; keep any other name.

    ``TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`` becomes ``ECDHE-RSA-AES256-GCM-SHA384``.
    """
    found = re.fullmatch(r"(?:TLS|SSL)_(.+)_WITH_(.+)", suite)
    if found is None:
        return suite
    exchange, cipher = found[1], re.sub(r"AES_(\d+)_", r"AES\1_", found[2]).replace("_CBC_", "_")
    # OpenSSL's name of this suite has no hash.
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")
