"""The ``kafka.*`` options and Java-style properties files: read, checked, turned into the two configurations.

What each name means stands in ``property_tables.py``. Names of options have ``kafka.`` in front, those of files do not.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.client.security import PLAINTEXT, SecurityConfig
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.producer.config import ProducerConfig
from kafka_eos_sink.settings.java_properties import read_properties
from kafka_eos_sink.settings.key_stores import JKS_WAY_OUT
from kafka_eos_sink.settings.property_tables import (
    CHOSEN_SECURITY,
    COMPRESSION_LEVEL_NAMES,
    COMPRESSION_LEVELS,
    CONTRADICTIONS,
    INT_MAX,
    KERBEROS,
    KNOWN,
    PROPERTIES,
    REFUSED,
    SECURITY,
    WITHOUT_EFFECT,
)
from kafka_eos_sink.settings.secrets import HIDDEN, has_reference, resolve
from kafka_eos_sink.settings.security_properties import read_security

_JAVA_PRODUCER_ONLY = frozenset({"key.serializer", "value.serializer", "transactional.id"})
# Values of these are numbers, choices and addresses; every other value stays out of messages and reprs, also those of
# unknown names, which may be a password under a mistyped name.
_SHOWN = frozenset({*PROPERTIES, *COMPRESSION_LEVEL_NAMES, *CONTRADICTIONS, *CHOSEN_SECURITY})


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaProperties:
    """What the properties come to: the two configurations, the names that were given, and what to warn of."""

    client: ClientConfig
    producer: ProducerConfig
    given: frozenset[str]
    warnings: tuple[str, ...]


def nearest(name: str, known: Iterable[str]) -> str:
    """The name of `known` that looks most like `name`."""
    return difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)[0]


def shown(name: str, value: str) -> str:
    """`value` for people to read: hidden where it may be a secret, a reference as it was written."""
    return value if name in _SHOWN or has_reference(value) else HIDDEN


def read_kafka_properties(
    properties: Mapping[str, str], problems: list[str], *, prefix: str = "", required: bool = True
) -> KafkaProperties | None:
    """The configurations that `properties` (names without `prefix`) ask for.

    All that is wrong is appended to `problems`, in the order of the names, each naming `prefix` and name; None is
    returned when something was. `required` says whether ``bootstrap.servers`` must be there.
    """
    reader = _Reader(prefix=prefix, problems=problems)
    return reader.read(properties, required=required)


def client_part(properties: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What of a properties file is meant for this client, and the names that are left out.

    One file often serves several clients: ``group.id`` of a consumer is none of ours, and the serializers and the
    transactional id of a Java producer have no meaning outside it.
    """
    ours = {name: value for name, value in properties.items() if name in KNOWN and name not in _JAVA_PRODUCER_ONLY}
    return ours, tuple(sorted(properties.keys() - ours.keys()))


def kafka_properties_from_file(path: str | Path, overrides: Mapping[str, str] | None = None) -> KafkaProperties:
    """The configurations that a Java-style client properties file asks for; `overrides` go before it.

    Raises:
        ConfigurationError: INVALID_PROPERTIES, with all problems at once.
    """
    ours, foreign = client_part(_read_file(path))
    problems: list[str] = []
    properties = read_kafka_properties({**ours, **(overrides or {})}, problems)
    if properties is None:
        raise ConfigurationError("INVALID_PROPERTIES", f"{path}: {'; '.join(problems)}")
    if not foreign:
        return properties
    return replace(properties, warnings=(*properties.warnings, _left_out(path, foreign)))


def options_from_file(path: str | Path, warn: Callable[[str], None]) -> dict[str, str]:
    """A Java-style client properties file as options of the sink: each name with ``kafka.`` in front.

    `warn` is told which names are left out.

    Raises:
        ConfigurationError: INVALID_PROPERTIES, where the file cannot be read.
    """
    ours, foreign = client_part(_read_file(path))
    if foreign:
        warn(_left_out(path, foreign))
    return {f"kafka.{name}": value for name, value in ours.items()}


def _left_out(path: str | Path, foreign: Iterable[str]) -> str:
    return f"{path}: not for this client: {', '.join(foreign)}"


