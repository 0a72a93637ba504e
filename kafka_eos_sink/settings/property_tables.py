"""Every name of the Java producer's configuration, and what it means here.

Each name that Java's ``ProducerConfig`` knows has a row in one of these tables: it sets a field of the client's or the
producer's configuration, contradicts exactly-once, is refused with the way out, or has no effect and says so. The
defaults are those of the configuration classes; the tables hold none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafka_eos_sink.client.config import parse_bootstrap_servers
from kafka_eos_sink.errors import ConfigurationError

INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a property may hold: `parse` raises ValueError for anything but `expected`."""

    parse: Callable[[str], Any]
    expected: str


def _integer(minimum: int, maximum: int = INT_MAX, *, also: int | None = None) -> Kind:
    def parse(text: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]{1,19}", text, re.ASCII) is None:
            raise ValueError(text)
        number = int(text)
        if not minimum <= number <= maximum and number != also:
            raise ValueError(text)
        return number

    return Kind(
        parse=parse,
        expected=f"an integer from {minimum} to {maximum}" + ("" if also is None else f", or {also}"),
    )


def _choice(*choices: str, any_case: bool = False) -> Kind:
    def parse(text: str) -> str:
        found = text.lower() if any_case else text
        if found not in choices:
            raise ValueError(text)
        return found

    return Kind(parse=parse, expected="one of " + ", ".join(choices))


