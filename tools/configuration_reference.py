"""``docs/options.md``, written from the settings table.

``python -m tools.configuration_reference > docs/options.md`` writes the page. A unit test compares it with the table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from kafka_eos_sink.producer.config import INT32_MAX, INT64_MAX
from kafka_eos_sink.settings.table import JAVA, JVM_CLASS, PREFIX, SINK, Setting

COMMAND = "python -m tools.configuration_reference > docs/options.md"

_INTRODUCTION = f"""\
# Options

<!-- Generated: do not edit. Change kafka_eos_sink/settings/table.py and run
     {COMMAND} -->

Set options with `.option(name, value)`. Their names are case-insensitive. Every write needs `kafka.bootstrap.servers`, and `topic` unless
the rows have a column `topic`. The sink checks all options before it writes, and one error lists all problems. For an unknown name, the
error says what to do or suggests the nearest name.

`kafka.*` options have the names, meanings and defaults of Java's producer, but [some defaults differ](#defaults-that-differ-from-javas). In
a Java-style properties file, write the same names without `kafka.`.

Instead of a secret, write `${{env:NAME}}` or `${{file:/path:key}}`. Each process resolves the references in `kafka.*` options for itself,
so the secret never appears in a query plan. Logs and error messages hide every text value of `kafka.ssl.*` and `kafka.sasl.*`.

The sink trims white space around a value, as Java does, except around `txnAppId`, `transactional.id.prefix`, `source.offsets.group`,
`userMetadata`, users, passwords and paths. It warns about each user, password or path that begins or ends with white space.
"""

_GROUPS = {
    "sink": ("Options of the sink", ""),
    "tuning": (
        "Producer options that you may want to change",
        "[Performance](performance.md) says when and why you would change them.",
    ),
    "producer": ("Other producer options", ""),
    "connection": ("Connection", "These options apply to all connections of the driver and the tasks."),
    "security": (
        "Security",
        "`ssl.*` and `sasl.*` have an effect only if `kafka.security.protocol` uses them, and [Security](secure.md) has examples of both.",
    ),
    "fixed": (
        "Fixed by exactly-once",
        "Omit these options, because any other value than the one in the table is an error.",
    ),
    "refused": (
        "Not supported",
        "Setting any of these options is an error, because you would expect an effect that the sink cannot provide. An option for a\n"
        "Java class is among them because the sink runs no JVM client.",
    ),
    "without effect": (
        "Without effect",
        "You can set these options, but the sink ignores them, and logs one warning for each.",
    ),
}

PATTERNS = (
    "sasl.kerberos.ticket.renew.*",
    "sasl.oauthbearer.assertion.*",
    "metrics.*",
    "sasl.login.retry.*",
    "sasl.login.refresh.*",
    "sasl.oauthbearer.expected.*",
    "sasl.oauthbearer.jwks.*",
    "sasl.oauthbearer.*.claim.name",
)
"""Each stands on the page for all names that it matches, which have one reason."""

OTHER_DEFAULTS = {
    "batch.size": ("16384", "Spark delivers thousands of rows at a time: larger batches cost fewer requests"),
    "linger.ms": ("5", "rows are invisible until the commit, which sends at once: waiting adds no latency"),
    "transaction.timeout.ms": ("60000", "a transaction must outlast its whole batch"),
    "send.buffer.bytes": ("131072", "the kernel sends while the task encodes rows, so it should hold whole requests"),
    "client.id": ("", "the brokers' logs and quotas show who writes"),
    "sasl.mechanism": (
        "GSSAPI",
        "Kerberos is the default only if `kafka.sasl.kerberos.service.name` or `Krb5LoginModule` is set",
    ),
    "sasl.login.connect.timeout.ms": ("", "a token endpoint that does not respond must not stop a task"),
    "sasl.login.read.timeout.ms": ("", "a token endpoint that does not respond must not stop a task"),
    "ssl.keystore.type": ("JKS", "the content of the store decides; only Java reads JKS"),
    "ssl.truststore.type": ("JKS", "the content of the store decides; only Java reads JKS"),
}
"""Java's default, and why the sink has another one. `tests/conformance/test_defaults.py` compares all defaults with the Java producer."""


def options_page() -> str:
    """Return the text of ``docs/options.md``."""
    rows = [*SINK.items(), *((PREFIX + name, row) for name, row in JAVA.items())]
    parts = [_INTRODUCTION]
    for group, (title, sentence) in _GROUPS.items():
        members = [(name, row) for name, row in rows if row.group == group]
        write = _reasons if group in ("refused", "without effect") else _values
        parts.append("\n".join((f"## {title}", "", *((sentence, "") if sentence else ()), *write(members), "")))
    parts.append("\n".join(_differences()))
    return "\n".join(parts)


def _differences() -> Iterator[str]:
    yield from ("## Defaults that differ from Java's", "", "An empty cell means that the option has no default.", "")
    yield from ("| option | Java's producer | here | why |", "|---|---|---|---|")
    facts: dict[tuple[str, str, str], list[str]] = {}
    for name, (java, why) in OTHER_DEFAULTS.items():
        here = _default(JAVA[name]).replace("see meaning", "the broker's maximum, at most 15 minutes")
        facts.setdefault((f"`{java}`" if java else "", here, why), []).append(PREFIX + name)
    yield from (f"| {_names(names)} | {java} | {here} | {why} |" for (java, here, why), names in facts.items())
    yield ""


def _values(members: Iterable[tuple[str, Setting]]) -> Iterator[str]:
    yield "| option | values | default | meaning |"
    yield "|---|---|---|---|"
    facts: dict[tuple[str, str, str], list[str]] = {}
    for name, row in members:
        values = row.kind.expected if row.contradiction is None else row.contradiction.accepted
        facts.setdefault((_values_of(values), _default(row), row.meaning), []).append(name)
    yield from (f"| {_names(names)} | {' | '.join(fact)} |" for fact, names in facts.items())


def _reasons(members: Iterable[tuple[str, Setting]]) -> Iterator[str]:
    yield "| option | reason |"
    yield "|---|---|"
    facts: dict[str, list[str]] = {}
    for name, row in members:
        pattern = next((PREFIX + each for each in PATTERNS if fnmatchcase(name, PREFIX + each)), name)
        names = facts.setdefault(row.meaning.removeprefix(f"{JVM_CLASS}; "), [])
        names += [] if pattern in names else [pattern]
    yield from (f"| {_names(names)} | {reason} |" for reason, names in facts.items())


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _values_of(expected: str) -> str:
    """Shorten the text of an error message: its exact limits and rules are for the user who broke them."""
    if found := re.fullmatch(r"an integer from (\S+) to (\d+)(, or \S+)?", expected):
        low, high, other = found[1], int(found[2]), found[3] or ""
        return f"integer >= {low}" if high in (INT32_MAX, INT64_MAX) else f"{low} to {high}{other}"
    for long, short in (
        (r"one of ", ""),
        (r"(any )?text\b", "text"),
        (r" that is not empty|, white space included| in UTF-8", ""),
        (r"a (topic name) \(.*\)", r"\1"),
        (r"a (topic name), or empty for none", r"\1 or empty"),
        (r"a comma-separated list such as (\S+),.*", r"\1"),
        (r"https, or empty .*", "https, or empty for no check"),
        (r"; older versions .*", ""),
    ):
        expected = re.sub(long, short, expected)
    return expected


def _default(row: Setting) -> str:
    """Return the default as a user would write it, empty if there is none."""
    value = row.default if row.default is not None else row.default_value
    if value in (None, ()):
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if " " in text or text == "required" else f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(options_page())
