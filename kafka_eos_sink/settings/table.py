"""The table of settings: sink options, Java's ``ProducerConfig``, and additions.

A row holds the values that an option accepts, the field that receives the value, whether messages may show it, and its meaning.
``reading.py`` reads options by these rows. ``tools/configuration_reference.py`` writes ``docs/options.md`` from them. The configuration
class holds an option's default. A row's ``default`` is only text for the page, which shows it instead of the default of the class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, replace
from typing import Any, Literal, get_args

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.key_stores import JKS_WAY_OUT
from kafka_eos_sink.client.security import ClientCredentials, SecurityConfig, TlsVersion
from kafka_eos_sink.commit.values import DEFAULT_TOPIC
from kafka_eos_sink.producer.config import CODEC_NAMES, INT64_MAX, RANGES, ProducerConfig
from kafka_eos_sink.protocol.compression import LEVELS
from kafka_eos_sink.runtime.batch_record import DEFAULT_HISTORY_TOPIC
from kafka_eos_sink.settings import kinds
from kafka_eos_sink.settings.kinds import Kind, choice, integer, producer_range

PREFIX = "kafka."
PROPERTIES_FILE = "kafka.properties.file"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Why values that Java accepts break exactly-once; `accepted` lists the others."""

    allows: Callable[[Any], bool]
    accepted: str
    reason: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    For an option that is refused or has no effect, `meaning` is the reason and the way out. `refused` lists the values,
    in upper case, that Java accepts and this client does not, each with the reason and the way out.
    """

    name: str
    kind: Kind
    meaning: str
    group: str = ""
    target: type | None = None
    field_name: str = ""
    secret: bool = False
    default: str | None = None
    contradiction: Contradiction | None = None
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def default_value(self) -> Any:
        """The default of the class where the value lands; None if there is none."""
        known = None if self.target is None else self.target.__dataclass_fields__[self.field_name].default  # type: ignore[attr-defined]
        return None if known is MISSING else known


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The checked options of one write, equal in every process for equal options."""

    topic: str | None = None
    # None, not the page's default: a streaming query without a prefix takes the id of its checkpoint.
    transactional_id_prefix: str | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    foreach_batch_call: tuple[str, str] | None = None
    delivery_guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once"
    commit_log_topic: str = DEFAULT_TOPIC
    history_topic: str = DEFAULT_HISTORY_TOPIC
    user_metadata: str | None = None
    on_checkpoint_rollback: Literal["fail", "skip", "rewrite"] = "fail"
    checkpoint_location: str | None = None
    source_offsets_group: str | None = None
    client: ClientConfig
    producer: ProducerConfig
    warnings: tuple[str, ...]


def _rows(group: str, target: type | None, *rows: Setting) -> dict[str, Setting]:
    """Complete the rows of a group; fields default to the option's snake-case name."""

    def field(name: str) -> str:
        return re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name.replace(".", "_"))

    return {
        row.name: replace(row, group=group, target=row.target or target, field_name=row.field_name or field(row.name))
        for row in rows
    }


SINK = _rows(
    "sink",
    SinkOptions,
    Setting("topic", kinds.TOPIC, "Topic of every row. It overrides the column `topic`."),
    Setting("txnAppId", kinds.ID, "Name of a batch job, which makes it safe to run again: the sink writes each `txnVersion` of it once."),
    Setting("txnVersion", integer(0, INT64_MAX),
        "Version of this write, together with `txnAppId`. Versions need no order, except in `foreachBatch`."),
    Setting("foreachBatchCall", kinds.FOREACH_CALL,
        "The streaming query and the call of its `foreachBatch` function, if Spark does not show them. `for_each_batch` sets it."),
    Setting("onCheckpointRollback", choice("fail", "skip", "rewrite", fold=str.lower),
        "What a query or `foreachBatch` does with a batch below its newest: `fail`, `skip`, or `rewrite` it and all later ones. "
        "`rewrite` also starts a new checkpoint in spite of `CHECKPOINT_LOST`."),
    Setting("transactional.id.prefix", kinds.ID,
        "First part of each transactional id. For a stream, it is the whole write id, by default `kafka-eos-<query id>`.",
        default="kafka-eos"),
    Setting("commit.log.topic", kinds.TOPIC, "Compacted topic for the sink's decisions. The sink creates it if it is missing."),
    Setting("delivery.guarantee", choice("exactly-once", "at-least-once", fold=str.lower),
        "`at-least-once` uses the idempotent producer, without transactions and without a commit log."),
    Setting("source.offsets.group", kinds.GROUP,
        "Streams only: consumer group, without members, that gets the source's offsets of each batch. It also reveals a lost checkpoint."),
    Setting("dead.letter.topic", kinds.TOPIC,
        "Receives the rows that Kafka rejects, in the same transaction, with the reason in headers. Without it, the row fails the write.",
        target=ProducerConfig),
    Setting("history.topic", kinds.TOPIC_OR_NONE,
        "Receives one record per decided batch, for `kafka-eos history`. The sink creates it if it is missing. "
        "Empty: no history, and a lost commit log is noticed for 7 days only, not for 30."),
    Setting("userMetadata", kinds.USER_METADATA, "Free text that the history keeps with each batch, like Delta Lake's option."),
    Setting("partitioner", kinds.PARTITIONER,
        "Chooses the partition: `default` (Java's hash of the key), `round-robin` or your function `f(batch, topic, partitions)`.",
        target=ProducerConfig),
    Setting("interceptors", kinds.CLASSES,
        "Your classes, which see and may change Arrow record batches before the sink sends them.", target=ProducerConfig),
) | _rows("sink", None, Setting(PROPERTIES_FILE, kinds.AS_GIVEN,
    "Java-style client properties file, which the driver and every executor read. `kafka.*` options override it."))  # fmt: skip

