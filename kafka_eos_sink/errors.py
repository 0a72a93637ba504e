"""The exceptions that users see.

Exception classes do not survive the process boundaries inside Spark, so every message begins with a stable code,
``[KAFKA_EOS.<CODE>]``. ``docs/errors.md`` lists the codes with cause and solution.
"""

from __future__ import annotations

import re

PEER_CHARACTERS = 500
_REMEMBERED_CHARACTERS = 10_000
PAGE = "docs/errors.md"
"""The page that lists the codes, one anchor each. It is in a clone and, beside this module, in the installed package."""
_LINK = re.compile(rf" \({re.escape(PAGE)}#[a-z0-9_]+\)")


class _Shown(dict[int, str]):
    """A self-filling table for `str.translate`: a tenth of the memory of a list."""

    def __missing__(self, code: int) -> str:
        one = chr(code)
        shown = one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        if len(self) < _REMEMBERED_CHARACTERS:
            self[code] = shown
        return shown


_SHOWN = _Shown()


def printable(text: str) -> str:
    """Replace characters on which a terminal acts, as ESC; line feeds and tabs stay.

    Brokers, other clients and the commit log choose the names and texts that messages, warnings and tables show.
    """
    return text.translate(_SHOWN)


def one_line(text: str) -> str:
    """Return printable text on one line, so that it cannot pose as another message."""
    return printable(text.replace("\n", " ").replace("\t", " "))


def peer_text(text: str) -> str:
    """Return a peer's text for a message: printable, short, and one line."""
    return one_line(text[:PEER_CHARACTERS])


class KafkaEosError(Exception):
    """Base of all errors of this package.

    Args:
        code: The stable code.
        message: One sentence: what happened, where, and what to do. Control characters are replaced. Links of other
            errors in it are removed, because the text ends with this error's own link.
    """

    def __init__(self, code: str, message: str) -> None:
        message = _LINK.sub("", printable(message))
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"[KAFKA_EOS.{self.code}] {self.message} ({PAGE}#{self.code.lower()})"


class ConfigurationError(KafkaEosError):
    """An invalid option or combination of options; the message names all problems."""


class SchemaError(KafkaEosError):
    """The columns of the DataFrame do not fit what the sink writes."""


class InvalidRowError(KafkaEosError):
    """A row that Kafka cannot store: too large, null topic, or no such partition."""


class ProtocolError(KafkaEosError):
    """Bytes violate the Kafka protocol: they are truncated, oversized or malformed."""

    def __init__(self, message: str, code: str = "PROTOCOL") -> None:
        super().__init__(code, message)

    def __reduce__(self) -> tuple[type[ProtocolError], tuple[str, str]]:
        return type(self), (self.message, self.code)


class AuthorizationError(KafkaEosError):
    """The cluster denies access; the message names resource and missing permission."""


class AuthenticationError(KafkaEosError):
    """TLS or SASL authentication failed; a retry fails too."""


class BrokerUnavailableError(KafkaEosError):
    """No broker could be reached, or no response arrived before the deadline."""


class BrokerRefusedError(KafkaEosError):
    """A broker responded with an error that is not retriable."""


class MissingApiError(BrokerRefusedError):
    """A broker and this client share no version of an API (code MISSING_API)."""


class TopicSettingsError(BrokerRefusedError):
    """The cluster rejects a new topic's settings and may accept others."""


class TransactionAbortedError(KafkaEosError):
    """The transaction of this attempt cannot be committed; a new attempt may succeed."""


class FencedError(KafkaEosError):
    """A newer driver or attempt uses this producer identity; this process must stop."""


class DecisionPendingError(KafkaEosError):
    """The batch is decided but not finished; it must be finished, not written again."""


class WriteRefusedError(KafkaEosError):
    """The sink must not decide this write, for example after a checkpoint rollback."""


_OURS = re.compile(r"\[KAFKA_EOS\.([A-Z_]+)\] ([^\n]*)")


def code_and_sentence(error: BaseException) -> tuple[str | None, str]:
    """Extract the stable code and the sentence of this package from an error of Spark.

    Call it while the JVM runs, because the text of Spark's errors comes from there.

    Returns:
        The code and the sentence; without a code, None and the first line of Spark's message.
    """
    text = str(error)
    if ours := _OURS.search(text):
        return ours[1], ours[2].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Py4J prepends a line of its own; the message of the JVM follows ": ".
    first = next((line[2:] for line in lines if line.startswith(": ")), lines[0] if lines else "")
    return None, first


def one_sentence(error: BaseException) -> str:
    """Describe an error in one sentence, with its stable code first if it has one."""
    code, sentence = code_and_sentence(error)
    return printable(f"[KAFKA_EOS.{code}] {sentence}" if code else sentence or type(error).__name__)
