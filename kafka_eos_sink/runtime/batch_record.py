"""The driver's report of a batch: a log line, and a record of the history."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.deadlines import NEVER_TIMES_OUT_MS
from kafka_eos_sink.commit.log_records import UNREADABLE, parse_key, typed
from kafka_eos_sink.commit.procedure import Step
from kafka_eos_sink.commit.values import Decision, OffsetRange, Plan, TaskMessage
from kafka_eos_sink.errors import one_line

DEFAULT_HISTORY_TOPIC = "__kafka_eos_history"
FORMAT = 1
LARGEST_USER_METADATA = 500_000
"""Bytes. The record must fit the history topic's max.message.bytes, by default 1,048,588, with the figures and with JSON's escapes."""
PHASES = ("plan", "write", "check", "decide", "end", "verify")
_BEGINS = {
    "commit.check": "check",
    "commit.before_decision": "decide",
    "commit.decided": "verify",
    "commit.finished": "",
}
"""The phase that begins at a point of the commit."""


def iso_utc(ms: int, timespec: str = "milliseconds") -> str:
    """Return ms since 1970 as ISO 8601, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec=timespec)


class Stopwatch:
    """The measured phases of a commit, and its copied parts and finished decisions.

    ``finished`` holds the query ids with an appended done record, each with its number of copies.
    ``ended_ms`` is the wall clock at the decision, and after it at the last EndTxn.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("check", "decide", "end", "verify"), 0.0)
        self.parts_copied = 0
        self.finished: dict[str, int] = {}
        self.ended_ms = 0
        self._phase = ""
        self._since = 0.0

    def saw(self, step: Step[Any], result: Any) -> None:
        """Count a step that was just performed; ``result`` is None if it failed."""
        now = time.perf_counter()
        is_end = self._phase == "verify" and isinstance(step, steps.EndTransactions)
        if self._phase:
            self.seconds["end" if is_end else self._phase] += now - self._since
        self._since = now
        match step:
            # A commit that copies passes the points of a decision a second time. That time belongs to its proofs.
            case steps.Reached(point=point) if self._phase != "verify" or point == "commit.finished":
                self._phase = _BEGINS.get(point, self._phase)
                is_end = point == "commit.decided"
            case steps.CopyRecords() if result:
                self.parts_copied += sum(isinstance(each, steps.Copied) for each in result)
            case steps.Append(records=records) if result is not None:
                for key in filter(None, (parse_key(record.key) for record in records)):
                    if key.kind == "done":
                        self.finished[key.query_id] = self.parts_copied - sum(self.finished.values())
        if is_end:
            self.ended_ms = time.time_ns() // 1_000_000

    def ms(self, phase: str) -> int:
        return round(self.seconds[phase] * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One decided batch; a figure is None if not measured, as for a dead driver.

    finished_ms     wall clock of the driver that finished it
    written_bytes   record batches as sent, compressed
    plan_ms         from the start to the end of the plan
    write_ms        of the slowest task, from its first row to its last acknowledgement
    check_ms ...    of the commit; ``verify_ms`` includes copies
    attempts_ended  open transactions that the plan and the commit aborted
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
    attempts_ended: int | None = None
    parts_copied: int = 0
    headroom_ms: int | None = None
    recovered: bool = False
    application_id: str | None = None
    user_metadata: str | None = None
    offsets: tuple[OffsetRange, ...] = ()
    producers: tuple[tuple[int, int], ...] = ()

    @property
    def finished_at(self) -> str:
        """The finish time as ISO 8601, UTC, to the millisecond."""
        return iso_utc(self.finished_ms)

    @property
    def phases_ms(self) -> dict[str, int]:
        """The phases that were measured, with their duration in ms."""
        return {phase: ms for phase in PHASES if (ms := getattr(self, f"{phase}_ms")) is not None}

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
            f"{self.rows} rows",
            None if self.written_bytes is None else f"{self.written_bytes} bytes",
            f"{self.transactions} transactions",
            f"ms: {', '.join(phases)}" if phases else None,
            None if self.attempts_ended is None else f"{self.attempts_ended} attempts ended",
            f"{self.parts_copied} parts copied",
            None if self.headroom_ms is None else f"{self.headroom_ms} ms to the transaction timeout",
        ]
        what = "recovered" if self.recovered else "written"
        return one_line(
            f"{what} version {self.version} of write id {self.write_id!r}: {'; '.join(filter(None, parts))}"
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
        return found if found.write_id.encode() == key and found.finished_ms >= 0 else None
    except UNREADABLE:
        return None


def record_of(decision: Decision, finished_ms: int, **known: Any) -> BatchRecord:
    """Return the record of a decision with the figures that are known."""
    return BatchRecord(
        write_id=decision.write_id,
        query_id=decision.query_id,
        version=decision.version,
        finished_ms=finished_ms,
        rows=sum(entry.rows for entry in decision.transactions),
        transactions=len(decision.transactions),
        offsets=merged(part for entry in decision.transactions for part in entry.offsets),
        producers=tuple((entry.identity.producer_id, entry.identity.producer_epoch) for entry in decision.transactions),
        **known,
    )


def record_of_commit(
    decision: Decision, plan: Plan, messages: Sequence[TaskMessage | None], watch: Stopwatch, attempts_ended: int
) -> BatchRecord:
    """Return the record of a batch that this driver has planned and committed."""
    tasks = [message for message in messages if message is not None]
    headroom = plan.transaction_timeout_ms - (watch.ended_ms - plan.started_ms)
    times_out = decision.transactions and plan.transaction_timeout_ms != NEVER_TIMES_OUT_MS
    return record_of(
        decision,
        time.time_ns() // 1_000_000,
        written_bytes=sum(message.written_bytes for message in tasks),
        plan_ms=plan.plan_ms,
        write_ms=max((message.write_ms for message in tasks), default=0),
        **{f"{phase}_ms": watch.ms(phase) for phase in watch.seconds},
        attempts_ended=plan.attempts_ended + attempts_ended,
        parts_copied=watch.parts_copied,
        # Zero: Kafka may have aborted transactions of the batch, whose rows were copied then.
        headroom_ms=max(0, headroom) if times_out else None,
        application_id=next((message.application_id for message in tasks), None),
    )


def merged(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return one range per topic-partition, sorted."""
    bounds: dict[tuple[str, int], tuple[int, int]] = {}
    for part in ranges:
        first, last = bounds.get((part.topic, part.partition), (part.first_offset, part.last_offset))
        bounds[(part.topic, part.partition)] = min(first, part.first_offset), max(last, part.last_offset)
    return tuple(
        OffsetRange(topic=topic, partition=partition, first_offset=first, last_offset=last)
        for (topic, partition), (first, last) in sorted(bounds.items())
    )