# Spark adds every option of the query to the sink's; without these rows they would be unknown names.
STREAMING = _rows(
    "streaming",
    None,
    Setting(
        "checkpointLocation",
        kinds.AS_GIVEN,
        "Checkpoint of the query, which Spark passes to the sink.",
        target=SinkOptions,
        secret=True,
    ),
    Setting("queryName", kinds.AS_GIVEN, "Name of the query, which Spark passes to the sink.", secret=True),
    Setting("asyncProgressTrackingEnabled", kinds.TEXT, "Must not be true.", secret=True),
)
"""Spark's own options of a streaming query, not documented as options of the sink."""

_CONNECTION = _rows(
    "connection",
    ClientConfig,
    Setting("bootstrap.servers", kinds.ADDRESSES, "First brokers to connect to.", default="required"),
    Setting("client.id", kinds.CLIENT_ID, "Name of this client in the brokers' logs and quotas."),
    Setting("client.dns.lookup", choice("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "Whether to try every address of a host, or to resolve the bootstrap servers to canonical names."),
    Setting("request.timeout.ms", kinds.POSITIVE, "How long a request waits for its response."),
    Setting("retry.backoff.ms", kinds.LONG, "First wait before a retry of a failed request; it doubles with each retry."),
    Setting("retry.backoff.max.ms", kinds.LONG, "Longest wait between two retries of a request."),
    Setting("reconnect.backoff.ms", kinds.LONG, "First wait before a retry of a failed connection; it doubles with each retry."),
    Setting("reconnect.backoff.max.ms", kinds.LONG, "Longest wait between two attempts to connect to a broker."),
    Setting("metadata.max.age.ms", kinds.LONG, "Age at which the client refreshes topic metadata."),
    Setting("metadata.max.idle.ms", integer(5000, INT64_MAX), "How long the client keeps the metadata of an unused topic."),
    Setting("metadata.recovery.strategy", choice("rebootstrap", "none", fold=str.lower),
        "`rebootstrap` connects to the bootstrap servers again if no known broker is reachable."),
    Setting("metadata.recovery.rebootstrap.trigger.ms", kinds.INT, "How long metadata may be unavailable before the client rebootstraps."),
    Setting("connections.max.idle.ms", integer(-1, INT64_MAX), "Closes idle connections after this time; -1 keeps them open."),
    Setting("socket.connection.setup.timeout.ms", kinds.LONG, "First time limit for a new connection; it doubles with each failure."),
    Setting("socket.connection.setup.timeout.max.ms", kinds.LONG, "Longest time limit for a new connection."),
    Setting("send.buffer.bytes", kinds.BUFFER, "Socket send buffer; -1 leaves it to the operating system."),
    Setting("receive.buffer.bytes", kinds.BUFFER, "Socket receive buffer; -1 leaves it to the operating system."),
)  # fmt: skip

_REMOVE = "remove the option"
_SERIALISED_BY_SPARK = Contradiction(
    lambda _: False,
    "none",
    f"keys and values leave Spark as string or binary columns and are written as they are; {_REMOVE} and serialise in the query",
)

# Java's defaults, except where ``ProducerConfig`` gives a reason: a user who moves a properties file here expects the same effect.
_TUNING = _rows(
    "tuning",
    ProducerConfig,
    Setting("compression.type", choice(*CODEC_NAMES), "Codec of the record batches.", field_name="compression"),
    Setting("batch.size", kinds.BATCH_SIZE, "Uncompressed bytes of a record batch."),
    Setting("linger.ms", producer_range("linger_ms"),
        "How long a record batch waits for more rows. The commit sends all record batches at once."),
    Setting("buffer.memory", producer_range("buffer_memory"),
        "Memory of a task for rows and unacknowledged record batches. If it is full, the task waits."),
    Setting("max.request.size", producer_range("max_request_size"), "Bytes of one Produce request, and of one uncompressed record."),
    Setting("max.block.ms", producer_range("max_block_ms"), "How long a write may wait for a topic's metadata or for memory."),
    Setting("delivery.timeout.ms", producer_range("delivery_timeout_ms"), "Longest time to acknowledge a full record batch, with retries."),
    Setting("transaction.timeout.ms", producer_range("transaction_timeout_ms"),
        "The broker aborts an open transaction after this time. Default: the broker's maximum, at most 15 minutes.", default="see meaning"),
)  # fmt: skip
_PRODUCER = _rows(
    "producer",
    ProducerConfig,
    Setting("retries", kinds.INT,
        "Retries of one record batch. Limit the time with `kafka.delivery.timeout.ms` instead.",
        contradiction=Contradiction(
            lambda retries: retries >= RANGES["retries"][1], producer_range("retries").expected,
            f"idempotence needs retries; {_REMOVE} and limit the time with kafka.delivery.timeout.ms")),
    Setting("max.in.flight.requests.per.connection", integer(RANGES["max_in_flight"][1]),
        "Requests in flight per connection.", field_name="max_in_flight",
        # A broker keeps the sequence numbers of the last 5 batches per producer (ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
        contradiction=Contradiction(
            lambda requests: requests <= RANGES["max_in_flight"][2], producer_range("max_in_flight").expected,
            "a broker recognises a resend only among the last 5 batches of a producer; choose 1 to 5")),
    Setting("partitioner.ignore.keys", kinds.BOOLEAN, "Places rows with a key like rows without a key."),
)  # fmt: skip

# A codec's default may lie outside its range (gzip's -1), so ``also`` accepts it.
_LEVELS = _rows(
    "producer",
    None,
    *(
        Setting(
            f"compression.{codec.name.lower()}.level",
            integer(levels.minimum, levels.maximum, also=levels.default),
            f"Level, if `kafka.compression.type` is {codec.name.lower()}.",
            default=str(levels.default),
        )
        for codec, levels in LEVELS.items()
    ),
)

# Accepted with the one value that exactly-once needs, because many properties files for Java's producer contain it.
_FIXED = _rows(
    "fixed",
    None,
    Setting("acks", choice("all", "-1", "0", "1"), "All in-sync replicas acknowledge every record.", default="all",
        contradiction=Contradiction(
            lambda acks: acks in ("all", "-1"), "all or -1",
            f"a record that is not on every in-sync replica can be lost after it was acknowledged; {_REMOVE} or set it to all")),
    Setting("enable.idempotence", kinds.BOOLEAN, "A resent request writes its records only once.", default="true",
        contradiction=Contradiction(bool, "true", f"without idempotence a resent request writes its records twice; {_REMOVE}")),
    Setting("key.serializer", kinds.TEXT, "The sink writes keys as they leave Spark.", contradiction=_SERIALISED_BY_SPARK),
    Setting("value.serializer", kinds.TEXT, "The sink writes values as they leave Spark.", contradiction=_SERIALISED_BY_SPARK),
    Setting("transactional.id", kinds.TEXT, "The sink derives the id of each task from `transactional.id.prefix`.",
        contradiction=Contradiction(
            lambda _: False, "none",
            "tasks with the same id would fence each other; set the option transactional.id.prefix, from which the sink derives its ids")),
)  # fmt: skip

AWS_MSK_IAM = (
    "this mechanism is a class of Java clients; Amazon MSK also accepts IAM's tokens by OAUTHBEARER: set sasl.mechanism=OAUTHBEARER and "
    "sasl.oauthbearer.token.provider=msk-iam:<region>, and remove sasl.jaas.config and the callback handlers"
)


def _store_type(name: str, meaning: str) -> Setting:
    return Setting(name, kinds.STORE_TYPE, meaning, refused=(("JKS", JKS_WAY_OUT.format(type=name)),))


# The sink's own names (ssl.ca.location, sasl.username, ...) spare a user the login module's string and Java's stores.
_SECURITY_ROWS = _rows(
    "security",
    None,
    Setting("security.protocol", kinds.PROTOCOL,
        "Whether connections use TLS, SASL, both or neither.", target=SecurityConfig, field_name="protocol"),
    Setting("ssl.ca.location", kinds.AS_GIVEN, "PEM file or folder of trusted certificates, as in librdkafka."),
    Setting("ssl.cipher.suites", kinds.TEXT, "Suites of TLS 1.2, by Java's or OpenSSL's names. For TLS 1.3, OpenSSL chooses."),
    Setting("ssl.enabled.protocols", kinds.TLS_VERSIONS, "TLS versions that a connection may use.", default=",".join(get_args(TlsVersion))),
    Setting("ssl.endpoint.identification.algorithm", kinds.HOST_CHECK, "Whether a certificate must match its host name.", default="https"),
    Setting("ssl.key.password", kinds.AS_GIVEN, "Password of an encrypted private key."),
    Setting("ssl.keystore.certificate.chain", kinds.TEXT, "This client's certificate in PEM, then its issuers."),
    Setting("ssl.keystore.key", kinds.TEXT, "This client's private key in PEM."),
    Setting("ssl.keystore.location", kinds.AS_GIVEN, "File with this client's private key and certificates."),
    Setting("ssl.keystore.password", kinds.AS_GIVEN, "Password of the key store."),
    _store_type("ssl.keystore.type", "Format of the key store. The content decides. JKS is an error."),
    Setting("ssl.protocol", choice("TLS", "TLSv1.2", "TLSv1.3"), "Newest TLS version.", default="TLSv1.3"),
    Setting("ssl.truststore.certificates", kinds.TEXT, "Trusted certificates in PEM. Default: the operating system's."),
    Setting("ssl.truststore.location", kinds.AS_GIVEN, "File of trusted certificates. Default: the operating system's."),
    Setting("ssl.truststore.password", kinds.AS_GIVEN, "Password of the trust store."),
    _store_type("ssl.truststore.type", "Format of the trust store. The content decides. JKS is an error."),
    Setting("sasl.jaas.config", kinds.TEXT, "Java's login module with its options. The sink loads no class."),
    Setting("sasl.kerberos.service.name", kinds.TEXT, "First part of the brokers' Kerberos principals, often `kafka`. GSSAPI requires it."),
    Setting("sasl.login.connect.timeout.ms", integer(1),
        "How long a connection to the token endpoint may take.", target=ClientCredentials, field_name="connect_timeout_ms"),
    Setting("sasl.login.read.timeout.ms", integer(1),
        "How long the token endpoint may take to respond.", target=ClientCredentials, field_name="read_timeout_ms"),
    Setting("sasl.mechanism", kinds.MECHANISM, "How this client authenticates. SASL requires it.",
        refused=(("AWS_MSK_IAM", AWS_MSK_IAM),)),
    Setting("sasl.oauthbearer.client.credentials.client.id", kinds.AS_GIVEN, "Client id for the token endpoint."),
    Setting("sasl.oauthbearer.client.credentials.client.secret", kinds.AS_GIVEN, "Client secret for the token endpoint."),
    Setting("sasl.oauthbearer.client.id", kinds.AS_GIVEN, "Client id for the token endpoint."),
    Setting("sasl.oauthbearer.client.secret", kinds.AS_GIVEN, "Client secret for the token endpoint."),
    Setting("sasl.oauthbearer.extensions", kinds.TEXT,
        "Comma-separated `name=value` pairs that the broker receives with each token (`extension_` in Java's login module)."),
    Setting("sasl.oauthbearer.header.urlencode", kinds.BOOLEAN,
        "Whether to form-encode client id and secret in the header.", target=ClientCredentials, field_name="url_encoded"),
    Setting("sasl.oauthbearer.scope", kinds.TEXT, "Scope of the token."),
    Setting("sasl.oauthbearer.token.endpoint.url", kinds.TEXT, "https address that issues tokens for client credentials."),
    Setting("sasl.oauthbearer.token.provider", kinds.TEXT,
        "Your `package.module:callable`, which returns (token, expiry in seconds since 1970), or `msk-iam:<region>` for Amazon MSK."),
    Setting("sasl.password", kinds.AS_GIVEN, "Password of PLAIN and SCRAM."),
    Setting("sasl.username", kinds.AS_GIVEN, "User of PLAIN and SCRAM."),
)  # fmt: skip
# Every text of security may be a secret: a password, a key, or an address with a token in it.
SECURITY = {name: replace(row, secret=row.kind in (kinds.TEXT, kinds.AS_GIVEN)) for name, row in _SECURITY_ROWS.items()}
"""TLS and SASL, which ``security_properties.py`` reads into one ``SecurityConfig``."""


def _without_value(group: str, names_by_reason: Mapping[str, str]) -> dict[str, Setting]:
    """One row per name in each space-separated list of names."""
    rows = (
        Setting(name, kinds.TEXT, reason, secret=True)
        for reason, names in names_by_reason.items()
        for name in names.split()
    )
    return _rows(group, None, *rows)


JVM_CLASS = "it names a Java class and the sink runs no JVM client"
_OPENSSL = "TLS is Python's OpenSSL"
_PROVIDER = "sasl.oauthbearer.token.provider=package.module:callable"
_MSK_PROVIDER = "sasl.oauthbearer.token.provider=msk-iam:<region>"
_CHECKED_BY_BROKER = "the broker validates the token"

# Their values are hidden in messages: a user may write a password under any name.
REFUSED = _without_value(
    "refused",
    {
        f"{JVM_CLASS}; set the option interceptors to Python classes": "interceptor.classes",
        "write ${env:NAME} or ${file:/path:key}, which need no provider": "config.providers",
        f"{JVM_CLASS}; remove it and give sasl.username and sasl.password, or on Amazon MSK {_MSK_PROVIDER}": ""
        "sasl.client.callback.handler.class",
        f"{JVM_CLASS}; for tokens give {_PROVIDER}, or on Amazon MSK msk-iam:<region>": ""
        "sasl.login.callback.handler.class sasl.login.class",
        f"{JVM_CLASS}; give {_PROVIDER}": "sasl.oauthbearer.jwt.retriever.class",
        f"{JVM_CLASS}; {_CHECKED_BY_BROKER}": "sasl.oauthbearer.jwt.validator.class",
        f"{JVM_CLASS}; {_OPENSSL}": "security.providers ssl.engine.factory.class ssl.provider",
        f"signed assertions are not supported; fetch the token with {_PROVIDER}": "sasl.oauthbearer.assertion.algorithm "
        "sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss "
        "sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub "
        "sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file "
        "sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file",
        "Kafka does not offer two-phase commit without unstable APIs (KIP-939); to switch the timeout off, set "
        "kafka.transaction.timeout.ms=2147483647, if the brokers allow it": "transaction.two.phase.commit.enable",
    },
)
"""Names whose effect a user would miss. Each raises an error with the way out."""

WITHOUT_EFFECT = _without_value(
    "without effect",
    {
        "choose the partitioner with the option partitioner": "partitioner.class",
        "records without a key stay with one partition for a whole record batch": "partitioner.adaptive.partitioning.enable",
        "records without a key avoid partitions without a leader": "partitioner.availability.timeout.ms",
        "the sink pushes no client metrics (KIP-714)": "enable.metrics.push",
        "the sink has no JVM metrics": "metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms "
        "auto.include.jmx.reporter",
        _OPENSSL: "ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.secure.random.implementation",
        "the sink fetches the token again when it retries the connection, after reconnect.backoff.ms": "sasl.login.retry.backoff.max.ms "
        "sasl.login.retry.backoff.ms",
        "a token's expiry decides when the sink fetches the next token": "sasl.login.refresh.buffer.seconds "
        "sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter",
        "MIT Kerberos takes a new ticket from the keytab after half its lifetime; to renew a ticket cache, run kinit -R": ""
        "sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.ticket.renew.jitter "
        "sasl.kerberos.ticket.renew.window.factor",
        _CHECKED_BY_BROKER: "sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience "
        "sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms "
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms "
        "sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name",
    },
)
"""Names whose effect no user would miss. Each gives one warning."""

JAVA = {**_CONNECTION, **SECURITY, **_TUNING, **_PRODUCER, **_LEVELS, **_FIXED, **REFUSED, **WITHOUT_EFFECT}
"""Every name of the Java producer and its few additions, without ``kafka.``."""


def fields_of(values: Mapping[str, Any], target: type, table: Mapping[str, Setting] = JAVA) -> dict[str, Any]:
    """Return the parsed values for `target`, by the names of its fields."""
    return {table[name].field_name: value for name, value in values.items() if table[name].target is target}
