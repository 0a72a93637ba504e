"""A write id's records in the commit log, and how their transactions ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any
from uuid import UUID

from kafka_eos_sink.commit.log_records import FORMAT_VERSION, LogKey, key_starts, parse_decision, parse_key, parse_value
from kafka_eos_sink.commit.outcome import Outcome, outcome_of
from kafka_eos_sink.commit.refusals import refused, text
from kafka_eos_sink.commit.steps import Marker, ReadRecord
from kafka_eos_sink.commit.values import Decision, plan_nonce
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.logs import warn_once
from kafka_eos_sink.protocol.identity import ProducerIdAndEpoch
from kafka_eos_sink.protocol.wire_types import ZERO_UUID


class VersionState(Enum):
    """The state of a query id's newest decision, by its record and its done record."""

    DECIDED = "decided and not finished"
    """Its transactions must still be committed, and its ranges judged."""
    FINISHED = "finished"
    VOID = "void"
    """All its ranges were aborted, and none could be copied."""
    KEPT = "resolved as committed"
    REWRITE = "resolved as rewrite"

    @property
    def is_settled(self) -> bool:
        """Whether the version counts as written, and recovery has nothing left to do."""
        return self in (VersionState.FINISHED, VersionState.KEPT)

    @property
    def is_open(self) -> bool:
        """Whether recovery has work with it."""
        return self is VersionState.DECIDED


@dataclass(slots=True)
class LoggedRecord:
    """A logged record; ``marker`` is its producer id's first control batch after it."""

    key: LogKey
    offset: int
    producer_id: int
    producer_epoch: int
    value: dict[str, Any] | None
    marker: Marker | None = None
    decision: Decision | None = None
    """Parsed once: a planner keeps its view, and a large decision takes longer to parse than to read."""

    @property
    def carrier(self) -> ProducerIdAndEpoch:
        """Producer id and epoch of its batch."""
        return self.producer_id, self.producer_epoch

    @property
    def outcome(self) -> Outcome:
        version = None if self.value is None else self.value.get("transaction_version")
        return outcome_of(self.producer_epoch, version, self.marker)


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """A decision, its first record's offset, and its log's topic id (zero: unknown)."""

    decision: Decision
    offset: int
    log_id: UUID = ZERO_UUID


_Records = dict[tuple[str, *tuple[int, ...]], list[LoggedRecord]]
"""The records of one query id, by kind and number. The kind "foreign" holds records of other programs under the sink's keys."""
_Pieces = dict[tuple[int, str, ProducerIdAndEpoch], str]
"""The committed pieces of decisions after their first ones, by number, nonce and carrier."""