def _read_file(path: str | Path) -> dict[str, str]:
    try:
        return read_properties(path)
    except OSError as error:
        raise ConfigurationError("INVALID_PROPERTIES", f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError("INVALID_PROPERTIES", f"{path} is not a text file in UTF-8") from None


def _refused_security(name: str, value: str) -> str | None:
    """Why a value that is right in Java is not possible here, with the way out; else None."""
    if name == "sasl.mechanism" and value.upper() == "GSSAPI":
        return f"sasl.mechanism=GSSAPI is not possible: {KERBEROS}"
    if name in ("ssl.truststore.type", "ssl.keystore.type") and value.upper() == "JKS":
        return f"{name}=JKS is not possible: {JKS_WAY_OUT.format(type=name)}"
    return None


class _Reader:
    """Reads one set of properties; collects problems and warnings on the way."""

    def __init__(self, *, prefix: str, problems: list[str]) -> None:
        self._prefix = prefix
        self._problems = problems
        self._warnings: list[str] = []
        self._values: dict[str, Any] = {}

    def read(self, properties: Mapping[str, str], *, required: bool) -> KafkaProperties | None:
        before = len(self._problems)
        for name in sorted(properties):
            self._read_one(name, properties[name])
        if required and "bootstrap.servers" not in properties:
            self._problems.append(f"{self._prefix}bootstrap.servers is required: host:port of some brokers")
        security = self._read_security(properties)
        self._check_delivery_timeout()
        if len(self._problems) > before:
            return None
        return KafkaProperties(
            client=ClientConfig(**self._fields("client"), security=security),
            producer=ProducerConfig(**self._fields("producer")),
            given=frozenset(properties),
            warnings=tuple(self._warnings),
        )

    def _read_one(self, name: str, text: str) -> None:
        if name in REFUSED or name.startswith("config.providers."):
            reason = REFUSED[name if name in REFUSED else "config.providers"]
            self._problems.append(f"{self._prefix}{name} is not possible: {reason}")
        elif name in WITHOUT_EFFECT:
            self._warnings.append(f"{self._prefix}{name} has no effect: {WITHOUT_EFFECT[name]}")
        elif name not in KNOWN:
            self._problems.append(
                f"{self._prefix}{name} is not known; the nearest known name is {self._prefix}{nearest(name, KNOWN)}"
            )
        elif name not in SECURITY:
            self._parse(name, text)

    def _parse(self, name: str, text: str) -> None:
        contradiction = CONTRADICTIONS.get(name)
        if contradiction is not None:
            kind = contradiction.kind
        elif name in PROPERTIES:
            kind = PROPERTIES[name].kind
        else:
            kind = COMPRESSION_LEVELS[COMPRESSION_LEVEL_NAMES[name]]
        try:
            value = kind.parse(resolve(text).strip())
        except ConfigurationError as error:
            self._problems.append(f"{self._prefix}{name}: {error.message}")
            return
        except ValueError:
            self._problems.append(f"{self._prefix}{name} must be {kind.expected}, not {shown(name, text)!r}")
            return
        if contradiction is not None and not contradiction.allowed(value):
            self._problems.append(
                f"{self._prefix}{name}={shown(name, text)} contradicts exactly-once: {contradiction.reason}"
            )
            return
        self._values[name] = value

    def _read_security(self, properties: Mapping[str, str]) -> SecurityConfig:
        values: dict[str, Any] = {}
        given = frozenset(name for name in properties if name in SECURITY)
        for name in sorted(given):
            try:
                text = resolve(properties[name]).strip()
                refused = _refused_security(name, text)
                if refused is None:
                    values[name] = SECURITY[name].parse(text)
                else:
                    self._problems.append(f"{self._prefix}{refused}")
            except ConfigurationError as error:
                self._problems.append(f"{self._prefix}{name}: {error.message}")
            except ValueError:
                self._problems.append(
                    f"{self._prefix}{name} must be {SECURITY[name].expected}, not {shown(name, properties[name])!r}"
                )
        broken = given - values.keys()
        return read_security(values, broken, self._prefix, self._problems, self._warnings) or PLAINTEXT

    def _check_delivery_timeout(self) -> None:
        """Java's rule: the delivery timeout holds at least one wait and one request."""
        linger_ms = self._value("linger.ms")
        request_timeout_ms = self._value("request.timeout.ms")
        needed = min(linger_ms + request_timeout_ms, INT_MAX)
        if self._value("delivery.timeout.ms") >= needed:
            return
        if "delivery.timeout.ms" in self._values:
            self._problems.append(
                f"{self._prefix}delivery.timeout.ms={self._values['delivery.timeout.ms']} must be at least "
                f"linger.ms + request.timeout.ms = {linger_ms} + {request_timeout_ms} = {needed}"
            )
        else:
            # Who raises only the parts of the sum means the sum, as in Java.
            self._values["delivery.timeout.ms"] = needed

    def _value(self, name: str) -> int:
        if name in self._values:
            return int(self._values[name])
        entry = PROPERTIES[name]
        owner: type = ClientConfig if entry.client is not None else ProducerConfig
        return int(owner.__dataclass_fields__[entry.client or entry.producer].default)  # type: ignore[attr-defined]

    def _fields(self, which: str) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in self._values.items():
            entry = PROPERTIES.get(name)
            field = getattr(entry, which) if entry is not None else None
            if field is not None:
                fields[field] = value
        level = self._values.get(f"compression.{self._values.get('compression.type', 'none')}.level")
        if which == "producer" and level is not None:
            fields["compression_level"] = level
        return fields
