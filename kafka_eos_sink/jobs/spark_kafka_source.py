"""Spark's own Kafka source, whose jars PySpark does not ship."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.settings.secrets import resolve
from kafka_eos_sink.settings.table import PREFIX, SECURITY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Newer token providers cannot be resolved, so that ``spark-submit --packages`` fails on what the source declares.
_CLASS_OF_JAR = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0": "org.apache.spark.kafka010.KafkaTokenUtil",
    "org.apache.commons:commons-pool2:2.12.0": "org.apache.commons.pool2.impl.GenericKeyedObjectPool",
    "org.apache.kafka:kafka-clients:3.9.1": "org.apache.kafka.clients.consumer.KafkaConsumer",
}
KAFKA_SOURCE_JARS = tuple(_CLASS_OF_JAR)
"""Jars of Spark's Kafka source for PySpark 4.1 to 4.3, each without its dependencies."""

KAFKA_SOURCE_HELP = "\n".join(
    (
        "Spark's Kafka source needs jars that PySpark does not ship. Pass exactly these four to spark-submit --jars, each "
        "without its dependencies. `kafka-eos jars` downloads them and prints their paths:",
        *(f"  {jar}" for jar in KAFKA_SOURCE_JARS),
    )
)
"""Help text of the jobs, one line per jar."""

_CONNECTION = {"bootstrap.servers", "client.id", "client.dns.lookup", "request.timeout.ms", *SECURITY}
_NOT_JAVA = {
    "properties.file": "--properties, or options_from_file",
    "ssl.ca.location": "ssl.truststore.location with ssl.truststore.type=PEM",
    "sasl.username": "sasl.jaas.config",
    "sasl.password": "sasl.jaas.config",
    "sasl.oauthbearer.client.id": "sasl.jaas.config",
    "sasl.oauthbearer.client.secret": "sasl.jaas.config",
    "sasl.oauthbearer.extensions": "sasl.jaas.config",
    "sasl.oauthbearer.scope": "sasl.jaas.config",
    "sasl.oauthbearer.token.provider": "sasl.login.callback.handler.class",
}
"""Options of the sink that Java's client does not know, and their replacement there."""


def unknown_to_java(options: Iterable[str]) -> tuple[str, ...]:
    """Return the connection options that Java's client does not know."""
    return tuple(sorted(name for name in options if name.removeprefix(PREFIX) in _NOT_JAVA))


def connection_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the connection options for Spark's source.

    Spark cannot resolve references such as ``${env:NAME}``, so this function does. The sink's ``options`` have lower-case names.

    Raises:
        ConfigurationError: INVALID_OPTIONS if Java's client does not know an option; UNRESOLVED_REFERENCE.
    """
    unknown = unknown_to_java(options)
    if unknown:
        instead = sorted({_NOT_JAVA[name.removeprefix(PREFIX)] for name in unknown})
        raise ConfigurationError(
            "INVALID_OPTIONS",
            f"{', '.join(unknown)}: Spark reads with Java's client, which does not know this; use {', '.join(instead)}",
        )
    return {name: resolve(value) for name, value in options.items() if name.removeprefix(PREFIX) in _CONNECTION}


def missing_jars(spark: SparkSession) -> tuple[str, ...] | None:
    """Return the missing ``KAFKA_SOURCE_JARS``; None if Spark Connect hides its jars."""
    java: Any = getattr(spark, "_jvm", None)
    if java is None:
        return None
    # The context class loader is the only one that sees the jars of --jars; Class.forName of Py4J's own loader does not.
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    # Search the class file instead of loading the class, which would fail if another of the jars is missing.
    return tuple(
        jar for jar, name in _CLASS_OF_JAR.items() if loader.getResource(f"{name.replace('.', '/')}.class") is None
    )


def require_kafka_source(spark: SparkSession) -> None:
    """Raise ConfigurationError KAFKA_SOURCE_MISSING if jars are missing."""
    missing = missing_jars(spark)
    if missing:
        raise ConfigurationError(
            "KAFKA_SOURCE_MISSING",
            f"Spark's Kafka source is not complete, {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; "
            "pass its four jars, each without dependencies, to spark-submit --jars (`kafka-eos jars` downloads them): "
            + ", ".join(KAFKA_SOURCE_JARS),
        )
