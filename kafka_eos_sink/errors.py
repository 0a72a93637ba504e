"""The exceptions that users see.

Exception classes do not survive the process boundaries inside Spark, so every message begins with a stable code,
``[KAFKA_EOS.<CODE>]``. ``errors.toml`` has a row for each code, from which ``docs/errors.md`` and ``kafka-eos explain`` are made.

A message has one layout: what happened; whether rows are visible and whether it is safe to run the job again; what to do; that command.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from kafka_eos_sink.error_table import table

PEER_CHARACTERS = 500
_REMEMBERED_CHARACTERS = 10_000
_EXPLAIN = re.compile(r" \(kafka-eos explain [A-Z0-9_]+\)")


class _Shown(dict[int, str]):
    """A self-filling table for `str.translate`: a tenth of the memory of a list."""

    def __missing__(self, code: int) -> str:
        one = chr(code)
        shown = one if one.isprintable() or one in "\n\t" else "\ufffd"
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


def counted(number: int, noun: str, form: str = ",") -> str:
    """Return the number with its noun: ``1 write``, ``2,000 writes``."""
    return f"{number:{form}} {noun}{'s' * (number != 1)}"


class Visible(StrEnum):
    """Whether consumers can see rows of the write that failed."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class RunAgain(StrEnum):
    """Whether the same job can run again without writing a row twice."""

    YES = "yes"
    SAME_ID = "only with the same txnAppId or checkpoint"
    REFUSED = "no, it fails again until you act"
    TWICE = "no, it would write rows twice"


class Safety(NamedTuple):
    """What an error code says about the rows of an exactly-once write."""

    visible: Visible
    run_again: RunAgain


class Job(StrEnum):
    """The kinds of jobs for which the same code needs different advice."""

    BATCH = "a batch write with txnAppId"
    RANDOM = "a batch write without txnAppId: its next run has another write id"
    STREAM = "a streaming query"
    AT_LEAST_ONCE = "a write without transactions, once it may have sent rows"


UNDECIDED = Safety(Visible.NO, RunAgain.YES)
"""Nothing of this run is visible, or will be: the default."""
OF_A_COMMAND = "An error of a command: it says nothing about rows."
_SAME_RUN = {Job.BATCH: "only with the same txnAppId and txnVersion", Job.STREAM: "only from the same checkpoint"}
_NEVER_RANDOM = frozenset({"FENCED", "PRODUCER_FENCED"})
"""Only an operator's command fences a run with a random write id, and before the decision: then no run commits its rows."""


def safety_of(code: str) -> Safety | None:
    """Return what a code says about rows; None if only commands raise it."""
    rows = table().rows
    if not rows:
        return Safety(Visible.MAYBE, RunAgain.SAME_ID)  # nothing says which answers are right
    row = rows.get(code)
    if row is None:
        return UNDECIDED
    if row.command:
        return None
    visible, again = row.visible or UNDECIDED.visible, row.again or UNDECIDED.run_again.name
    return Safety(Visible(visible), RunAgain[again.upper()])


def speaks_of_rows(code: str) -> bool:
    """Whether the code answers for the rows also where a command fails with it."""
    row = table().rows.get(code)
    return row is not None and (row.visible is not None or row.again is not None)


def safety_sentence(code: str, job: Job, *, has_plan: bool = True, in_command: bool = False) -> str:
    """State whether rows are visible and whether the job can run again, for a message.

    Args:
        has_plan: False if the run has not yet read what earlier runs have written.
        in_command: True if a command on the job's write failed, not the job.
    """
    safety = safety_of(code)
    if safety is None:
        return OF_A_COMMAND
    if job is Job.AT_LEAST_ONCE:
        again = f"{RunAgain.TWICE}. This write has delivery.guarantee=at-least-once: another run writes all rows again"
        return f"Rows visible: {Visible.MAYBE}. Safe to run again: {again}."
    if job is Job.RANDOM and code in _NEVER_RANDOM and not in_command:
        safety = UNDECIDED
    again = safety.run_again.value
    if safety.run_again is not RunAgain.YES and job is Job.RANDOM:
        again = f"{RunAgain.TWICE}. Do not run the job again, because it has no txnAppId"
    elif safety.run_again is RunAgain.SAME_ID:
        again = _SAME_RUN[job]
    visible = f"Rows visible: {safety.visible}."
    if not has_plan and safety.visible is Visible.NO and job is not Job.RANDOM:
        visible = "This run wrote nothing of the batch."
    return f"{visible} Safe to run again: {again}."


def _numbered(problems: Sequence[str]) -> str:
    """Join problems, each with its number, because a problem may have a semicolon too."""
    return problems[0] if len(problems) == 1 else "; ".join(f"{at}. {each}" for at, each in enumerate(problems, 1))


class KafkaEosError(Exception):
    """Base of all errors of this package.

    Args:
        code: The stable code.
        message: What happened, and where; what to do, if no row can be concerned. Control characters are replaced. ``kafka-eos
            explain`` of other errors is removed, because the text ends with this error's own. Several problems are numbered.
        way_out: What to do, with complete commands. It follows the sentence on safety.
    """

    safety = ""
    """What the error means for the rows of a write; `concern` sets it when the error leaves a write or a command on one."""

    def __init__(self, code: str, message: str | Sequence[str], way_out: str = "") -> None:
        self.problems = (message,) if isinstance(message, str) else tuple(message)
        message, way_out = (_EXPLAIN.sub("", printable(text)) for text in (_numbered(self.problems), way_out))
        super().__init__(code, message, way_out)
        self.code = code
        self.message = message
        self.way_out = way_out

    @property
    def brief(self) -> str:
        """Code and cause, for the text of another error, which has its own way out."""
        return f"[KAFKA_EOS.{self.code}] {self.message}"

    def __str__(self) -> str:
        message = self.message
        if self.safety or self.way_out:
            message = message if message.endswith(".") else message + "."
        text = " ".join(filter(None, (message, self.safety, self.way_out)))
        return f"[KAFKA_EOS.{self.code}] {text} (kafka-eos explain {self.code})"

    def concern(self, job: Job, *, has_plan: bool = True, in_command: bool = False) -> None:
        """State what the error means for the rows of a job, unless it does already."""
        self.safety = self.safety or safety_sentence(self.code, job, has_plan=has_plan, in_command=in_command)


def brief(failure: Exception) -> str:
    """Return the cause of any exception, for the text of another error."""
    return failure.brief if isinstance(failure, KafkaEosError) else f"{type(failure).__name__}: {failure}"


class ConfigurationError(KafkaEosError):
    """An invalid option or combination of options; the message lists all problems."""


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
    # Py4J prepends its own line; the message of the JVM follows ": ".
    first = next((line[2:] for line in lines if line.startswith(": ")), lines[0] if lines else "")
    return None, first


def one_sentence(error: BaseException) -> str:
    """Describe an error in one sentence, with its stable code first if it has one."""
    code, sentence = code_and_sentence(error)
    return printable(f"[KAFKA_EOS.{code}] {sentence}" if code else sentence or type(error).__name__)
