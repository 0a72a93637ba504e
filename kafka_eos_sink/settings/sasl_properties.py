"""Read ``sasl.*`` into one ``SaslConfig``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kafka_eos_sink.client import kerberos, msk_iam, security
from kafka_eos_sink.client.config import with_prefix
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.extras import install_command
from kafka_eos_sink.plugins import load_callable
from kafka_eos_sink.producer.config import OBJECT_NAME
from kafka_eos_sink.settings.jaas import parse_jaas
from kafka_eos_sink.settings.secrets import VARIABLE, switched_off
from kafka_eos_sink.settings.table import fields_of

_PLAIN, _SCRAM, _OAUTH, _KERBEROS = "PlainLoginModule", "ScramLoginModule", "OAuthBearerLoginModule", "Krb5LoginModule"
_LOGIN_MODULES = {
    "PLAIN": _PLAIN,
    "SCRAM-SHA-256": _SCRAM,
    "SCRAM-SHA-512": _SCRAM,
    "OAUTHBEARER": _OAUTH,
    "GSSAPI": _KERBEROS,
}
_MODULE_OPTIONS = {
    _PLAIN: ("username", "password"),
    _SCRAM: ("username", "password", "tokenauth"),
    _OAUTH: ("clientId", "clientSecret", "scope", "unsecuredLoginStringClaim_sub"),
    _KERBEROS: ("useKeyTab", "keyTab", "principal", "useTicketCache", "ticketCache", "serviceName"),
}
_OF_JAVAS_LOGIN = ("storeKey", "doNotPrompt", "renewTGT", "refreshKrb5Config", "isInitiator", "clearPass", "debug")
"""Options of Krb5LoginModule that change how Java logs in, and have no effect here."""
_SERVICE_NAME = "sasl.kerberos.service.name"
_SERVICE = re.compile(r"[\w.-]+", re.ASCII)
_CLIENT_ID = ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id")
_CLIENT_SECRET = ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret")
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
PROVIDER = "sasl.oauthbearer.token.provider"
_EXTENSIONS = "sasl.oauthbearer.extensions"
_EXTENSION_PREFIX = "extension_"
_EXTENSION = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_Credentials = security.PasswordCredentials | security.TokenCredentials | security.KerberosCredentials


@dataclass(slots=True, repr=False)
class SecurityValues:
    """Checked values, and the rules that readers of several options share.

    Args:
        values: Parsed values by name, of the names in ``SECURITY``.
        broken: Names whose values could not be parsed. Their problems are reported already.
        prefix: Precedes each name in messages.
        problems: Receives one sentence per problem.
    """

    values: Mapping[str, Any]
    broken: frozenset[str]
    prefix: str
    problems: list[str]

    def require(self, holds: object, name: str, problem: str) -> bool:
        """Return whether the rule holds; report `problem` of the option if it does not."""
        # One sentence per cause: a broken name has its own sentence already.
        if not holds and name not in self.broken:
            self.problems.append(f"{self.prefix}{name} {with_prefix(self.prefix, problem)}")
        return bool(holds)

    def one_of(self, *names: str) -> str | None:
        """Return the name that was given; report a problem if several were."""
        given = [name for name in names if name in self.values]
        if len(given) > 1:
            self.require(False, given[1], f"is given together with {given[0]}; remove one of them")
        return given[0] if given else None


@dataclass(slots=True, repr=False)
class SaslReader(SecurityValues):
    """Combine the values of ``sasl.*``; ``jaas`` holds the login module's options."""

    jaas: dict[str, str] = field(init=False, default_factory=dict)

    def read(self, protocol: security.SecurityProtocol) -> security.SaslConfig | None:
        """Return the configuration, or None if there was a problem."""
        mechanism: security.SaslMechanism | None = self.values.get("sasl.mechanism")
        # Java's default is GSSAPI. Here, a user who has forgotten the mechanism should not read about Kerberos.
        if mechanism is None and (_SERVICE_NAME in self.values or _KERBEROS in self.values.get("sasl.jaas.config", "")):
            mechanism = None if "sasl.mechanism" in self.broken else "GSSAPI"
        required = (
            f"is required with security.protocol={protocol}: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, or GSSAPI "
            f"(Kerberos) with {self.prefix}{_SERVICE_NAME}"
        )
        self.require(mechanism, "sasl.mechanism", required)
        if mechanism is None or not self._read_jaas(mechanism):
            return None
        credentials: _Credentials | None
        match mechanism:
            case "OAUTHBEARER":
                self._require_no_password(mechanism, "token")
                credentials = self._token_credentials()
            case "GSSAPI":
                self._require_no_password(mechanism, "ticket")
                credentials = self._kerberos_credentials()
            case _:
                credentials = self._password_credentials(mechanism)
        return None if credentials is None else security.SaslConfig(mechanism=mechanism, credentials=credentials)

    def _require_no_password(self, mechanism: security.SaslMechanism, taken: str) -> None:
        for name in ("sasl.username", "sasl.password"):
            what = f"is for PLAIN and SCRAM; {mechanism} takes a {taken}; remove it"
            self.require(name not in self.values, name, what)

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
        fitting = _LOGIN_MODULES[mechanism]
        if not self.require(module.name == fitting, name, f"must be of {fitting}, as sasl.mechanism is {mechanism}"):
            return False
        known = _MODULE_OPTIONS[fitting]
        # A misspelt option must not fall back to a default: no name outside the list is accepted.
        for number, option in enumerate(module.options, 1):
            is_known = (
                option in known
                or (fitting == _OAUTH and option.startswith(_EXTENSION_PREFIX))
                or (fitting == _KERBEROS and option in _OF_JAVAS_LOGIN)
            )
            # Do not show the name: after a blank or a quote in a password, it is a part of the password.
            unknown = f"has an unknown option (number {number}); only {', '.join(known)} are supported"
            self.require(is_known, name, unknown)
        self.jaas = module.options
        return True

    def _password_credentials(self, mechanism: security.SaslMechanism) -> security.PasswordCredentials | None:
        found: list[str] = []
        for option in ("username", "password"):
            name = f"sasl.{option}"
            value = self._one_value(option, name)
            required = f'is required with sasl.mechanism={mechanism} (or {option}="..." in sasl.jaas.config)'
            if not self.require(value, name, required) or value is None:
                continue
            if self.require("\0" not in value, name, "holds a character 0, which SASL does not allow"):
                found.append(value)
        is_token = self._flag("tokenauth")
        if len(found) < 2:
            return None
        return security.PasswordCredentials(
            username=found[0], password=security.Secret(found[1]), is_delegation_token=is_token
        )

    def _flag(self, option: str) -> bool:
        """Return a login module's option that is true or false, by default false."""
        value = self.jaas.get(option, "false").lower()
        self.require(
            value in ("true", "false"), "sasl.jaas.config", f"has an option {option} that is not true or false"
        )
        return value == "true"

    def _kerberos_credentials(self) -> security.KerberosCredentials | None:
        before, place = len(self.problems), "sasl.jaas.config"
        if reason := kerberos.missing_library():
            self.problems.append(
                f"{self.prefix}sasl.mechanism=GSSAPI needs the package {kerberos.PACKAGE} ({reason}). Install the headers of MIT "
                f"Kerberos (Debian: libkrb5-dev) and run this on the driver and on every executor: `{install_command('kerberos')}`"
            )
        service = self._one_value("serviceName", _SERVICE_NAME)
        required = "is required with sasl.mechanism=GSSAPI: the first part of the brokers' principals, often kafka"
        if self.require(service, _SERVICE_NAME, required) and service is not None:
            self.require(_SERVICE.fullmatch(service), _SERVICE_NAME, "must be one name, without / and @")
        use_keytab, use_cache = self._flag("useKeyTab"), self._flag("useTicketCache")
        keytab, cache, principal = (self.jaas.get(each) for each in ("keyTab", "ticketCache", "principal"))
        # Without a login module, the library's own default holds: the ticket cache of the environment.
        one = "must have useKeyTab=true with keyTab and principal, or useTicketCache=true"
        self.require(use_keytab or use_cache or place not in self.values, place, one)
        for name, value, used in (("keyTab", keytab, use_keytab), ("ticketCache", cache, use_cache)):
            self.require(value is None or used, place, f"has {name} without use{name[0].upper()}{name[1:]}=true")
        if use_keytab:
            self.require(principal, place, "has useKeyTab=true without principal")
            if self.require(keytab, place, "has useKeyTab=true without keyTab"):
                self._require_keytab(keytab or "")
        if service is None or len(self.problems) > before:
            return None
        return security.KerberosCredentials(
            service_name=service,
            principal=principal,
            # A keytab wins over a ticket cache, so that a stream outlives the ticket.
            keytab=keytab,
            ticket_cache=None if use_keytab else cache,
        )

    def _require_keytab(self, path: str) -> None:
        if switched_off():
            self.require(False, "sasl.jaas.config", f"has keyTab, but {VARIABLE} switches files off in this process")
            return
        try:
            with open(path, "rb"):
                return
        except OSError as error:
            where = f"{path} (in {os.getcwd()})" if not os.path.isabs(path) else path
            self.require(
                False,
                "sasl.jaas.config",
                f"has a keyTab that this process cannot read: {where}: {error.strerror}; put the file on the driver's machine and on "
                "every executor, for example with --files",
            )

    def _token_credentials(self) -> security.TokenCredentials | None:
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
            self.require(not pairs, _EXTENSIONS, f"is given together with extension_... in {place}; remove one of them")
            place, parts = _EXTENSIONS, [each.strip().partition("=") for each in self.values[_EXTENSIONS].split(",")]
            pairs = [(name, value) for name, _, value in parts]
        # RFC 7628, 3.1: keys are letters, "auth" belongs to the token itself. Other bytes could end a field of the message.
        for name, value in pairs:
            allowed = _EXTENSION.fullmatch(name) and name != "auth" and _EXTENSION_VALUE.fullmatch(value)
            # An invalid name may be a part of a secret value, so the message does not show it.
            shown = f" {name}" if _EXTENSION.fullmatch(name) else ""
            self.require(allowed, place, f"has an extension{shown} that is not letters=value, or is named auth")
        self.require(len(dict(pairs)) == len(pairs), place, "has two extensions of the same name")
        return sorted(pairs)

    def _token_source(self) -> security.TokenSource | None:
        # The user has given a source whose value is broken, so "is required" would be wrong.
        if self.broken.intersection((ENDPOINT, PROVIDER)):
            return None
        principal = self.jaas.get("unsecuredLoginStringClaim_sub")
        sources = [name for name in (ENDPOINT, PROVIDER) if name in self.values]
        one = (
            f"or {self.prefix}{PROVIDER} is required with OAUTHBEARER, and only one of them (a broker for tests "
            "may also take unsecuredLoginStringClaim_sub in sasl.jaas.config)"
        )
        if not self.require(len(sources) + (principal is not None) == 1, ENDPOINT, one):
            return None
        if principal is not None:
            return security.UnsecuredToken(principal=principal)
        return self._client_credentials() if sources == [ENDPOINT] else self._token_provider()

    def _client_credentials(self) -> security.ClientCredentials | None:
        url = self.values[ENDPOINT]
        safe = "must be an address that begins with https:// and holds no password"
        fine = self.require(_is_safe_endpoint(url), ENDPOINT, safe)
        client_id = self._one_value("clientId", *_CLIENT_ID)
        client_secret = self._one_value("clientSecret", *_CLIENT_SECRET)
        self.require(client_id, _CLIENT_ID[1], f"is required with {ENDPOINT}")
        self.require(client_secret, _CLIENT_SECRET[1], f"is required with {ENDPOINT}")
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
        name = self.values[PROVIDER]
        if name.startswith(msk_iam.PREFIX):
            return self._msk_iam(name)
        # Do not show the value: it may be a password under the wrong name.
        form = "must be package.module:callable or msk-iam:<region>"
        if not self.require(OBJECT_NAME.fullmatch(name), PROVIDER, form):
            return None
        try:
            # Importing runs the user's module. Its error text may contain the secret with which it fetches tokens.
            provide = load_callable(name, f"{self.prefix}{PROVIDER}", show_cause=False)
        except ConfigurationError as error:
            self.problems.append(error.message)
            return None
        return security.TokenProvider(name=name, provide=provide)

    def _msk_iam(self, name: str) -> security.TokenProvider | None:
        region = name.removeprefix(msk_iam.PREFIX)
        example = "must name a region, such as msk-iam:eu-west-1"
        if not self.require(msk_iam.REGION.fullmatch(region), PROVIDER, example):
            return None
        if not msk_iam.is_installed():
            self.problems.append(
                f"{self.prefix}{PROVIDER}={name} needs the package {msk_iam.PACKAGE}. Run this on the driver and on every executor: "
                f"`{install_command('msk-iam')}`"
            )
            return None
        return security.TokenProvider(name=name, provide=msk_iam.MskIamTokens(region))

    def _one_value(self, jaas_option: str, *names: str) -> str | None:
        """Return the value of `jaas_option` or of one of `names`; None if none is given."""
        if jaas_option not in self.jaas:
            given = self.one_of(*names)
            return None if given is None else str(self.values[given])
        # Neither place wins over the other, so that no stale value is used unnoticed.
        for name in names:
            self.require(name not in self.values, name, f"is given together with {jaas_option} in sasl.jaas.config")
        return self.jaas[jaas_option]


def _is_safe_endpoint(url: str) -> bool:
    try:
        # Reading parts.port raises ValueError if the port is not a number. A password in the address would reach logs.
        parts = urlsplit(url)
        fine = parts.scheme == "https" and bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        return False
    return fine and url.isascii() and url.isprintable() and " " not in url