def _boolean_of(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _addresses_of(text: str) -> tuple[tuple[str, int], ...]:
    try:
        return parse_bootstrap_servers(text)
    except ConfigurationError:
        raise ValueError(text) from None


_BOOLEAN = Kind(parse=_boolean_of, expected="true or false")
_TEXT = Kind(parse=str, expected="any text")
_ADDRESSES = Kind(parse=_addresses_of, expected="a comma-separated list such as broker1:9092,broker2:9092")
# Java takes 0 for "a batch per record"; a batch of one byte is just that.
_BATCH_SIZE = Kind(parse=lambda text: max(1, int(_integer(0).parse(text))), expected=_integer(0).expected)
_POSITIVE_INT = _integer(1)
_INT = _integer(0)
_LONG = _integer(0, _LONG_MAX)
_SOCKET_BUFFER = _integer(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """A property with an effect: what it may hold and which configuration fields it sets."""

    kind: Kind
    client: str | None = None
    producer: str | None = None


PROPERTIES: dict[str, Property] = {
    "bootstrap.servers": Property(kind=_ADDRESSES, client="bootstrap_servers"),
    "client.id": Property(kind=_TEXT, client="client_id"),
    "client.dns.lookup": Property(
        kind=_choice("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"), client="client_dns_lookup"
    ),
    "request.timeout.ms": Property(kind=_INT, client="request_timeout_ms"),
    "retry.backoff.ms": Property(kind=_LONG, client="retry_backoff_ms"),
    "retry.backoff.max.ms": Property(kind=_LONG, client="retry_backoff_max_ms"),
    "reconnect.backoff.ms": Property(kind=_LONG, client="reconnect_backoff_ms"),
    "reconnect.backoff.max.ms": Property(kind=_LONG, client="reconnect_backoff_max_ms"),
    "metadata.max.age.ms": Property(kind=_LONG, client="metadata_max_age_ms"),
    "metadata.max.idle.ms": Property(kind=_integer(5000, _LONG_MAX), client="metadata_max_idle_ms"),
    "metadata.recovery.strategy": Property(
        kind=_choice("rebootstrap", "none", any_case=True), client="metadata_recovery_strategy"
    ),
    "metadata.recovery.rebootstrap.trigger.ms": Property(kind=_INT, client="metadata_recovery_rebootstrap_trigger_ms"),
    "connections.max.idle.ms": Property(kind=_integer(-1, _LONG_MAX), client="connections_max_idle_ms"),
    "socket.connection.setup.timeout.ms": Property(kind=_LONG, client="socket_connection_setup_timeout_ms"),
    "socket.connection.setup.timeout.max.ms": Property(kind=_LONG, client="socket_connection_setup_timeout_max_ms"),
    "send.buffer.bytes": Property(kind=_SOCKET_BUFFER, client="send_buffer_bytes"),
    "receive.buffer.bytes": Property(kind=_SOCKET_BUFFER, client="receive_buffer_bytes"),
    "batch.size": Property(kind=_BATCH_SIZE, producer="batch_size"),
    "linger.ms": Property(kind=_INT, producer="linger_ms"),
    "buffer.memory": Property(kind=_integer(1, _LONG_MAX), producer="buffer_memory"),
    "max.block.ms": Property(kind=_LONG, producer="max_block_ms"),
    "max.request.size": Property(kind=_POSITIVE_INT, producer="max_request_size"),
    "compression.type": Property(kind=_choice("none", "gzip", "snappy", "lz4", "zstd"), producer="compression"),
    "delivery.timeout.ms": Property(kind=_INT, producer="delivery_timeout_ms"),
    "retries": Property(kind=_INT, producer="retries"),
    "max.in.flight.requests.per.connection": Property(kind=_POSITIVE_INT, producer="max_in_flight"),
    "partitioner.ignore.keys": Property(kind=_BOOLEAN, producer="partitioner_ignore_keys"),
    "transaction.timeout.ms": Property(kind=_POSITIVE_INT, producer="transaction_timeout_ms"),
}
"""Each name with an effect."""

COMPRESSION_LEVELS: dict[str, Kind] = {
    "gzip": _integer(1, 9, also=-1),
    "lz4": _integer(1, 17),
    "zstd": _integer(-131072, 22),
}
"""The levels of ``compression.<codec>.level``, as in Java; only the level of the chosen codec counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A property of the Java producer whose other values would break exactly-once."""

    kind: Kind
    allowed: Callable[[Any], bool]
    reason: str


def _never(_: Any) -> bool:
    return False


_SERIALISED_BY_SPARK = Contradiction(
    kind=_TEXT,
    allowed=_never,
    reason="keys and values leave Spark as string or binary columns and are written as they are; leave the option "
    "out and serialise in the query",
)

CONTRADICTIONS: dict[str, Contradiction] = {
    "acks": Contradiction(
        kind=_choice("all", "-1", "0", "1"),
        allowed=lambda acks: acks in ("all", "-1"),
        reason="a record that not every in-sync replica has can be lost after it was acknowledged; "
        "only all (or -1) is possible, leave the option out",
    ),
    "enable.idempotence": Contradiction(
        kind=_BOOLEAN,
        allowed=lambda enabled: enabled,
        reason="without idempotence a repeated request writes its records twice; leave the option out",
    ),
    "max.in.flight.requests.per.connection": Contradiction(
        kind=_POSITIVE_INT,
        allowed=lambda requests: requests <= 5,
        reason="brokers recognise only the last 5 batches of a producer as repeats; choose 1 to 5",
    ),
    "retries": Contradiction(
        kind=_INT,
        allowed=lambda retries: retries > 0,
        reason="idempotence needs retries; leave the option out and limit the time with delivery.timeout.ms",
    ),
    "key.serializer": _SERIALISED_BY_SPARK,
    "value.serializer": _SERIALISED_BY_SPARK,
    "transactional.id": Contradiction(
        kind=_TEXT,
        allowed=_never,
        reason="one id for all tasks would make them end each other's transactions; the sink derives its ids from "
        "the option transactional.id.prefix",
    ),
    "transaction.two.phase.commit.enable": Contradiction(
        kind=_BOOLEAN,
        allowed=lambda enabled: not enabled,
        reason="the sink has two phases of its own, and no released broker offers KIP-939; for transactions that "
        "never time out set transaction.timeout.ms to 2147483647 where the broker allows it",
    ),
}

KERBEROS = (
    "Kerberos (GSSAPI) needs the JVM's login; use SCRAM-SHA-512 or OAUTHBEARER over TLS, or Spark's built-in Kafka sink"
)
_JVM_CLASS = "it names a Java class and the sink runs no JVM client"
_LATER_ASSERTION = (
    "signed assertions are not supported; fetch the token with sasl.oauthbearer.token.provider=package.module:callable"
)

REFUSED: dict[str, str] = {
    "interceptor.classes": f"{_JVM_CLASS}; Python interceptors are given in the option interceptors",
    "config.providers": "values may be ${env:NAME} or ${file:/path:key} without any provider being configured",
    "sasl.kerberos.kinit.cmd": KERBEROS,
    "sasl.kerberos.min.time.before.relogin": KERBEROS,
    "sasl.kerberos.service.name": KERBEROS,
    "sasl.kerberos.ticket.renew.jitter": KERBEROS,
    "sasl.kerberos.ticket.renew.window.factor": KERBEROS,
    "sasl.client.callback.handler.class": f"{_JVM_CLASS}; give sasl.jaas.config, or sasl.username and sasl.password",
    "sasl.login.callback.handler.class": f"{_JVM_CLASS}; for tokens give sasl.oauthbearer.token.provider",
    "sasl.login.class": f"{_JVM_CLASS}; for tokens give sasl.oauthbearer.token.provider",
    "sasl.oauthbearer.jwt.retriever.class": f"{_JVM_CLASS}; give sasl.oauthbearer.token.provider",
    "sasl.oauthbearer.jwt.validator.class": f"{_JVM_CLASS}; the broker validates the token",
    "security.providers": f"{_JVM_CLASS}; TLS is Python's OpenSSL",
    "ssl.engine.factory.class": f"{_JVM_CLASS}; TLS is Python's OpenSSL",
    "ssl.provider": f"{_JVM_CLASS}; TLS is Python's OpenSSL",
    **{
        f"sasl.oauthbearer.assertion.{name}": _LATER_ASSERTION
        for name in (
            "algorithm",
            "claim.aud",
            "claim.exp.seconds",
            "claim.iss",
            "claim.jti.include",
            "claim.nbf.seconds",
            "claim.sub",
            "file",
            "private.key.file",
            "private.key.passphrase",
            "template.file",
        )
    },
}
"""Names whose effect a user would miss: refused with the way out."""

_NO_JVM_METRICS = "the sink has no JVM metrics"
_CHECKED_BY_BROKER = "the broker validates the token"
_LOGIN = "tokens are fetched anew by their own expiry"
_LOGIN_RETRY = "a token is asked for again when its connection is tried again, by reconnect.backoff.ms"

WITHOUT_EFFECT: dict[str, str] = {
    "partitioner.class": "choose the partitioner with the option partitioner",
    "partitioner.adaptive.partitioning.enable": "records without a key stay with a partition for a batch",
    "partitioner.availability.timeout.ms": "records without a key avoid partitions without a leader",
    "enable.metrics.push": "the sink pushes no client metrics (KIP-714)",
    "metric.reporters": _NO_JVM_METRICS,
    "metrics.num.samples": _NO_JVM_METRICS,
    "metrics.recording.level": _NO_JVM_METRICS,
    "metrics.sample.window.ms": _NO_JVM_METRICS,
    "auto.include.jmx.reporter": _NO_JVM_METRICS,
    "ssl.keymanager.algorithm": "TLS is Python's OpenSSL",
    "ssl.trustmanager.algorithm": "TLS is Python's OpenSSL",
    "ssl.secure.random.implementation": "TLS is Python's OpenSSL",
    "sasl.login.retry.backoff.max.ms": _LOGIN_RETRY,
    "sasl.login.retry.backoff.ms": _LOGIN_RETRY,
    "sasl.login.refresh.buffer.seconds": _LOGIN,
    "sasl.login.refresh.min.period.seconds": _LOGIN,
    "sasl.login.refresh.window.factor": _LOGIN,
    "sasl.login.refresh.window.jitter": _LOGIN,
    "sasl.oauthbearer.clock.skew.seconds": _CHECKED_BY_BROKER,
    "sasl.oauthbearer.expected.audience": _CHECKED_BY_BROKER,
    "sasl.oauthbearer.expected.issuer": _CHECKED_BY_BROKER,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _CHECKED_BY_BROKER,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _CHECKED_BY_BROKER,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _CHECKED_BY_BROKER,
    "sasl.oauthbearer.jwks.endpoint.url": _CHECKED_BY_BROKER,
    "sasl.oauthbearer.scope.claim.name": _CHECKED_BY_BROKER,
    "sasl.oauthbearer.sub.claim.name": _CHECKED_BY_BROKER,
}
"""Names that change nothing a user would miss: one warning."""


def _upper_choice(*choices: str) -> Kind:
    def parse(text: str) -> str:
        if text.upper() not in choices:
            raise ValueError(text)
        return text.upper()

    return Kind(parse=parse, expected="one of " + ", ".join(choices))


def _tls_versions_of(text: str) -> tuple[str, ...]:
    versions = tuple(part.strip() for part in text.split(","))
    if not set(versions) <= {"TLSv1.2", "TLSv1.3"}:
        raise ValueError(text)
    return versions


_TLS_VERSIONS = Kind(parse=_tls_versions_of, expected="TLSv1.2, TLSv1.3 or both: older ones are broken")
_ENDPOINT_IDENTIFICATION = Kind(
    parse=_choice("https", "", any_case=True).parse,
    expected="https, or empty to take a certificate for another host's name",
)
_STORE_TYPE = _upper_choice("PEM", "PKCS12")

SECURITY: dict[str, Kind] = {
    "security.protocol": _upper_choice("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "ssl.ca.location": _TEXT,
    "ssl.cipher.suites": _TEXT,
    "ssl.enabled.protocols": _TLS_VERSIONS,
    "ssl.endpoint.identification.algorithm": _ENDPOINT_IDENTIFICATION,
    "ssl.key.password": _TEXT,
    "ssl.keystore.certificate.chain": _TEXT,
    "ssl.keystore.key": _TEXT,
    "ssl.keystore.location": _TEXT,
    "ssl.keystore.password": _TEXT,
    "ssl.keystore.type": _STORE_TYPE,
    "ssl.protocol": _choice("TLS", "TLSv1.2", "TLSv1.3"),
    "ssl.truststore.certificates": _TEXT,
    "ssl.truststore.location": _TEXT,
    "ssl.truststore.password": _TEXT,
    "ssl.truststore.type": _STORE_TYPE,
    "sasl.jaas.config": _TEXT,
    "sasl.login.connect.timeout.ms": _POSITIVE_INT,
    "sasl.login.read.timeout.ms": _POSITIVE_INT,
    "sasl.mechanism": _upper_choice("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
    "sasl.oauthbearer.client.credentials.client.id": _TEXT,
    "sasl.oauthbearer.client.credentials.client.secret": _TEXT,
    "sasl.oauthbearer.client.id": _TEXT,
    "sasl.oauthbearer.client.secret": _TEXT,
    "sasl.oauthbearer.header.urlencode": _BOOLEAN,
    "sasl.oauthbearer.scope": _TEXT,
    "sasl.oauthbearer.token.endpoint.url": _TEXT,
    "sasl.oauthbearer.token.provider": _TEXT,
    "sasl.password": _TEXT,
    "sasl.username": _TEXT,
}
"""TLS and SASL: together they come to one `SecurityConfig`; without effect on a PLAINTEXT connection as in Java."""

CHOSEN_SECURITY: frozenset[str] = frozenset(name for name, kind in SECURITY.items() if kind is not _TEXT)
"""Those of `SECURITY` whose values are numbers and choices: no secret stands there."""

COMPRESSION_LEVEL_NAMES = {f"compression.{codec}.level": codec for codec in COMPRESSION_LEVELS}
"""The codec of each ``compression.<codec>.level``."""

KNOWN: frozenset[str] = frozenset(
    {*PROPERTIES, *CONTRADICTIONS, *REFUSED, *WITHOUT_EFFECT, *SECURITY, *COMPRESSION_LEVEL_NAMES}
)
"""Every name that is understood, whatever the answer to it is."""
