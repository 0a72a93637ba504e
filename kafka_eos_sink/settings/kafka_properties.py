"""Read ``kafka.*`` options and properties files into the two configurations.

``table.py`` holds what each name means. Names of options begin with ``kafka.``, names in files do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.security import PLAINTEXT
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.producer.config import INT32_MAX, ProducerConfig
from kafka_eos_sink.settings.java_properties import read_properties
from kafka_eos_sink.settings.reading import read_values
from kafka_eos_sink.settings.security_properties import SecurityReader
from kafka_eos_sink.settings.table import JAVA, PREFIX, SECURITY, fields_of
from kafka_eos_sink.settings.unknown_names import OTHER_CLIENTS

_JAVA_PRODUCER_ONLY = frozenset({"key.serializer", "value.serializer", "transactional.id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaProperties:
    """The two configurations, and the warnings."""

    client: ClientConfig
    producer: ProducerConfig
    warnings: tuple[str, ...]


def read_kafka_properties(
    properties: Mapping[str, str], problems: list[str], *, prefix: str = ""
) -> KafkaProperties | None:
    """Read `properties` into the configurations of the client and the producer.

    Args:
        properties: Values by name, without `prefix`.
        problems: Receives one sentence per problem, in the order of the names.
        prefix: Precedes each name in messages.

    Returns:
        None if there was a problem.
    """
    # One list for all steps, so that the user sees every problem at once.
    before = len(problems)
    warnings: list[str] = []
    values = read_values(properties, JAVA, prefix, problems, warnings)
    if "bootstrap.servers" not in properties:
        problems.append(f"{prefix}bootstrap.servers is required: host:port of some brokers")
    broken = frozenset(name for name in properties if name in SECURITY and name not in values)
    secured = {name: value for name, value in values.items() if name in SECURITY}
    security = SecurityReader(secured, broken, prefix, problems, warnings).read() or PLAINTEXT
    _check_delivery_timeout(values, prefix, problems)
    if len(problems) > before:
        return None
    # Java ignores the levels of the codecs that are not used.
    level = values.get(f"compression.{values.get('compression.type')}.level")
    return KafkaProperties(
        client=ClientConfig(**fields_of(values, ClientConfig), security=security, prefix=prefix),
        producer=ProducerConfig(**fields_of(values, ProducerConfig), compression_level=level),
        warnings=tuple(warnings),
    )


def _check_delivery_timeout(values: dict[str, Any], prefix: str, problems: list[str]) -> None:
    """Check Java's rule: delivery.timeout.ms covers linger.ms and one request."""

    def value(name: str) -> int:
        return int(values.get(name, JAVA[name].default_value))

    linger_ms, request_timeout_ms = value("linger.ms"), value("request.timeout.ms")
    # Capped as in Java, where the sum of two large ints would overflow (KafkaProducer.configureDeliveryTimeout).
    needed = min(linger_ms + request_timeout_ms, INT32_MAX)
    if value("delivery.timeout.ms") >= needed:
        return
    if "delivery.timeout.ms" in values:
        problems.append(
            f"{prefix}delivery.timeout.ms={values['delivery.timeout.ms']} must be at least "
            f"{prefix}linger.ms + {prefix}request.timeout.ms = {linger_ms} + {request_timeout_ms} = {needed}"
        )
    else:
        # As in Java: if the user raises only linger.ms or request.timeout.ms, the delivery timeout rises to their sum.
        values["delivery.timeout.ms"] = needed


def kafka_properties_from_file(path: str | Path, overrides: Mapping[str, str] | None = None) -> KafkaProperties:
    """Read the configurations from a client properties file; `overrides` win.

    Raises:
        ConfigurationError: INVALID_PROPERTIES, with all problems at once.
    """
    ours, warnings = client_part(path)
    problems: list[str] = []
    properties = read_kafka_properties({**ours, **(overrides or {})}, problems)
    if properties is None:
        raise ConfigurationError("INVALID_PROPERTIES", [f"{path}: {each}" for each in problems])
    client = replace(properties.client, properties_file=str(path))
    return replace(properties, client=client, warnings=(*properties.warnings, *warnings))


def options_from_file(path: str | Path, warn: Callable[[str], None] = warn_once) -> dict[str, str]:
    """Read a Java-style client properties file as options of the sink (``kafka.*``).

    The options hold the file's secrets. Prefer the option ``kafka.properties.file``, whose file each process reads itself.

    Args:
        path: A file on this machine. References in its values, such as ``${env:NAME}``, stay as they are.
        warn: Receives a sentence with the names that belong to other clients.

    Raises:
        ConfigurationError: INVALID_PROPERTIES, if the file cannot be read.
    """
    ours, warnings = client_part(path)
    for warning in warnings:
        warn(warning)
    return {f"{PREFIX}{name}": value for name, value in ours.items()}


def client_part(path: str | Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the file's properties for this client, and a warning about the others.

    One file often serves several clients. A consumer's ``group.id`` does not concern this client. The serializers and the
    transactional id of a Java producer have no meaning outside that producer.

    Raises:
        ConfigurationError: INVALID_PROPERTIES, if the file cannot be read.
    """
    try:
        properties = read_properties(path)
    except OSError as error:
        # In quotes, white space around the path is visible.
        name = str(path) if str(path) == str(path).strip() else repr(str(path))
        raise ConfigurationError(
            "INVALID_PROPERTIES", f"{name} cannot be read on this machine: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError("INVALID_PROPERTIES", f"{path} is not a text file in UTF-8") from None
    ours = {name: value for name, value in properties.items() if name in JAVA and name not in _JAVA_PRODUCER_ONLY}
    foreign = properties.keys() - ours.keys()
    # A line of a private key or of a password file parses as a property's name, so the warning shows only known names.
    named = sorted(foreign & (JAVA.keys() | OTHER_CLIENTS))
    if unnamed := len(foreign) - len(named):
        named.append(f"{unnamed} {'names that are' if unnamed > 1 else 'name that is'} no Kafka client property")
    return ours, (f"{path}: not for this client: {', '.join(named)}",) if named else ()
