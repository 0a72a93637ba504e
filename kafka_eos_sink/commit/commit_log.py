"""The records of the commit log, and how the driver appends them.

Keys are JSON arrays (kind, write id, query id, ...), so two different things never share a key. Values carry a format version; a
newer one is rejected. All records of a write id lie in one partition, ``murmur2(W) mod 16``, which never changes (I13).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from kafka_eos_sink.commit.prepared_transaction import Decision, OffsetRange, PreparedTransaction
from kafka_eos_sink.commit.steps import (
    AddPartition,
    Append,
    Appended,
    AppendInTransaction,
    End,
    EndResult,
    EndTransactions,
    LogRecord,
    Procedure,
    WallClock,
    Warn,
)
from kafka_eos_sink.errors import KafkaEosError, WriteRefusedError
from kafka_eos_sink.protocol.error_codes import ErrorCode
from kafka_eos_sink.protocol.identity import ProducerIdentity

FORMAT_VERSION = 2
"""1 until the row digests went: the same fields, and a digest in each transaction of a decision."""
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


def done_record(decision: Decision, finished_ms: int, foreach_call: str | None = None) -> LogRecord:
    """Return the hint for people and the next run that a decision is finished. It counts only for the nonce that it names."""
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
    if foreach_call is not None:
        fields["foreach_call"] = foreach_call
    return LogRecord(done_key(decision.write_id, decision.query_id), _value(fields))


def skipped_record(write_id: str, query_id: str, done: dict[str, Any], foreach_call: str) -> LogRecord:
    """Return the done record of a version that a `foreachBatch` call has skipped."""
    return LogRecord(done_key(write_id, query_id), _value({**done, "foreach_call": foreach_call}))


def decision_records(decision: Decision) -> tuple[LogRecord, ...]:
    """Return the decision as one record, or as numbered records of one transaction that each hold their count."""
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
    """Return the tombstones of all records of a finished write."""
    parts = [
        LogRecord(part_key(decision.write_id, decision.query_id, prepared.partition), None)
        for prepared in decision.transactions
    ]
    chunks = [LogRecord(record.key, None) for record in decision_records(decision)]
    return (*parts, *chunks, LogRecord(barrier_key(decision.write_id), None))


def _decision_fields(decision: Decision) -> dict[str, Any]:
    fields = asdict(decision)
    for prepared in fields["transactions"]:
        prepared["offsets"] = [list(part.values()) for part in prepared["offsets"]]
    return fields


def parse_decision(fields: dict[str, Any]) -> Decision:
    transactions = tuple(
        PreparedTransaction(
            partition=entry["partition"],
            identity=ProducerIdentity(**entry["identity"]),
            part_offset=entry["part_offset"],
            rows=entry["rows"],
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
    """A parsed key; ``rest`` is () for done and barrier, (number,) for decision, (partition,) for part."""

    kind: str
    write_id: str
    query_id: str
    rest: tuple[int, ...]


def parse_key(key: bytes) -> LogKey | None:
    """Parse the key of one of our records; return None for any other record in the topic."""
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
    """Parse a record's value.

    Raises:
        WriteRefusedError: COMMIT_LOG_FORMAT for a newer format, COMMIT_LOG_CORRUPT for a value that is not ours.
    """
    try:
        fields = json.loads(value)
        version = fields["format"]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError):
        raise WriteRefusedError(
            "COMMIT_LOG_CORRUPT",
            f"the commit log holds a record at offset {offset} that this sink did not write; use a commit.log.topic of its own",
        ) from None
    if version not in (1, FORMAT_VERSION):
        raise WriteRefusedError(
            "COMMIT_LOG_FORMAT",
            f"the commit log record at offset {offset} has format {version}, this version reads 1 to {FORMAT_VERSION}; "
            "upgrade kafka-eos-sink on this driver",
        )
    return dict(fields)


def write_done(decision: Decision, foreach_call: str | None = None) -> Procedure[None]:
    """Append the done record of a finished decision; warn if that fails."""
    # Recovery is right without the record, so its failure must not fail the batch.
    now: int = yield WallClock()
    try:
        yield Append((done_record(decision, now, foreach_call),))
    except KafkaEosError as failure:
        yield Warn(
            f"version {decision.version} of write id {decision.write_id!r} is finished, but its done record could not be appended to "
            f"the commit log ({failure.code}); the next run proves it again"
        )


def append_in_transaction(
    driver: ProducerIdentity, records: tuple[LogRecord, ...], base_sequence: int
) -> Procedure[Appended]:
    """Append records in the driver's transaction, as its first records if ``base_sequence`` is 0."""
    # From version 2 on Produce itself adds the partition to the transaction (KIP-890).
    if driver.transaction_version < 2:
        error: int | None = yield AddPartition(driver)
        if error != ErrorCode.NONE:
            return Appended(error=error)
    appended: Appended = yield AppendInTransaction(driver, base_sequence, records)
    return appended


def forget(decision: Decision, driver: ProducerIdentity, base_sequence: int) -> Procedure[None]:
    """Append the tombstones of a finished write with a random id in one transaction; warn if that fails."""
    appended = yield from append_in_transaction(driver, tombstones(decision), base_sequence)
    if appended.error == ErrorCode.NONE:
        ends: tuple[EndResult, ...] = yield EndTransactions((End(identity=driver, commit=True),))
        if ends[0].error == ErrorCode.NONE:
            return
    yield Warn(
        f"the commit log keeps the records of the finished write {decision.write_id!r}: they could not be removed"
    )
