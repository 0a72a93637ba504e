"""The records of the commit log, and a view that reads them with the outcome of their transactions.

Keys are JSON arrays (kind, write id, query id, ...), never joined strings: two different things cannot share a key.
Values carry a format version; a newer one is refused, since guessing at a payment ledger is worse than stopping.
All records of a write id lie in one partition, `murmur2(W) mod 16`, which depends on nothing that can change (I13).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from kafka_eos_sink.commit.prepared_transaction import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.commit.steps import LogRecord, Marker, MarkerType, ReadRecord
from kafka_eos_sink.errors import WriteRefusedError
from kafka_eos_sink.protocol.identity import ProducerIdentity

FORMAT_VERSION = 1
DEFAULT_TOPIC = "__kafka_eos_commits"
LOG_PARTITIONS = 16
MAX_RECORD_BYTES = 500_000
"""A decision larger than this is cut into numbered records of one transaction; below every usual max.message.bytes."""

TOPIC_CONFIGURATION = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "60000",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def decision_key(write_id: str, query_id: str, number: int) -> bytes:
    return _dump(["decision", write_id, query_id, number])


def part_key(write_id: str, query_id: str, partition: int) -> bytes:
    return _dump(["part", write_id, query_id, partition])


def done_key(write_id: str, query_id: str) -> bytes:
    return _dump(["done", write_id, query_id])


def barrier_key(write_id: str) -> bytes:
    return _dump(["barrier", write_id])


def _value(fields: dict[str, Any]) -> bytes:
    return _dump({"format": FORMAT_VERSION, **fields})


def barrier_record(write_id: str, nonce: str) -> LogRecord:
    return LogRecord(barrier_key(write_id), _value({"nonce": nonce}))


def part_record(write_id: str, query_id: str, partition: int, version: int, task_attempt_id: int) -> LogRecord:
    return LogRecord(part_key(write_id, query_id, partition), _value({"version": version, "attempt": task_attempt_id}))


def done_record(decision: Decision, finished_ms: int) -> LogRecord:
    """A hint for people and for the next run; it names the decision's nonce and counts only for it."""
    ranges: dict[str, dict[str, list[int]]] = {}
    for prepared in decision.transactions:
        for part in prepared.offsets:
            bounds = ranges.setdefault(part.topic, {}).setdefault(
                str(part.partition), [part.first_offset, part.last_offset]
            )
            bounds[0], bounds[1] = min(bounds[0], part.first_offset), max(bounds[1], part.last_offset)
    fields = {
        "version": decision.version,
        "nonce": decision.nonce,
        "finished_ms": finished_ms,
        "rows": sum(prepared.rows for prepared in decision.transactions),
        "transactions": len(decision.transactions),
        "offsets": ranges,
    }
    return LogRecord(done_key(decision.write_id, decision.query_id), _value(fields))


def decision_records(decision: Decision) -> tuple[LogRecord, ...]:
    """The decision as one record, or as numbered records of one transaction that each hold the count."""
    body = json.dumps(_decision_fields(decision), ensure_ascii=False, separators=(",", ":"))
    # Cut by characters, bounded by bytes: a character takes at most four.
    size = MAX_RECORD_BYTES // 4
    pieces = (
        [body] if len(body.encode()) <= MAX_RECORD_BYTES else [body[i : i + size] for i in range(0, len(body), size)]
    )
    return tuple(
        LogRecord(
            decision_key(decision.write_id, decision.query_id, number),
            _value(
                {
                    "nonce": decision.nonce,
                    "transaction_version": decision.driver.transaction_version,
                    "number": number,
                    "count": len(pieces),
                    "body": piece,
                }
            ),
        )
        for number, piece in enumerate(pieces)
    )


def tombstones(decision: Decision) -> tuple[LogRecord, ...]:
    """Forget a write that nobody will ever ask for again: its parts and its decision, in one transaction."""
    parts = [
        LogRecord(part_key(decision.write_id, decision.query_id, prepared.partition), None)
        for prepared in decision.transactions
    ]
    chunks = [LogRecord(record.key, None) for record in decision_records(decision)]
    return (*parts, *chunks, LogRecord(barrier_key(decision.write_id), None))


