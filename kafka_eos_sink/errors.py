"""The exceptions a user can meet.

Exception classes do not survive the process boundaries inside Spark, so every message begins with a stable code,
``[KAFKA_EOS.<CODE>]``. The codes, their causes and the ways out are listed in ``docs/errors.md``.
"""

from __future__ import annotations

import re


class KafkaEosError(Exception):
    """Base of all errors of this package: a stable code and one sentence that names what, where and what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"[KAFKA_EOS.{self.code}] {self.message}"


class ConfigurationError(KafkaEosError):
    """An option or a combination of options that cannot work; names all problems at once."""


class SchemaError(KafkaEosError):
    """The columns of the DataFrame do not fit what the sink writes."""


class InvalidRowError(KafkaEosError):
    """A row that Kafka cannot take: too large, a null topic, a partition that does not exist."""


class ProtocolError(KafkaEosError):
    """Bytes that are not what the Kafka protocol allows: truncated, oversized or nonsense."""

    def __init__(self, message: str, code: str = "PROTOCOL") -> None:
        super().__init__(code, message)

    def __reduce__(self) -> tuple[type[ProtocolError], tuple[str, str]]:
        return type(self), (self.message, self.code)


class AuthorizationError(KafkaEosError):
    """The cluster refuses the principal; names the right and the resource."""


class AuthenticationError(KafkaEosError):
    """Client and broker could not prove to each other who they are (TLS, SASL); another attempt meets the same."""


class BrokerUnavailableError(KafkaEosError):
    """No broker could be reached, or none answered before the deadline."""


class BrokerRefusedError(KafkaEosError):
    """A broker answered with an error that no repetition can mend."""


class TransactionAbortedError(KafkaEosError):
    """This attempt's transaction cannot be committed any more; a new attempt may succeed."""


class FencedError(KafkaEosError):
    """A newer driver or attempt has taken over this identity; this one must stop."""


class DecisionPendingError(KafkaEosError):
    """The batch is decided but not finished; it must be finished, never written again."""


class WriteRefusedError(KafkaEosError):
    """The commit log forbids this write: rolled back checkpoint, unresolved, lost or foreign decision."""


_OURS = re.compile(r"\[KAFKA_EOS\.([A-Z_]+)\] ([^\n]*)")


def code_and_sentence(error: BaseException) -> tuple[str | None, str]:
    """The stable code and the sentence of ours in what Spark raised, else None and what Spark said first.

    To be called while the JVM lives, out of which the text of Spark's errors comes.
    """
    text = str(error)
    if ours := _OURS.search(text):
        return ours[1], ours[2].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Py4J puts a line of its own first: what the JVM said follows ": ".
    said = next((line[2:] for line in lines if line.startswith(": ")), lines[0] if lines else "")
    return None, said


def one_sentence(error: BaseException) -> str:
    """What went wrong, our code first where there is one."""
    code, sentence = code_and_sentence(error)
    return f"[KAFKA_EOS.{code}] {sentence}" if code else sentence or type(error).__name__
