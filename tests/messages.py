"""Sample values for the templates of errors.toml, and the errors and texts that they make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kafka_eos_sink.commit.refusals import refused, text
from kafka_eos_sink.commit.transactional_id import BATCH_QUERY_ID
from kafka_eos_sink.commit.values import (
    DEFAULT_TOPIC,
    BatchIdentity,
    Decision,
    OffsetRange,
    PreparedTransaction,
    ResolveRequest,
    Write,
)
from kafka_eos_sink.error_table import table
from kafka_eos_sink.errors import Job, KafkaEosError
from kafka_eos_sink.protocol.identity import ProducerIdentity
from tests.runs import RANDOM, run_of

SERVERS = "--bootstrap-servers localhost:9092"
QUERY = "6c1f0a52-9d0e-4a57-8a0e-1b2c3d4e5f60"
WRITES = {
    Job.BATCH: Write("kafka-eos/nightly orders/orders", DEFAULT_TOPIC, SERVERS),
    Job.RANDOM: Write(RANDOM, DEFAULT_TOPIC, SERVERS),
    Job.STREAM: Write(f"kafka-eos-{QUERY}", DEFAULT_TOPIC, SERVERS),
}
"""A write of each kind of job."""
NUMBERS = (
    "age",
    "elapsed",
    "floor",
    "largest",
    "limit",
    "next_version",
    "offset",
    "producer_id",
    "ranges",
    "rows",
    "seconds",
    "start",
    "version",
)
TEXTS = (
    *(
        "aborted",
        "again",
        "as_n",
        "asked",
        "before",
        "began",
        "begins",
        "cause",
        "count",
        "differs",
        "end_offset",
        "ends_at",
        "expected",
        "group_id",
    ),
    *(
        "failed",
        "failure",
        "first",
        "format",
        "found",
        "held",
        "hint",
        "holds",
        "id_option",
        "known",
        "later",
        "missing",
    ),
    *("newest_format", "not_copied", "partition", "partitions", "pending", "piece", "pieces", "query_id"),
    *(
        "ids",
        "producer_id",
        "read",
        "records",
        "state",
        "step",
        "tasks",
        "this",
        "timeout_ms",
        "topic",
        "topics",
        "transactional_id",
        "transactions",
    ),
    *(
        "change",
        "checkpoint",
        "compared",
        "continues",
        "do",
        "expiration",
        "follows",
        "has",
        "longest",
        "lower",
        "members",
        "offsets",
        "old_query",
        "record",
        "who",
    ),
    *("address", "file", "given", "port", "used", "versions", "what", "where", "which", "why", "would", "wrote"),
)
COMMANDS = ("commands", "go_on", "instead", "this_command")
"""Fields that are a command, or end with one."""


def decision_of(write: Write, query_id: str, version: int = 42) -> Decision:
    """A decision of one transaction, whose rows are in orders-0."""
    identity = ProducerIdentity(
        transactional_id=f"{write.id}.1.0", producer_id=1004, producer_epoch=0, transaction_version=2
    )
    ranges = (OffsetRange(topic="orders", partition=0, first_offset=100, last_offset=12_444),)
    prepared = PreparedTransaction(partition=1, identity=identity, part_offset=7, rows=12_345, offsets=ranges)
    return Decision(
        write_id=write.id,
        query_id=query_id,
        version=version,
        nonce="n",
        driver=replace(identity, transactional_id=write.driver_id),
        topic="orders",
        schema="key string, value string",
        offsets_hash=None,
        transactions=(prepared,),
    )


def samples(job: Job) -> dict[str, Any]:
    """A value for every field that a caller can give."""
    write, query_id = WRITES[job], QUERY if job is Job.STREAM else BATCH_QUERY_ID
    decision = decision_of(write, query_id)
    command = write.command("resolve", "--version 42 --as committed")
    return {
        **{name: f"<{name}>" for name in TEXTS},
        **dict.fromkeys(NUMBERS, 7),
        **dict.fromkeys(COMMANDS, command),
        "otherwise": f"; run it again: {command}",
        "counted": text("counted_first", write=write) + " ",
        "connection": SERVERS,
        "write": write,
        "write_id": write.id,
        "decision": decision,
        "prepared": decision.transactions[0],
        "identity": decision.transactions[0].identity,
        "producer": (1004, 0),
        "part": decision.transactions[0].offsets[0],
        "batch": BatchIdentity(**decision.told, streaming=job is Job.STREAM),
        "request": ResolveRequest(run=run_of(write=write), query_id=query_id, version=41, resolution="committed"),
    }


def keys() -> Iterator[str]:
    """``CODE`` and ``CODE.case`` of every message that has templates."""
    for row in table().rows.values():
        for case in row.messages:
            yield f"{row.code}.{case}" if case else row.code


def sample(key: str, job: Job = Job.BATCH, **changes: Any) -> KafkaEosError:
    """The error of a message, with sample values."""
    return refused(key, **{**samples(job), **changes})
