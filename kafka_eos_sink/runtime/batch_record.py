"""The driver's report of a batch: a log line, and a record of the history."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kafka_eos_sink.client.config import ClientConfig
from kafka_eos_sink.commit.log_records import UNREADABLE, typed
from kafka_eos_sink.commit.transactions import NEVER_TIMES_OUT_MS
from kafka_eos_sink.commit.values import (
    DeadLetters,
    Decision,
    OffsetRange,
    Plan,
    TaskMessage,
    iso_utc,
    letters_text,
    merged,
)
from kafka_eos_sink.errors import counted, one_line
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch, TopicPartition
from kafka_eos_sink.runtime.stopwatch import PHASES, Stopwatch

DEFAULT_HISTORY_TOPIC = "__kafka_eos_history"
FORMAT = 1
_LARGEST = 2**63
LARGEST_USER_METADATA = 500_000
"""Bytes. The record must fit the history topic's max.message.bytes, by default 1,048,588, with the figures and with JSON's escapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One decided batch; a figure is None if not measured, as for a dead driver.

    finished_ms     wall clock of the driver that finished it
    rows            all rows of the batch, dead letters included
    dead_letters    rows that went to a dead letter topic, by reason; None in the record of an earlier version of the sink
    written_bytes   record batches as sent, compressed
    plan_ms         from the start to the end of the plan
    write_ms        of the slowest task, from its first row to its last acknowledgement
    check_ms ...    of the commit; ``verify_ms`` includes copies
    attempts_aborted  open transactions that the plan and the commit aborted
    recovered_by    what finished the batch if not its own commit: "the next run", "abort" (Spark's, after the commit failed),
                    "kafka-eos recover" or "kafka-eos resolve"
    headroom_ms     from the last EndTxn to the transaction timeout, counted from the start of the plan
    offsets         one range per topic-partition over all transactions, possibly with other records in it
    producers       producer id and epoch of each transaction
    """

    write_id: str
    query_id: str
    version: int
    finished_ms: int
    rows: int
    transactions: int
    written_bytes: int | None = None
    plan_ms: int | None = None
    write_ms: int | None = None
    check_ms: int | None = None
    decide_ms: int | None = None
    end_ms: int | None = None
    verify_ms: int | None = None
    attempts_aborted: int | None = None
    transactions_copied: int = 0
    headroom_ms: int | None = None
    recovered_by: str | None = None
    application_id: str | None = None
    user_metadata: str | None = None
    offsets: tuple[OffsetRange, ...] = ()
    producers: tuple[tuple[int, int], ...] = ()
    dead_letters: tuple[DeadLetters, ...] | None = None

    @property
    def dead_letter_rows(self) -> int:
        return sum(each.rows for each in self.dead_letters or ())

    @property
    def finished_at(self) -> str:
        """The finish time as ISO 8601, UTC, to the millisecond."""
        return iso_utc(self.finished_ms)

    @property
    def phases_ms(self) -> dict[str, int]:
        """The phases that were measured, with their duration in ms."""
        return {phase: ms for phase in PHASES if (ms := getattr(self, f"{phase}_ms")) is not None}

    @property
    def is_plausible(self) -> bool:
        """Whether all figures are ones that Kafka's own numbers can hold."""
        figures = (
            self.finished_ms,
            self.rows,
            self.transactions_copied,
            self.written_bytes,
            self.attempts_aborted,
            self.headroom_ms,
        )
        letters = [each.rows for each in self.dead_letters or ()]
        return all(0 <= each < _LARGEST for each in (*filter(None, figures), *letters, *self.phases_ms.values()))

    def wrote(self, where: TopicPartition, offset: int, producer: ProducerIdAndEpoch) -> bool:
        """Whether the batch wrote a row, given the producer of its record batch."""
        return producer in self.producers and any(
            (part.topic, part.partition) == where and part.first_offset <= offset <= part.last_offset
            for part in self.offsets
        )

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "finished_at": self.finished_at, **asdict(self)}

    def encoded(self) -> bytes:
        return json.dumps(self.as_json(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")

    def figures(self) -> dict[str, Any]:
        """Return the fields of the log line, as loggers take them in ``extra``."""
        return {name: value for name, value in self.as_json().items() if name not in ("offsets", "producers", "format")}

    def line(self) -> str:
        """Return the figures as text. Control characters are replaced."""
        phases = [f"{name} {ms}" for name, ms in self.phases_ms.items()]
        parts = [
            counted(self.rows, "row", "d"),
            counted(self.dead_letter_rows, "dead letter", "d") if self.dead_letters else None,
            None if self.written_bytes is None else counted(self.written_bytes, "byte", "d"),
            counted(self.transactions, "transaction", "d"),
            f"ms: {', '.join(phases)}" if phases else None,
            None if self.attempts_aborted is None else f"{counted(self.attempts_aborted, 'attempt', 'd')} aborted",
            f"{counted(self.transactions_copied, 'transaction', 'd')} copied",
            None if self.headroom_ms is None else f"{self.headroom_ms} ms to the transaction timeout",
        ]
        what = "written" if self.recovered_by is None else f"recovered by {self.recovered_by}:"
        return one_line(
            f"{what} version {self.version} of write id {self.write_id!r}: {'; '.join(filter(None, parts))}"
        )


def dead_letter_warning(found: Sequence[DeadLetters], rows: int, of: str, client: ClientConfig) -> str:
    """Return the warning for a batch with dead letters.

    Args:
        rows: All rows of the batch.
        of: The batch in words.
    """
    topics = list(dict.fromkeys(each.topic for each in found))
    commands = (f"kafka-eos consume {client.command_options} --topic {shlex.quote(topic)}" for topic in topics)
    return one_line(
        f"{sum(each.rows for each in found):,} of {rows:,} rows of {of} went to the dead letter topic {', '.join(topics)}: "
        f"{letters_text(found)}. To see them, with the reason of each: {'; '.join(commands)} --from-beginning --json"
    )


def parse_record(key: bytes | None, value: bytes | None, *, with_ranges: bool = True) -> BatchRecord | None:
    """Parse a record of the history; return None if the sink did not write it.

    Args:
        with_ranges: Whether to parse offsets and producers, which take nine tenths of the time.
    """
    try:
        fields = json.loads(value or b"")
        if type(fields["format"]) is not int or fields["format"] != FORMAT:
            return None
        if not with_ranges:
            fields |= {"offsets": [], "producers": []}
        found: BatchRecord = typed(BatchRecord, fields)
        # Any principal with Write on the topic can write false records.
        return found if found.write_id.encode() == key and found.is_plausible else None
    except UNREADABLE:
        return None


def record_of(decision: Decision, finished_ms: int, **known: Any) -> BatchRecord:
    """Return the record of a decision with the figures that are known."""
    sizes = [entry.written_bytes for entry in decision.transactions]
    return BatchRecord(
        write_id=decision.write_id,
        query_id=decision.query_id,
        version=decision.version,
        finished_ms=finished_ms,
        rows=sum(entry.rows for entry in decision.transactions),
        transactions=len(decision.transactions),
        written_bytes=None if None in sizes else sum(filter(None, sizes)),
        application_id=decision.application_id,
        user_metadata=decision.user_metadata,
        dead_letters=decision.dead_letters,
        offsets=merged(part for entry in decision.transactions for part in entry.offsets),
        producers=tuple(dict.fromkeys(entry.identity.carrier for entry in decision.transactions)),
        **known,
    )


def record_of_commit(
    decision: Decision, plan: Plan, messages: Sequence[TaskMessage | None], watch: Stopwatch, attempts_aborted: int
) -> BatchRecord:
    """Return the record of a batch that this driver has planned and committed."""
    tasks = [message for message in messages if message is not None]
    headroom = plan.transaction_timeout_ms - (watch.ended_ms - plan.started_ms)
    times_out = decision.transactions and plan.transaction_timeout_ms != NEVER_TIMES_OUT_MS
    return record_of(
        decision,
        time.time_ns() // 1_000_000,
        plan_ms=plan.plan_ms,
        write_ms=max((message.write_ms for message in tasks), default=0),
        **{f"{phase}_ms": watch.ms(phase) for phase in watch.seconds},
        attempts_aborted=plan.attempts_ended + attempts_aborted,
        transactions_copied=watch.transactions_copied,
        # Zero: Kafka may have aborted transactions of the batch, whose rows were copied then.
        headroom_ms=max(0, headroom) if times_out else None,
    )
