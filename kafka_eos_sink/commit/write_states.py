"""The state of each write in the commit log, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

from kafka_eos_sink.commit.log_records import parse_decision
from kafka_eos_sink.commit.log_view import LoggedRecord, LogView, QueryState, VersionState
from kafka_eos_sink.commit.outcome import Outcome
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID
from kafka_eos_sink.commit.values import DeadLetters, Decision, OffsetRange, iso_utc, merged
from kafka_eos_sink.commit.versions import Versions
from kafka_eos_sink.errors import WriteRefusedError

WriteState = Literal["finished", "decided", "in-doubt", "prepared", "void", "resolved", "unreadable"]
"""finished   every row is visible, and the log has its done record
decided    the log lacks its done record; the next run of the same id or `kafka-eos recover` finishes it
in-doubt   a decision was written and its transaction has not ended
prepared   tasks have written and wait for a decision; the write runs, or it died before its decision
void       all its transactions were aborted and cannot be copied; it may be written again
resolved   an operator has decided it (`kafka-eos resolve`)
unreadable another program wrote into its records, or some are gone; ``problem`` says which"""
FOREIGN_SHOWN = 4
"""Offsets of another program's records that a problem lists."""
ENDED: tuple[WriteState, ...] = ("finished", "void", "resolved")
"""The states in which no transaction of a write is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedWrite:
    """One version of a write.

    The commit log keeps the newest version of every write id and query id.

    written           of a batch write, the versions that count as written; None for a stream, whose versions follow each other
    finished_ms       wall clock of the driver that finished it, None if it is not recorded
    ranges            the offsets of its transactions
    rows              dead letters included
    dead_letters      by reason; None if an earlier version of the sink decided it
    """

    write_id: str
    query_id: str
    version: int | None
    state: WriteState
    written: Versions | None = None
    topic: str | None = None
    rows: int | None = None
    transactions: int = 0
    finished_ms: int | None = None
    ranges: tuple[tuple[OffsetRange, ...], ...] = ()
    dead_letters: tuple[DeadLetters, ...] | None = None
    resolution: str | None = None
    problem: str | None = None

    @property
    def offsets(self) -> tuple[OffsetRange, ...]:
        """One range per topic-partition over all transactions; it may hold other records."""
        # On demand: of ten thousand writes, a table shows a hundred, without offsets.
        return merged(chain.from_iterable(self.ranges))

    @property
    def needs_run(self) -> bool:
        """Whether the version is decided, and its next run writes it."""
        return self.state == "void" or self.resolution == "rewrite"

    @property
    def finished_at(self) -> str | None:
        """The finish time as ISO 8601, UTC, to the millisecond."""
        return None if self.finished_ms is None else iso_utc(self.finished_ms)

    def as_json(self) -> dict[str, Any]:
        return {
            "write_id": self.write_id,
            "query_id": self.query_id,
            "version": self.version,
            "state": self.state,
            "written_versions": None if self.written is None else self.written.as_json(),
            "versions_known_from": None if self.written is None else self.written.floor,
            "finished_at": self.finished_at,
            "topic": self.topic,
            "rows": self.rows,
            "dead_letters": None if self.dead_letters is None else [asdict(each) for each in self.dead_letters],
            "transactions": self.transactions,
            "resolution": self.resolution,
            "problem": self.problem,
            "offsets": [
                # Not asdict(): it takes ten times as long.
                {name: getattr(part, name) for name in ("topic", "partition", "first_offset", "last_offset")}
                for part in self.offsets
            ],
        }


_STATES: Mapping[VersionState, WriteState] = {
    VersionState.DECIDED: "decided",
    VersionState.FINISHED: "finished",
    VersionState.VOID: "void",
    VersionState.KEPT: "resolved",
    VersionState.REWRITE: "resolved",
}
Writes = tuple[CommittedWrite, ...]
QueryIds = tuple[str, str]
"""Write id and query id."""


def writes_in(view: LogView) -> tuple[CommittedWrite, ...]:
    """Return the newest decision of each query id, and what began after it."""
    return tuple(chain.from_iterable(writes_by_query(view, {}).values()))


def writes_by_query(view: LogView, known: Mapping[QueryIds, Writes]) -> dict[QueryIds, Writes]:
    """Return the writes of each query id.

    Args:
        known: The result of the last call, which is right for all query ids that have not changed since.
    """
    changed = view.take_changed()
    return {
        ids: known[ids] if ids in known and ids not in changed else tuple(_writes(query))
        for query in view.queries("decision", "part", "done", "foreign")
        for ids in ((query.write_id, query.query_id),)
    }


def _writes(query: QueryState) -> Iterable[CommittedWrite]:
    of_query = partial(CommittedWrite, write_id=query.write_id, query_id=query.query_id)
    try:
        found = query.newest
    except WriteRefusedError as broken:
        yield of_query(version=None, state="unreadable", problem=broken.message)
        return
    decision = None if found is None else found.decision
    if decision is not None:
        yield _decided(query, decision)
    if query.foreign:
        offsets = ", ".join(str(record.offset) for record in query.foreign[-FOREIGN_SHOWN:])
        problem = f"another program wrote records under its keys, the newest of them at offsets {offsets}"
        yield of_query(version=None, state="unreadable", problem=problem)
    if undecided := query.undecided:
        yield of_query(version=_version_of(undecided[-1]), state="in-doubt")
        return
    named = set() if decision is None else {prepared.part_offset for prepared in decision.transactions}
    # A part below an operator's decision waits for none. Its marker can be missing in the log for ever.
    given_up = found.offset if found is not None and found.decision.resolution else -1
    waiting = Counter(
        part.value["version"]
        for part in query.newest_parts.values()
        if part.outcome is Outcome.OPEN
        and part.value
        and "version" in part.value
        and part.offset not in named
        and part.offset > given_up
    )
    for version, transactions in sorted(waiting.items()):
        yield of_query(version=version, state="prepared", transactions=transactions)


def _version_of(undecided: LoggedRecord) -> int | None:
    """Return an in-doubt decision's version; None if it has pieces or is unreadable."""
    value = undecided.value or {}
    if value.get("count") != 1:
        return None
    decision = parse_decision(value["body"], undecided.key, undecided.carrier)
    return None if decision is None else decision.version


def _decided(query: QueryState, decision: Decision) -> CommittedWrite:
    # The newest done record may be of an earlier version.
    done = query.done if query.has_done_record(decision) else None
    return CommittedWrite(
        write_id=decision.write_id,
        query_id=decision.query_id,
        version=decision.version,
        state=_STATES[query.state_of(decision)],
        written=decision.written_versions if decision.query_id == BATCH_QUERY_ID else None,
        topic=decision.topic,
        rows=sum(prepared.rows for prepared in decision.transactions),
        transactions=len(decision.transactions),
        finished_ms=None if done is None else done.get("finished_ms"),
        ranges=tuple(prepared.offsets for prepared in decision.transactions),
        dead_letters=decision.dead_letters,
        resolution=decision.resolution,
    )
