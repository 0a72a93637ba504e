"""Kinds of values: a parser, and a description for messages and documents."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from kafka_eos_sink.client.config import SERVERS, parse_bootstrap_servers
from kafka_eos_sink.client.security import SaslMechanism, SecurityProtocol, TlsVersion
from kafka_eos_sink.errors import ConfigurationError
from kafka_eos_sink.producer.config import INT32_MAX, INT64_MAX, OBJECT_NAME, RANGES
from kafka_eos_sink.protocol.identity import LONGEST_STRING, TOPIC_NAME_RULE, is_topic_name
from kafka_eos_sink.runtime.batch_record import LARGEST_USER_METADATA


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a setting accepts; `parse` raises ValueError for all others."""

    parse: Callable[[str], Any]
    expected: str


def integer(low: int, high: int = INT32_MAX, *, also: int | None = None) -> Kind:
    """Accept ASCII digits, signed or not, from `low` to `high`, or the value `also`."""

    def parse(text: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]{1,19}", text.strip(), re.ASCII) is None:
            raise ValueError
        # The pattern comes first: int() also accepts "1_000", which Java does not.
        number = int(text)
        if not low <= number <= high and number != also:
            raise ValueError
        return number

    return Kind(
        parse, f"an integer from {low} to {high}" + ("" if also is None or low <= also <= high else f", or {also}")
    )


def producer_range(name: str) -> Kind:
    """Accept what the field `name` of ``ProducerConfig`` accepts."""
    _option, low, high = RANGES[name]
    return integer(low, high)


def choice(*choices: str, fold: Callable[[str], str] = str) -> Kind:
    """Accept one of `choices`; `fold` (``str.lower`` or ``str.upper``) ignores case."""

    def parse(text: str) -> str:
        found = fold(text.strip())
        if found not in choices:
            raise ValueError
        return found

    return Kind(parse, "one of " + ", ".join(choices))


def limited(kind: Kind, most: int) -> Kind:
    """Accept what `kind` accepts, up to `most` bytes in UTF-8."""

    def parse(text: str) -> Any:
        value = kind.parse(text)
        if len(value.encode()) > most:
            raise ValueError
        return value

    return Kind(parse, f"{kind.expected}, at most {most} bytes in UTF-8")


def _addresses_of(text: str) -> tuple[tuple[str, int], ...]:
    # Without cause and reason, which may hold a secret: the caller's message shows the option's text as the user wrote it.
    try:
        return parse_bootstrap_servers(text)
    except ConfigurationError:
        raise ValueError from None


def _tls_versions_of(text: str) -> tuple[str, ...]:
    versions = tuple(part.strip() for part in text.split(","))
    if not set(versions) <= set(get_args(TlsVersion)):
        raise ValueError
    return versions


def _id_of(text: str) -> str:
    # Not trimmed: an id must stay the same text in every version of the sink, or it names another write.
    if not text.strip():
        raise ValueError
    return text


def _topic_of(text: str) -> str:
    # Trimmed, as in Spark's Kafka sink.
    if not is_topic_name(text.strip()):
        raise ValueError
    return text.strip()


def _foreach_call_of(text: str) -> tuple[str, str]:
    query, slash, call = text.partition("/")
    if not (query and slash and call):
        raise ValueError
    return query, call


def _partitioner_of(text: str) -> str:
    name = (text or "default").strip()
    return name.lower() if name.lower() in ("default", "round-robin") else _object_name(name)


def _classes_of(text: str) -> tuple[str, ...]:
    return tuple(map(_object_name, filter(None, map(str.strip, text.split(",")))))


def _object_name(text: str) -> str:
    if OBJECT_NAME.fullmatch(text) is None:
        raise ValueError
    return text


BOOLEAN = Kind(lambda text: choice("true", "false", fold=str.lower).parse(text) == "true", "true or false")
TEXT = Kind(str.strip, "any text")
# Secrets and paths: Java's clients trim these too, and cannot use a password or file name that begins or ends with white space.
AS_GIVEN = Kind(str, "any text, white space included")
ID = Kind(_id_of, "text that is not empty")
FOREACH_CALL = Kind(_foreach_call_of, "a query id, a slash, and a random text")
GROUP = limited(ID, LONGEST_STRING)
CLIENT_ID = limited(TEXT, LONGEST_STRING)
USER_METADATA = limited(AS_GIVEN, LARGEST_USER_METADATA)
TOPIC = Kind(_topic_of, f"a topic name ({TOPIC_NAME_RULE})")
TOPIC_OR_NONE = Kind(lambda text: _topic_of(text) if text.strip() else "", "a topic name, or empty for none")
ADDRESSES = Kind(_addresses_of, SERVERS)
CLASSES = Kind(_classes_of, "package.module:Class, comma-separated")
PARTITIONER = Kind(_partitioner_of, "default, round-robin or package.module:callable")
INT, LONG, BUFFER = integer(0), integer(0, INT64_MAX), integer(-1)
# Java accepts a wait of 0, by which no request can succeed.
POSITIVE = integer(1)
# Java's 0 means a batch per record. A batch limit of one byte has the same effect here.
BATCH_SIZE = Kind(lambda text: max(1, INT.parse(text)), INT.expected)
TLS_VERSIONS = Kind(_tls_versions_of, "TLSv1.2, TLSv1.3 or both; older versions are broken")
HOST_CHECK = Kind(
    choice("https", "", fold=str.lower).parse, "https, or empty to accept a certificate of another host name"
)
STORE_TYPE = choice("PEM", "PKCS12", fold=str.upper)
PROTOCOL = choice(*get_args(SecurityProtocol), fold=str.upper)
MECHANISM = choice(*get_args(SaslMechanism), fold=str.upper)