def _decision_fields(decision: Decision) -> dict[str, Any]:
    fields = asdict(decision)
    for prepared in fields["transactions"]:
        # JSON readers outside Python lose digits of a 128-bit number.
        prepared["digest"] = None if prepared["digest"] is None else f"{prepared['digest']:032x}"
        prepared["offsets"] = [list(part.values()) for part in prepared["offsets"]]
    return fields


def _parse_decision(fields: dict[str, Any]) -> Decision:
    transactions = tuple(
        PreparedTransaction(
            partition=entry["partition"],
            identity=ProducerIdentity(**entry["identity"]),
            part_offset=entry["part_offset"],
            rows=entry["rows"],
            digest=None if entry["digest"] is None else int(entry["digest"], 16),
            offsets=tuple(
                OffsetRange(topic=topic, partition=partition, first_offset=first, last_offset=last)
                for topic, partition, first, last in entry["offsets"]
            ),
            proven=entry["proven"],
        )
        for entry in fields["transactions"]
    )
    return Decision(
        **{
            **fields,
            "driver": ProducerIdentity(**fields["driver"]),
            "transactions": transactions,
        }
    )


@dataclass(frozen=True, slots=True)
class LogKey:
    """A parsed key: ``rest`` is () for done and barrier, (number,) for decision, (partition,) for part."""

    kind: str
    write_id: str
    query_id: str
    rest: tuple[int, ...]


def parse_key(key: bytes) -> LogKey | None:
    """The key of one of our records, or None for anything else that somebody wrote into the topic."""
    try:
        fields = json.loads(key)
    except (ValueError, UnicodeDecodeError):
        return None
    match fields:
        case ["barrier", str(write_id)]:
            return LogKey("barrier", write_id, "", ())
        case ["done", str(write_id), str(query_id)]:
            return LogKey("done", write_id, query_id, ())
        case ["decision" | "part" as kind, str(write_id), str(query_id), int(number)]:
            return LogKey(kind, write_id, query_id, (number,))
    return None


def parse_value(value: bytes, offset: int) -> dict[str, Any]:
    """The fields of a record's value.

    Raises `WriteRefusedError` ``COMMIT_LOG_FORMAT`` for a newer format and ``COMMIT_LOG_CORRUPT`` for what is none."""
    try:
        fields = json.loads(value)
        version = fields["format"]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        raise WriteRefusedError(
            "COMMIT_LOG_CORRUPT",
            f"the commit log holds a record at offset {offset} that this sink did not write; use a commit.log.topic of its own",
        ) from None
    if version != FORMAT_VERSION:
        raise WriteRefusedError(
            "COMMIT_LOG_FORMAT",
            f"the commit log record at offset {offset} has format {version}, this version reads {FORMAT_VERSION}; "
            "upgrade kafka-eos-sink on this driver",
        )
    return dict(fields)