@dataclass(frozen=True, slots=True)
class QueryState:
    """The records of one query id of one write id, as far as a view has read them."""

    write_id: str
    query_id: str
    _records: _Records
    log_id: UUID = ZERO_UUID

    def _of(self, kind: str, *rest: int) -> list[LoggedRecord]:
        return self._records.get((kind, *rest), [])

    @property
    def newest(self) -> LoggedDecision | None:
        """The newest decision with a COMMIT marker, None without one or below a tombstone.

        Raises:
            WriteRefusedError: COMMIT_LOG_CORRUPT if a piece of it is missing, COMMIT_LOG_FORMAT if a newer version of the sink wrote it.
        """
        records = self._of("decision", 0)
        pieces = cache(self._pieces)
        forged: set[tuple[str, ProducerIdAndEpoch]] = set()
        for at, first in reversed(list(enumerate(records))):
            if first.outcome is not Outcome.COMMITTED:
                continue
            if first.value is None:
                return None
            # Another program may write thousands of decisions under one nonce. Each would join the same pieces, so parse only one.
            signature = str(first.value.get("nonce")), first.carrier
            if first.decision is None and signature not in forged:
                first.decision = parse_decision(self._body(first, first.value, pieces), first.key, first.carrier)
            if first.decision is not None:
                # Its text takes as much memory, and nothing reads it again.
                first.value.pop("body", None)
                return LoggedDecision(first.decision, first.offset, self.log_id)
            forged.add(signature)
            self._records.setdefault(("foreign",), []).append(records.pop(at))
            warning = text("forged_decision", write_id=self.write_id, offset=first.offset)
            warn_once(warning, about=f"forged {self.write_id}")
        return None

    @property
    def has_decision(self) -> bool:
        """Whether a driver of the write id has committed a decision or its tombstone."""
        # A mirror copies decisions of another cluster, which `newest` drops.
        with suppress(WriteRefusedError):
            return self.newest is not None or _newest_committed(self._of("decision", 0)) is not None
        return True

    def _pieces(self) -> _Pieces:
        return {
            (rest[0], record.value["nonce"], record.carrier): record.value["body"]
            for (kind, *rest), records in self._records.items()
            if kind == "decision" and rest[0] > 0
            for record in records
            if record.value is not None and "body" in record.value and record.outcome is Outcome.COMMITTED
        }

    def _body(self, first: LoggedRecord, value: dict[str, Any], pieces: Callable[[], _Pieces]) -> str:
        """Join the pieces of a committed decision."""
        if "body" not in value:
            raise refused(
                "COMMIT_LOG_FORMAT",
                write_id=self.write_id,
                offset=first.offset,
                format=value["format"],
                newest_format=FORMAT_VERSION,
            )
        joined: list[str] = [value["body"]]
        for number in range(1, value["count"]):
            # Pieces of an older, longer decision may stand under the same keys. The nonce keeps them apart.
            piece = pieces().get((number, value["nonce"], first.carrier))
            if piece is None:
                raise refused(
                    "COMMIT_LOG_CORRUPT",
                    write_id=self.write_id,
                    offset=first.offset,
                    piece=number + 1,
                    pieces=value["count"],
                )
            joined.append(piece)
        return "".join(joined)

    @property
    def undecided(self) -> Sequence[LoggedRecord]:
        """First records of decisions above the newest one that are open or unresolved.

        A driver acts on a decision only after it has read the decision's marker. So once the driver is fenced, a decision without a marker
        is in-doubt, even if its coordinator reports it as committed (JOIN).
        """
        newest = _newest_committed(self._of("decision", 0))
        floor = -1 if newest is None else newest.offset
        return [
            record
            for record in self._of("decision", 0)
            if record.offset > floor and record.outcome in (Outcome.OPEN, Outcome.UNRESOLVED)
        ]

    @property
    def foreign(self) -> Sequence[LoggedRecord]:
        """Ignored records of other programs under sink keys; `newest` adds forged ones."""
        return self._of("foreign")

    def of_plan(self, nonce: str) -> list[LoggedRecord]:
        """The first records of a plan's decisions in log order, whatever their outcomes."""
        return [
            record
            for record in self._of("decision", 0)
            if record.value is not None and plan_nonce(str(record.value.get("nonce"))) == nonce
        ]

    def outcome_at(self, offset: int) -> Outcome:
        """The outcome of the decision whose first record has an offset."""
        return next((record.outcome for record in self._of("decision", 0) if record.offset == offset), Outcome.OPEN)

    @property
    def done(self) -> dict[str, Any] | None:
        """The fields of the newest done record."""
        records = self._of("done")
        return records[-1].value if records else None

    def has_done_record(self, decision: Decision) -> bool:
        """Whether the newest done record has the decision's nonce."""
        return self.done is not None and str(self.done.get("nonce")) == decision.nonce

    def state_of(self, decision: Decision) -> VersionState:
        """The state of the query id's newest decision.

        An operator's resolution and a void decision are final by themselves. Any other decision needs the done record of its nonce.
        """
        if decision.resolution is not None:
            return VersionState.KEPT if decision.resolution == "committed" else VersionState.REWRITE
        if decision.is_void:
            return VersionState.VOID
        return VersionState.FINISHED if self.has_done_record(decision) else VersionState.DECIDED

    @property
    def newest_parts(self) -> dict[int, LoggedRecord]:
        """Spark partition to its newest part record, whatever its outcome."""
        return {rest[0]: records[-1] for (kind, *rest), records in self._records.items() if kind == "part"}

    def part_of(self, carrier: ProducerIdAndEpoch) -> LoggedRecord | None:
        """The part record of a producer, whatever its outcome."""
        parts = (each for (kind, *_), records in self._records.items() if kind == "part" for each in records)
        return next((each for each in parts if each.carrier == carrier), None)


def _newest_committed(records: Sequence[LoggedRecord]) -> LoggedRecord | None:
    return next((record for record in reversed(records) if record.outcome is Outcome.COMMITTED), None)


def _not_superseded(records: _Records, foreign: int) -> _Records:
    newest = _newest_committed(records.get(("decision", 0), ()))
    kept = {name: found[-1:] for name, found in records.items() if name[0] == "done"}
    if foreign:
        kept["foreign",] = records.get(("foreign",), [])[-foreign:]
    for name, found in records.items():
        if name[0] == "decision":
            kept[name] = [record for record in found if newest is None or record.offset >= newest.offset]
    return {name: found for name, found in kept.items() if found}


