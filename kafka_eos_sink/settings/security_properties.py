"""Read ``security.protocol``, ``ssl.*``, ``sasl.*`` into one ``SecurityConfig``.

The reader opens files and stores on the machine that uses them. Their problems are reported with all others, before
anything connects. No message contains a password, a key or a token.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, get_args

from kafka_eos_sink.client import key_stores, security
from kafka_eos_sink.client.tls import tls_context
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.settings.kinds import AS_GIVEN
from kafka_eos_sink.settings.sasl_properties import ENDPOINT, PROVIDER, SaslReader, SecurityValues
from kafka_eos_sink.settings.secrets import VARIABLE, switched_off
from kafka_eos_sink.settings.table import SECURITY

T = TypeVar("T")

_TLS_1_3_SUITE = re.compile(r"TLS_(?!.*_WITH_)[A-Z0-9_]+")


@dataclass(slots=True, repr=False)
class SecurityReader(SecurityValues):
    """Combine checked values into one ``SecurityConfig``.

    Args:
        warnings: Receives one sentence about all options that the protocol does not use, and one per weak combination.
    """

    warnings: list[str]

    def read(self) -> security.SecurityConfig | None:
        """Return the configuration, or None if there was a problem."""
        before = len(self.problems)
        protocol: security.SecurityProtocol = self.values.get("security.protocol", security.PLAINTEXT.protocol)
        with_sasl = protocol in security.SASL_PROTOCOLS
        # The https connection to the token endpoint trusts the same certificates as the connections to brokers.
        with_tls = protocol in security.TLS_PROTOCOLS or (with_sasl and ENDPOINT in self.values)
        unused = [
            f"{self.prefix}{name}"
            for name in sorted(self.values)
            if (name.startswith("ssl.") and not with_tls) or (name.startswith("sasl.") and not with_sasl)
        ]
        # A warning as in Java, not an error: one properties file may serve listeners of several kinds.
        if unused:
            self.warnings.append(f"{', '.join(unused)}: no effect while {self.prefix}security.protocol is {protocol}")
        tls = self._tls(protocol) if with_tls else security.TlsConfig()
        sasl = SaslReader(self.values, self.broken, self.prefix, self.problems).read(protocol) if with_sasl else None
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
                f"accepts it lets every client pose as any user: only for tests; use {self.prefix}{ENDPOINT} or {self.prefix}{PROVIDER}"
            )
        if found.uses_tls and not found.tls.verify_host_name:
            self.warnings.append(
                f"{self.prefix}ssl.endpoint.identification.algorithm is empty, so the client accepts a "
                "trusted certificate of any host; set it to https"
            )

    def _tls(self, protocol: security.SecurityProtocol) -> security.TlsConfig:
        before = len(self.problems)
        keys = self._key_material()
        versions, suites = self._versions_and_suites()
        password = self._secret("ssl.key.password")
        if keys is not None and keys.encrypted:
            self.require(password, "ssl.key.password", "is required: the private key is encrypted")
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
                self.require(False, "security.protocol", f"{protocol}: {error.message}")
        return config

    def _trusted_certificates(self) -> str | None:
        location, inline, folder = "ssl.truststore.location", "ssl.truststore.certificates", "ssl.ca.location"
        source, password = self.one_of(location, inline, folder), self._secret("ssl.truststore.password")
        if source is None:
            self.require(
                not password or location in self.broken, "ssl.truststore.password", f"is given without {location}"
            )
            return None
        value = self.values[source]
        if source == inline:
            found = key_stores.pem_certificates(value)
            self.require(found, source, "must be certificates in PEM")
            return found
        if source == folder:
            return self._from_store(source, lambda: key_stores.certificates_at(value))
        read = key_stores.trusted_certificates
        return self._from_store(source, lambda: read(key_stores.read_store(value), password, "ssl.truststore"))

    def _key_material(self) -> key_stores.KeyMaterial | None:
        location, key, chain = "ssl.keystore.location", "ssl.keystore.key", "ssl.keystore.certificate.chain"
        source, password = self.one_of(location, key) or self.one_of(chain), self._secret("ssl.keystore.password")
        if source is None:
            self.require(
                not password or location in self.broken, "ssl.keystore.password", f"is given without {location}"
            )
            return None
        value = self.values[source]
        if source == location:
            read = key_stores.key_material
            return self._from_store(source, lambda: read(key_stores.read_store(value), password, "ssl.keystore"))
        if not all(self.require(name in self.values, name, f"is required with {source}") for name in (key, chain)):
            return None
        return self._from_store(source, lambda: key_stores.pem_key_material(self.values[key], self.values[chain]))

    def _from_store(self, name: str, read: Callable[[], T]) -> T | None:
        if name.endswith(".location") and switched_off():
            reason = f"is rejected: {VARIABLE} switches files off in this process; give the certificates and keys inline, as PEM"
            self.require(False, name, reason)
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
        self.require(versions, "ssl.enabled.protocols", together)
        return versions, suites

    def _secret(self, name: str) -> security.Secret | None:
        return security.Secret(self.values[name]) if self.values.get(name) else None


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
