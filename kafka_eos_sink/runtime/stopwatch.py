"""Measures the phases of a commit, for its report."""

from __future__ import annotations

import time
from typing import Any

from kafka_eos_sink.commit import steps
from kafka_eos_sink.commit.log_records import parse_key
from kafka_eos_sink.commit.steps import Step

PHASES = ("plan", "write", "check", "decide", "end", "verify")
_BEGINS = {
    "commit.check": "check",
    "commit.before_decision": "decide",
    "commit.decided": "verify",
    "commit.finished": "",
}
"""The phase that begins at a point of the commit."""


class Stopwatch:
    """The phases of a commit, its copied transactions and finished decisions.

    ``finished`` holds the query ids with an appended done record, each with its number of copies.
    ``ended_ms`` is the wall clock at the decision, and after it at the last EndTxn.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("check", "decide", "end", "verify"), 0.0)
        self.transactions_copied = 0
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
                self.transactions_copied += sum(isinstance(each, steps.Copied) for each in result)
            case steps.Append(records=records) if result is not None:
                for key in filter(None, (parse_key(record.key) for record in records)):
                    if key.kind == "done":
                        self.finished[key.query_id] = self.transactions_copied - sum(self.finished.values())
        if is_end:
            self.ended_ms = time.time_ns() // 1_000_000

    def ms(self, phase: str) -> int:
        return round(self.seconds[phase] * 1000)