@dataclass(slots=True)
class LogView:
    """The records that were read of one write id, or of all if ``write_id`` is None.

    It takes chunks in offset order, from any offset on.
    """

    write_id: str | None
    next_offset: int = 0
    log_start_offset: int = 0
    topic_id: UUID = ZERO_UUID
    """Of the log that was read; zero before the first read, and if the cluster has no topic ids."""
    _queries: dict[tuple[str, str], _Records] = field(default_factory=dict)
    _pending: dict[int, list[LoggedRecord]] = field(default_factory=dict)
    _changed: set[tuple[str, str]] = field(default_factory=set)

    def take_changed(self) -> set[tuple[str, str]]:
        """Return the ids whose records or markers were read since the last call."""
        taken, self._changed = self._changed, set()
        return taken

    def feed(self, entries: Iterable[ReadRecord | Marker], next_offset: int, log_start_offset: int) -> None:
        for entry in entries:
            if entry.offset < self.next_offset:
                # A fetch begins at the start of the batch that holds the offset.
                continue
            if isinstance(entry, Marker):
                for record in self._pending.pop(entry.producer_id, ()):
                    record.marker = entry
                    self._changed.add((record.key.write_id, record.key.query_id))
            else:
                self._add(entry)
        self.next_offset = max(self.next_offset, next_offset)
        self.log_start_offset = log_start_offset

    def _add(self, entry: ReadRecord) -> None:
        is_own = self.write_id is None or entry.key.startswith(key_starts(self.write_id))
        key = parse_key(entry.key) if is_own else None
        if key is None:
            return
        value = None if entry.value is None else parse_value(key, entry.value)
        record = LoggedRecord(key, entry.offset, entry.producer_id, entry.producer_epoch, value)
        is_unreadable = value is None and entry.value is not None
        # The sink writes decisions and parts in transactions only.
        is_foreign = is_unreadable or (key.kind in ("decision", "part") and not entry.transactional)
        self._changed.add((key.write_id, key.query_id))
        records = self._queries.setdefault((key.write_id, key.query_id), {})
        records.setdefault(("foreign",) if is_foreign else (key.kind, *key.rest), []).append(record)
        if entry.transactional:
            self._pending.setdefault(entry.producer_id, []).append(record)

    def restart(self) -> None:
        """Drop everything and begin at the start of the partition again."""
        self.next_offset, self.log_start_offset, self.topic_id = 0, 0, ZERO_UUID
        self._queries.clear()
        self._pending.clear()

    def forget_superseded(self, whole: Collection[tuple[str, str]] = (), foreign: int = 0) -> None:
        """Keep only the decisions and done records that compaction would keep.

        Call it after `QueryState.newest` of every query id.

        Args:
            whole: Write id and query id of those that keep all their records.
            foreign: How many of another program's records each query id keeps.
        """
        # A planner of a stream keeps its view for weeks.
        self._queries = {
            ids: kept
            for ids, records in self._queries.items()
            if (kept := records if ids in whole else _not_superseded(records, foreign))
        }
        self._pending = {
            producer_id: kept_records
            for producer_id, records in self._pending.items()
            if (
                kept_records := [
                    each
                    for each in records
                    if each.key.kind == "decision" or (each.key.write_id, each.key.query_id) in whole
                ]
            )
        }

    def _barriers(self) -> Iterator[LoggedRecord]:
        return (each for records in self._queries.values() for each in records.get(("barrier",), ()))

    def has_other_barrier(self, nonce: str) -> bool:
        """Whether another run has appended a barrier since `forget_superseded`."""
        return any(each.value is None or each.value.get("nonce") != nonce for each in self._barriers())

    @property
    def lacks_write(self) -> bool:
        """Whether no decision of the write committed, and no barrier is for this log."""
        # Every plan appends a barrier before its tasks begin. NEW LOG: other records, and decisions that did not commit, can come from a
        # batch that began in a deleted log, or from a resolution that failed.
        logs = [each.value.get("log") for each in self._barriers() if each.value is not None]
        own = (None, str(self.topic_id))
        return not (
            any(log in own or not self.topic_id.int for log in logs)
            or any(QueryState(*ids, records).has_decision for ids, records in self._queries.items())
        )

    def own_keys(self) -> list[bytes]:
        """The keys of all records but barriers, in log order, other programs' included."""
        found = (each for records in self._queries.values() for of in records.values() for each in of)
        ordered = sorted(found, key=lambda each: each.offset)
        return list(dict.fromkeys(each.key.encoded for each in ordered if each.key.kind != "barrier"))

    def query(self, query_id: str) -> QueryState:
        """What was read of one query id of the view's write id."""
        assert self.write_id is not None
        return QueryState(self.write_id, query_id, self._queries.get((self.write_id, query_id), {}), self.topic_id)

    def unfinished(self) -> Iterator[tuple[QueryState, LoggedDecision]]:
        """The decisions that recovery has work with, with their query ids."""
        for query in self.queries("decision"):
            if (newest := query.newest) is not None and query.state_of(newest.decision).is_open:
                yield query, newest

    @property
    def producer_ids(self) -> set[int]:
        """The producer ids of tasks, of which `recover` ends what hangs.

        A note without the part record is not enough for `recover --discard`: the decision may be forged.
        """
        found = {part.producer_id for query in self.queries("part") for part in query.newest_parts.values()}
        for query in self.queries("decision"):
            with suppress(WriteRefusedError):  # an unreadable decision names nothing
                entries = () if query.newest is None else query.newest.decision.transactions
                found |= {
                    entry.identity.producer_id
                    for entry in entries
                    if entry.ended is None or query.part_of(entry.identity.carrier) is not None
                }
        return found

    def queries(self, *kinds: str) -> tuple[QueryState, ...]:
        """The query ids with records of these kinds."""
        return tuple(
            QueryState(*ids, records, self.topic_id)
            for ids, records in self._queries.items()
            if any(kind in kinds for kind, *_ in records)
        )
