"""Write the records of the commit log, and parse them without trust.

Keys are JSON arrays (kind, write id, query id, ...), so two different things never share a key. Values carry a format version; a decision
in a newer one is rejected. All records of a write id are in one partition, ``murmur2(W) mod 16``, which never changes (I13).

Anybody with the right to Write may append to the log. So `parse_key`, `parse_value` and `parse_decision` are the only places where its
bytes become known entries. They raise nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from functools import cache, lru_cache, partial
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from kafka_eos_sink.commit.steps import LogRecord
from kafka_eos_sink.commit.transactional_id import driver_transactional_id, parse
from kafka_eos_sink.commit.values import Decision, OffsetRange, merged
from kafka_eos_sink.commit.versions import VersionRange
from kafka_eos_sink.protocol.identity import is_topic_name
from kafka_eos_sink.protocol.wire_types import ZERO_UUID

FORMAT_VERSION = 3
"""Format 2 has no number of rows in its ranges. Format 1 has none either, and a row digest in each transaction of a decision."""
MAX_RECORD_BYTES = 500_000
"""A larger decision is cut into numbered records; below every usual max.message.bytes."""
LARGEST_BATCH_BYTES, LARGEST_BATCH_RECORDS = 1 << 20, 1_000
"""Limits of the sink's own batches, in all of its versions. Readers skip a larger batch."""

_TEXT = rb'"([^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*)"'
_KEY = re.compile(rb'\["(barrier|done|decision|part)",%s(?:,%s)?(?:,(0|[1-9]\d{0,9}))?\]' % (_TEXT, _TEXT))
_LARGEST_KEY_BYTES = 400_000
"""Two strings of 32,767 bytes, the limit of a transactional id, each byte of which may take six in JSON."""
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
_LARGEST = {
    "partition": 2**31 - 1,
    "producer_epoch": 2**15 - 1,
    "transaction_version": 2**7 - 1,
    "finished_ms": 253_402_300_799_999,  # the year 9999
}
"""Largest value by field: no request can carry a larger one."""

