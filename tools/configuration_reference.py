"""``docs/configuration.md``, written from the settings table.

``python -m tools.configuration_reference > docs/configuration.md`` writes the page. A unit test compares it with the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from kafka_eos_sink.settings.table import JAVA, PREFIX, SINK, Setting

COMMAND = "python -m tools.configuration_reference > docs/configuration.md"

_INTRODUCTION = f"""\
# Configuration

<!-- Generated: do not edit. Change kafka_eos_sink/settings/table.py and run
     {COMMAND} -->

Set options with `.option(name, value)`. Option names are case-insensitive. The sink checks all options before it writes, and
one error names every problem. An unknown name is an error, which says what to do or names an option whose name is near.

`kafka.*` options carry the Java producer's names, meanings and defaults; [these defaults differ](#defaults-that-differ-from-javas). A
Java-style properties file has the same names without `kafka.`.

A value may be `${{env:NAME}}` or `${{file:/path:key}}`. References in `kafka.*` are resolved in the process that uses the value,
so no secret given in this way stands in a query plan. Logs and reprs hide the values marked *hidden*; no message shows a password or a key.

White space around a value is trimmed, as in Java, except around ids and "any text, white space included". One warning names each
password, user or path that begins or ends with it, because Java's clients trim these too.
"""

_GROUPS = {
    "sink": ("Options of the sink", "Only `topic` is needed if the rows have no column `topic`."),
    "connection": ("Connection", "These apply to every connection of the driver and the tasks."),
    "security": ("Security", "`ssl.*` and `sasl.*` have no effect if `kafka.security.protocol` does not use them."),
    "producer": ("Producer", "These apply to the producer of each task."),
    "fixed": ("Fixed by exactly-once", "Leave these out. Another value is an error."),
    "refused": ("Refused", "Each of these is an error, because ignoring it would change what you expect."),
    "without effect": ("Without effect", "Each of these causes one warning."),
}


OTHER_DEFAULTS = {
    "batch.size": ("16384", "rows arrive in thousands: larger batches cost fewer requests"),
    "linger.ms": ("5", "nothing is visible before the transaction ends, and its end sends at once"),
    "transaction.timeout.ms": ("60000", "a transaction must outlast its whole batch"),
    "send.buffer.bytes": ("131072", "the kernel sends while the task encodes rows, so it should take whole requests"),
    "client.id": ("", "the brokers' logs and quotas show who writes"),
    "sasl.mechanism": ("GSSAPI", "Kerberos needs the JVM: name a mechanism if you use SASL"),
    "sasl.login.connect.timeout.ms": ("", "a token endpoint that does not respond must not hold a task"),
    "sasl.login.read.timeout.ms": ("", "as above"),
    "ssl.keystore.type": ("JKS", "the content of the store decides; only Java reads JKS"),
    "ssl.truststore.type": ("JKS", "as above"),
}
"""Java's default, and why the sink has another one. `tests/conformance/test_defaults.py` compares all defaults with the Java producer."""


def configuration_page() -> str:
    """Return the text of ``docs/configuration.md``."""
    rows = [*SINK.items(), *((PREFIX + name, row) for name, row in JAVA.items())]
    parts = [_INTRODUCTION]
    for group, (title, sentence) in _GROUPS.items():
        members = [(name, row) for name, row in rows if row.group == group]
        write = _reasons if group in ("refused", "without effect") else _values
        parts.append("\n".join((f"## {title}", "", sentence, "", *write(members), "")))
    parts.append("\n".join(_differences()))
    return "\n".join(parts)


def _differences() -> Iterator[str]:
    yield from ("## Defaults that differ from Java's", "", "An empty cell is no default.", "")
    yield from ("| option | Java's producer | here | why |", "|---|---|---|---|")
    for name, (java, why) in OTHER_DEFAULTS.items():
        here = _default(JAVA[name]).replace("see meaning", "the broker's maximum, up to 15 minutes")
        yield f"| `{PREFIX}{name}` | {f'`{java}`' if java else ''} | {here} | {why} |"
    yield ""


def _values(members: Iterable[tuple[str, Setting]]) -> Iterator[str]:
    yield "| option | values | default | meaning |"
    yield "|---|---|---|---|"
    for name, row in members:
        values = row.kind.expected if row.contradiction is None else row.contradiction.accepted
        values += " (*hidden*)" if row.secret else ""
        yield f"| `{name}` | {values} | {_default(row)} | {row.meaning} |"


def _reasons(members: Iterable[tuple[str, Setting]]) -> Iterator[str]:
    yield "| option | reason |"
    yield "|---|---|"
    yield from (f"| `{name}` | {row.meaning} |" for name, row in members)


def _default(row: Setting) -> str:
    """Return the default as a user would write it, empty if there is none."""
    value = row.default if row.default is not None else row.default_value
    if value in (None, ()):
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if " " in text or text == "required" else f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(configuration_page())