class Outcome(Enum):
    """What the log proves of one transaction."""

    OPEN = "open"
    """No control batch of its producer id yet."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNRESOLVED = "unresolved"
    """A control batch that the epoch rule does not allow for this transaction: it proves nothing about it."""


def outcome_of(producer_epoch: int, transaction_version: int | None, marker: Marker | None) -> Outcome:
    """The epoch rule: a marker counts only with the transaction's own epoch.

    From version 2 every end bumps the epoch, so both markers carry epoch + 1 (KIP-890). Below, COMMIT and a voluntary ABORT
    carry the epoch, the ABORT of a fence or a timeout carries epoch + 1. Version None (a tombstone says nothing) takes either.
    """
    if marker is None:
        return Outcome.OPEN
    own, bumped = marker.producer_epoch == producer_epoch, marker.producer_epoch == producer_epoch + 1
    if transaction_version is None:
        fits = own or bumped
    elif transaction_version >= 2:
        fits = bumped
    else:
        fits = own or (bumped and marker.type is MarkerType.ABORT)
    if not fits or marker.type is MarkerType.EMPTY:
        return Outcome.UNRESOLVED
    return Outcome.COMMITTED if marker.type is MarkerType.COMMIT else Outcome.ABORTED


@dataclass(slots=True)
class LoggedRecord:
    """A record of ours as it lies in the log; ``marker`` is the first control batch of its producer id after it."""

    key: LogKey
    offset: int
    producer_id: int
    producer_epoch: int
    value: dict[str, Any] | None
    transactional: bool
    marker: Marker | None = None

    @property
    def outcome(self) -> Outcome:
        if not self.transactional:
            return Outcome.UNRESOLVED  # a decision or part record outside a transaction is not of our making
        if self.key.kind == "decision" and self._is_aborted_by_hand:
            return Outcome.ABORTED
        version = None if self.value is None else self.value.get("transaction_version")
        return outcome_of(self.producer_epoch, version, self.marker)

    @property
    def _is_aborted_by_hand(self) -> bool:
        """Whether its first marker is an ABORT with its own epoch, which from version 2 no coordinator writes, but `kafka-transactions.sh
        abort` does. A decision is closed by it: nobody acts on one before its COMMIT is the first marker that he reads. Of a part it
        says nothing, since what became of its rows stands on other partitions."""
        marker = self.marker
        return marker is not None and marker.type is MarkerType.ABORT and marker.producer_epoch == self.producer_epoch


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """A decision read from the log and the offset of its first record."""

    decision: Decision
    offset: int


@dataclass(slots=True)
class LogView:
    """What has been read so far of the records of one write id (of all, where ``write_id`` is None).

    Fed with chunks in offset order from anywhere in the partition; keeps every record of ours that compaction left, and
    every control batch of the ``watched`` producer ids, whose records it may have taken.
    """

    write_id: str | None
    next_offset: int = 0
    watched: frozenset[int] = frozenset()
    log_start_offset: int = 0
    markers: list[Marker] = field(default_factory=list)
    _records: dict[LogKey, list[LoggedRecord]] = field(default_factory=dict)
    _pending: dict[int, list[LoggedRecord]] = field(default_factory=dict)

    def feed(self, entries: Iterable[ReadRecord | Marker], next_offset: int, log_start_offset: int) -> None:
        for entry in entries:
            if entry.offset < self.next_offset:
                continue  # a fetch begins at the start of the batch that holds the offset
            if isinstance(entry, Marker):
                for record in self._pending.pop(entry.producer_id, ()):
                    record.marker = entry
                if entry.producer_id in self.watched:
                    self.markers.append(entry)
            else:
                self._add(entry)
        self.next_offset = max(self.next_offset, next_offset)
        self.log_start_offset = log_start_offset

    def _add(self, entry: ReadRecord) -> None:
        key = parse_key(entry.key)
        if key is None or (self.write_id is not None and key.write_id != self.write_id):
            return
        record = LoggedRecord(
            key=key,
            offset=entry.offset,
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            value=None if entry.value is None else parse_value(entry.value, entry.offset),
            transactional=entry.transactional,
        )
        self._records.setdefault(key, []).append(record)
        if entry.transactional:
            self._pending.setdefault(entry.producer_id, []).append(record)

    def restart(self) -> None:
        """Forget all and begin at the start of the partition again."""
        self.next_offset, self.log_start_offset = 0, 0
        self.markers.clear()
        self._records.clear()
        self._pending.clear()

    def forget_superseded(self) -> None:
        """Keep of decisions and done records what compaction would keep, and no other record: for a reader that goes on for weeks."""
        newest: dict[tuple[str, str], int] = {}
        for key in self._records:
            if key.kind == "decision" and key.rest == (0,):
                committed = self._newest_committed(key)
                newest[key.write_id, key.query_id] = -1 if committed is None else committed.offset
        kept: dict[LogKey, list[LoggedRecord]] = {}
        for key, records in self._records.items():
            if key.kind == "decision":
                floor = newest.get((key.write_id, key.query_id), -1)
                records = [record for record in records if record.offset >= floor]
            elif key.kind == "done":
                records = records[-1:]
            else:
                continue
            if records:
                kept[key] = records
        self._records = kept
        self._pending = {
            producer_id: decisions
            for producer_id, records in self._pending.items()
            if (decisions := [record for record in records if record.key.kind == "decision"])
        }

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found; every plan leaves a barrier, so that of a write id which was ever planned there is something."""
        return not self._records

    def write_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key.write_id for key in self._records))

    def query_ids(self, write_id: str) -> tuple[str, ...]:
        """Query ids under which a decision was ever written, in log order."""
        return tuple(
            dict.fromkeys(key.query_id for key in self._records if key.kind == "decision" and key.write_id == write_id)
        )

    def newest_decision(self, write_id: str, query_id: str) -> LoggedDecision | None:
        """The newest decision whose COMMIT marker was read, None where there is none or a tombstone stands above it."""
        first = self._newest_committed(LogKey("decision", write_id, query_id, (0,)))
        if first is None or first.value is None:
            return None
        count, nonce = first.value["count"], first.value["nonce"]
        pieces = [first.value["body"]]
        for number in range(1, count):
            key = LogKey("decision", write_id, query_id, (number,))
            matching = [
                record
                for record in self._records.get(key, ())
                if record.value is not None and record.value["nonce"] == nonce and record.outcome is Outcome.COMMITTED
            ]
            if not matching:
                raise WriteRefusedError(
                    "COMMIT_LOG_CORRUPT",
                    f"piece {number + 1} of {count} of the decision at offset {first.offset} for write id {write_id!r} "
                    "is missing from the commit log; it was deleted or not compacted as it should be",
                )
            assert matching[-1].value is not None
            pieces.append(matching[-1].value["body"])
        return LoggedDecision(_parse_decision(json.loads("".join(pieces))), first.offset)

    def undecided(self, write_id: str, query_id: str) -> Sequence[LoggedRecord]:
        """First records of decisions above the newest committed one whose transactions are open or unresolved."""
        key = LogKey("decision", write_id, query_id, (0,))
        newest = self._newest_committed(key)
        floor = -1 if newest is None else newest.offset
        return [
            record
            for record in self._records.get(key, ())
            if record.offset > floor and record.outcome in (Outcome.OPEN, Outcome.UNRESOLVED)
        ]

    def decision_at(self, write_id: str, query_id: str, offset: int) -> LoggedRecord | None:
        """The first record of the decision that begins at an offset."""
        records = self._records.get(LogKey("decision", write_id, query_id, (0,)), ())
        return next((record for record in records if record.offset == offset), None)

    def nonces_not_aborted(self, write_id: str, query_id: str) -> frozenset[str]:
        """The nonces of all decisions that are committed, or of which the log does not prove that they are not."""
        records = self._records.get(LogKey("decision", write_id, query_id, (0,)), ())
        return frozenset(
            str(record.value["nonce"])
            for record in records
            if record.value is not None and record.outcome is not Outcome.ABORTED
        )

    def done_nonce(self, write_id: str, query_id: str) -> str | None:
        """The nonce named by the newest done record, whoever wrote it: a hint."""
        done = self.done_fields(write_id, query_id)
        return None if done is None else str(done.get("nonce"))

    def done_fields(self, write_id: str, query_id: str) -> dict[str, Any] | None:
        records = self._records.get(LogKey("done", write_id, query_id, ()), ())
        return records[-1].value if records else None

    def part_at(self, write_id: str, query_id: str, partition: int, offset: int) -> LoggedRecord | None:
        records = self._records.get(LogKey("part", write_id, query_id, (partition,)), ())
        return next((record for record in records if record.offset == offset), None)

    def first_marker(self, producer_id: int, after_offset: int) -> Marker | None:
        """The first control batch of a watched producer id after an offset."""
        return next(
            (marker for marker in self.markers if marker.producer_id == producer_id and marker.offset > after_offset),
            None,
        )

    def newest_parts(self, write_id: str, query_id: str) -> dict[int, LoggedRecord]:
        """Spark partition to its newest part record, whatever became of it."""
        return {
            key.rest[0]: records[-1]
            for key, records in self._records.items()
            if key.kind == "part" and (key.write_id, key.query_id) == (write_id, query_id)
        }

    def attempted_query_ids(self, write_id: str) -> tuple[str, ...]:
        """Query ids under which an attempt ever left a part record, decided or not, in log order."""
        return tuple(
            dict.fromkeys(key.query_id for key in self._records if key.kind == "part" and key.write_id == write_id)
        )

    def newer_committed_part(self, write_id: str, query_id: str, partition: int, offset: int) -> bool:
        """Whether compaction may have dropped a committed part at ``offset`` because a newer committed one stands.

        Any COMMIT marker counts here, whatever its epoch: in doubt the part is called replaced, which ends loudly."""
        records = self._records.get(LogKey("part", write_id, query_id, (partition,)), ())
        return any(
            record.offset > offset and record.marker is not None and record.marker.type is MarkerType.COMMIT
            for record in records
        )

    def _newest_committed(self, key: LogKey) -> LoggedRecord | None:
        committed = [record for record in self._records.get(key, ()) if record.outcome is Outcome.COMMITTED]
        return committed[-1] if committed else None