TOPIC_CONFIGURATION = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "60000",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _dump(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


def log_key(kind: str, write_id: str, *rest: str | int) -> bytes:
    """Return a record's key; ``rest`` is as in `LogKey`, after the query id."""
    return _dump([kind, write_id, *rest])


@lru_cache(maxsize=256)
def key_starts(write_id: str) -> tuple[bytes, ...]:
    """Return how every key of a write id begins."""
    return tuple(log_key(kind, write_id)[:-1] for kind in ("barrier", "done", "decision", "part"))


def _value(fields: dict[str, Any]) -> bytes:
    return _dump({"format": FORMAT_VERSION, **fields})


def barrier_record(write_id: str, nonce: str, topic_id: UUID = ZERO_UUID) -> LogRecord:
    """Return a barrier; by the log's topic id, later readers recognise a NEW LOG."""
    fields = {"nonce": nonce, "log": str(topic_id) if topic_id.int else None}
    return LogRecord(log_key("barrier", write_id), _value(fields))


def part_record(write_id: str, query_id: str, partition: int, version: int, task_attempt_id: int) -> LogRecord:
    key = log_key("part", write_id, query_id, partition)
    return LogRecord(key, _value({"version": version, "attempt": task_attempt_id}))


def done_record(decision: Decision, finished_ms: int) -> LogRecord:
    """Return a finished decision's done record: a hint, valid only for its nonce."""
    ranges: dict[str, dict[str, list[int]]] = {}
    for part in merged(part for prepared in decision.transactions for part in prepared.offsets):
        ranges.setdefault(part.topic, {})[str(part.partition)] = [part.first_offset, part.last_offset]
    fields = {
        "version": decision.version,
        "nonce": decision.nonce,
        "finished_ms": finished_ms,
        "rows": sum(prepared.rows for prepared in decision.transactions),
        "transactions": len(decision.transactions),
        "offsets": ranges if len(_dump(ranges)) <= MAX_RECORD_BYTES else {},
    }
    return LogRecord(log_key("done", decision.write_id, decision.query_id), _value(fields))


def decision_records(decision: Decision) -> tuple[LogRecord, ...]:
    """Return the decision as one record, or as numbered pieces that hold their count."""
    # In ASCII a character is a byte, and each piece is one Produce request, one after the other.
    body = json.dumps(decision, default=_written, separators=(",", ":"))
    pieces = [body[i : i + MAX_RECORD_BYTES] for i in range(0, len(body), MAX_RECORD_BYTES)]
    return tuple(
        LogRecord(
            log_key("decision", decision.write_id, decision.query_id, number),
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
    """Return the tombstones of all records of a finished write."""
    parts = [
        LogRecord(log_key("part", decision.write_id, decision.query_id, prepared.partition), None)
        for prepared in decision.transactions
    ]
    chunks = [LogRecord(record.key, None) for record in decision_records(decision)]
    return (*parts, *chunks, LogRecord(log_key("barrier", decision.write_id), None))


def _written(value: Any) -> Any:
    """Return the fields of a part of a decision, of a range only their values."""
    # Not asdict(): it copies every value, and takes three times as long.
    found = {each.name: getattr(value, each.name) for each in fields_of(value)}
    return list(found.values()) if isinstance(value, OffsetRange | VersionRange) else found


@dataclass(frozen=True, slots=True)
class LogKey:
    """A parsed key; ``rest`` holds a decision piece's number or a part's partition."""

    kind: str
    write_id: str
    query_id: str
    rest: tuple[int, ...]

    @property
    def encoded(self) -> bytes:
        """The key itself, which has one spelling only; of any kind but a barrier."""
        return log_key(self.kind, self.write_id, self.query_id, *self.rest)


def parse_key(key: bytes) -> LogKey | None:
    """Parse the key of a record of the sink; return None for any other record."""
    # A long array compresses to a few bytes, and parsing it takes a thousand times as long as this check.
    if len(key) > _LARGEST_KEY_BYTES or not (found := _KEY.fullmatch(key)):
        return None
    kind, first, second, number = found.groups()
    try:
        write_id = _text(first)
        if kind == b"barrier" and second is number is None:
            return LogKey("barrier", write_id, "", ())
        query_id = _text(second)
        rest = () if number is None else (_reader(int, "partition")(int(number)),)
        # Spark's query ids are printable. Others could change how the commands appear that errors print.
        if kind != b"barrier" and len(rest) == (kind != b"done") and query_id.isprintable():
            return LogKey(kind.decode(), write_id, query_id, rest)
    except UNREADABLE:
        pass
    return None


def _text(quoted: bytes) -> str:
    """Return a text from between its quotes."""
    text = quoted.decode()
    if "\\" in text:
        text = json.loads(f'"{text}"')
        # Compaction compares bytes, so each key has one spelling only.
        if _dump(text)[1:-1] != quoted:
            raise ValueError("another spelling")
    return text


_VALUES: dict[str, dict[str, Any]] = {
    "barrier": {"nonce": str, "log": str | None},
    "part": {"version": int, "attempt": int},
    "done": {"version": int, "nonce": str, "finished_ms": int},
    "decision": {"nonce": str, "transaction_version": int, "count": int, "body": str},
}


def parse_value(key: LogKey, value: bytes) -> dict[str, Any] | None:
    """Parse a value; only its format if unknown, None for another program's value."""
    try:
        fields = json.loads(value.decode())
        version: int = _reader(int)(fields["format"])
        if not 1 <= version <= FORMAT_VERSION:
            return {"format": version}
        return {"format": version} | {
            name: _reader(of, name)(fields.get(name)) for name, of in _VALUES[key.kind].items()
        }
    except UNREADABLE:
        return None


def parse_decision(body: str, key: LogKey, carrier: tuple[int, int]) -> Decision | None:
    """Parse a decision; return None if the driver of its write id did not write it.

    Args:
        carrier: Producer id and epoch of the batch that holds it.
    """
    try:
        decision: Decision = typed(Decision, json.loads(body))
        driver = decision.driver
        is_own = (
            (decision.write_id, decision.query_id) == (key.write_id, key.query_id)
            and driver.carrier == carrier
            and driver.transactional_id == driver_transactional_id(key.write_id)
            # With an id of another writer, the next driver would commit that writer's transaction.
            and all(
                (found := parse(each.identity.transactional_id, key.write_id)) and found.partition == each.partition
                for each in decision.transactions
            )
            and decision.copies >= 0
        )
    except UNREADABLE:
        return None
    return decision if is_own else None


def typed(kind: Any, value: Any) -> Any:
    """Convert JSON to a dataclass, a tuple or a plain type; raise one of `UNREADABLE`."""
    return _reader(kind)(value)


_RANGE_FIELDS = "topic", "partition", "first_offset", "last_offset", "rows"


@cache
def _reader(kind: Any, name: str = "") -> Callable[[Any], Any]:
    """Return what converts the JSON of a field with this name."""
    if get_origin(kind) is tuple:
        (of, _) = get_args(kind)
        return partial(_tuple, _offset_range if of is OffsetRange else _reader(of))
    values = [each for each in get_args(kind) if get_origin(each) is tuple or is_dataclass(each)]
    if values:
        return partial(_or_none, _reader(values[0]))
    if is_dataclass(kind):
        return partial(_dataclass, kind, {name: _reader(of, name) for name, of in get_type_hints(kind).items()})
    kinds = frozenset(get_args(kind) or (kind,))
    return partial(_topic if name == "topic" else _plain, kinds, _LARGEST.get(name, 2**63 - 1))


def _tuple(read: Callable[[Any], Any], value: Any) -> tuple[Any, ...]:
    if type(value) is not list:
        raise TypeError("no list")
    return tuple(map(read, value))


def _or_none(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)


def _dataclass(kind: Any, readers: Mapping[str, Callable[[Any], Any]], value: Any) -> Any:
    if type(value) is list:
        fields = zip(readers.items(), value, strict=True)
        return kind(**{name: read(each) for (name, read), each in fields})
    # A field that earlier versions of the sink did not write may be None. No other field accepts that.
    return kind(**{name: read(value.get(name)) for name, read in readers.items()})


def _offset_range(value: Any) -> OffsetRange:
    # Nine tenths of a decision. This takes a third of the time of `_dataclass`.
    topic, partition, first, last, *more = value if type(value) is list else map(value.get, _RANGE_FIELDS)
    (rows,) = more or (None,)
    if not type(partition) is type(first) is type(last) is int or type(rows) not in (int, NoneType):
        raise TypeError("no offsets")
    if not (-1 <= partition < 2**31 and -1 <= first < 2**63 and -1 <= last < 2**63 and -1 <= (rows or 0) < 2**63):
        raise ValueError("out of range")
    return OffsetRange(topic=_known_topic(topic), partition=partition, first_offset=first, last_offset=last, rows=rows)


def _plain(kinds: Container[type], largest: int, value: Any) -> Any:
    if type(value) not in kinds:
        raise TypeError("another type")
    if type(value) is int and not -1 <= value <= largest:
        raise ValueError("out of range")
    if type(value) is str and not value.isascii():
        value.encode()  # Half a surrogate pair is no text.
    return value


def _topic(kinds: Container[type], largest: int, value: Any) -> Any:
    return None if value is None and type(None) in kinds else _known_topic(_plain(kinds, largest, value))


@lru_cache(maxsize=1_000)
def _known_topic(name: str) -> str:
    """Return one string for all equal names, of which a decision has thousands."""
    if not is_topic_name(name):
        raise ValueError("no topic")
    return name
